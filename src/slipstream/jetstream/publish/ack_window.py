"""The ack windows of publishers: how many publishes are in flight, were acknowledged or failed.

One object for all publishes of a publisher, and one that finds the acks of all publishers of a client (`PublishAcks`):
an ack costs a match in the received bytes and two dictionary look-ups, no message, no future and no task. Acks of one
stream arrive in a row, in which only tokens and sequences differ: they are taken together by one expression. A message
whose own ack matters has a `PendingAck`. Messages that no stream took (503, as while its leader changes) can be resent,
and those with a message id whose connection was lost, if `publish.repeats` allows it.
Invariant: every publish is answered once, in `failures`, in its `PendingAck`, or in the counts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

import msgspec
from msgspec.structs import replace

from slipstream.api import PubAck
from slipstream.client.requests import INBOX_SID
from slipstream.errors import ConnectionClosedError, ConnectionLostError, Error, NoRespondersError
from slipstream.jetstream.publish.sent import FailedPublish, Sent
from slipstream.jetstream.requests import decode_publish
from slipstream.wire import Msg
from slipstream.wire.frame_runs import matches_in_row, run_pattern, scan_run

# Behind the prefix of reply subjects: token, size, stream, domain, sequence, whether it is a duplicate. Of the inbox
# only: a subscription of the user's to `>` gets a copy of each ack, which is a message of that subscription.
_ACK: Final = (
    rb"(\d{1,18}) " + INBOX_SID + rb' (\d{1,9})\r\n\{"stream":"([ !#-\[\]-~]+)",'
    rb'(?: ?"domain":"([ !#-\[\]-~]*)",)? ?"seq":(\d{1,20})(,"duplicate": ?true)?\}\r\n'
)

_RUN_LENGTH = 32  # acks in a row that are worth an expression of their own
_decode_tokens = msgspec.json.Decoder(list[int]).decode


def ack_pattern(prefix: bytes) -> re.Pattern[bytes]:
    """An expression for a whole frame with an ordinary ack, whose reply subject begins as in `prefix`."""
    return re.compile(re.escape(prefix) + _ACK)


def is_whole(found: re.Match[bytes], size: bytes) -> bool:
    """Whether the payload is as long as the frame says: a responder's may imitate the end of it, and another frame."""
    return found.end() - found.end(2) == int(size) + 4


