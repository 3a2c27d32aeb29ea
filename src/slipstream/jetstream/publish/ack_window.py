"""Publishes in flight become a count and a list of failures: the bounded window behind a pipelined publisher.

One object for all of them: an ack costs a dictionary look-up and a scan of its bytes, no future and no task. Whoever
wants to hear of one message in particular adds a `PendingAck` to it. Messages that nobody was there to take (a stream
whose leader changes) can be tried again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from slipstream.api import PubAck
from slipstream.errors import Error, NoRespondersError, RemoteProtocolError
from slipstream.jetstream.requests import decode_publish
from slipstream.wire import Msg


class FailedPublish(NamedTuple):
    """A message that the stream did not take: its place among those sent (from 0), its subject, and why."""

    place: int
    subject: str
    error: Error


class PendingAck:
    """The answer to one publish, when it is here."""

    __slots__ = ("_ack", "_error")

    def __init__(self) -> None:
        self._ack: PubAck | None = None
        self._error: Error | None = None

    def is_done(self) -> bool:
        """Whether the answer is here."""
        return self._ack is not None or self._error is not None

    def settle(self, ack: PubAck | None, error: Error | None) -> None:
        """It came."""
        self._ack, self._error = ack, error

    def result(self) -> PubAck:
        """The ack; raises what the stream or the connection said instead."""
        if self._error is not None:
            raise self._error
        if self._ack is None:
            raise RemoteProtocolError("there is no answer yet")
        return self._ack


class Sent(NamedTuple):
    """A publish in flight: its place, and what is needed to send it again (`tries` times at most)."""

    place: int
    subject: str
    pending: PendingAck | None = None
    payload: bytes = b""
    header: bytes = b""
    tries: int = 0


class AckWindow:
    """A `ReplySink` for any number of publishes. `again` holds those that nobody took and that may be tried again."""

    __slots__ = ("_early", "_note", "_waiting", "acked", "again", "duplicates", "failures", "last_ack", "limit", "sent")

    def __init__(self, limit: int, note: Callable[[PubAck], None] | None = None) -> None:
        self.limit = limit
        self._note = note  # is told of every ack
        self.sent = 0
        self.acked = 0
        self.duplicates = 0
        self.last_ack: PubAck | None = None
        self.failures: list[FailedPublish] = []
        self.again: deque[Sent] = deque()
        self._waiting: dict[str, Sent] = {}
        self._early: dict[str, Msg] = {}  # answers whose publish is not noted yet: another thread may be that quick

    @property
    def in_flight(self) -> int:
        """How many publishes have no answer yet."""
        return len(self._waiting) + len(self.again)

    def has_room(self) -> bool:
        """Whether one more may be sent."""
        return len(self._waiting) + len(self.again) < self.limit

    def is_empty(self) -> bool:
        """Whether every publish was answered."""
        return not self._waiting and not self.again

    def fewer_than(self, count: int) -> bool:
        """Whether fewer publishes than that wait for their answer, or one must be tried again."""
        return len(self._waiting) + len(self.again) < count or bool(self.again)

    def sending(self, token: str, subject: str, pending: PendingAck | None = None) -> None:
        """A publish went out."""
        self._remember(token, Sent(self.sent, subject, pending))
        self.sent += 1

    def sending_once_more(self, token: str, sent: Sent) -> None:
        """One that may be tried again went out; it has its place since the first time."""
        self._remember(token, sent)

    def _remember(self, token: str, sent: Sent) -> None:
        self._waiting[token] = sent
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
        sent = self._waiting.pop(token, None)
        if sent is None:
            return False
        try:
            ack = decode_publish(msg)
        except Error as error:
            if sent.tries and isinstance(error, NoRespondersError):
                self.again.append(sent._replace(tries=sent.tries - 1))
            else:
                self._failed(sent, error)
        else:
            self.acked += 1
            self.duplicates += ack.duplicate
            self.last_ack = ack
            if self._note is not None:
                self._note(ack)
            if sent.pending is not None:
                sent.pending.settle(ack, None)
        return True

    def _failed(self, sent: Sent, error: Error) -> None:
        """Told by the publisher to whoever comes next, or to the one who asked to hear of this message."""
        if sent.pending is None:
            self.failures.append(FailedPublish(sent.place, sent.subject, error))
        else:
            sent.pending.settle(None, error)

    def fail(self, error: Error) -> None:
        """The connection is gone: whether the messages in flight were stored is not known."""
        waiting, self._waiting = self._waiting, {}
        for sent in (*waiting.values(), *self.again):
            self._failed(sent, error)
        self.again.clear()
        self._early.clear()

    def forget(self, error: Error) -> list[str]:
        """Give up on what is in flight; returns the tokens, to be cancelled."""
        tokens = list(self._waiting)
        self.fail(error)
        return tokens
