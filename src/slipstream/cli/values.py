"""Parsers and formatters of command-line values: durations, sizes, headers, times.

A parser raises ArgumentTypeError, which argparse reports with the name of the argument.
"""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime, timedelta

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_UNITS |= {"d": 86400 * 10**9, "w": 7 * 86400 * 10**9, "y": 365 * 86400 * 10**9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d|w|y)")
_MAX = 2**63 - 1  # of durations in nanoseconds and of sizes in the API: 292 years, 8 EiB
_MAX_PAYLOAD = 64 * 1024 * 1024  # no server accepts larger messages
_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def nanoseconds(text: str) -> int:
    """`1h30m`, `500ms`, `2d`; a bare number is seconds."""
    whole = f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text
    parts = _PART.findall(whole)
    if not parts or "".join(number + unit for number, unit in parts) != whole:
        raise argparse.ArgumentTypeError(f"duration must be like 30s, 1h30m, 500ms or 2d, got {text!r}")
    if sum(float(number) * _UNITS[unit] for number, unit in parts) >= _MAX:
        raise argparse.ArgumentTypeError(f"duration must be less than 292y, got {text!r}")
    return sum(round(float(number) * _UNITS[unit]) for number, unit in parts)


def duration(text: str) -> timedelta:
    """A duration."""
    return timedelta(microseconds=nanoseconds(text) // 1000)


def seconds(text: str) -> float:
    """A duration above 0, in seconds."""
    value = nanoseconds(text) / 10**9
    if value <= 0:
        raise argparse.ArgumentTypeError(f"duration must be more than 0, got {text!r}")
    return value


def size(text: str) -> int:
    """`1024`, `10KB`, `1MiB`, `2G`: in bytes, with K = 1024 as everywhere in NATS; -1 is no limit."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"size must be like 1024, 10KB, 1MiB or -1, got {text!r}")
    amount = float(found[1]) * 1024 ** ["", "k", "m", "g", "t"].index(found[2].lower())
    if abs(amount) >= _MAX:
        raise argparse.ArgumentTypeError(f"size must be less than 8388608T, got {text!r}")
    return int(amount)


def payload(text: str) -> int:
    """The size of a payload."""
    value = size(text)
    if not 0 <= value <= _MAX_PAYLOAD:
        raise argparse.ArgumentTypeError(f"size must be between 0 and 64MB, got {text!r}")
    return value


def count(text: str) -> int:
    """A whole number, at least 1."""
    return _whole(text, 1)


def whole(text: str) -> int:
    """A whole number, at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
    return int(text)


class Choice:
    """A parser of one of these words."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, text: str) -> str:
        if text not in self.names:
            listed = f"{', '.join(self.names[:-1])} or {self.names[-1]}"
            raise argparse.ArgumentTypeError(f"must be {listed}, got {text!r}")
        return text


def choice(*names: str) -> Choice:
    """A parser of one of these words."""
    return Choice(*names)


def header(text: str) -> tuple[str, str]:
    """`Name:value`."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"header must be Name:value, got {text!r}")
    return name.strip(), value.strip()


def headers(pairs: list[tuple[str, str]] | None) -> dict[str, list[str]]:
    """All values of each name, in order."""
    result: dict[str, list[str]] = {}
    for name, value in pairs or []:
        result.setdefault(name, []).append(value)
    return result


def pair(text: str) -> tuple[str, str]:
    """`key=value`."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"must be key=value, got {text!r}")
    return name, value


def moment(text: str) -> int:
    """A time as nanoseconds since the epoch: `2026-01-31T10:00:00Z`."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"time must be like 2026-01-31T10:00:00Z, got {text!r}") from None
    when = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    return ((when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)) * 1000


def past(text: str) -> int:
    """A time in the past, as nanoseconds since the epoch: how long ago, such as `10m`, or a time."""
    try:
        return max(time.time_ns() - nanoseconds(text), 1)
    except argparse.ArgumentTypeError:
        pass
    try:
        return moment(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"must be like 10m, 2h or 2026-01-31T10:00:00Z, got {text!r}") from None


def names(text: str) -> list[str]:
    """`a,b,c`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def show_time(nanos: int) -> str:
    """Nanoseconds since the epoch, formatted for users."""
    if nanos <= 0:
        return "never"
    when = datetime.fromtimestamp(nanos // 10**9, UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{nanos % 10**9 // 10**6:03d} UTC"


def rfc3339(nanos: int) -> str:
    """Nanoseconds since the epoch for JSON: a number of that size is rounded by programs that read it as a double."""
    when = datetime.fromtimestamp(nanos // 10**9, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{nanos % 10**9:09d}".rstrip("0").rstrip(".") + "Z"


def show_age(nanos: int, now: int | None = None) -> str:
    """How long ago a time was, for tables: `12 s ago`, `2 h ago`, `3 days ago`. Both in nanoseconds since the epoch."""
    if nanos <= 0:
        return "never"
    seconds = max((time.time_ns() if now is None else now) - nanos, 0) // 10**9
    for length, unit in ((86_400, "day"), (3600, "h"), (60, "min")):
        if seconds >= length:
            number = seconds // length
            return f"{number:,} {unit}{'s' if unit == 'day' and number > 1 else ''} ago"
    return f"{seconds} s ago"


def show_duration(value: timedelta) -> str:
    """A duration, formatted for users."""
    total = value // timedelta(milliseconds=1)
    if total == 0:
        return "0s"
    parts = []
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        number, total = divmod(total, length)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)


def show_size(value: int) -> str:
    """A size, formatted for users."""
    if value < 0:
        return "unlimited"
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{value} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def show_limit(value: int) -> str:
    """A limit, formatted for users; negative is unlimited."""
    return "unlimited" if value < 0 else f"{value:,}"
