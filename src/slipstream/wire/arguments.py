"""Checks of arguments that every layer shares: numbers and times of waiting. Each raises a UsageError that names them.

A wrong type is told where it was passed: further inside it would be a TypeError about a line the caller never wrote.
"""

from __future__ import annotations

from slipstream.errors import UsageError


def check_integer(value: int, what: str, *, least: int = 0) -> int:
    """Return `value`; raises UsageError if it is not an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{what} must be an integer of at least {least}, got {value!r}")
    return value


def check_seconds(value: float, what: str = "timeout") -> float:
    """Return `value`; raises UsageError if it is not a number of seconds, 0 or more."""
    if value.__class__ is float and value >= 0:  # the usual case, in a hot path
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"{what} must be a number of seconds, 0 or more, got {value!r}")
    return value


def check_text(value: str, what: str) -> str:
    """Return `value`; raises UsageError if it is not a string, or cannot be sent (half of a surrogate pair)."""
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a string, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} must be a text that can be sent as UTF-8, got {value!r}") from None
    return value
