"""Publishes in flight become a count and a list of failures: the bounded window behind a pipelined publisher.

One object for all of them: an ack costs a dictionary look-up and a scan of its bytes, no future and no task.
"""

from __future__ import annotations

from collections.abc import Callable
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

    __slots__ = ("_early", "_note", "_waiting", "acked", "duplicates", "failures", "last_ack", "limit", "sent")

    def __init__(self, limit: int, note: Callable[[PubAck], None] | None = None) -> None:
        self.limit = limit
        self._note = note  # is told of every ack
        self.sent = 0
        self.acked = 0
        self.duplicates = 0
        self.last_ack: PubAck | None = None
        self.failures: list[FailedPublish] = []
        self._waiting: dict[str, tuple[int, str]] = {}
        self._early: dict[str, Msg] = {}  # answers whose publish is not noted yet: another thread may be that quick

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

    def fewer_than(self, count: int) -> bool:
        """Whether fewer publishes than that wait for their answer."""
        return len(self._waiting) < count

    def sending(self, token: str, subject: str) -> None:
        """A publish went out."""
        self._waiting[token] = (self.sent, subject)
        self.sent += 1
        early = self._early.pop(token, None)
        if early is not None:
            self._settle(token, early)

    def deliver(self, msg: Msg) -> bool:
        """Take an answer; each publish has exactly one."""
        token = msg.subject.rpartition(".")[2]
        if token not in self._waiting:
            self._early[token] = msg
        if self._settle(token, msg):
            self._early.pop(token, None)
        return True

    def _settle(self, token: str, msg: Msg) -> bool:
        """Count an answer, once: whoever gets the place out of the dictionary does it."""
        place = self._waiting.pop(token, None)
        if place is None:
            return False
        try:
            ack = decode_publish(msg)
        except Error as error:
            self.failures.append(FailedPublish(*place, error))
        else:
            self.acked += 1
            self.duplicates += ack.duplicate
            self.last_ack = ack
            if self._note is not None:
                self._note(ack)
        return True

    def fail(self, error: Error) -> None:
        """The connection is gone: whether the messages in flight were stored is not known."""
        waiting, self._waiting = self._waiting, {}
        for place in waiting.values():
            self.failures.append(FailedPublish(*place, error))
        self._early.clear()

    def forget(self, error: Error) -> list[str]:
        """Give up on what is in flight; returns the tokens, to be cancelled."""
        tokens = list(self._waiting)
        self.fail(error)
        return tokens
