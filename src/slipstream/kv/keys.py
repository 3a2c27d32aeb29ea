"""Names of buckets and keys, and filters over keys: what the document forbids is refused before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from slipstream.errors import UsageError
from slipstream.wire.subjects import matcher, overlaps, subset_of

_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
_TOKEN = re.compile(r"[-/_=a-zA-Z0-9]+")
_RESERVED = "_kv"


def check_key(key: str) -> str:
    """Return `key`, or raise a UsageError that says what a key may be."""
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key[0] == "." or key[-1] == "." or ".." in key:
        raise UsageError(
            f"bad key {key!r}: letters, digits and - / _ = . are allowed, not '.' at either end or twice in a row"
        )
    if key.startswith(_RESERVED):
        raise UsageError(f"bad key {key!r}: keys that begin with {_RESERVED!r} are reserved")
    return key


def check_pattern(pattern: str) -> str:
    """Return a filter over keys (empty: all of them), or raise a UsageError that says what it may be.

    A wildcard stands for whole tokens: `a*` would match nothing, silently.
    """
    if pattern == "":
        return ">"
    tokens = pattern.split(".") if isinstance(pattern, str) else [""]
    good = all(token == "*" or _TOKEN.fullmatch(token) for token in tokens[:-1])
    if not good or not (tokens[-1] in ("*", ">") or _TOKEN.fullmatch(tokens[-1])):
        raise UsageError(
            f"bad key filter {pattern!r}: a key is allowed, in which a whole token may be '*' and the last one '>'"
        )
    return pattern


def check_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Several filters, without those that others contain (a server refuses filters that overlap); none: all keys."""
    wanted = tuple(dict.fromkeys(check_pattern(pattern) for pattern in patterns)) or (">",)
    return tuple(one for one in wanted if not any(one != other and subset_of(one, other) for other in wanted))


def filters_for(patterns: Sequence[str]) -> tuple[str, ...]:
    """The filters to ask a server for: it refuses some that overlap, then it is asked for everything."""
    pairs = ((one, other) for at, one in enumerate(patterns) for other in patterns[:at])
    return (">",) if any(overlaps(one, other) for one, other in pairs) else tuple(patterns)


def any_of(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A predicate: whether one of the filters covers a key."""
    if len(patterns) == 1:
        return matcher(patterns[0])
    checks = [matcher(pattern) for pattern in patterns]
    return lambda key: any(check(key) for check in checks)
