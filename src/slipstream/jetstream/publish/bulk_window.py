"""The ack window of bulk writers: publishes that are sent in blocks, and the items that a stream rejected.

An item costs a number in a set, its ack one match in the received bytes (0.5 µs), no message and no object. Answers of
another form than an ordinary ack (errors, no responders, counters) come through `deliver`, as for any request.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from slipstream.client.outgoing import Draft, too_large
from slipstream.errors import Error
from slipstream.jetstream.publish.ack_window import ack_pattern, is_whole
from slipstream.jetstream.requests import decode_publish
from slipstream.wire import Msg
from slipstream.wire.frame_runs import matches_in_row

__all__ = ["Block", "BlockWindow", "Draft", "Rejected", "too_large"]

T = TypeVar("T")


class Rejected(NamedTuple, Generic[T]):
    """An item that the stream did not store, and the error."""

    item: T
    error: Error


class Block(NamedTuple, Generic[T]):
    """Messages that were sent together, and the item that each is for."""

    messages: Sequence[Draft]
    items: Sequence[T]


class BlockWindow(Generic[T]):
    """A `BulkSink` for any number of publishes, which are told apart by their tokens: numbers, in a row for a block.

    `rejected` holds the items that were rejected and are not taken out yet. Once it has failed (`error`), it takes no
    more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.token = ""
        self.acked: int = 0
        self.duplicates: int = 0
        self.last_seq: int = 0  # in the newest ack
        self.error: Error | None = None
        self.rejected: list[Rejected[T]] = []
        self._waiting: set[int] = set()
        self._firsts: list[int] = []  # the first tokens of the blocks,
        self._blocks: list[Block[T]] = []  # in the same order
        self._staged: Sequence[T] = ()
        self._ack = re.compile(b"$.")  # nothing, before `attach`

    @property
    def in_flight(self) -> int:
        """How many publishes have no answer yet."""
        return len(self._waiting)

    def has_capacity(self, count: int) -> bool:
        """Whether so many more may be sent."""
        return len(self._waiting) + count <= self.limit

    def fewer_than(self, count: int) -> bool:
        """Whether fewer publishes than that wait for their answer."""
        return len(self._waiting) < count

    def stage(self, items: Sequence[T]) -> None:
        """Set the items of the next block: one for each of its messages."""
        self._staged = items

    # As a sink

    def sending(self, first: int, messages: Sequence[Draft]) -> None:
        """Register the staged block, which is sent with the tokens from `first` on."""
        assert len(messages) == len(self._staged), f"{len(messages)} messages for {len(self._staged)} items"
        self._forget_finished()
        self._waiting.update(range(first, first + len(messages)))
        self._firsts.append(first)
        self._blocks.append(Block(messages, self._staged))

    def _forget_finished(self) -> None:
        """Drop the blocks whose answers have all arrived: an answer that is missing keeps its own block only."""
        waiting = self._waiting
        kept = [
            (first, block)
            for first, block in zip(self._firsts, self._blocks, strict=True)
            if not waiting.isdisjoint(range(first, first + len(block.messages)))
        ]
        self._firsts = [first for first, _ in kept]
        self._blocks = [block for _, block in kept]

    def awaits(self, token: int) -> bool:
        """Whether a publish has no answer yet."""
        return token in self._waiting

    def deny(self, _: Error, subject: str) -> bool:
        """Whether a message of the blocks in flight went to a subject that the server rejects: then all fail."""
        return any(one[0] == subject for block in self._blocks for one in block.messages)

    def attach(self, prefix: bytes) -> None:
        """Every ack is a MSG frame that begins with `prefix`; the token follows it."""
        self._ack = ack_pattern(prefix)

    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        """Take the acks at `pos`; returns where they end and how many they were."""
        waiting, seq, count = self._waiting, b"0", 0
        for found in matches_in_row(self._ack, data, pos):
            token, size, _, _, newest, duplicate = found.groups()
            number = int(token)
            if number not in waiting or not is_whole(found, size):  # of another window, or of another form
                break
            waiting.discard(number)
            if duplicate:
                self.duplicates += 1
            seq, pos, count = newest, found.end(), count + 1
        if count:
            self.acked += count
            self.last_seq = int(seq)
        return pos, count

    def deliver(self, msg: Msg) -> bool:
        """Take an answer that came as a message; each publish has exactly one.

        It is never the last: a peer may send to the token of this sink.
        """
        token = int(msg.subject.rpartition(".")[2])
        if token not in self._waiting:
            return False
        at = bisect_right(self._firsts, token) - 1
        block, position = self._blocks[at], token - self._firsts[at]
        try:
            ack = decode_publish(msg, subject=block.messages[position][0])
        except Error as error:
            self.rejected.append(Rejected(block.items[position], error))
        else:
            self.acked += 1
            self.duplicates += ack.duplicate
            self.last_seq = ack.seq
        self._waiting.discard(token)  # last: a waiting thread may look at once
        return False

    def fail(self, error: Error) -> None:
        """The connection is gone: whether the publishes in flight were stored is unknown."""
        self.error = self.error or error
        self._waiting.clear()
