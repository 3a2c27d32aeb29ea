"""Times and durations of the API: nanoseconds from and to Python's types and the texts that Go writes.

Times are RFC 3339 texts, or Go's own format in old Direct Get replies. Durations have Go's text form (`1m30s`), which
headers carry. Every conversion to nanoseconds of the client and the server is one of these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from slipstream.errors import UsageError
from slipstream.wire import arguments

# Go's own format ends with the name of the zone (or its offset again), and with a clock reading within one process.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?"
    r" ?([Zz]|[+-](?:[01]\d|2[0-3]):?[0-5]\d)(?: [A-Za-z0-9+-]{1,6})?(?: m=\S+)?",
    re.ASCII,
)
ZERO_TEXT = "0001-01-01T00:00:00Z"
SECOND = 1_000_000_000  # in nanoseconds
ZERO = -62135596800 * SECOND  # Go's zero time, "never"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": SECOND, "m": 60 * SECOND}
_UNITS["h"] = 60 * _UNITS["m"]
_PART = re.compile(r"(\d*)(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LONGEST = 2**63 - 1
Duration = arguments.Duration  # what calls take for a duration: a timedelta, or a number of seconds
DURATION = arguments.DURATION
Instant = datetime | int  # and for an instant: a datetime with a time zone, or nanoseconds since the epoch
INSTANT = "a datetime with a time zone, or nanoseconds since the epoch"


class ExactDuration(timedelta):
    """A duration that is finer than a timedelta can hold: shown in microseconds, encoded as it was decoded.

    It is rounded away from zero, because 0 has a meaning of its own ("forever", "the default").
    """

    nanos: int

    @classmethod
    def of(cls, nanos: int) -> ExactDuration:
        exact = cls(microseconds=-(-nanos // 1000) if nanos > 0 else nanos // 1000)
        exact.nanos = nanos
        return exact

    def __reduce__(self) -> tuple[Any, ...]:
        return ExactDuration.of, (self.nanos,)


def nanoseconds(span: Duration, what: str = "duration") -> int:
    """A duration, or a number of seconds, in nanoseconds; raises UsageError for more than servers can count."""
    if isinstance(span, timedelta):
        nanos = span.nanos if isinstance(span, ExactDuration) else (span // _MICROSECOND) * 1000
    else:
        nanos = round(_seconds_of(span, what) * SECOND)
    if not ~_LONGEST <= nanos <= _LONGEST:
        raise UsageError(f"{what} must be at most {_LONGEST // SECOND} seconds (292 years), got {span!r}")
    return nanos


def duration(span: Duration, what: str) -> timedelta:
    """A duration, or a number of seconds; raises UsageError for anything else."""
    if isinstance(span, timedelta):
        return span
    try:
        return timedelta(seconds=_seconds_of(span, what))
    except OverflowError as exc:
        raise UsageError(f"{what} must be {DURATION}, at most 999999999 days, got {span!r}") from exc


def durations(spans: Iterable[Duration], what: str) -> tuple[timedelta, ...]:
    """Several durations; raises UsageError for anything else."""
    if not isinstance(spans, (list, tuple)):
        raise UsageError(f"{what} must be a sequence, each item {DURATION}, got {spans!r}")
    return tuple(duration(span, what) for span in spans)


def seconds(span: Duration, what: str) -> float:
    """A duration, or a number of seconds, in seconds; raises UsageError for anything else."""
    return span.total_seconds() if isinstance(span, timedelta) else float(_seconds_of(span, what))


def _seconds_of(span: float, what: str) -> float:
    try:
        is_number = not isinstance(span, bool) and isinstance(span, (int, float)) and math.isfinite(span)
    except OverflowError:  # an int beyond all floats
        is_number = False
    if not is_number:
        raise UsageError(f"{what} must be {DURATION}, got {span!r}")
    return span


def instant(when: Instant, what: str) -> int:
    """An instant in nanoseconds since the epoch; raises UsageError for what is none, or is one in an unknown zone."""
    if isinstance(when, datetime) and when.utcoffset() is not None:
        return nanoseconds_since_epoch(when)
    if isinstance(when, bool) or not isinstance(when, int):
        raise UsageError(f"{what} must be {INSTANT}, got {when!r}")
    return when


def to_datetime(nanos: int) -> datetime:
    """An instant as a datetime in UTC, to the microsecond: what comes after it in nanoseconds is cut."""
    return _EPOCH + timedelta(microseconds=nanos // 1000)


def to_datetime_or_none(nanos: int | None) -> datetime | None:
    """The same; None for none, and for the zero times of Go and of the epoch, which mean "never"."""
    return None if not nanos or nanos <= ZERO else to_datetime(nanos)


def nanoseconds_since_epoch(when: datetime) -> int:
    """An instant (a datetime with a time zone) in nanoseconds since 1970."""
    return ((when - _EPOCH) // _MICROSECOND) * 1000


@lru_cache(maxsize=256)
def _seconds(date: str, clock: str, zone: str) -> int:
    """A stream's messages share their seconds: the slow part is done once per second."""
    moment = datetime.fromisoformat(f"{date}T{clock}+00:00")
    offset = timedelta(0)
    if zone not in ("Z", "z"):
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        offset = -offset if zone[0] == "-" else offset
    return (moment - _EPOCH - offset) // timedelta(seconds=1)


