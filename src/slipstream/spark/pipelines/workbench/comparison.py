"""Comparison of the rows of an output with the rows that a test case expects.

The rows of an output have no order. Rows of a bucket are compared by key; of other outputs, equal rows are paired
first, and of the rest those that have most in common, so that a difference is that of a column and not of two rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
MISSING, UNEXPECTED = "(no such row)", "(not expected)"
ABSENT = "(absent)"
_MAX_WIDTH = 60
_MAX_SHOWN = 20
_MAX_PAIRED = 500  # rows that differ, above which they are not paired: it takes the square of that


class Difference(NamedTuple):
    """One difference: which row, which column of it, and both values as text."""

    row: str
    column: str
    expected: str
    actual: str


def compare(expected: Sequence[Row], actual: Sequence[Row], key: str = "") -> list[Difference]:
    """The differences between two lists of rows; `key` is the field that names a row, if there is one."""
    return list(_keyed(expected, actual, key) if key else _unkeyed(expected, actual))


def _keyed(expected: Sequence[Row], actual: Sequence[Row], key: str) -> Iterator[Difference]:
    wanted = {_text(row.get(key)): row for row in expected}
    found = {_text(row.get(key)): row for row in actual}
    for name in sorted({*wanted, *found}):
        if name not in found:
            yield Difference(name, "", _text(_without(wanted[name], key)), MISSING)
        elif name not in wanted:
            yield Difference(name, "", UNEXPECTED, _text(_without(found[name], key)))
        else:
            yield from _columns(name, wanted[name], found[name])


def _unkeyed(expected: Sequence[Row], actual: Sequence[Row]) -> Iterator[Difference]:
    left = list(actual)
    missing: list[tuple[int, Row]] = []
    canonical = [_canonical(row) for row in left]
    for number, row in enumerate(expected, 1):
        text = _canonical(row)
        if text in canonical:
            at = canonical.index(text)
            del canonical[at], left[at]
        else:
            missing.append((number, row))
    is_paired = len(missing) * len(left) <= _MAX_PAIRED**2
    for number, row in missing:
        near = max(left, key=lambda other: _common(row, other), default=None) if is_paired else None
        if near is not None and _common(row, near):
            left.remove(near)
            yield from _columns(f"row {number}", row, near)
        else:
            yield Difference(f"row {number}", "", _text(row), MISSING)
    for row in left:
        yield Difference("-", "", UNEXPECTED, _text(row))


def _columns(name: str, wanted: Row, found: Row) -> Iterator[Difference]:
    one, other = flat(wanted), flat(found)
    for column in dict.fromkeys((*one, *other)):
        if _canonical(one.get(column, ABSENT)) != _canonical(other.get(column, ABSENT)):
            yield Difference(name, column, _cell(one, column), _cell(other, column))


def _cell(row: Row, column: str) -> str:
    return _text(row[column]) if column in row else ABSENT


def flat(row: Row, prefix: str = "") -> dict[str, Any]:
    """A row with the fields of its objects as columns of their own, such as `value.total`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _common(one: Row, other: Row) -> int:
    """How many columns of two rows are equal."""
    mine, theirs = flat(one), flat(other)
    return sum(name in theirs and _canonical(value) == _canonical(theirs[name]) for name, value in mine.items())


def _without(row: Row, key: str) -> Row:
    return {name: value for name, value in row.items() if name != key}


def _canonical(value: Any) -> str:
    """Equal for equal JSON values: whatever the order of keys, and 1 as 1.0."""
    return json.dumps(_number(value), sort_keys=True)


def _number(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {name: _number(one) for name, one in value.items()}
    return [_number(one) for one in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def difference_table(differences: Sequence[Difference]) -> list[str]:
    """The differences as the lines of a small table."""
    shown = [Difference("row", "column", "expected", "got"), *differences[:_MAX_SHOWN]]
    cells = [[_cut(cell) for cell in one] for one in shown]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    more = len(differences) - _MAX_SHOWN
    return [*lines, f"... and {more} more"] if more > 0 else lines


def _cut(text: str) -> str:
    text = text.replace("\n", "\\n")
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"
