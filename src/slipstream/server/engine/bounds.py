"""Bounds on what one request may make the server compute.

A request is checked and carried out in one turn of the loop, in which no other client is served. What it lists is
therefore bounded, so that the turn stays below about 20 ms of CPU in pure Python; all work on a list is near linear.
nats-server has no such bounds (a goroutine of its own does the work there). Errors name the bound.

Comparing filters is near linear for filters as they are used. There are others (many stars in front of the tokens in
which they differ) for which no method is known that is: `MAX_STEPS` bounds the work on them instead of their number,
and `MAX_BRANCHES` the work of finding those that match a subject, which is done for every message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

from slipstream.errors import StreamInvalidConfigError
from slipstream.wire import SubjectSet

MAX_SUBJECTS = 2048  # of a stream
MAX_FILTERS = 4096  # of a consumer
MAX_TOKENS = 6144  # of all subjects of a stream, of all filters with wildcards of a consumer
MAX_SOURCES = 512
MAX_TRANSFORMS = 1024  # of all sources of a stream, or of its mirror
MAX_ENTRIES = 1024  # of every other list: back-off, priority groups, placement tags
MAX_METADATA_ENTRIES = 4096
MAX_TRANSFORM_SIZE = 32 * 1024  # characters of all subject transforms of a stream, republish among them
MAX_STEPS = 100_000
MAX_BRANCHES = 128  # nodes that are visited to match one subject, some 50 ns each: walks count subjects


def check_count(what: str, items: Any, most: int) -> None:
    """Raise if a list of a request, decoded or not, is too long. What is no list is left to the decoder."""
    if isinstance(items, Sized) and not isinstance(items, str) and len(items) > most:
        raise StreamInvalidConfigError(f"{what} must have at most {most} entries, got {len(items)}")


def check_tokens(what: str, subjects: Iterable[Any]) -> None:
    """Raise if the subjects of a list have too many tokens together."""
    total = sum(subject.count(".") + 1 for subject in subjects if isinstance(subject, str))
    if total > MAX_TOKENS:
        raise StreamInvalidConfigError(f"{what} must have at most {MAX_TOKENS} tokens together, got {total}")


def check_steps(what: str, steps: int) -> None:
    """Raise if comparing filters took too many steps."""
    if steps > MAX_STEPS:
        raise StreamInvalidConfigError(
            f"{what} must be comparable in at most {MAX_STEPS} steps; filters that differ behind several '*' take many"
        )


def check_branches(what: str, filters: SubjectSet) -> None:
    """Raise if matching one subject may take too many steps."""
    if (steps := filters.most_steps()) > MAX_BRANCHES:
        raise StreamInvalidConfigError(
            f"{what} must be matched in at most {MAX_BRANCHES} steps by each subject, got {steps};"
            " filters with '*' and other tokens in the same places take many"
        )


def some_overlap(what: str, filters: Iterable[str]) -> bool:
    """Whether two of the filters share a subject."""
    known = SubjectSet()
    for pattern in filters:
        if known.overlapping(pattern) is not None:
            return True
        known.add(pattern)
        check_steps(what, known.steps)
    check_branches(what, known)
    return False


def some_covered(what: str, filters: Sequence[str]) -> bool:
    """Whether one of the filters covers another, or two are equal."""
    known = SubjectSet()
    if not all(known.add(pattern) for pattern in filters):
        return True
    for pattern in filters:
        if known.covering(pattern) is not None:
            return True
        check_steps(what, known.steps)
    check_branches(what, known)
    return False


def fields_of(value: Any) -> Mapping[str, Any]:
    """A part of a request that should be an object; empty if it is not: the decoder says so."""
    return value if isinstance(value, dict) else {}


def items_of(value: Any) -> list[Any]:
    """A part of a request that should be a list; empty if it is not."""
    return value if isinstance(value, list) else []