def parse_time(text: str) -> int:
    """Nanoseconds since the epoch; raises ValueError for anything that is not a time."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"time must be RFC 3339, like 2022-08-06T00:29:27.587861324Z, got {text!r}")
    date, clock, fraction, zone = found.groups()
    return _seconds(date, clock, zone) * SECOND + (int(fraction.ljust(9, "0")) if fraction else 0)


@lru_cache(maxsize=256)
def _whole(second: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]  # strftime does not pad years before 1000
    except OverflowError as exc:
        raise UsageError(f"time must be in the years 1 to 9999, got {second} s since 1970") from exc


def format_time(nanos: int) -> str:
    """RFC 3339 in UTC, as Go writes it: trailing zeros of the fraction cut. Before the year 1 it is Go's zero time."""
    if nanos <= ZERO:
        return ZERO_TEXT
    second, fraction = divmod(nanos, SECOND)
    if not fraction:
        return f"{_whole(second)}Z"
    # The digits of the sum without the first: a quarter quicker than a format with leading zeros.
    return f"{_whole(second)}.{str(SECOND + fraction)[1:].rstrip('0')}Z"


def parse_duration(text: str) -> int:
    """Nanoseconds of a duration as Go writes it: `300ms`, `-1.5h`, `2h45m`; raises ValueError for anything else."""
    sign, rest = (-1 if text[:1] == "-" else 1), text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    total, at = 0, 0
    while at < len(rest):
        found = _PART.match(rest, at)
        if found is None or not (found[1] or found[2]):
            break
        unit = _UNITS[found[3]]
        total += int(found[1] or 0) * unit
        if found[2]:
            total += int(found[2]) * unit // 10 ** len(found[2])
        at = found.end()
    if not rest or at < len(rest) or total > _LONGEST:
        raise ValueError(f"duration must be like 1h30m, 90s or 1.5s, got {text!r}")
    return sign * total


def format_duration(nanos: int) -> str:
    """A duration as Go writes it."""
    if nanos < 0:
        return f"-{format_duration(-nanos)}"
    if nanos < SECOND:
        for unit in ("ms", "µs"):
            if nanos >= _UNITS[unit]:
                return f"{_fraction(nanos, _UNITS[unit])}{unit}"
        return f"{nanos}ns" if nanos else "0s"
    minutes, rest = divmod(nanos, _UNITS["m"])
    hours, minutes = divmod(minutes, 60)
    text = f"{_fraction(rest, SECOND)}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _fraction(nanos: int, unit: int) -> str:
    whole, rest = divmod(nanos, unit)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else str(whole)
