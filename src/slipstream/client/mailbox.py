"""Mailboxes: the queue of one subscription, between the socket and the reader of its messages.

Invariant: bounded, and no silent loss. Messages that do not fit are counted in a gap, which is queued in their place;
a reader gets everything before it, then a `SlowConsumerError`, then what arrived after it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from slipstream.client.raw_columns import Packed
from slipstream.errors import Error, SlowConsumerError, UsageError
from slipstream.wire import Msg
from slipstream.wire.arguments import check_integer

MESSAGE_COST = 256  # bytes of memory for a message, besides its headers and its payload


class _Gap:
    """Messages dropped in a row."""

    __slots__ = ("dropped",)

    def __init__(self) -> None:
        self.dropped = 0


def _no_reader() -> None:
    """No reader waits."""


class Mailbox:
    """One subscription: the server's view of it (`sid`, `subject`, `queue`) and what arrived."""

    __slots__ = (
        "_gaps", "_in_packs", "_packs", "_size", "_wake", "answers", "before", "closing", "dropped", "error", "heard",
        "is_draining", "is_ended", "items", "limit", "made_at", "max_bytes", "max_msgs", "on_gap", "queue", "received",
        "sent_after", "sid", "subject",
    )  # fmt: skip

    def __init__(self, sid: bytes, subject: str, *, queue: str, max_msgs: int, max_bytes: int) -> None:
        check_integer(max_msgs, "max_pending_msgs", least=1)
        check_integer(max_bytes, "max_pending_bytes", least=1)
        self.sid: bytes = sid
        self.subject: str = subject
        self.queue: str = queue
        self.max_msgs: int = max_msgs
        self.max_bytes: int = max_bytes
        self.limit: int = 0  # auto-unsubscribe after that many messages in all; 0 for never
        self.received: int = 0
        self.before: int = 0  # of these, those of earlier connections
        self.dropped: int = 0  # because too many were pending
        self.heard: float = 0.0  # when something arrived
        self.sent_after: float = -math.inf  # a time before the pending messages were sent: see `Session.mark`
        self.made_at: float = -math.inf  # by the clock of `sent_after`
        self.is_draining: bool = False  # the server was asked to send no more
        self.is_ended: bool = False
        self.error: Error | None = None  # why it ended, if not by the user's order
        self.closing: Error | None = None  # the client was closed: iteration stops, `next` raises this
        self.on_gap: Callable[[SlowConsumerError], None] | None = None
        self.answers: Callable[[Msg], str] | None = None  # see `Subscriptions.answer_on_arrival`
        self.items: deque[Msg | Packed | _Gap] = deque()  # others may test whether it is empty, and no more
        self._size = 0
        self._gaps = 0
        self._packs = 0
        self._in_packs = 0  # messages, all in all
        self._wake: Callable[[], None] = _no_reader

    @property
    def pending(self) -> int:
        """Messages to be taken."""
        return len(self.items) - self._gaps + self._in_packs - self._packs

    @property
    def load(self) -> int:
        """About how many bytes of memory the messages to be taken need."""
        return self._size + MESSAGE_COST * self.pending

    @property
    def is_ready(self) -> bool:
        """Whether a reader has something to take: a message, an error, or the end."""
        return bool(self.items) or self.is_ended

    @property
    def is_over(self) -> bool:
        """Whether it ended by the user's order and everything was taken: iteration stops. (`take` raises an error.)"""
        return self.is_ended and not self.items and self.error is None

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when there is something to take: one call per chunk, not per message."""
        self._wake = wake

    def add(self, msg: Msg) -> bool:
        """Add a message or count it as dropped; True when it was the last of the subscription."""
        items = self.items
        size = self._size + len(msg.payload) + len(msg.header)
        if size > self.max_bytes or self.pending + self._gaps >= self.max_msgs:
            self._drop()
        else:
            items.append(msg)
            self._size = size
        if self._wake is not _no_reader:
            self._call_wake()
        self.received += 1
        if self.received == self.limit:
            self.end()
            return True
        return False

    def add_all(self, msgs: list[Msg]) -> bool:
        """As `add` for each; faster if all of them fit."""
        size = self._size + sum([len(msg.payload) + len(msg.header) for msg in msgs])
        if size > self.max_bytes or self.pending + self._gaps + len(msgs) > self.max_msgs or self.limit:
            return any(self.add(msg) for msg in msgs)
        self.items.extend(msgs)
        self._size = size
        self.received += len(msgs)
        if self._wake is not _no_reader:
            self._call_wake()
        return False

    def add_packed(self, packed: Packed) -> bool:
        """As `add` for each message of a pack, which is kept whole if all of it fits."""
        size, count = self._size + packed.size, len(packed.subjects)
        if size > self.max_bytes or self.pending + self._gaps + count > self.max_msgs or self.limit:
            return any(self.add(msg) for msg in packed.messages())
        self.items.append(packed)
        self._size = size
        self._packs += 1
        self._in_packs += count
        self.received += count
        if self._wake is not _no_reader:
            self._call_wake()
        return False

    def take_pieces(self) -> list[list[Msg] | Packed]:
        """As `take_all`, with packs as they are and lists between them; at least one of them."""
        if self._gaps:
            return [self.take_all()]
        if not self.items:
            raise self.ending()
        pieces: list[list[Msg] | Packed] = []
        for item in self.items:
            if isinstance(item, Packed):
                pieces.append(item)
            elif pieces and pieces[-1].__class__ is list:
                pieces[-1].append(item)  # type: ignore[arg-type]
            else:
                pieces.append([item])  # type: ignore[list-item]
        self.items.clear()
        self._size = self._packs = self._in_packs = 0
        return pieces

    def _unpack(self) -> None:
        """Replace packs by their messages, for readers that take messages one by one."""
        items = list(self.items)
        self.items.clear()
        for item in items:
            if isinstance(item, Packed):
                self.items.extend(item.messages())
            else:
                self.items.append(item)
        self._packs = self._in_packs = 0

    def take(self) -> Msg:
        """The oldest message; only when there is one (`is_ready`). Raises the gap or the end instead."""
        if self._packs:
            self._unpack()
        try:
            item = self.items.popleft()
        except IndexError:
            raise self.ending() from None
        if type(item) is Msg:
            self._size -= len(item.payload) + len(item.header)
            return item
        self._gaps -= 1
        raise self._gap_error(item.dropped)  # type: ignore[union-attr]

    def take_if_any(self) -> Msg | None:
        """As `take`; None if there is nothing to take."""
        return self.take() if self.items else None

    def take_all(self) -> list[Msg]:
        """Every message up to the next gap, at least one. Raises the gap or the end instead."""
        if self._packs:
            self._unpack()
        if self._gaps:
            first = [self.take()]
            while self.items and self.items[0].__class__ is not _Gap:
                first.append(self.take())
            return first
        if not self.items:
            raise self.ending()
        chunk: list[Msg] = list(self.items)  # type: ignore[arg-type]
        self.items.clear()
        self._size = 0
        return chunk

    def take_dated(self) -> tuple[Msg, float]:
        """As `take`, with a time before it was sent, if it was requested over this subscription."""
        sent_after = max(self.sent_after, self.made_at)
        return self.take(), sent_after

    def take_all_dated(self) -> tuple[list[Msg], float]:
        """As `take_all`, with such a time for all of them."""
        sent_after = max(self.sent_after, self.made_at)
        return self.take_all(), sent_after

    def stir(self) -> None:
        """Wake the reader although there is nothing to take: the connection is lost, on which it may depend."""
        if self._wake is not _no_reader:
            self._call_wake()

    def end(self, error: Error | None = None, *, closing: Error | None = None) -> None:
        """End the subscription; what is pending can still be taken."""
        if not self.is_ended:
            self.is_ended = True
            self.error = error
            self.closing = closing
            self._call_wake()

    def ending(self) -> Error:
        """The error of a read after the end."""
        text = f"the subscription of {self.subject!r} ended after {self.received} messages"
        return self.error or self.closing or UsageError(text)

    def _call_wake(self) -> None:
        wake, self._wake = self._wake, _no_reader
        wake()

    def _drop(self) -> None:
        if self.items and self.items[-1].__class__ is _Gap:
            gap = self.items[-1]
        else:
            gap = _Gap()
            self.items.append(gap)
            self._gaps += 1
            if self.on_gap is not None:
                self.on_gap(self._gap_error(1))
        gap.dropped += 1
        self.dropped += 1

    def _gap_error(self, dropped: int) -> SlowConsumerError:
        return SlowConsumerError(
            f"subscription of {self.subject!r}: {dropped} message(s) or more dropped, as more than {self.max_msgs} "
            f"messages or {self.max_bytes} bytes were pending"
        )
