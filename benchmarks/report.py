"""Measured rates: those of one run as a table, and the medians of several runs of both forms."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

NATS_PY, NATS_SERVER, PLAIN, BOUND = "nats-py", "nats-server", "plain read", "bound"
FORMS = ("pure", "compiled")


class Row(TypedDict):
    """One line of the table; rates are per second. `target` is the minimum ratio, None if there is none."""

    work: str
    peer: float | None
    ours: float
    ratio: float | None
    target: float | None
    against: str  # what the peer is


def row(
    work: str, ours: float, peer: float | None = None, *, target: float | None = None, against: str = NATS_PY
) -> Row:
    """A line with its ratio."""
    ratio = ours / peer if peer else None
    return Row(work=work, peer=peer, ours=ours, ratio=ratio, target=target, against=against)


def table(rows: Iterable[Row]) -> str:
    """The lines as text."""
    lines = [f"{'work':<62} {'peer':>12} {'ours':>12} {'ratio':>8} {'target':>8}"]
    for one in rows:
        lines.append(
            f"{one['work']:<62} {_figure(one['peer'])} {_figure(one['ours'])} {_ratio(one['ratio'])} "
            f"{_ratio(one['target'])}{_verdict(one['ratio'], one['target'])}"
        )
    return "\n".join(lines)


class Compared(NamedTuple):
    """One piece of work: the medians of its peer and of our forms."""

    work: str
    against: str
    peer: float | None
    ours: dict[str, float]  # form -> rate
    target: float | None

    @property
    def ratio(self) -> float | None:
        """What the fastest way to install us gives: the compiled form's ratio, where that was measured."""
        return self.ours.get("compiled", self.ours["pure"]) / self.peer if self.peer else None


def compared(runs: Mapping[str, Sequence[Sequence[Row]]]) -> list[Compared]:
    """The medians of all runs, by form. A peer is measured beside each form, and all of its figures count; of our own
    plain read only those of the form that the ratio is of."""
    found = []
    shown = FORMS[-1] if FORMS[-1] in runs else FORMS[0]
    for number, first in enumerate(runs["pure"][0]):
        each = {form: [rows[number] for rows in several] for form, several in runs.items()}
        beside = [shown] if first["against"] == PLAIN else list(each)
        peers = [one["peer"] for form in beside for one in each[form] if one["peer"] is not None]
        ours = {form: statistics.median(one["ours"] for one in rows) for form, rows in each.items()}
        peer = statistics.median(peers) if peers else None
        found.append(Compared(first["work"], first["against"], peer, ours, first["target"]))
    return found


def text(rows: Iterable[Compared]) -> str:
    """The table of both forms for a terminal."""
    lines = [f"{'work':<66} {'peer':>10} {'pure':>10} {'compiled':>10} {'ratio':>8} {'target':>8}"]
    for one in rows:
        forms = " ".join(f"{_figure(one.ours.get(form))[2:]}" for form in FORMS)
        lines.append(
            f"{one.work:<66} {_figure(one.peer)[2:]} {forms} {_ratio(one.ratio)} {_ratio(one.target)}"
            f"{_verdict(one.ratio, one.target)}"
        )
    return "\n".join(lines)


def markdown(rows: Iterable[Compared]) -> str:
    """The same for the documentation: a table for each peer. Work without a peer is left out."""
    peers: dict[str, list[Compared]] = {}
    for one in rows:
        if one.peer is not None:
            peers.setdefault(one.against, []).append(one)
    tables = []
    for against, those in peers.items():
        lines = [f"| work | {against} | pure | compiled | ratio |", "|---|---|---|---|---|"]
        for one in those:
            cells = [_short(one.peer), *(_short(one.ours.get(form)) for form in FORMS)]
            assert one.ratio is not None
            lines.append(f"| {one.work} | {' | '.join(cells)} | {two_digits(one.ratio)}x |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def two_digits(value: float) -> str:
    """Two digits are what a rate is good for: 0.42, 4.2, 42."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _figure(value: float | None) -> str:
    return f"{'-' if value is None else format(value, ',.0f') if value >= 100 else format(value, '.3g'):>12}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{float(f'{value:.3g}'):,.10g}"


def _ratio(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.2f') + 'x':>8}"


def _verdict(ratio: float | None, target: float | None) -> str:
    return "" if ratio is None or target is None else "  ok" if ratio >= target else "  BELOW"
