"""Times of the API: RFC 3339 text, or Go's own format in old Direct Get replies, to nanoseconds since 1970 and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from slipstream.errors import UsageError

# Go's own format ends with the name of the zone (or its offset again), and with a clock reading within one process.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?"
    r" ?([Zz]|[+-](?:[01]\d|2[0-3]):?[0-5]\d)(?: [A-Za-z0-9+-]{1,6})?(?: m=\S+)?",
    re.ASCII,
)
ZERO_TEXT = "0001-01-01T00:00:00Z"
ZERO = -62135596800 * 1_000_000_000  # Go's zero time, "never"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000_000


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
        raise ValueError(f"bad time {text!r}, expected RFC 3339 such as 2022-08-06T00:29:27.587861324Z")
    date, clock, fraction, zone = found.groups()
    return _seconds(date, clock, zone) * _SECOND + (int(fraction.ljust(9, "0")) if fraction else 0)


@lru_cache(maxsize=256)
def _whole(second: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]  # strftime does not pad years before 1000
    except OverflowError as exc:
        raise UsageError(f"bad time {second} s since 1970: years 1 to 9999 are allowed") from exc


def format_time(nanos: int) -> str:
    """RFC 3339 in UTC, as Go writes it: trailing zeros of the fraction cut. Before the year 1 it is Go's zero time."""
    if nanos <= ZERO:
        return ZERO_TEXT
    second, fraction = divmod(nanos, _SECOND)
    text = _whole(second)
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else f"{text}Z"
