"""Validation of keys and key filters: names that the specification forbids are rejected before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from slipstream.errors import UsageError
from slipstream.wire.subjects import matcher, overlaps, subset_of

_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
_TOKEN = re.compile(r"[-/_=a-zA-Z0-9]+")
_RESERVED = "_kv"


def check_key(key: str) -> str:
    """Return `key`, or raise a UsageError."""
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key[0] == "." or key[-1] == "." or ".." in key:
        raise UsageError(
            "key must consist of letters, digits and - / _ = . without '.' at either end or twice in a row, "
            f"got {key!r}"
        )
    if key.startswith(_RESERVED):
        raise UsageError(f"key must not begin with the reserved prefix {_RESERVED!r}, got {key!r}")
    return key


def check_pattern(pattern: str) -> str:
    """Return a key filter (empty: all keys), or raise a UsageError.

    A wildcard must be a whole token: a server takes `a*` literally, so it would match nothing, silently.
    """
    if pattern == "":
        return ">"
    tokens = pattern.split(".") if isinstance(pattern, str) else [""]
    good = all(token == "*" or _TOKEN.fullmatch(token) for token in tokens[:-1])
    if not good or not (tokens[-1] in ("*", ">") or _TOKEN.fullmatch(tokens[-1])):
        raise UsageError(
            f"key filter must be a key in which a whole token may be '*' and the last one '>', got {pattern!r}"
        )
    return pattern


def check_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Several filters, without those that others cover (servers reject overlapping filters); none: all keys."""
    wanted = tuple(dict.fromkeys(check_pattern(pattern) for pattern in patterns)) or (">",)
    return tuple(one for one in wanted if not any(one != other and subset_of(one, other) for other in wanted))


def filters_for(patterns: Sequence[str]) -> tuple[str, ...]:
    """The filters to send to a server: `>` if any overlap, because servers reject those. The client then filters."""
    pairs = ((one, other) for at, one in enumerate(patterns) for other in patterns[:at])
    return (">",) if any(overlaps(one, other) for one, other in pairs) else tuple(patterns)


def any_of(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A predicate: whether one of the filters matches a key."""
    if len(patterns) == 1:
        return matcher(patterns[0])
    checks = [matcher(pattern) for pattern in patterns]
    return lambda key: any(check(key) for check in checks)
