"""Where a schedule gets its choices from: a seeded generator, or a tape of numbers that can be replayed and shrunk."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Numbers below a bound, from a generator or from a tape; beyond its end they are 0.

    0 is the simplest choice everywhere, so that a tape with more zeros is a simpler schedule.
    """

    __slots__ = ("_at", "_random", "_tape", "made")

    def __init__(self, seed: int | None = None, tape: Sequence[int] = ()) -> None:
        self._random = None if seed is None else random.Random(seed).random
        self._tape = tape
        self._at = 0
        self.made: list[int] = []

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1."""
        if self._random is not None and not self._tape:
            value = int(self._random() * bound)
        elif self._at < len(self._tape):
            value = self._tape[self._at] % bound
            self._at += 1
        else:
            value = 0
        self.made.append(value)
        return value

    def one_of(self, options: Sequence[T]) -> T:
        """One of some options."""
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True so often; False is the simplest."""
        return self.below(100) >= 100 - percent


def shrink(tape: Sequence[int], is_bad: Callable[[Sequence[int]], bool], *, rounds: int = 4) -> list[int]:
    """A simpler tape that is still bad: parts are left out, then numbers are made 0 or smaller."""
    best = list(tape)
    for _ in range(rounds):
        before = list(best)
        size = max(len(best) // 2, 1)
        while size:
            at = 0
            while at < len(best):
                shorter = best[:at] + best[at + size :]
                if is_bad(shorter):
                    best = shorter
                else:
                    at += size
            size //= 2
        for at, value in enumerate(best):
            for smaller in (0, value // 2, value - 1):
                if 0 <= smaller < best[at] and is_bad(changed := [*best[:at], smaller, *best[at + 1 :]]):
                    best = changed
                    break
        if best == before:
            break
    while best and best[-1] == 0:
        best.pop()
    return best
