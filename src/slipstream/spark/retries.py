"""Retry policy of sources and sinks: how long an unreachable server is waited for, and which errors mean that it is.

Spark gives a task a fixed number of attempts (in local mode one) and a streaming query none, so an outage must not
reach Spark as an error: it is waited out where it is noticed. Errors that another attempt would meet as well are
raised at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slipstream.client.backoff import Backoff
from slipstream.errors import (
    ApiError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    Error,
    ErrorCode,
    NoRespondersError,
    RequestTimeoutError,
    StaleReadError,
    TlsError,
)

_OUTAGES = (ConnectionLostError, NoRespondersError, RequestTimeoutError, StaleReadError)
_MISTAKES = (TlsError, DirectGetNotAllowedError)  # subclasses of these that no waiting mends
_SHORTEST, _LONGEST = 0.1, 2.0  # seconds between two attempts
_log = logging.getLogger("slipstream.spark")


def is_outage(error: Error) -> bool:
    """Whether a server, a stream's leader or an up-to-date replica is away: the same request may succeed later."""
    if isinstance(error, ApiError) and error.err_code == ErrorCode.CLUSTER_NOT_AVAIL:
        return True
    return isinstance(error, _OUTAGES) and not isinstance(error, _MISTAKES)


class RetryPolicy:
    """Waits between attempts, for at most `seconds` from the beginning of an outage."""

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._clock, self._pause = clock, pause
        self._backoff = Backoff(_SHORTEST, _LONGEST, jitter=0.0)
        self._since: float | None = None  # when the outage began; None while there is none

    def failed(self, error: Error) -> None:
        """Wait before the next attempt; raises the error if it is no outage, or if the time is up."""
        now = self._clock()
        if not is_outage(error):
            raise error
        if self._since is None:
            self._since = now
            if self._seconds:
                _log.warning("%s; retrying for up to %g s (option retryFor)", error, self._seconds)
        left = self._since + self._seconds - now
        if left <= 0:
            raise error
        self._pause(min(self._backoff.next(), left))

    def succeeded(self) -> None:
        """An attempt got an answer: the next failure begins another outage."""
        if self._since is not None:
            _log.warning("reconnected after %.1f s", self._clock() - self._since)
            self._since = None
            self._backoff.reset()
