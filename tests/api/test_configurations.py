"""Configurations take what people write, keep one form of it, and refuse the rest where it is written."""

from __future__ import annotations

import dataclasses
import typing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipstream.api import (
    ConsumerConfig,
    ConsumerFields,
    ConsumerLimits,
    Placement,
    Retention,
    StreamConfig,
    StreamFields,
    StreamSource,
)
from slipstream.errors import UsageError
from slipstream.kv.bucket import BucketConfig, BucketFields, BucketSource
from slipstream.objects.info import ObjectStoreConfig, ObjectStoreFields

KINDS: list[Any] = [StreamConfig, StreamSource, ConsumerLimits, ConsumerConfig, BucketConfig, ObjectStoreConfig]
NAMED = {StreamConfig: "name", BucketConfig: "bucket", ObjectStoreConfig: "bucket"}


def fields_of(hint: Any) -> list[Any]:
    """Every field of every configuration with that type."""
    return [
        pytest.param(kind, field.name, id=f"{kind.__name__}.{field.name}")
        for kind in KINDS
        for field in dataclasses.fields(kind)
        if typing.get_type_hints(kind)[field.name] == hint
    ]


DURATIONS = fields_of(timedelta)
INSTANTS = fields_of(int | None)
TEXT_LISTS = fields_of(tuple[str, ...])


def made(kind: Any, **fields: Any) -> Any:
    return kind("n", **fields) if kind in NAMED else kind(**fields)


def test_the_walk_finds_the_fields() -> None:
    assert (len(DURATIONS), len(INSTANTS), len(TEXT_LISTS)) >= (12, 3, 3)


@pytest.mark.parametrize(("kind", "name"), DURATIONS)
def test_a_duration_is_a_timedelta_or_seconds(kind: Any, name: str) -> None:
    wanted = timedelta(seconds=5)
    for given in (5, 5.0, wanted):
        assert getattr(made(kind, **{name: given}), name) == wanted
        assert getattr(made(kind).replace(**{name: given}), name) == wanted
    for wrong in ("5s", None, True, [5], float("nan"), float("inf"), 1e20, datetime.now(UTC)):
        with pytest.raises(UsageError, match=f"^{name} must be a timedelta or a number of seconds"):
            made(kind, **{name: wrong})


@pytest.mark.parametrize(("kind", "name"), INSTANTS)
def test_an_instant_is_an_aware_datetime_or_nanoseconds(kind: Any, name: str) -> None:
    when = datetime(2026, 11, 16, 12, tzinfo=UTC)
    nanos = int(when.timestamp()) * 10**9
    for given in (when, nanos):
        assert getattr(made(kind, **{name: given}), name) == nanos
    assert getattr(made(kind, **{name: None}), name) is None
    for wrong in ("now", 1.5, True, datetime(2026, 11, 16), timedelta(1)):
        with pytest.raises(UsageError, match=f"^{name} must be a datetime with a time zone, or nanoseconds"):
            made(kind, **{name: wrong})


@pytest.mark.parametrize(("kind", "name"), TEXT_LISTS)
def test_one_subject_is_a_list_of_one(kind: Any, name: str) -> None:
    assert getattr(made(kind, **{name: "a.>"}), name) == ("a.>",)
    assert getattr(made(kind, **{name: ["a", "b"]}), name) == ("a", "b")
    for wrong in (5, ["a", 1], {"a": "b"}, b"a"):
        with pytest.raises(UsageError, match=f"^{name} must be a string or a sequence of strings"):
            made(kind, **{name: wrong})


