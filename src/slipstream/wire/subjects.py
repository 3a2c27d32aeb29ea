"""Subject rules: which names are subjects, which are filters, and which filter matches which subject.

A subject is tokens joined by dots; a token is not empty and holds no white space (of ASCII; to a server, other white
space is a character like any other) and no NUL. In a filter a token may be `*` (one token) and the last may be `>` (one
or more).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slipstream.errors import UsageError

_TOKEN = r"[^ \t\n\v\f\r.\0\ud800-\udfff]+"  # a lone surrogate has no UTF-8 form
LONG = 32  # tokens: compiling a regular expression takes some microseconds for each
_SUBJECT = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*")


def is_valid_filter(subject: str) -> bool:
    """Whether `subject` can be subscribed to."""
    if not _SUBJECT.fullmatch(subject):
        return False
    return ">" not in subject.split(".")[:-1]


def is_valid_subject(subject: str) -> bool:
    """Whether `subject` can be published to: a filter without wildcards."""
    return _SUBJECT.fullmatch(subject) is not None and not has_wildcard(subject)


def has_wildcard(subject: str) -> bool:
    """Whether a token of `subject` is `*` or `>`. (`a*` is an ordinary token.)"""
    if "*" not in subject and ">" not in subject:
        return False
    tokens = subject.split(".")
    return "*" in tokens or ">" in tokens


def check_subject(subject: object) -> str:
    """Return `subject`; raise a UsageError if it cannot be published to. It comes from a program and may be anything:
    of a `str` compiled code would raise a TypeError before it is looked at."""
    if not isinstance(subject, str) or not is_valid_subject(subject):
        raise invalid_subject(subject)
    return subject


def invalid_subject(subject: object) -> UsageError:
    """The error for a subject that cannot be published to."""
    return UsageError(f"subject must be dot-separated tokens without spaces or wildcards, got {subject!r}")


def check_filter(subject: object) -> str:
    """Return `subject`; raise a UsageError if it cannot be subscribed to."""
    if not isinstance(subject, str) or not is_valid_filter(subject):
        raise UsageError(
            "subject filter must be dot-separated tokens without spaces, where a whole token may be '*' and the "
            f"last one '>', got {subject!r}"
        )
    return subject


def matches(pattern: str, subject: str) -> bool:
    """Whether the filter `pattern` covers the literal `subject`."""
    return _covers(pattern.split("."), subject.split("."))


def subset_of(inner: str, outer: str) -> bool:
    """Whether every subject that the filter `inner` covers is covered by `outer` as well."""
    inside, outside = inner.split("."), outer.split(".")
    if inside[-1] == ">" and outside[-1] != ">":  # `*` is one token, `>` may be more
        return False
    return _covers(outside, inside)


def _covers(pattern: list[str], tokens: list[str]) -> bool:
    count = len(tokens)
    for i, want in enumerate(pattern):
        if want == ">":
            return i < count
        if i >= count or want not in ("*", tokens[i]):
            return False
    return len(pattern) == count


def overlaps(one: str, other: str) -> bool:
    """Whether some subject is covered by both filters."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">" or b == ">":
            return True
        if a != b and a != "*" and b != "*":
            return False
    return len(left) == len(right)


def matcher(pattern: str) -> Callable[[str], bool]:
    """A fast predicate for one filter and many subjects."""
    if pattern == ">":
        return bool
    if not has_wildcard(pattern):
        return pattern.__eq__
    tokens = pattern.split(".")
    if len(tokens) > LONG:
        return lambda subject: _covers(tokens, subject.split("."))
    tail = tokens[-1] == ">"
    parts = [r"[^.]+" if t == "*" else re.escape(t) for t in (tokens[:-1] if tail else tokens)]
    regex = r"\.".join(parts) + (r"\..+" if tail else "")
    match = re.compile(regex, re.DOTALL).fullmatch
    return lambda subject: match(subject) is not None
