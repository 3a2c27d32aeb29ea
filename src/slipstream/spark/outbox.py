"""Messages to publish become publishes in flight, a bounded number of them, and a list of those that were refused.

Unlike `JetStream.publisher` it goes on after a refusal: the caller knows what a refusal means for its row.
"""

from __future__ import annotations

from functools import partial
from typing import Generic, TypeVar

from slipstream.errors import Error
from slipstream.facade.blocking import JetStream
from slipstream.jetstream.calls import Ready
from slipstream.jetstream.window import AckWindow, FailedPublish

T = TypeVar("T")


class Recent(Generic[T]):
    """What was sent last, by its place: enough to know what an answer is about, whatever is in flight."""

    def __init__(self, max_in_flight: int) -> None:
        self._size = 2 * max_in_flight
        self._kept: list[T | None] = [None] * self._size

    def __setitem__(self, place: int, what: T) -> None:
        self._kept[place % self._size] = what

    def __getitem__(self, place: int) -> T:
        found = self._kept[place % self._size]
        assert found is not None, f"nothing was sent at place {place}"
        return found


class Outbox:
    """A window of publishes. Nothing is forgotten: each is acknowledged, refused, or the whole ends in an error."""

    def __init__(self, js: JetStream, *, max_in_flight: int, timeout: float) -> None:
        self._client = js.client
        self._window = AckWindow(max_in_flight)
        self._timeout = timeout

    @property
    def acked(self) -> int:
        """How many were acknowledged."""
        return self._window.acked

    @property
    def duplicates(self) -> int:
        """How many of these the stream already had."""
        return self._window.duplicates

    @property
    def last_seq(self) -> int:
        """The sequence in the newest ack; 0 before the first."""
        ack = self._window.last_ack
        return ack.seq if ack else 0

    @property
    def sent(self) -> int:
        """How many were sent; the next one has this place."""
        return self._window.sent

    def send(self, subject: str, data: bytes, header: bytes = b"") -> None:
        """Publish; waits only while the window is full."""
        window = self._window
        if not window.has_room():
            self._wait(window.has_room, "room in the window of publishes")
        window.sending(self._client.start(subject, data, window, header=header), subject)

    def flush(self) -> None:
        """Wait until everything was answered. The timeout is for the next answer, not for all of them."""
        while waiting := self._window.in_flight:
            self._wait(partial(self._window.fewer_than, waiting), "the acks of the publishes in flight")

    def refused(self) -> list[FailedPublish]:
        """What was refused since the last call."""
        found, self._window.failures = self._window.failures, []
        return found

    @property
    def has_refused(self) -> bool:
        """Whether something was refused."""
        return bool(self._window.failures)

    def _wait(self, ready: Ready, what: str) -> None:
        try:
            self._client.wait(ready, timeout=self._timeout, what=what)
        except BaseException as error:
            reason = error if isinstance(error, Error) else Error(f"given up while waiting for {what}")
            for token in self._window.forget(reason):
                self._client.cancel(token)
            raise
