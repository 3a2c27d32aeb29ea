"""Checks of arguments that every layer shares: numbers and times of waiting. Each raises a UsageError that names them.

A wrong type is reported where it was passed: further inside it would be a TypeError about code of ours.
"""

from __future__ import annotations

from datetime import timedelta

from slipstream.errors import UsageError

Duration = timedelta | float  # what calls take for a duration: a timedelta, or a number of seconds
DURATION = "a timedelta or a number of seconds"


def check_integer(value: object, what: str, *, least: int = 0) -> int:
    """Return `value`; raises UsageError if it is not an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{what} must be an integer of at least {least}, got {value!r}")
    return value


def check_seconds(value: Duration, what: str = "timeout", *, is_zero_allowed: bool = True) -> float:
    """A duration in seconds; raises UsageError if it is neither a timedelta nor a number, or is below 0.

    Every public call that takes a duration passes it through here, once: all code inside has seconds.
    """
    if type(value) is float and value > 0:  # the usual case, in a hot path
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not (seconds >= 0 if is_zero_allowed else seconds > 0):
        least = "0 or more" if is_zero_allowed else "more than 0"
        raise UsageError(f"{what} must be {DURATION}, {least}, got {value!r}")
    return seconds


def check_timeout(value: Duration | None, what: str = "timeout") -> float | None:
    """The same; None, which leaves it to a default, stays None."""
    return None if value is None else check_seconds(value, what)


def check_text(value: str, what: str) -> str:
    """Return `value`; raises UsageError if it is not a string, or cannot be sent (half of a surrogate pair)."""
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a string, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} must be text that can be encoded as UTF-8, got {value!r}") from None
    return value
