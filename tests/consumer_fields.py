"""Every field of a consumer's configuration with two values that differ from its default, for tests of comparisons."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from slipstream.api import ConsumerConfig

SECOND = timedelta(seconds=1)
PUSH, PULL = "push", "pull"


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """`also`: what a consumer with that value needs besides; `kinds`: of which servers accept one with that value.

    `is_open`: at its default the field leaves the choice to the server or to the client.
    """

    value: Any
    other: Any
    also: dict[str, Any] = dataclasses.field(default_factory=dict)
    kinds: tuple[str, ...] = (PUSH, PULL)
    is_open: bool = False


FIELDS = {
    "description": Field("one", "two"),
    "deliver_policy": Field("new", "last"),
    "opt_start_seq": Field(2, 3, {"deliver_policy": "by_start_sequence"}),
    "opt_start_time": Field(
        datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC), {"deliver_policy": "by_start_time"}
    ),
    "ack_policy": Field("none", "all"),
    "ack_wait": Field(5 * SECOND, 6 * SECOND, is_open=True),
    "max_deliver": Field(5, 6, is_open=True),
    "backoff": Field((SECOND, 2 * SECOND), (SECOND,), {"max_deliver": 5, "ack_wait": 9 * SECOND}),
    "filter_subject": Field("{}.a", "{}.b"),
    "filter_subjects": Field(("{}.a", "{}.b"), ("{}.a", "{}.c")),
    "replay_policy": Field("original", "instant"),
    "rate_limit_bps": Field(80_000, 90_000, kinds=(PUSH,)),
    "sample_freq": Field("50%", "60%"),
    "max_waiting": Field(5, 6, kinds=(PULL,), is_open=True),
    "max_ack_pending": Field(5, 6, is_open=True),
    "flow_control": Field(True, False, {"idle_heartbeat": 5 * SECOND}, kinds=(PUSH,)),
    "headers_only": Field(True, False),
    "max_batch": Field(5, 6, is_open=True),
    "max_expires": Field(5 * SECOND, 6 * SECOND),
    "max_bytes": Field(5_000, 6_000),
    "deliver_subject": Field("{}_to.x", "{}_to.y", kinds=(PUSH,), is_open=True),
    "deliver_group": Field("one", "two"),
    "idle_heartbeat": Field(5 * SECOND, 6 * SECOND, kinds=(PUSH,)),
    "inactive_threshold": Field(timedelta(hours=1), timedelta(hours=2), is_open=True),
    "num_replicas": Field(1, 3, is_open=True),
    "mem_storage": Field(True, False),
    "direct": Field(True, False, kinds=()),
    "sourcing": Field(True, False),
    "metadata": Field({"a": "b"}, {"a": "c"}),
    "pause_until": Field(datetime(2090, 1, 1, tzinfo=UTC), datetime(2091, 1, 1, tzinfo=UTC)),
    "priority_groups": Field(("one",), ("two",), {"priority_policy": "overflow"}, kinds=(PULL,)),
    "priority_policy": Field("overflow", "prioritized", {"priority_groups": ("one",)}, kinds=(PULL,)),
    "priority_timeout": Field(
        5 * SECOND,
        6 * SECOND,
        {"priority_groups": ("one",), "priority_policy": "pinned_client"},
        kinds=(PULL,),
        is_open=True,
    ),
    "min_last_seq": Field(1, 2, is_open=True),
    "unknown": Field({"a_newer_field": 1}, {"a_newer_field": 2}, kinds=()),
}
# The consumer is found by its name; that it is no durable is a test of its own.
NAMES = {"name", "durable_name"}

assert set(FIELDS) | NAMES == {field.name for field in dataclasses.fields(ConsumerConfig)}


def named(value: Any, name: str) -> Any:
    """A value with the name of a stream in its subjects."""
    if isinstance(value, tuple):
        return tuple(named(each, name) for each in value)
    return value.format(name) if isinstance(value, str) else value


def default_of(field: str) -> Any:
    return getattr(ConsumerConfig(), field)
