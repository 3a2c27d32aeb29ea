"""Retry policy for trusted reads: per-attempt timeout, back-off, and when to switch servers.

An attempt that is not answered soon is abandoned long before the deadline: its responder may be cut off from us, while
the next attempt reaches another one. Repeated silence means that our own server is the one that is cut off.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.client.backoff import Backoff
from slipstream.errors import Error, StaleReadError

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.25
SHORTEST_TRY = 0.001
TRIES_IN_TIMEOUT = 5  # an attempt takes at most this part of the timeout,
LONGEST_TRY = 0.5  # and at first not longer than that: one of three responders that is cut off takes a third of them
LATE_TRY = 2.0  # a server that keeps `min_last_seq` itself rejects only after a while
STALE_PART = 3  # of the timeout: for so long only stale answers, between
STALE_LEAST, STALE_MOST = 1.5, 4.0  # these bounds, mean that our server receives no updates
_BACKOFF = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
SILENT_PART, SILENT_MOST = 0.4, 2.0  # of the timeout, and seconds: after such a silence
SILENCES = 2  # of this many attempts at least another server is worth its price


def first_try(timeout: float, *, is_late: bool = False) -> float:
    """Seconds that the first attempt of a read may take. `is_late`: the server may hold its answer back."""
    least = LATE_TRY if is_late else min(timeout / TRIES_IN_TIMEOUT, LONGEST_TRY)
    return max(min(timeout, least), SHORTEST_TRY)


class Retry:
    """The result of an attempt that brought no answer: what to wait for, in order, before the next attempt.

    Each reason is raised instead if the time is up. Without a reason the next attempt begins at once: the question has
    changed.
    """

    __slots__ = ("reasons",)

    def __init__(self, *reasons: Error) -> None:
        self.reasons: tuple[Error, ...] = reasons

    def then(self, reason: Error) -> Retry:
        """The same, with one more reason behind the others."""
        return Retry(*self.reasons, reason)

    def __repr__(self) -> str:
        return f"Retry({', '.join(map(repr, self.reasons))})"


class RetryPolicy:
    """A deadline, a growing pause between attempts, and a count of silences."""

    __slots__ = (
        "_began",
        "_deadline",
        "_first_try",
        "_leader_silences",
        "_now",
        "_pauses",
        "_reason",
        "_silence_limit",
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
        self._began = now()
        self._deadline = self._began + timeout
        self._first_try = first_try(timeout)
        self._try = self._first_try
        self._pauses = 0
        self._silences = 0
        self._silence_limit = max(SILENCES, round(min(timeout * SILENT_PART, SILENT_MOST) / self._first_try))
        self._leader_silences = 0
        self._stale_limit = min(max(timeout / STALE_PART, STALE_LEAST), STALE_MOST)
        self._stale_since: float | None = None
        self.tries: int = 0  # attempts that did not bring the answer

    def renew(self) -> None:
        """Something was achieved: the timeout and the back-off begin again."""
        self._began = self._now()
        self._deadline = self._began + self._timeout
        self._pauses = 0
        self._reason = None
        self._stale_since = None

    def left(self) -> float:
        """Seconds until the deadline; never so few that a request could not even be sent."""
        return max(self._deadline - self._now(), SHORTEST_TRY)

    def for_one_try(self) -> float:
        """Seconds that one attempt may take."""
        return max(min(self._deadline - self._now(), self._try), SHORTEST_TRY)

    def for_late_try(self) -> float:
        """The same where the server may hold its answer back until it is new enough."""
        return max(min(self._deadline - self._now(), max(self._try, LATE_TRY)), SHORTEST_TRY)

    @property
    def is_late(self) -> bool:
        """Whether half of the time has passed: what was to be learned from a leader is not to be expected any more."""
        return self._now() - self._began >= self._timeout / 2

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._now() >= self._deadline

    def why(self, error: Error) -> Error:
        """The error to raise when the time is up: an earlier reason says more than the silence of the last attempt."""
        error = self._reason or error
        return error.after(self._now() - self._began) if isinstance(error, StaleReadError) else error

    def remember(self, reason: StaleReadError) -> None:
        """An attempt before this policy began was rejected for that reason, which says more than a later silence."""
        self._reason = reason

    def next_pause(self, reason: Error) -> float | None:
        """Seconds to wait before the next attempt, which `reason` made necessary; None when the time is up.

        The jitter comes from the clock: readers that failed together must not come back together.
        """
        if isinstance(reason, StaleReadError) or self._reason is None:
            self._reason = reason
        self.tries += 1
        now = self._now()
        if isinstance(reason, StaleReadError) and self._stale_since is None:
            self._stale_since = now
        pause = _BACKOFF.after(self._pauses, 1 - now * 7919 % 1)
        self._pauses += 1
        return None if now + pause >= self._deadline else pause

    def heard(self) -> None:
        """An answer came, whatever it is worth."""
        self._silences = 0
        self._try = self._first_try

    def leader_heard(self) -> None:
        """The same of a leader: our server may pass some answers on, and not those."""
        self._leader_silences = 0
        self.heard()

    def leader_silent(self) -> None:
        """A leader did not answer, though others may."""
        self._leader_silences += 1

    def stuck(self) -> bool:
        """Whether all answers have been stale for so long that another server is worth its price.

        A server that is cut off from its cluster still has its own replica, which answers at once and never knows more.
        It stays so until the client has moved: another read may have moved it a moment ago, to a server like that.
        """
        return self._stale_since is not None and self._now() - self._stale_since >= self._stale_limit

    def moved(self) -> None:
        """The next attempt goes to another server."""
        self._stale_since = None
        self.heard()

    def silent(self) -> bool:
        """An attempt was not answered; True when it is time to try another server.

        If there is none, answers may just be slow: the next attempts get more time.
        """
        self._silences += 1
        if max(self._silences, self._leader_silences) < self._silence_limit:
            return False
        self._silences = self._leader_silences = 0
        self._try *= 2
        return True
