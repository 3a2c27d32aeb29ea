"""The fold of a snapshot: exact, or an error that says why the past is lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from slipstream.api import StreamConfig, StreamInfo, StreamState
from slipstream.errors import HistoryLostError
from slipstream.kv.entry import Entry, Operation
from slipstream.kv.snapshot import Fold, check_past, forgotten_of, with_forgotten


def entry(key: str, revision: int, operation: Operation = Operation.PUT) -> Entry[bytes]:
    return Entry("b", key, b"%d" % revision, revision, 0, 0, operation)


def fold(revision: int, *entries: Entry[bytes], history: int = 2) -> Fold[bytes]:
    made: Fold[bytes] = Fold("b", revision, history)
    made.feed(entries)
    return made


def test_the_last_entry_at_or_before_the_revision_counts() -> None:
    made = fold(4, entry("a", 1), entry("b", 2), entry("a", 3), entry("b", 4, Operation.DELETE), entry("a", 5))
    assert {key: found.revision for key, found in made.result().items()} == {"a": 3}


def test_a_key_written_later_had_no_value_if_all_its_entries_are_kept() -> None:
    assert fold(1, entry("a", 1), entry("late", 2)).result().keys() == {"a"}


def test_a_key_with_a_full_history_after_the_revision_has_lost_its_past() -> None:
    with pytest.raises(HistoryLostError, match="key 'a' was written 2 times since, and 2 entries are kept"):
        fold(1, entry("a", 2), entry("a", 3)).result()
    assert fold(1, entry("a", 2), entry("a", 3), history=0).result() == {}  # unlimited


def test_a_key_whose_first_kept_entry_is_a_mark_has_lost_its_past() -> None:
    with pytest.raises(HistoryLostError, match="left of key 'a' since is a mark"):
        fold(1, entry("a", 2, Operation.PURGE)).result()


def test_a_key_that_was_replaced_while_it_was_read_has_lost_its_past() -> None:
    """An entry at or before the revision was read, and perhaps a later one was removed before it could be."""
    with pytest.raises(HistoryLostError, match="key 'a' was replaced while it was read"):
        fold(3, entry("a", 1), entry("a", 4), entry("a", 5)).result()
    with pytest.raises(HistoryLostError, match="key 'a' was replaced while it was read"):
        fold(3, entry("a", 1), entry("a", 4, Operation.PURGE), history=8).result()
    assert fold(3, entry("a", 1), entry("a", 4)).result()["a"].delta == 1


def info(config: dict[str, Any], *, first: int = 1, last: int = 10, deleted: int = 0) -> StreamInfo:
    state = StreamState(first_seq=first, last_seq=last, num_deleted=deleted)
    return StreamInfo(config=StreamConfig(name="KV_b", **config), state=state, created=0, ts=10**12)


def test_a_revision_that_does_not_exist_yet_is_rejected() -> None:
    with pytest.raises(HistoryLostError, match="its newest revision is 10"):
        check_past("b", 11, info({}))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"max_age": timedelta(seconds=1)}, "keeps values for"),
        ({"allow_msg_ttl": True}, "may have a TTL"),
        ({"max_bytes": 100}, "size is limited"),
    ],
)
def test_a_past_that_limits_may_have_removed_is_rejected(config: dict[str, Any], why: str) -> None:
    check_past("b", 5, info(config))  # nothing was removed yet
    with pytest.raises(HistoryLostError, match=why):
        check_past("b", 5, info(config, first=3))
    check_past("b", 5, info({}, first=3))


def test_a_past_before_a_recorded_removal_is_rejected() -> None:
    config = with_forgotten(StreamConfig(name="KV_b"), 7)
    assert forgotten_of(config) == 7
    removed = StreamInfo(config=config, state=StreamState(first_seq=2, last_seq=10), created=0, ts=1)
    with pytest.raises(HistoryLostError, match="entries up to revision 7 were removed for good"):
        check_past("b", 6, removed)
    check_past("b", 7, removed)
