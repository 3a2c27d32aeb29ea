"""Schedule patterns: the next time of `@at` (once), `@every` (intervals) and cron expressions.

A cron expression has six fields: second, minute, hour, day of the month, month, day of the week; or it is one of the
usual names (`@daily`). The syntax is that of nats-server. Times are nanoseconds since 1970.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from slipstream.api.times import format_time, parse_duration, parse_time

_SECOND = 1_000_000_000
MAX_PATTERN = 1024  # characters: more than it takes to list all values of all fields
_YEARS = 5  # a pattern without a match within so many years has none
_LAST_YEAR = 9990  # that `datetime` can represent, with a margin
_NAMED = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MONTHS = dict(
    zip(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), range(1, 13), strict=True)
)
_DAYS = dict(zip(("sun", "mon", "tue", "wed", "thu", "fri", "sat"), range(7), strict=True))
_NO_NAMES: dict[str, int] = {}
_FIELDS = (
    (0, 59, _NO_NAMES),
    (0, 59, _NO_NAMES),
    (0, 23, _NO_NAMES),
    (1, 31, _NO_NAMES),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
)
_NUMBER = re.compile(r"\+?[0-9]{1,9}")
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


class Moment(NamedTuple):
    """When a schedule is due next."""

    when: int
    text: str  # the same, as nats-server writes it
    repeats: bool


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """The zone of that name; raises ValueError if there is none."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise ValueError(f"no time zone is called {name!r}") from exc


def next_moment(pattern: str, zone: tzinfo | None, after: int, now: int) -> Moment:
    """When the pattern is due next after `after`; times that were missed before `now` are skipped.

    Raises ValueError for what is no pattern. Only a calendar has a zone.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"pattern must have at most {MAX_PATTERN} characters, got {len(pattern)}")
    if pattern.startswith(("@at ", "@every ")) and zone is not None:
        raise ValueError("a time zone is for calendar patterns only")
    if pattern.startswith("@at "):
        if not _AT.fullmatch(pattern[4:]):
            raise ValueError(f"bad time {pattern[4:]!r}, expected RFC 3339")
        when = parse_time(pattern[4:].replace(",", "."))
        return Moment(when, format_time(when), repeats=False)
    if pattern.startswith("@every "):
        interval = parse_duration(pattern[7:])
        if interval < _SECOND:
            raise ValueError(f"interval must be at least 1 second, got {pattern[7:]!r}")
        when = _rounded(after) + interval
        if when < now:
            when = _rounded(now) + interval
        return Moment(when, format_time(when), repeats=True)
    calendar = _calendar(_NAMED.get(pattern, pattern))
    local = zone or UTC
    when = calendar.next(after, local)
    if when < now:
        when = calendar.next(_rounded(now), local)
    text = datetime.fromtimestamp(when // _SECOND, local).isoformat().replace("+00:00", "Z")
    return Moment(when, text, repeats=True)


def _rounded(time: int) -> int:
    return (time + _SECOND // 2) // _SECOND * _SECOND


class Calendar(NamedTuple):
    """The values that the fields match."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool  # one of the two day fields is `*` or `?`

    def next(self, after: int, zone: tzinfo) -> int:
        """The first time after `after` that matches all fields; raises ValueError if it is too far away."""
        at = after // _SECOND + 1
        last = min(_local(at, zone).year + _YEARS, _LAST_YEAR)
        while True:
            local = _local(at, zone)
            if local.year > last:
                raise ValueError(f"the pattern names no moment within {_YEARS} years")
            if local.month not in self.months:
                at = max(at + 1, _midnight(local.year + local.month // 12, local.month % 12 + 1, 1, zone))
            elif not self._has_day(local):
                tomorrow = local.date() + timedelta(days=1)
                at = max(at + 1, _midnight(tomorrow.year, tomorrow.month, tomorrow.day, zone))
            elif local.hour not in self.hours:
                at += 3600 - local.minute * 60 - local.second
            elif local.minute not in self.minutes:
                at += 60 - local.second
            elif local.second not in self.seconds:
                at += 1
            else:
                return at * _SECOND

    def _has_day(self, local: datetime) -> bool:
        by_month, by_week = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return (by_month and by_week) if self.any_day else (by_month or by_week)


def _local(second: int, zone: tzinfo) -> datetime:
    try:
        return datetime.fromtimestamp(second, zone)
    except (OverflowError, OSError) as exc:
        raise ValueError(f"{second} s after 1970 is beyond the calendar") from exc


def _midnight(year: int, month: int, day: int, zone: tzinfo) -> int:
    return int(datetime(year, month, day, tzinfo=zone).timestamp())


@lru_cache(maxsize=256)
def _calendar(pattern: str) -> Calendar:
    fields = pattern.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"bad pattern {pattern!r}: six fields are expected, or @at, @every or a name such as @daily")
    found = [_field(text, *bounds) for text, bounds in zip(fields, _FIELDS, strict=True)]
    second, minute, hour, day, month, weekday = (values for values, _ in found)
    return Calendar(second, minute, hour, day, month, weekday, any_day=found[3][1] or found[5][1])


def _field(text: str, low: int, high: int, names: dict[str, int]) -> tuple[frozenset[int], bool]:
    """The values that a field matches, and whether it is `*` or `?`."""
    found: set[int] = set()
    any_value = False
    for part in filter(None, text.split(",")):
        span, *steps = part.split("/")
        first, *ends = span.split("-")
        if len(steps) > 1 or len(ends) > 1:
            raise ValueError(f"each part of a field must have at most one '-' and one '/', got {text!r}")
        step = _number(steps[0], _NO_NAMES) if steps else 1
        if first in ("*", "?"):
            begin, end = low, high
            any_value = any_value or step == 1
        else:
            begin = _number(first, names)
            end = _number(ends[0], names) if ends else high if steps else begin
        if not low <= begin <= end <= high or step < 1:
            raise ValueError(f"field must be within {low} to {high}, got {text!r}")
        found.update(range(begin, end + 1, step))
    if not found:  # or years of seconds would be searched in vain
        raise ValueError(f"bad field {text!r}: it allows nothing")
    return frozenset(found), any_value


def _number(text: str, names: dict[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"bad number {text!r}")
    return int(text)
