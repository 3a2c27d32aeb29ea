"""How long a read may take becomes how long its next try may take, how long to rest before that, and when to go.

A try that is not answered soon is given up long before the deadline: whoever should answer it may be cut off from us,
while the next try reaches somebody else. Silence again and again means that our own server is the one cut off.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.errors import Error, StaleReadError

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.25
SHORTEST_TRY = 0.001
TRIES_IN_TIMEOUT = 5  # a try takes at most this part of the timeout,
LONGEST_TRY = 1.0  # and at first not longer than that
LATE_TRY = 2.0  # a server that keeps `min_last_seq` itself says no only after a while
STALE_PART = 3  # of the timeout: for so long only stale answers, between
STALE_LEAST, STALE_MOST = 1.5, 4.0  # these bounds, and we are with a server that hears of nothing new
SILENCES = 2  # tries in a row without an answer, after which another server is worth its price


class RetryPolicy:
    """A deadline, a growing pause between tries, and a count of silences."""

    __slots__ = (
        "_deadline",
        "_first_try",
        "_now",
        "_pause",
        "_reason",
        "_silences",
        "_stale_limit",
        "_stale_since",
        "_timeout",
        "_try",
        "tries",
    )

    def __init__(self, timeout: float, now: Callable[[], float]) -> None:
        self._now = now
        self._reason: Error | None = None
        self._timeout = timeout
        self._deadline = now() + timeout
        self._first_try = min(timeout / TRIES_IN_TIMEOUT, LONGEST_TRY)
        self._try = self._first_try
        self._pause = FIRST_PAUSE
        self._silences = 0
        self._stale_limit = min(max(timeout / STALE_PART, STALE_LEAST), STALE_MOST)
        self._stale_since: float | None = None
        self.tries = 0  # that did not bring the answer

    def renew(self) -> None:
        """Something was achieved: the time counts anew."""
        self._deadline = self._now() + self._timeout
        self._pause = FIRST_PAUSE
        self._reason = None
        self._stale_since = None

    def left(self) -> float:
        """Seconds until the deadline; never so few that a try could not even be sent."""
        return max(self._deadline - self._now(), SHORTEST_TRY)

    def for_one_try(self) -> float:
        """Seconds that one try may take."""
        return max(min(self._deadline - self._now(), self._try), SHORTEST_TRY)

    def for_late_try(self) -> float:
        """The same where the answer may be held back until it is new enough."""
        return max(min(self._deadline - self._now(), max(self._try, LATE_TRY)), SHORTEST_TRY)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._now() >= self._deadline

    def why(self, error: Error) -> Error:
        """What to tell when the time is up: what went wrong before says more than the silence of the last try."""
        return self._reason or error

    def next_pause(self, reason: Error) -> float | None:
        """How long to rest before the next try, which `reason` made necessary; None when the time is up.

        The pauses double, and each is shortened by up to half, by the clock: readers that failed together must not
        come back together.
        """
        if isinstance(reason, StaleReadError) or self._reason is None:
            self._reason = reason
        self.tries += 1
        now = self._now()
        if isinstance(reason, StaleReadError) and self._stale_since is None:
            self._stale_since = now
        pause = self._pause * (1 - (now * 7919 % 1) / 2)
        if now + pause >= self._deadline:
            return None
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return pause

    def heard(self) -> None:
        """Somebody answered, whatever the answer is worth; or it is another server that will be asked."""
        self._silences = 0
        self._try = self._first_try

    def stuck(self) -> bool:
        """Whether all answers have been stale for so long that another server is worth its price.

        A server that is cut off from its cluster still has its own replica, which answers at once and never knows more.
        """
        if self._stale_since is None or self._now() - self._stale_since < self._stale_limit:
            return False
        self._stale_since = None
        return True

    def silent(self) -> bool:
        """A try was not answered; True when it is time to try another server.

        If there is none, it may be that answers are slow: the next tries get more time.
        """
        self._silences += 1
        if self._silences < SILENCES:
            return False
        self._silences = 0
        self._try *= 2
        return True