def test_durations_in_a_list() -> None:
    assert ConsumerConfig(backoff=[1, timedelta(seconds=2)]).backoff == (timedelta(seconds=1), timedelta(seconds=2))
    wrong: Any
    for wrong in (5, "1s", ["1s"]):
        with pytest.raises(UsageError, match=r"^backoff must be"):
            ConsumerConfig(backoff=wrong)


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (StreamConfig, {"retention": "bogus"}, "retention must be limits, interest or workqueue, got 'bogus'"),
        (StreamConfig, {"storage": "tape"}, "storage must be file or memory, got 'tape'"),
        (StreamConfig, {"discard": None}, "discard must be old or new, got None"),
        (StreamConfig, {"compression": "zip"}, "compression must be none or s2, got 'zip'"),
        (StreamConfig, {"max_msgs": "5"}, "max_msgs must be an integer, got '5'"),
        (StreamConfig, {"allow_direct": "yes"}, "allow_direct must be true or false, got 'yes'"),
        (StreamConfig, {"placement": {}}, "placement must be a Placement, got {}"),
        (StreamConfig, {"mirror": "S"}, "mirror must be a StreamSource, got 'S'"),
        (StreamConfig, {"sources": ["S"]}, r"sources must be a sequence of StreamSource, got \['S'\]"),
        (StreamConfig, {"metadata": {"a": 1}}, "metadata must be a mapping of strings to strings"),
        (StreamConfig, {"name": 5}, "name must be a string, got 5"),
        (
            ConsumerConfig,
            {"ack_policy": "bogus"},
            "must be none, all, explicit or flow_control, got 'bogus'",
        ),
        (ConsumerConfig, {"deliver_policy": "first"}, "deliver_policy must be all, last, new, "),
        (ConsumerConfig, {"durable_name": None}, "durable_name must be a string, got None"),
        (BucketConfig, {"storage": "tape"}, "storage must be file or memory, got 'tape'"),
        (BucketConfig, {"history": "5"}, "history must be an integer, got '5'"),
        (BucketConfig, {"mirror": 5}, "mirror must be a bucket's name or a BucketSource, got 5"),
        (ObjectStoreConfig, {"storage": "tape"}, "storage must be file or memory, got 'tape'"),
    ],
)
def test_a_wrong_value_is_named_where_it_is_written(kind: Any, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        kind(**({NAMED[kind]: "n"} if kind in NAMED and NAMED[kind] not in fields else {}) | fields)


def test_names_are_positional() -> None:
    assert StreamConfig("ORDERS", subjects="orders.>") == StreamConfig(name="ORDERS", subjects=("orders.>",))
    assert ConsumerConfig("workers") == ConsumerConfig(durable_name="workers")
    assert BucketConfig("settings", sources="a") == BucketConfig(bucket="settings", sources=("a",))
    assert ObjectStoreConfig("files").bucket == "files"
    assert StreamSource("ORDERS").name == BucketSource("ORDERS").bucket == "ORDERS"
    assert StreamConfig("ORDERS").fields_set == {"name"}
    twice: Any = StreamConfig
    for wrong in (lambda: twice("A", "B"), lambda: twice("A", name="A"), lambda: twice("A", subject="a"), twice):
        with pytest.raises(TypeError):
            wrong()


def test_streams_allow_direct_gets_unless_a_server_says_otherwise() -> None:
    assert StreamConfig("S").allow_direct
    assert not StreamConfig("S", allow_direct=False).allow_direct
    assert not StreamConfig.from_dict({"name": "S"}).allow_direct  # absent on the wire means no, as for servers


def test_words_of_a_newer_server_are_kept() -> None:
    config = StreamConfig.from_dict({"name": "S", "retention": "someday"})
    assert config.replace(description="changed", placement=Placement(cluster="c")).retention == "someday"
    assert config.replace(retention=Retention.LIMITS).to_dict()["retention"] == "limits"


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        (StreamConfig, StreamFields, "name"),
        (ConsumerConfig, ConsumerFields, "durable_name"),
        (BucketConfig, BucketFields, "bucket"),
        (ObjectStoreConfig, ObjectStoreFields, "bucket"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_types_of_arguments_name_every_field(kind: Any, fields: Any, name: str) -> None:
    assert {name, *typing.get_type_hints(fields)} == {field.name for field in dataclasses.fields(kind)}
