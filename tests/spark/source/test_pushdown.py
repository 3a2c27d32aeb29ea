"""Pushed-down filters: what is left to read never lacks a row that the filters keep."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from slipstream.spark.source.pushdown import MAX_SUBJECTS, SLACK, ColumnNames, narrow
from slipstream.wire.subjects import matches

SUBJECT, SEQUENCE = ("subject",), ("sequence",)
NAMES = ColumnNames()


def test_subjects() -> None:
    def left(*filters: Filter, given: tuple[str, ...] = ()) -> tuple[str, ...] | None:
        return narrow(filters, NAMES, given).subjects

    assert left(EqualTo(SUBJECT, "a.b")) == ("a.b",)
    assert left(In(SUBJECT, ("a.b", "a.c", "a.b"))) == ("a.b", "a.c")
    assert left(StringStartsWith(SUBJECT, "orders.eu.x")) == ("orders.eu.>",)
    assert left(StringStartsWith(SUBJECT, "orders")) is None
    assert left(StringStartsWith(SUBJECT, "a.*.x")) is None
    assert left(Not(EqualTo(SUBJECT, "a.b"))) is None
    assert left(EqualTo(("headers", "subject"), "a.b")) is None
    assert left(IsNotNull(SUBJECT)) is None
    assert left(EqualTo(SUBJECT, "a.b"), given=("a.*", "c")) == ("a.b",)
    assert left(EqualTo(SUBJECT, "x"), given=("a.*", "c")) == ()
    assert narrow([EqualTo(SUBJECT, "x")], NAMES, ("a.*",)).is_empty
    assert narrow([EqualTo(SUBJECT, "a.b"), EqualTo(SUBJECT, "a.c")], NAMES, ()).is_empty
    assert left(StringStartsWith(SUBJECT, "a.b."), given=("a.>",)) == ("a.b.>",)
    assert left(StringStartsWith(SUBJECT, "a."), given=("a.b.*", "c.>")) == ("a.b.*",)
    assert left(In(SUBJECT, tuple(f"s{n}" for n in range(MAX_SUBJECTS + 1)))) is None


def test_keys_of_a_bucket_are_subjects_with_a_prefix() -> None:
    names = ColumnNames(subject="key", sequence="revision", times=("created", ""), prefix="$KV.b.")
    assert narrow([EqualTo(("key",), "a")], names, ("$KV.b.>",)).subjects == ("$KV.b.a",)
    assert narrow([StringStartsWith(("key",), "a.b")], names, ("$KV.b.>",)).subjects == ("$KV.b.a.>",)


def test_times_are_taken_wider() -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    nanos = 1_769_860_800 * 1_000_000_000
    found = narrow([GreaterThan(("timestamp",), moment), LessThanOrEqual(("timestamp_ns",), nanos)], NAMES, ())
    assert (found.since, found.until) == (nanos - SLACK, nanos + SLACK)
    assert narrow([EqualTo(("timestamp",), moment)], NAMES, ()).since == nanos - SLACK
    assert narrow([GreaterThan(("timestamp",), "noon")], NAMES, ()).since == 0


TOKEN = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(TOKEN, min_size=1, max_size=3).map(".".join)
FILTERS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=2).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"])])
)
NUMBERS = st.integers(0, 30)
PUSHED: st.SearchStrategy[Filter] = st.one_of(
    st.builds(EqualTo, st.just(SUBJECT), SUBJECTS),
    st.builds(In, st.just(SUBJECT), st.lists(SUBJECTS, min_size=1, max_size=3).map(tuple)),
    st.builds(StringStartsWith, st.just(SUBJECT), SUBJECTS.map(lambda text: text + ".") | SUBJECTS),
    st.builds(EqualTo, st.just(SEQUENCE), NUMBERS),
    st.builds(In, st.just(SEQUENCE), st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
    st.builds(GreaterThan, st.just(SEQUENCE), NUMBERS),
    st.builds(GreaterThanOrEqual, st.just(SEQUENCE), NUMBERS),
    st.builds(LessThan, st.just(SEQUENCE), NUMBERS),
    st.builds(LessThanOrEqual, st.just(SEQUENCE), NUMBERS),
)


def keeps(one: Filter, subject: str, seq: int) -> bool:
    """What Spark makes of a filter."""
    value = subject if getattr(one, "attribute", ()) == SUBJECT else seq
    match one:
        case EqualTo(_, wanted):
            return bool(value == wanted)
        case In(_, wanted):
            return value in wanted
        case StringStartsWith(_, wanted):
            return str(value).startswith(wanted)
        case GreaterThan(_, wanted):
            return bool(value > wanted)
        case GreaterThanOrEqual(_, wanted):
            return bool(value >= wanted)
        case LessThan(_, wanted):
            return bool(value < wanted)
        case LessThanOrEqual(_, wanted):
            return bool(value <= wanted)
    raise AssertionError(one)


@settings(deadline=None, max_examples=300)
@given(st.lists(PUSHED, max_size=4), st.lists(FILTERS, max_size=2), SUBJECTS, st.integers(1, 30))
def test_no_row_is_lost(filters: list[Filter], given: list[str], subject: str, seq: int) -> None:
    if given and not any(matches(one, subject) for one in given):
        return
    if not all(keeps(one, subject, seq) for one in filters):
        return
    left = narrow(filters, NAMES, tuple(given))
    assert not left.is_empty
    assert left.first <= seq
    assert not left.last or seq <= left.last
    assert left.subjects is None or any(matches(one, subject) for one in left.subjects)
