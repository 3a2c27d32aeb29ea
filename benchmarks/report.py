"""Table of measured rates: the peer's, ours, their ratio and the target ratio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict


class Row(TypedDict):
    """One line of the table; rates are per second. `target` is the minimum ratio, None if there is none."""

    work: str
    peer: float | None
    ours: float
    ratio: float | None
    target: float | None


def row(work: str, ours: float, peer: float | None = None, *, target: float | None = None) -> Row:
    """A line with its ratio."""
    return Row(work=work, peer=peer, ours=ours, ratio=ours / peer if peer else None, target=target)


def table(rows: Iterable[Row]) -> str:
    """The lines as text."""
    lines = [f"{'work':<62} {'peer':>12} {'ours':>12} {'ratio':>8} {'target':>8}"]
    for one in rows:
        verdict = ""
        if one["ratio"] is not None and one["target"] is not None:
            verdict = "  ok" if one["ratio"] >= one["target"] else "  BELOW"
        lines.append(
            f"{one['work']:<62} {_figure(one['peer'])} {_figure(one['ours'])} {_ratio(one['ratio'])} "
            f"{_ratio(one['target'])}{verdict}"
        )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return f"{'-' if value is None else format(value, ',.0f') if value >= 100 else format(value, '.3g'):>12}"


def _ratio(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.2f') + 'x':>8}"
