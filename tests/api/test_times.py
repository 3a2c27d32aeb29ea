"""Times of the API, to the nanosecond, both ways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipstream.api import format_duration, format_time, parse_duration, parse_time
from slipstream.api.times import ZERO, ZERO_TEXT
from slipstream.errors import UsageError

SECOND = 1_000_000_000
LAST = parse_time("9999-12-31T23:59:59.999999999Z")
MOMENT = 1659745767 * SECOND + 587861324


def test_both_formats_of_direct_get_are_read_to_the_nanosecond() -> None:
    assert parse_time("2022-08-06T00:29:27.587861324Z") == MOMENT
    assert parse_time("2022-08-06 00:29:27.587861324 +0000 UTC") == MOMENT


@pytest.mark.parametrize(
    "text",
    [
        "2022-08-06T00:29:27.587861324+00:00",
        "2022-08-06t00:29:27.587861324z",
        "2022-08-06T02:29:27.587861324+02:00",
        "2022-08-05T14:29:27.587861324-10:00",
        "2022-08-06T05:59:27.587861324+05:30",
        "2022-08-06 02:29:27.587861324 +0200 CEST",
        "2022-08-06 05:59:27.587861324 +0530 +0530",
        "2022-08-05 20:59:27.587861324 -0330 -0330",
        "2022-08-06 00:29:27.587861324 +0000 UTC m=+0.000012345",
    ],
)
def test_zones_and_spellings(text: str) -> None:
    assert parse_time(text) == MOMENT


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("1970-01-01T00:00:00.1Z", 100_000_000),
        ("2000-02-29T12:00:00Z", 951825600 * SECOND),
        ("0001-01-01T00:00:00Z", ZERO),
        ("0001-01-01T00:00:00.5Z", ZERO + SECOND // 2),
        ("0987-06-05T04:03:02Z", -31007044618 * SECOND),
        ("9999-12-31T23:59:59.999999999Z", 253402300799 * SECOND + 999_999_999),
    ],
)
def test_times_both_ways(text: str, nanos: int) -> None:
    assert parse_time(text) == nanos
    assert format_time(nanos) == text


def test_trailing_zeros_are_cut_as_go_cuts_them() -> None:
    assert format_time(1_500_000_000) == "1970-01-01T00:00:01.5Z"
    assert format_time(1_000_000_010) == "1970-01-01T00:00:01.00000001Z"
    assert format_time(10 * SECOND) == "1970-01-01T00:00:10Z"


@given(st.integers(ZERO, LAST))
@example(ZERO)
@example(ZERO + 1)
@example(-1)
@example(LAST)
def test_every_nanosecond_survives(nanos: int) -> None:
    text = format_time(nanos)
    assert parse_time(text) == nanos
    whole = datetime.fromisoformat(text[:19] + "+00:00")  # the standard library agrees to the second
    assert (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) == nanos // SECOND


def test_before_the_year_one_is_never() -> None:
    assert format_time(ZERO - 1) == format_time(ZERO - 10**30) == ZERO_TEXT
    assert parse_time("0001-01-01T00:00:00+01:00") == ZERO - 3600 * SECOND


def test_after_the_year_9999_is_the_callers_mistake() -> None:
    for nanos in (LAST + 1, 10**30):
        with pytest.raises(UsageError, match="years 1 to 9999"):
            format_time(nanos)


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2022-08-06", "2022-08-06T00:29:27", "2022-08-06T00:29Z", "2022-13-06T00:29:27Z",
        "2022-02-30T00:29:27Z", "2022-08-06T25:29:27Z", "2022-08-06T00:29:60Z", "2022-08-06T00:29:27.Z",
        "2022-08-06T00:29:27.1234567890Z", "2022-08-06T00:29:27+24:00", "2022-08-06T00:29:27+01:60",
        "0000-01-01T00:00:00Z", " 2022-08-06T00:29:27Z", "2022-08-06T00:29:27Z\n", "\uff12022-08-06T00:29:27Z",
        "2022-08-06T00:29:27.\u0665Z", "22-08-06T00:29:27Z", None, 5, b"2022-08-06T00:29:27Z",
    ],
)  # fmt: skip
def test_anything_else_is_a_value_error(text: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- the standard library words some of them
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("0s", 0),
        ("1ns", 1),
        ("1.5µs", 1_500),
        ("20ms", 20_000_000),
        ("1s", 10**9),
        ("1.5s", 1_500_000_000),
        ("1m0s", 60 * 10**9),
        ("2h45m0.25s", 9_900_250_000_000),
        ("-1m30s", -90 * 10**9),
    ],
)
def test_durations_are_written_and_read_as_go_does(text: str, nanos: int) -> None:
    assert format_duration(nanos) == text
    assert parse_duration(text) == nanos


@pytest.mark.parametrize(("text", "nanos"), [("0", 0), ("+5us", 5_000), ("1h30m", 5_400 * 10**9), (".5s", 5 * 10**8)])
def test_other_ways_to_write_a_duration_are_read(text: str, nanos: int) -> None:
    assert parse_duration(text) == nanos


@pytest.mark.parametrize("text", ["", "1", "s", ".s", "1s ", "1d", "--1s", "99999999h", "5m 3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration must be"):
        parse_duration(text)
