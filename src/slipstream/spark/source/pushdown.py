"""Filter pushdown: Spark's filters as bounds of a read (subjects, sequences, times).

The bounds may keep too many messages, never too few: Spark applies every filter to the rows again, so a filter that
does not translate is ignored. Column names differ between the formats and are an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from slipstream.api.times import SECOND, nanoseconds_since_epoch
from slipstream.spark.source.plan import ReadBounds
from slipstream.wire import has_wildcard, is_valid_subject
from slipstream.wire.subjects import matches, overlaps, subset_of

MAX_SUBJECTS = 16  # each is a read of its own
# A server's clock may be set back, so that times do not grow with sequences: a range by time is taken wider by this.
SLACK = 60 * SECOND


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The columns that tell the subject, sequence and time of a row; `prefix` + the subject column is the subject."""

    subject: str = "subject"
    sequence: str = "sequence"
    times: tuple[str, str] = ("timestamp", "timestamp_ns")  # in microseconds, in nanoseconds
    prefix: str = ""


def narrow(filters: Iterable[Filter], names: ColumnNames, subjects: tuple[str, ...]) -> ReadBounds:
    """The bounds that these filters put on a read of `subjects` (none: every subject)."""
    found = ReadBounds()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            continue
        name = attribute[0]
        if name == names.subject:
            found = _by_subject(found, one, names.prefix, subjects)
        elif name == names.sequence:
            found = _by_sequence(found, one)
        elif name in names.times:
            found = _by_time(found, one, in_micros=name == names.times[0])
    return found


def _by_subject(found: ReadBounds, one: Filter, prefix: str, read: tuple[str, ...]) -> ReadBounds:
    wanted: list[str]
    if isinstance(one, EqualTo) and isinstance(one.value, str):
        wanted = [one.value]
    elif isinstance(one, In) and all(isinstance(value, str) for value in one.value):
        wanted = list(dict.fromkeys(one.value))
    elif isinstance(one, StringStartsWith) and "." in one.value:
        tokens = one.value.rpartition(".")[0]
        if not is_valid_subject(tokens):
            return found
        return _restrict(found, [f"{prefix}{tokens}.>"], read)
    else:
        return found
    wanted = [prefix + value for value in wanted if is_valid_subject(prefix + value)]
    return _restrict(found, wanted, read) if len(wanted) <= MAX_SUBJECTS else found


def _restrict(found: ReadBounds, wanted: list[str], read: tuple[str, ...]) -> ReadBounds:
    outer = found.subjects if found.subjects is not None else read
    kept = [cut for one in wanted for cut in ([one] if not outer else _intersect(one, outer))]
    return replace(found, subjects=tuple(dict.fromkeys(kept)), is_empty=found.is_empty or not kept)


def _intersect(one: str, outer: tuple[str, ...]) -> list[str]:
    """Filters that cover the intersection of `one` with the outer ones."""
    if not has_wildcard(one):
        return [one] if any(matches(other, one) for other in outer) else []
    if any(subset_of(one, other) for other in outer):
        return [one]
    return [other for other in outer if overlaps(one, other)]


def _by_sequence(found: ReadBounds, one: Filter) -> ReadBounds:
    value = getattr(one, "value", None)
    if isinstance(one, In) and one.value and all(isinstance(value, int) for value in one.value):
        return _between(found, min(one.value), max(one.value))
    if not isinstance(value, int) or isinstance(value, bool):
        return found
    if isinstance(one, EqualTo):
        return _between(found, value, value)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return _between(found, value + isinstance(one, GreaterThan), 0)
    if isinstance(one, LessThan | LessThanOrEqual):
        last = value - isinstance(one, LessThan)
        return _between(found, 0, last) if last > 0 else replace(found, is_empty=True)
    return found


def _between(found: ReadBounds, first: int, last: int) -> ReadBounds:
    return replace(found, first=max(found.first, first), last=_tighter(found.last, last))


def _by_time(found: ReadBounds, one: Filter, *, in_micros: bool) -> ReadBounds:
    value = _nanos(getattr(one, "value", None), in_micros)
    if value is None:
        return found
    since, until = max(value - SLACK, 1), value + SLACK
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return replace(found, since=max(found.since, since))
    if isinstance(one, LessThan | LessThanOrEqual):
        return replace(found, until=_tighter(found.until, until))
    if isinstance(one, EqualTo):
        return replace(found, since=max(found.since, since), until=_tighter(found.until, until))
    return found


def _nanos(value: Any, in_micros: bool) -> int | None:
    if in_micros:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return nanoseconds_since_epoch(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _tighter(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other
