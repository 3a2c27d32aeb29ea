"""Tests that run on the pure form only, by name, each with its reason; a run on the compiled form leaves them out.

Compiled code calls compiled code past Python, so a function or method that a test replaces is not noticed. Constants of
modules are (unless `Final`), and so is everything in modules that are not compiled (`tools/native.py` has the list).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import slipstream

REPLACED = "replaces a function or method of a compiled module"

SUBCLASS = "makes a subclass of a compiled class, or puts a stand-in into one"
# Folders that are not even imported.
PURE_FOLDERS = {
    "tests/server/simulation": SUBCLASS,  # a store on a simulated disk
}
# File -> its tests, or all of them ("").
PURE_ONLY: dict[str, dict[str, str]] = {
    "tests/wire/test_router.py": {
        "test_a_hundred_thousand_subscriptions_stay_quick": REPLACED,
    },
    "tests/server/engine/consumers/test_many_consumers.py": {
        "test_commit_looks_each_subject_up_once_for_all_consumers": SUBCLASS,
        "test_publish_looks_once_for_the_interest_of_all_consumers": SUBCLASS,
        "test_removals_of_a_commit_are_not_looked_through_by_each_consumer": REPLACED,
    },
    "tests/server/engine/consumers/test_many_pulls.py": {"": REPLACED},
    "tests/jetstream/reads/test_range_reader.py": {
        "test_columns_that_arrive_while_a_page_is_taken_come_with_the_next_take": SUBCLASS,
    },
    "tests/server/engine/reads/test_direct_get.py": {
        "test_requests_for_one_message_take_a_shorter_way_to_the_same_answer": REPLACED,
    },
    "tests/server/engine/reads/test_read_after_write.py": {
        "test_a_satisfied_min_last_seq_costs_nothing": "counts calls of Python functions",
    },
    "tests/server/engine/streams/test_expiry.py": {
        "test_a_marker_that_cannot_be_stored_keeps_no_other_from_it": REPLACED,
        "test_shorter_times_to_live_move_the_timer_without_a_search": REPLACED,
    },
    "tests/server/engine/streams/test_fast_batches.py": {
        "test_a_damaged_record_is_reported_and_not_counted": REPLACED,
    },
    "tests/server/engine/streams/test_features.py": {
        "test_a_damaged_message_leaves_with_its_neighbours": REPLACED,
    },
    "tests/server/engine/streams/test_long_rollups.py": {
        "test_record_of_a_stream_is_stored_once_for_the_rollups_of_a_group": REPLACED,
    },
    "tests/server/engine/streams/test_wildcard_checks.py": {
        "test_batch_that_names_one_wildcard_many_times_searches_it_once": REPLACED,
    },
    "tests/server/loop/test_driver.py": {
        "test_a_clock_that_is_set_forward_does_not_delay_timers": SUBCLASS,  # the simulator's
    },
    "tests/server/test_damage.py": {
        "test_a_batch_ends_with_an_error_at_a_damaged_message_and_not_before": REPLACED,
        "test_a_server_starts_on_damaged_messages": REPLACED,
    },
    "tests/server/test_server.py": {
        "test_an_error_in_handling_one_client_closes_that_one_only": REPLACED,
        "test_no_ack_leaves_before_the_sync_has_returned": REPLACED,
        "test_the_rest_of_a_purge_is_done_while_the_server_is_idle": REPLACED,
    },
    "tests/server/store/lmdb/test_lmdb.py": {
        "test_a_purge_that_cannot_be_completed_stops_no_commit": REPLACED,
        "test_a_read_that_another_one_ended_is_repeated_for_the_rows": REPLACED,
        "test_an_index_that_could_not_be_read_once_is_read_again": REPLACED,
        "test_rows_that_cannot_be_read_fail_the_group_and_not_the_store": REPLACED,
        "test_rows_that_could_not_be_read_once_are_read_again": SUBCLASS,
        "test_the_state_of_a_stream_whose_rows_cannot_be_read_is_known": REPLACED,
    },
    "tests/server/store/memory/test_memory.py": {
        "test_position_by_time_is_found_without_a_look_at_all_messages": REPLACED,
    },
    "tests/server/store/lmdb/test_expiry.py": {
        "test_expired_messages_are_found_without_reading_the_others": REPLACED,
    },
}


def reason(item: pytest.Item) -> str:
    """Why a test needs the pure form; empty if it does not."""
    file, _, name = item.nodeid.partition("::")
    known = PURE_ONLY.get(file, {})
    return known.get("", "") or known.get(name.partition("[")[0], "")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    folder = collection_path.relative_to(config.rootpath) if collection_path.is_relative_to(config.rootpath) else ""
    return True if slipstream.__compiled__ and str(folder) in PURE_FOLDERS else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if slipstream.__compiled__:
        left_out = [item for item in items if reason(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not reason(item)]


def pytest_report_header() -> str:
    form = "compiled" if slipstream.__compiled__ else "pure Python"
    return f"slipstream: {form}, {slipstream.__file__}"
