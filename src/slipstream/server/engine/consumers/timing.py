"""Timers of a consumer: one that fires at the earliest of several times, and one that expires an idle consumer."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.server.engine.timers import Timer, Timers

MILLISECOND = 1_000_000


class EarliestTimer:
    """Fires once, at the earliest of the times that it was armed for; its action looks at what is due and arms again.

    So there is one timer for any number of deadlines, and a deadline that is met costs nothing.
    """

    def __init__(self, timers: Timers, action: Callable[[int], None]) -> None:
        self._timers = timers
        self._action = action
        self._timer: Timer | None = None

    def arm(self, when: int) -> None:
        """Fire at that time, or earlier."""
        timer = self._timer
        if timer is not None and timer.action is not None:
            if timer.when <= when:
                return
            timer.cancel()
        self._timer = self._timers.at(when, self._action)

    def stop(self) -> None:
        """Fire no more, and let go of the action."""
        if self._timer is not None:
            self._timer.cancel()
        self._action = _ignore


class IdleTimer:
    """Expires a consumer that has not been used for a threshold (0: never)."""

    def __init__(self, timers: Timers, *, used_until: Callable[[int], int | None], expire: Callable[[], None]) -> None:
        """`used_until` says when the consumer was in use last; None: it is, and arms the timer when that ends."""
        self.threshold: int = 0
        self._timers = timers
        self._used_until = used_until
        self._expire = expire
        self._timer: Timer | None = None

    def arm(self, now: int) -> None:
        """Look after the threshold whether the consumer is in use."""
        self.cancel()
        if self.threshold:
            self._timer = self._timers.at(now + self.threshold, self._check)

    def _check(self, now: int) -> None:
        used = self._used_until(now)
        if used is None:
            self._timer = None
        elif used + self.threshold <= now:
            self._expire()
        else:
            self._timer = self._timers.at(used + self.threshold, self._check)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        """Look no more, and let go of the consumer."""
        self.cancel()
        self.threshold = 0
        self._used_until = self._expire = _ignore


def _ignore(*_: object) -> None:
    """In place of a callback into a deleted consumer: the cycle of references would keep it until a collection."""
