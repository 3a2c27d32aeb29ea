"""Patterns of schedules: which moment comes next."""

from __future__ import annotations

import pytest

from slipstream.api import format_time, parse_time
from slipstream.server.engine.streams.cron import _calendar, next_moment, time_zone


def following(pattern: str, after: str, zone: str = "", *, now: str = "") -> str:
    moment = next_moment(pattern, time_zone(zone) if zone else None, parse_time(after), parse_time(now or after))
    assert parse_time(moment.text) == moment.when
    return format_time(moment.when)


@pytest.mark.parametrize(
    ("pattern", "after", "expected"),
    [
        ("@yearly", "2024-02-28T12:00:00Z", "2025-01-01T00:00:00Z"),
        ("@annually", "2024-12-31T23:59:59.9Z", "2025-01-01T00:00:00Z"),
        ("@monthly", "2024-02-28T12:00:00Z", "2024-03-01T00:00:00Z"),
        ("@weekly", "2024-02-28T12:00:00Z", "2024-03-03T00:00:00Z"),
        ("@daily", "2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z"),
        ("@midnight", "2024-02-27T23:59:59Z", "2024-02-28T00:00:00Z"),
        ("@hourly", "2024-02-28T12:34:56Z", "2024-02-28T13:00:00Z"),
        ("* * * * * *", "2024-02-28T12:34:56.7Z", "2024-02-28T12:34:57Z"),
        ("*/15 * * * * *", "2024-02-28T12:34:46Z", "2024-02-28T12:35:00Z"),
        ("30 10-12/2,40 * * * ?", "2024-02-28T12:12:31Z", "2024-02-28T12:40:30Z"),
        ("0 50/4 * * * *", "2024-02-28T12:54:00Z", "2024-02-28T12:58:00Z"),
        ("0 0 0 29 2 *", "2024-02-29T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 9 * * Mon-Fri", "2024-03-01T10:00:00Z", "2024-03-04T09:00:00Z"),
        ("0 0 0 13 * FRI", "2024-03-01T10:00:00Z", "2024-03-08T00:00:00Z"),  # one of both is enough
        ("0 0 0 */2 * fri", "2024-03-01T10:00:00Z", "2024-03-03T00:00:00Z"),  # a step is a choice
        ("0 0 0 1 JAN,jul *", "2024-03-01T10:00:00Z", "2024-07-01T00:00:00Z"),
        ("@every 90s", "2024-03-01T10:00:00.4Z", "2024-03-01T10:01:30Z"),
        ("@every 1h", "2024-03-01T10:00:00.5Z", "2024-03-01T11:00:01Z"),
        ("@at 2024-03-01T10:00:00.25+01:00", "2030-01-01T00:00:00Z", "2024-03-01T09:00:00.25Z"),
    ],
)
def test_the_next_moment(pattern: str, after: str, expected: str) -> None:
    assert following(pattern, after) == expected


def test_missed_times_are_skipped() -> None:
    late = "2024-03-01T10:20:30.2Z"
    assert following("@every 10m", "2024-03-01T09:00:00Z", now=late) == "2024-03-01T10:30:30Z"
    assert following("0 */7 * * * *", "2024-03-01T09:00:00Z", now=late) == "2024-03-01T10:21:00Z"


def test_a_calendar_follows_the_clocks_of_its_zone() -> None:
    """Clocks go forward on 2024-03-31 and back on 2024-10-27, at 1:00 UTC."""
    assert following("0 0 8 * * *", "2024-03-30T12:00:00Z", "Europe/Berlin") == "2024-03-31T06:00:00Z"
    assert following("0 30 2 * * *", "2024-03-30T12:00:00Z", "Europe/Berlin") == "2024-04-01T00:30:00Z"
    assert following("0 30 2 * * *", "2024-10-26T12:00:00Z", "Europe/Berlin") == "2024-10-27T00:30:00Z"
    assert following("0 30 2 * * *", "2024-10-27T00:30:00Z", "Europe/Berlin") == "2024-10-27T01:30:00Z"
    assert following("0 0 0 * * *", "2024-10-27T12:00:00Z", "UTC") == "2024-10-28T00:00:00Z"
    moment = next_moment("@daily", time_zone("America/New_York"), parse_time("2024-07-01T12:00:00Z"), 0)
    assert moment.text == "2024-07-02T00:00:00-04:00"


@pytest.mark.parametrize(
    "pattern",
    [
        "@never", "@at 2024-03-01", "@at ", "@every 1", "@every 999ms", "@every -5s", "* * * * *", "* * * * * * *",
        "60 * * * * *", "* * 24 * * *", "* * * 0 * *", "* * * * 13 *", "* * * * * 7", "a * * * * *", "1-2-3 * * * * *",
        "1/2/3 * * * * *", "5-1 * * * * *", "*/0 * * * * *", "-1 * * * * *", "0 0 0 31 2 *", ", * * * * *",
        "* * * * foo *", "1_0 * * * * *",
    ],
)  # fmt: skip
def test_invalid_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        following(pattern, "2024-03-01T10:00:00Z")


def test_only_calendars_have_zones_and_only_those_that_exist() -> None:
    for pattern in ("@every 1s", "@at 2024-03-01T10:00:00Z"):
        with pytest.raises(ValueError, match="time zone"):
            following(pattern, "2024-03-01T10:00:00Z", "UTC")
    for name in ("", "Mars/Base", "../etc/passwd", "Europe"):
        with pytest.raises(ValueError, match="time zone"):
            time_zone(name)


def test_pattern_may_list_all_values_but_not_be_longer() -> None:
    fields = [range(60), range(60), range(24), range(1, 32), range(1, 13), range(7)]
    every = " ".join(",".join(map(str, field)) for field in fields)
    assert following(every, "2024-02-28T12:34:56.7Z") == "2024-02-28T12:34:57Z"
    cached = _calendar.cache_info().currsize
    with pytest.raises(ValueError, match="at most 1024 characters, got 20011"):
        following("0 0 0 * * " + "1," * 10_000 + "1", "2024-02-28T00:00:00Z")
    assert _calendar.cache_info().currsize == cached