class AckWindow:
    """The publishes of one publisher. `to_resend` holds those that no stream took, `in_doubt` those whose connection
    was lost, for the reason `lost_error`."""

    __slots__ = (
        "_has_pending",
        "_last",
        "_note",
        "_waiting",
        "acked",
        "duplicates",
        "failures",
        "in_doubt",
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
        self._last: tuple[bytes, bytes | None, bytes, bytes | None] | PubAck | None = None
        self.failures: list[FailedPublish] = []
        self.to_resend: deque[Sent] = deque()
        self.in_doubt: deque[Sent] = deque()
        self.lost_error: Error | None = None
        self._waiting: dict[int, Sent] = {}
        self._has_pending = False  # a message whose own ack matters was sent

    @property
    def last_ack(self) -> PubAck | None:
        """The newest ack."""
        if isinstance(self._last, tuple):
            self._last = _ack_of(*self._last)
        return self._last

    @property
    def in_flight(self) -> int:
        """How many publishes have no answer yet."""
        return len(self._waiting) + len(self.to_resend) + len(self.in_doubt)

    def takes_next(self) -> bool:
        """Whether one more may be sent now: those in doubt go before it."""
        return len(self._waiting) + len(self.to_resend) < self.limit and not self.in_doubt

    def is_empty(self) -> bool:
        """Whether every publish was answered."""
        return not self.in_flight

    def fewer_than(self, count: int) -> bool:
        """Whether fewer publishes than that wait for their answer, or one must be resent."""
        return self.in_flight < count or bool(self.to_resend)

    def sending(self, token: int, sent: Sent) -> None:
        """Register a publish that is sent, perhaps again."""
        if sent.pending is not None:
            self._has_pending = True
        self._waiting[token] = sent

    def acknowledge(self, token: int, stream: bytes, domain: bytes | None, seq: bytes, duplicate: bytes | None) -> None:
        """Count an ack, once: the thread that gets the entry out of the dictionary does it."""
        sent = self._waiting.pop(token, None)
        if sent is None:
            return
        if self._note is None and sent.pending is None:
            self.acked += 1
            if duplicate is not None:
                self.duplicates += 1
            self._last = stream, domain, seq, duplicate
        else:
            self._stored(sent, _ack_of(stream, domain, seq, duplicate))

    def acknowledge_run(
        self, tokens: Sequence[int], stream: bytes, domain: bytes | None, seqs: Sequence[bytes]
    ) -> None:
        """As `acknowledge` for each, none of them a duplicate."""
        if self._note is not None or self._has_pending:
            for token, seq in zip(tokens, seqs, strict=True):
                self.acknowledge(token, stream, domain, seq, None)
            return
        found = list(map(self._waiting.pop, tokens, repeat(None)))
        count, last = 0, -1
        for index, sent in enumerate(found):
            if sent is not None:
                count += 1
                last = index
        self.acked += count
        if last >= 0:
            self._last = stream, domain, seqs[last], None

    def deliver(self, token: int, msg: Msg) -> None:
        """Take an answer that is no ordinary ack."""
        sent = self._waiting.pop(token, None)
        if sent is None:
            return
        try:
            ack = decode_publish(msg, subject=sent.subject, header=sent.header)
        except Error as error:
            if sent.tries and isinstance(error, NoRespondersError):
                self.to_resend.append(replace(sent, tries=sent.tries - 1))
            else:
                self._failed(sent, error)
        else:
            self._stored(sent, ack)

    def deny(self, token: int, error: Error, subject: str) -> bool:
        """Fail a publish if it went to a subject that the server rejects."""
        sent = self._waiting.get(token)
        if sent is None or sent.subject != subject or self._waiting.pop(token, None) is None:
            return False
        self.fail_one(sent, error)
        return True

    def _stored(self, sent: Sent, ack: PubAck) -> None:
        self.acked += 1
        self.duplicates += ack.duplicate
        self._last = ack
        if self._note is not None:
            self._note(ack, sent.subject, sent.header)
        if sent.pending is not None:
            sent.pending.settle(ack, None)

    def _failed(self, sent: Sent, error: Error) -> None:
        """Keep a failure for the publisher's next call, or for the owner of the `PendingAck`."""
        if sent.pending is None:
            self.failures.append(FailedPublish(sent.position, sent.subject, error))
        else:
            sent.pending.settle(None, error)

    def fail(self, error: Error) -> None:
        """The connection is gone: whether the messages in flight were stored is not known."""
        waiting, self._waiting = self._waiting, {}
        for sent in (*waiting.values(), *self.to_resend):
            self.fail_one(sent, error)
        self.to_resend.clear()

    def fail_one(self, sent: Sent, error: Error) -> None:
        """A publish gets no answer any more."""
        self.lost_error = error
        is_lost = isinstance(error, ConnectionLostError) and not isinstance(error, ConnectionClosedError)
        if is_lost and sent.sent_at is not None:
            self.in_doubt.append(sent)
        else:
            self._failed(sent, error)

    def fail_in_doubt(self, sent: Sent) -> None:
        """Report one of the messages in doubt as failed: it cannot be sent again."""
        self._failed(sent, self.lost_error or ConnectionLostError("the connection was lost"))

    def drop(self, token: int) -> bool:
        """Forget a publish that was not sent after all; whether it still had no answer."""
        return self._waiting.pop(token, None) is not None

    def forget(self, error: Error) -> list[int]:
        """Abandon the publishes in flight; returns their tokens, to be cancelled."""
        waiting, self._waiting = self._waiting, {}
        for sent in (*waiting.values(), *self.to_resend, *self.in_doubt):
            self._failed(sent, error)
        self.to_resend.clear()
        self.in_doubt.clear()
        return list(waiting)


def _ack_of(stream: bytes, domain: bytes | None, seq: bytes, duplicate: bytes | None) -> PubAck:
    return PubAck(stream.decode(), int(seq), (domain or b"").decode(), duplicate is not None)


class PublishAcks:
    """Finds the acks of all publishers of one client: a `SingleWindowSink`.

    One for all of them: with many publishers, whose acks come in any order, each of them would look at each ack.
    """

    def __init__(self) -> None:
        self.token: str = ""
        self._windows: dict[int, AckWindow] = {}  # by the tokens of the publishes that have no answer
        self._ack = re.compile(b"$.")  # nothing, before `attach`
        self._prefix = b""
        self._run: re.Pattern[bytes] | None = None  # for acks like the last one,
        self._run_stream: tuple[bytes, bytes | None] = b"", None  # of this stream and domain

    @property
    def in_flight(self) -> int:
        """How many publishes have no answer yet."""
        return len(self._windows)

    def register(self, token: int, entry: tuple[AckWindow, Sent]) -> None:
        """Register a publish that is sent now."""
        window, sent = entry
        self._windows[token] = window
        window.sending(token, sent)

    def drop(self, token: int) -> bool:
        """Forget a publish; whether it still had no answer."""
        window = self._windows.pop(token, None)
        return window is not None and window.drop(token)

    # Called by the client

    def attach(self, prefix: bytes) -> None:
        """Every ack is a MSG frame that begins with `prefix`; the token follows it."""
        self._ack = ack_pattern(prefix)
        self._prefix = prefix

    def awaits(self, token: int) -> bool:
        """Whether a publish has no answer yet."""
        return token in self._windows

    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        """Take the acks at `pos`; returns where they end and how many they were."""
        in_run = 0
        if self._run is not None:
            pos, in_run = self._scan_run(data, pos, self._run)
        windows, count = self._windows, 0
        last: re.Match[bytes] | None = None
        for found in matches_in_row(self._ack, data, pos):
            number, size, stream, domain, seq, duplicate = found.groups()
            token = int(number)
            window = windows.get(token)
            if window is None or not is_whole(found, size):  # of a block, or of another form
                break
            windows.pop(token, None)
            window.acknowledge(token, stream, domain, seq, duplicate)
            pos = found.end()
            last = found
            count += 1
        if count >= _RUN_LENGTH and last is not None:
            self._make_run(data, last)
        return pos, in_run + count

    def _make_run(self, data: bytes, found: re.Match[bytes]) -> None:
        """The next acks will be like this one, of a sequence with as many digits. (`re` keeps expressions.)"""
        _, size, stream, domain, seq, duplicate = found.groups()
        if duplicate is not None:
            return
        before, behind = data[found.end(2) : found.start(5)], data[found.end(5) : found.end()]
        head = rb"%b(\d{1,18}) %b %b%b" % (re.escape(self._prefix), INBOX_SID, size, re.escape(before))
        self._run = run_pattern(rb"%b(\d{%d})%b" % (head, len(seq), re.escape(behind)))
        self._run_stream = stream, domain

    def _scan_run(self, data: bytes, pos: int, run: re.Pattern[bytes]) -> tuple[int, int]:
        """Take the acks at `pos` that are like those before; an expression with their size takes no other payload."""
        frames = scan_run(run, data, pos)
        if frames is None:
            return pos, 0
        numbers, seqs = frames.columns
        try:
            tokens = _decode_tokens(b"[%b]" % b",".join(numbers))
        except msgspec.MsgspecError:  # a token that begins with 0
            return pos, 0
        windows = self._windows
        owners = set(map(windows.get, tokens))
        if None in owners:  # one of a block: one by one, up to that
            return pos, 0
        stream, domain = self._run_stream
        window = owners.pop()
        if window is not None and not owners:
            deque(map(windows.pop, tokens, repeat(None)), maxlen=0)
            window.acknowledge_run(tokens, stream, domain, seqs)
        else:
            for token, seq in zip(tokens, seqs, strict=True):
                owner = windows.pop(token, None)
                if owner is not None:
                    owner.acknowledge(token, stream, domain, seq, None)
        return frames.end, frames.length

    def deliver(self, msg: Msg) -> bool:
        """Take an answer that came as a message. It is never the last: a peer may send to the token of this sink."""
        token = int(msg.subject.rpartition(".")[2])
        window = self._windows.pop(token, None)
        if window is not None:
            window.deliver(token, msg)
        return False

    def deny(self, error: Error, subject: str) -> bool:
        """Fail the publishes to a subject that the server rejects; the others are still answered."""
        for token, window in list(self._windows.items()):
            if window.deny(token, error, subject):
                self._windows.pop(token, None)
        return False

    def fail(self, error: Error) -> None:
        """The connection is gone, and with it the subscription under this token."""
        windows, self._windows, self.token = self._windows, {}, ""
        for window in dict.fromkeys(windows.values()):
            window.fail(error)
