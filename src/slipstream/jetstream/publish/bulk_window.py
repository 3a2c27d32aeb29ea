"""Publishes that go out in blocks become counts and the items that a stream refused: the window of bulk writers.

An item costs a number in a set, its ack one match in the received bytes (0.5 µs), no message and no object. Answers of
another form than an ordinary ack (errors, nobody there, counters) come through `deliver`, as those of any request do.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from slipstream.client.outgoing import Draft, too_large
from slipstream.errors import Error
from slipstream.jetstream.requests import decode_publish
from slipstream.wire import Msg
from slipstream.wire.frame_runs import matches_in_row

__all__ = ["Block", "BlockWindow", "Draft", "Refused", "too_large"]

T = TypeVar("T")

_ACK = (
    rb'(\d+) \d+ \d+\r\n\{"stream":"[^"\\\r\n]+",(?: ?"domain":"[^"\\\r\n]*",)? ?"seq":(\d+)'
    rb'(,"duplicate": ?true)?\}\r\n'
)


class Refused(NamedTuple, Generic[T]):
    """An item that the stream did not take, and why."""

    item: T
    error: Error


class Block(NamedTuple, Generic[T]):
    """Messages that went out together, and what each is for."""

    messages: Sequence[Draft]
    items: Sequence[T]


class BlockWindow(Generic[T]):
    """A `BulkSink` for any number of publishes, which are told apart by their tokens: numbers, in a row for a block.

    `refused` holds what was refused and is not taken out yet. Once it has failed (`error`), it takes no more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.token = ""
        self.acked = 0
        self.duplicates = 0
        self.last_seq = 0  # in the newest ack
        self.error: Error | None = None
        self.refused: list[Refused[T]] = []
        self._waiting: set[int] = set()
        self._firsts: list[int] = []  # the first tokens of the blocks,
        self._blocks: list[Block[T]] = []  # in the same order
        self._staged: Sequence[T] = ()
        self._ack = re.compile(b"$.")  # nothing, before `attach`

    @property
    def in_flight(self) -> int:
        """How many publishes have no answer yet."""
        return len(self._waiting)

    def has_room(self, count: int) -> bool:
        """Whether so many more may be sent."""
        return len(self._waiting) + count <= self.limit

    def fewer_than(self, count: int) -> bool:
        """Whether fewer publishes than that wait for their answer."""
        return len(self._waiting) < count

    def stage(self, items: Sequence[T]) -> None:
        """The next block is of these: one for each of its messages."""
        self._staged = items

    # As a sink

    def sending(self, first: int, messages: Sequence[Draft]) -> None:
        """The staged block goes out now, with the tokens from `first` on."""
        assert len(messages) == len(self._staged), f"{len(messages)} messages for {len(self._staged)} items"
        self._forget_finished()
        self._waiting.update(range(first, first + len(messages)))
        self._firsts.append(first)
        self._blocks.append(Block(messages, self._staged))

    def _forget_finished(self) -> None:
        """Blocks of which every answer is here: an answer that does not come keeps no block but its own."""
        waiting = self._waiting
        kept = [
            (first, block)
            for first, block in zip(self._firsts, self._blocks, strict=True)
            if not waiting.isdisjoint(range(first, first + len(block.messages)))
        ]
        self._firsts = [first for first, _ in kept]
        self._blocks = [block for _, block in kept]

    def awaits(self, token: int) -> bool:
        """Whether that one has no answer yet."""
        return token in self._waiting

    def asks(self, subject: str) -> bool:
        """Whether a message of the blocks in flight went to that subject."""
        return any(one[0] == subject for block in self._blocks for one in block.messages)

    def attach(self, prefix: bytes) -> None:
        """Every ack is a MSG frame that begins with `prefix`; the token follows it."""
        self._ack = re.compile(re.escape(prefix) + _ACK)

    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        """Take the acks at `pos`; returns where they end and how many they were."""
        waiting, seq, count = self._waiting, b"0", 0
        for found in matches_in_row(self._ack, data, pos):
            token, newest, duplicate = found.groups()
            number = int(token)
            if number not in waiting:  # of another window
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
        """Take an answer that came as a message; each publish has exactly one."""
        token = int(msg.subject.rpartition(".")[2])
        try:
            ack = decode_publish(msg)
        except Error as error:
            at = bisect_right(self._firsts, token) - 1
            self.refused.append(Refused(self._blocks[at].items[token - self._firsts[at]], error))
        else:
            self.acked += 1
            self.duplicates += ack.duplicate
            self.last_seq = ack.seq
        self._waiting.discard(token)  # last: whoever waits for it may look at once
        return True

    def fail(self, error: Error) -> None:
        """No answer comes any more: whether what is in flight was stored is not known."""
        self.error = self.error or error
        self._waiting.clear()
