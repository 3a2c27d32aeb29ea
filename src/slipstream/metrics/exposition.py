"""The Prometheus text format (version 0.0.4): families of samples, and histograms that cost little to keep.

A family must be in one piece, but what there is to say is found stream by stream: samples are collected by family as
finished lines, and the page is the families one after the other. `pieces` hands them out one at a time, so that a
server can encode a long page between other work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """Type and help of a metric."""

    kind: str  # counter, gauge, histogram or summary
    help: str


class Histogram:
    """Counts of observations by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, *bounds: float) -> None:
        self.bounds: tuple[float, ...] = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def label_set(**labels: str) -> str:
    """Labels as they stand between the braces, in the order given."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


class Exposition:
    """A page that is being written. Names are without the prefix."""

    def __init__(self, families: Mapping[str, Family], *, prefix: str = "slipstream_") -> None:
        """Samples can be added to these families only; those without a sample are left out."""
        self._families, self._prefix = families, prefix
        self._lines: dict[str, list[str]] = {name: [] for name in families}

    def add(self, name: str, value: float, labels: str = "") -> None:
        """Add a sample; `labels` is a `label_set`."""
        braces = f"{{{labels}}}" if labels else ""
        self._lines[name].append(f"{self._prefix}{name}{braces} {_number(value)}")

    def add_summary(self, name: str, count: int, total: float, labels: str = "") -> None:
        """Add a summary without quantiles: how many observations there were, and their sum."""
        braces = f"{{{labels}}}" if labels else ""
        full = self._prefix + name
        self._lines[name] += [f"{full}_sum{braces} {_number(total)}", f"{full}_count{braces} {count}"]

    def add_histogram(self, name: str, histogram: Histogram, labels: str = "") -> None:
        """Add a histogram: its buckets are cumulative on the page."""
        full, lines, count = self._prefix + name, self._lines[name], 0
        more = f"{labels}," if labels else ""
        for bound, part in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            count += part
            lines.append(f'{full}_bucket{{{more}le="{_number(bound)}"}} {count}')
        braces = f"{{{labels}}}" if labels else ""
        lines += [f"{full}_sum{braces} {_number(histogram.total)}", f"{full}_count{braces} {count}"]

    def merge(self, other: Exposition, labels: str = "") -> None:
        """Add the samples of another page of the same families, with further labels in front."""
        for name, lines in other._lines.items():
            self._lines[name] += lines if not labels else (_labelled(line, labels) for line in lines)

    def pieces(self, size: int = 512) -> Iterator[bytes]:
        """The page, at most `size` lines at a time."""
        for name, lines in self._lines.items():
            if not lines:
                continue
            family, full = self._families[name], self._prefix + name
            text = family.help.replace("\\", r"\\").replace("\n", r"\n")
            yield f"# HELP {full} {text}\n# TYPE {full} {family.kind}\n".encode()
            for at in range(0, len(lines), size):
                yield "".join(f"{line}\n" for line in lines[at : at + size]).encode("utf-8", "replace")

    def encode(self) -> bytes:
        """The page as a whole."""
        return b"".join(self.pieces())


def _labelled(line: str, labels: str) -> str:
    """A line with further labels. Names have neither braces nor spaces, so the first of them ends the name."""
    at = min(line.find(mark) for mark in "{ " if mark in line)
    return f"{line[:at]}{{{labels},{line[at + 1 :]}" if line[at] == "{" else f"{line[:at]}{{{labels}}}{line[at:]}"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    # Sequences and byte counts are exact; `repr` of a float is the shortest text that reads back the same.
    return str(value) if isinstance(value, int) else repr(float(value)).removesuffix(".0")
