"""Times of the API: RFC 3339 text, or Go's own format in old Direct Get replies, to nanoseconds since the epoch and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))? ?(Z|z|[+-]\d\d:?\d\d)(?: [A-Z]{1,5})?(?: m=\S+)?"
)
ZERO_TEXT = "0001-01-01T00:00:00Z"
ZERO = -62135596800 * 1_000_000_000  # Go's zero time, "never"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000_000


@lru_cache(maxsize=256)
def _seconds(date: str, clock: str, zone: str) -> int:
    """A stream's messages share their seconds: the slow part is done once per second."""
    moment = datetime.fromisoformat(f"{date}T{clock}")
    offset = timedelta(0)
    if zone not in ("Z", "z"):
        digits = zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        offset = -offset if zone[0] == "-" else offset
    return (moment.replace(tzinfo=timezone(timedelta(0))) - _EPOCH - offset) // timedelta(seconds=1)


def parse_time(text: str) -> int:
    """Nanoseconds since the epoch; raises ValueError for anything that is not a time."""
    found = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"bad time {text!r}, expected RFC 3339 such as 2022-08-06T00:29:27.587861324Z")
    date, clock, fraction, zone = found.groups()
    return _seconds(date, clock, zone) * _SECOND + (int(fraction.ljust(9, "0")) if fraction else 0)


@lru_cache(maxsize=256)
def _whole(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")


def format_time(nanos: int) -> str:
    """RFC 3339 in UTC, as Go writes it: trailing zeros of the fraction cut."""
    second, fraction = divmod(nanos, _SECOND)
    if second <= ZERO // _SECOND:
        return ZERO_TEXT
    text = _whole(second)
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else f"{text}Z"
