"""The scanner of runs: frames of one form in a row, read out of received bytes by one regular expression.

Streams mostly hold messages of one size. An expression made for that size finds all of them in one step of `re`, with
no Python in between, and its groups are the columns of the run. Each match begins where the one before ended, so a
payload that imitates a frame is never taken for one, as long as the expression says how long the payload is.

This is a hot path: see `benchmarks/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple


class FrameRun(NamedTuple):
    """Frames in a row: the groups of the expression as columns of `length` values, and where the last frame ends."""

    columns: list[list[bytes]]
    length: int
    end: int


def run_pattern(frame: bytes) -> re.Pattern[bytes]:
    """The expression for `scan_run`: a frame, or else all the rest, so that no search goes past what is no frame."""
    return re.compile(frame + rb"|(.+)", re.DOTALL)


def matches_in_row(pattern: re.Pattern[bytes], data: bytes, pos: int) -> Iterator[re.Match[bytes]]:
    """Match after match from `pos` on, each where the one before ended, up to the first place without one."""
    # `scanner` is as old as `re` and in no documentation; the documented `finditer` would skip what does not match.
    return iter(pattern.scanner(data, pos).match, None)  # type: ignore[attr-defined]


def scan_run(pattern: re.Pattern[bytes], data: bytes, pos: int) -> FrameRun | None:
    """All frames of a `run_pattern` that follow each other from `pos` on; None if there is none.

    `split` makes one flat list of all groups, where matches or rows would be two more objects for each frame.
    """
    begin = pattern.match(data, pos)
    if begin is None or begin.lastindex == pattern.groups:  # the rest, which `split` would copy for every reader
        return None
    # The groups of each match, the rest as the last of them, between the (empty) pieces of bytes that do not match.
    parts: list[Any] = pattern.split(memoryview(data)[pos:] if pos else data)
    step = pattern.groups + 1
    length, end = len(parts) // step, len(data)
    rest: bytes | None = parts[-2]
    if rest is not None:
        length, end = length - 1, end - len(rest)
    return FrameRun([parts[at : length * step : step] for at in range(1, step - 1)], length, end)
