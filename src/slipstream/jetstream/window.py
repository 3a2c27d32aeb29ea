"""Publishes in flight become a count and a list of failures: the bounded window behind a pipelined publisher.

One object for all of them: an ack costs a dictionary look-up and a scan of its bytes, no future and no task.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.api import PubAck
from slipstream.errors import Error
from slipstream.jetstream.calls import decode_publish
from slipstream.wire import Msg


class FailedPublish(NamedTuple):
    """A message that the stream did not take: its place among those sent (from 0), its subject, and why."""

    place: int
    subject: str
    error: Error


class AckWindow:
    """A `ReplySink` for any number of publishes."""

    __slots__ = ("_waiting", "acked", "duplicates", "failures", "last_ack", "limit", "sent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sent = 0
        self.acked = 0
        self.duplicates = 0
        self.last_ack: PubAck | None = None
        self.failures: list[FailedPublish] = []
        self._waiting: dict[str, tuple[int, str]] = {}

    @property
    def in_flight(self) -> int:
        """How many publishes have no answer yet."""
        return len(self._waiting)

    def has_room(self) -> bool:
        """Whether one more may be sent."""
        return len(self._waiting) < self.limit

    def is_empty(self) -> bool:
        """Whether every publish was answered."""
        return not self._waiting

    def sending(self, token: str, subject: str) -> None:
        """A publish went out."""
        self._waiting[token] = (self.sent, subject)
        self.sent += 1

    def deliver(self, msg: Msg) -> bool:
        """Take an answer; each publish has exactly one."""
        place = self._waiting.pop(msg.subject.rpartition(".")[2], None)
        if place is not None:
            try:
                ack = decode_publish(msg)
            except Error as error:
                self.failures.append(FailedPublish(*place, error))
            else:
                self.acked += 1
                self.duplicates += ack.duplicate
                self.last_ack = ack
        return True

    def fail(self, error: Error) -> None:
        """The connection is gone: whether the messages in flight were stored is not known."""
        for place in self._waiting.values():
            self.failures.append(FailedPublish(*place, error))
        self._waiting.clear()

    def forget(self, error: Error) -> list[str]:
        """Give up on what is in flight; returns the tokens, to be cancelled."""
        tokens = list(self._waiting)
        self.fail(error)
        return tokens
