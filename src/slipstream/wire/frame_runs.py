"""The scanner of runs: frames of one form in a row, read out of received bytes by one regular expression.

Streams mostly hold messages of one size. An expression made for that size finds each of them in one step of `re`, with
no Python in between, and its groups are the columns of the run. Each match begins where the one before ended, so a
payload that imitates a frame is never taken for one, as long as the expression says how long the payload is.

This is a hot path: see `benchmarks/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class FrameRun(NamedTuple):
    """Frames in a row: the groups of the expression as columns of `length` values, and where the frames lie."""

    columns: list[tuple[bytes, ...]]
    length: int
    last: int  # where the last frame begins
    end: int  # behind the last frame


def matches_in_row(pattern: re.Pattern[bytes], data: bytes, pos: int) -> Iterator[re.Match[bytes]]:
    """Match after match from `pos` on, each where the one before ended, up to the first place without one."""
    # `scanner` is as old as `re` and in no documentation; the documented `finditer` would skip what does not match.
    return iter(pattern.scanner(data, pos).match, None)  # type: ignore[attr-defined]


def scan_run(pattern: re.Pattern[bytes], data: bytes, pos: int) -> FrameRun | None:
    """All frames of the pattern that follow each other from `pos` on; None if there is none."""
    found: re.Match[bytes] | None = None
    rows = [(found := match).groups() for match in matches_in_row(pattern, data, pos)]
    if found is None:
        return None
    return FrameRun(list(zip(*rows, strict=True)), len(rows), found.start(), found.end())
