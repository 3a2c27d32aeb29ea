"""Which publishes may be sent again when their answer is missing, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from slipstream.api import StreamConfig, StreamInfo, StreamState
from slipstream.api.times import SECOND
from slipstream.jetstream import requests
from slipstream.jetstream.publish.repeats import is_repeatable, repeat_time


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, False),
        ({"msg_id": "1"}, True),
        ({"headers": {"Nats-Msg-Id": "1"}}, True),
        ({"headers": {"nats-msg-id": "1"}}, False),  # servers take it for another header
        ({"headers": {"X": "Nats-Msg-Id: 1"}}, False),
        ({"headers": {"Nats-Msg-Id": ""}}, False),
        ({"msg_id": "1", "expected_stream": "S"}, True),
        ({"msg_id": "1", "expected_last_seq": 0}, False),
        ({"msg_id": "1", "expected_last_subject_seq": 4}, False),
        ({"msg_id": "1", "expected_last_msg_id": "0"}, False),
        ({"msg_id": "1", "headers": {"Nats-Batch-Id": "b"}}, False),
    ],
    ids=str,
)
def test_only_messages_with_an_id_and_without_expectations_are_sent_again(
    options: dict[str, Any], wanted: bool
) -> None:
    assert is_repeatable(requests.publish("a", b"", **options).header) is wanted


def seconds(
    *, same: bool, elapsed: float = 1.0, header: bytes = b"", state: StreamState | None = None, **config: Any
) -> float:
    options = {"duplicate_window": timedelta(minutes=2), **config}
    state = state or StreamState(first_seq=5, first_ts=100 * SECOND, last_seq=9)
    info = StreamInfo(config=StreamConfig(name="S", **options), state=state, ts=110 * SECOND)
    return repeat_time(info, header, elapsed=elapsed, is_same_process=same)


def test_copies_are_sent_in_the_first_half_of_the_duplicate_window() -> None:
    assert seconds(same=True) == 60
    assert seconds(same=True, duplicate_window=timedelta(milliseconds=100)) == 0.05
    assert seconds(same=True, duplicate_window=timedelta()) == 0


@pytest.mark.parametrize(
    "config",
    [
        {"retention": "workqueue"},
        {"retention": "interest"},
        {"max_msgs_per_subject": 1},
        {"allow_rollup_hdrs": True},
        {"header": b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n"},
        {"max_msgs": 4, "elapsed": 11.0},
        {"max_bytes": 400, "elapsed": 11.0},
        {"max_age": timedelta(seconds=10), "elapsed": 11.0},
    ],
    ids=str,
)
def test_another_process_forgot_the_ids_of_messages_that_were_removed(config: dict[str, Any]) -> None:
    assert seconds(same=False, **config) == 0
    assert seconds(same=True, **config) == 60


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_age": timedelta(minutes=2)},
        {"max_msgs": 4, "elapsed": 9.0},  # the oldest message has been there for longer
        {"max_msgs": 4, "elapsed": 11.0, "state": StreamState(first_seq=1, last_seq=3)},  # none was ever removed
    ],
    ids=str,
)
def test_another_process_reads_the_ids_of_messages_that_stay(config: dict[str, Any]) -> None:
    assert seconds(same=False, **config) == 60
