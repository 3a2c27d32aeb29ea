"""Exponential back-off with jitter, for reconnects and for every retry above the client.

Pure: randomness is an argument. The jitter shortens a pause and never lengthens it, so that `longest` holds; clients
that failed at the same moment must not come back at the same moment.
"""

from __future__ import annotations

_MAX_DOUBLINGS = 32  # beyond it the power would overflow long after `longest` was reached


class Backoff:
    """Pauses that grow from `first` to `longest` seconds, each shortened at random by up to the fraction `jitter`."""

    __slots__ = ("factor", "failures", "first", "jitter", "longest")

    def __init__(self, first: float, longest: float, factor: float = 2.0, jitter: float = 0.5) -> None:
        self.first: float = first
        self.longest: float = longest
        self.factor: float = factor
        self.jitter: float = jitter
        self.failures: int = 0  # since the last `reset`

    def after(self, failures: int, random: float = 1.0) -> float:
        """Seconds to wait after failure number `failures` (from 0); `random` is from 0 to 1, where 1 is no jitter."""
        pause = min(self.longest, self.first * self.factor ** min(failures, _MAX_DOUBLINGS))
        return pause * (1.0 - self.jitter + self.jitter * random)

    def next(self, random: float = 1.0) -> float:
        """Seconds to wait after one more failure."""
        pause = self.after(self.failures, random)
        self.failures += 1
        return pause

    def reset(self) -> None:
        """Begin with the shortest pause again: something worked."""
        self.failures = 0
