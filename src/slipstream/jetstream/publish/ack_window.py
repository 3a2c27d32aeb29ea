"""The ack window of a publisher: how many publishes are in flight, were acknowledged or failed.

One object for all of them: an ack costs a dictionary look-up and a scan of its bytes, no future and no task. A message
whose own ack matters has a `PendingAck`. Messages that no stream took (503, as while its leader changes) can be resent,
and those with a message id whose connection was lost, if `publish.repeats` allows it.
Invariant: every publish is answered once, in `failures`, in its `PendingAck`, or in the counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from slipstream.api import PubAck
from slipstream.errors import ConnectionClosedError, ConnectionLostError, Error, NoRespondersError, RemoteProtocolError
from slipstream.jetstream.requests import decode_publish
from slipstream.wire import Msg


class FailedPublish(NamedTuple):
    """A message that was not stored: its position among those sent (from 0), its subject, and the error."""

    position: int
    subject: str
    error: Error


class PendingAck:
    """The answer to one publish, once it has arrived."""

    __slots__ = ("_ack", "_error")

    def __init__(self) -> None:
        self._ack: PubAck | None = None
        self._error: Error | None = None

    def is_done(self) -> bool:
        """Whether the answer has arrived."""
        return self._ack is not None or self._error is not None

    def settle(self, ack: PubAck | None, error: Error | None) -> None:
        """Take the answer."""
        self._ack, self._error = ack, error

    def result(self) -> PubAck:
        """The ack; raises the error that came instead."""
        if self._error is not None:
            raise self._error
        if self._ack is None:
            raise RemoteProtocolError("the result was requested before it arrived")
        return self._ack


class Sent(NamedTuple):
    """A publish in flight: its position, and what is needed to resend it (`tries` times at most).

    `sent_at` and `server_id`, of one that may be sent again after a lost connection: when and where it was sent first.
    """

    position: int
    subject: str
    pending: PendingAck | None = None
    payload: bytes = b""
    header: bytes = b""
    tries: int = 0
    sent_at: float | None = None
    server_id: str = ""


class AckWindow:
    """A `ReplySink` for any number of publishes. `to_resend` holds those that no stream took, `in_doubt` those whose
    connection was lost, for the reason `lost_error`."""

    __slots__ = (
        "_early",
        "_note",
        "_waiting",
        "acked",
        "duplicates",
        "failures",
        "in_doubt",
        "last_ack",
        "limit",
        "lost_error",
        "sent",
        "to_resend",
    )

    def __init__(self, limit: int, note: Callable[[PubAck, str, bytes], None] | None = None) -> None:
        self.limit: int = limit
        self._note = note  # called with every ack, and the subject and header of its message
        self.sent: int = 0
        self.acked: int = 0
        self.duplicates: int = 0
        self.last_ack: PubAck | None = None
        self.failures: list[FailedPublish] = []
        self.to_resend: deque[Sent] = deque()
        self.in_doubt: deque[Sent] = deque()
        self.lost_error: Error | None = None
        self._waiting: dict[str, Sent] = {}
        self._early: dict[str, Msg] = {}  # answers to publishes that are not registered yet

    @property
    def in_flight(self) -> int:
        """How many publishes have no answer yet."""
        return len(self._waiting) + len(self.to_resend) + len(self.in_doubt)

    def has_capacity(self) -> bool:
        """Whether one more may be sent."""
        return self.in_flight < self.limit

    def takes_next(self) -> bool:
        """Whether one more may be sent now: those in doubt go before it."""
        return not self.in_doubt and self.in_flight < self.limit

    def is_empty(self) -> bool:
        """Whether every publish was answered."""
        return not self.in_flight

    def fewer_than(self, count: int) -> bool:
        """Whether fewer publishes than that wait for their answer, or one must be resent."""
        return self.in_flight < count or bool(self.to_resend)

    def sending(self, token: str, subject: str, pending: PendingAck | None = None, header: bytes = b"") -> None:
        """Register a publish that was sent."""
        self._remember(token, Sent(self.sent, subject, pending, b"", header))
        self.sent += 1

    def resending(self, token: str, sent: Sent) -> None:
        """Register a publish that may be resent, or was; its position is that of the first time."""
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
        """Count an answer, once: the thread that gets the entry out of the dictionary does it."""
        sent = self._waiting.pop(token, None)
        if sent is None:
            return False
        try:
            ack = decode_publish(msg, subject=sent.subject, header=sent.header)
        except Error as error:
            if sent.tries and isinstance(error, NoRespondersError):
                self.to_resend.append(sent._replace(tries=sent.tries - 1))
            else:
                self._failed(sent, error)
        else:
            self.acked += 1
            self.duplicates += ack.duplicate
            self.last_ack = ack
            if self._note is not None:
                self._note(ack, sent.subject, sent.header)
            if sent.pending is not None:
                sent.pending.settle(ack, None)
        return True

    def _failed(self, sent: Sent, error: Error) -> None:
        """Keep a failure for the publisher's next call, or for the owner of the `PendingAck`."""
        if sent.pending is None:
            self.failures.append(FailedPublish(sent.position, sent.subject, error))
        else:
            sent.pending.settle(None, error)

    def fail(self, error: Error) -> None:
        """The connection is gone: whether the messages in flight were stored is not known."""
        waiting, self._waiting = self._waiting, {}
        is_lost = isinstance(error, ConnectionLostError) and not isinstance(error, ConnectionClosedError)
        self.lost_error = error
        for sent in (*waiting.values(), *self.to_resend):
            if is_lost and sent.sent_at is not None:
                self.in_doubt.append(sent)
            else:
                self._failed(sent, error)
        self.to_resend.clear()
        self._early.clear()

    def fail_in_doubt(self, sent: Sent) -> None:
        """Report one of the messages in doubt as failed: it cannot be sent again."""
        self._failed(sent, self.lost_error or ConnectionLostError("the connection was lost"))

    def forget(self, error: Error) -> list[str]:
        """Abandon the publishes in flight; returns their tokens, to be cancelled."""
        tokens = list(self._waiting)
        for sent in (*self._waiting.values(), *self.to_resend, *self.in_doubt):
            self._failed(sent, error)
        self._waiting = {}
        self.to_resend.clear()
        self.in_doubt.clear()
        self._early.clear()
        return tokens
