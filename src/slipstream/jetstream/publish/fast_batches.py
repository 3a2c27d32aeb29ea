"""Fast batches: blocks of publishes with one ack for each block, for streams with `allow_batched`.

The reply subject of a message carries its number in the batch. A batch ends at the first message that is missing or
rejected (`fail`), so that its ack says how many of the block are in the stream, duplicates included. Messages that an
ack does not cover are returned to be published one by one: that shows which message is wrong, and its id keeps it from
being stored twice. Invariant: a block is acknowledged as a whole, in `again`, or in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from slipstream.api import PubAck
from slipstream.errors import Error
from slipstream.jetstream.publish.bulk_window import Block, Draft
from slipstream.jetstream.requests import decode_publish
from slipstream.wire import Msg

T = TypeVar("T")

MOST_FLOW = 500  # messages between two progress reports, which are not used here: the most that nats-server allows
START, APPEND, COMMIT = range(3)
_REPORT = b'{"type":'


@lru_cache(maxsize=64)
def _ends(count: int) -> list[bytes]:
    """The ends of the reply subjects of a batch."""
    last = [COMMIT] if count == 1 else [START, *[APPEND] * (count - 2), COMMIT]
    return [b".%d.fail.%d.%d.$FI" % (MOST_FLOW, number, what) for number, what in enumerate(last, 1)]


class FastBatchWindow(Generic[T]):
    """The blocks of one writer. `inbox` is a subject of its own; answers arrive below it."""

    def __init__(self, inbox: str) -> None:
        self.acked: int = 0
        self.in_flight: int = 0  # messages
        self.last_seq: int = 0  # in the newest ack
        self.again: list[Block[T]] = []
        self._name = inbox.replace(".", "_")[-48:]  # batches of all writers of a stream are told apart by their names
        self._head = inbox.encode()
        self._cut = len(inbox) + 1
        self._count = 0
        self._blocks: dict[str, Block[T]] = {}

    def sending(self, messages: Sequence[Draft], items: Sequence[T]) -> list[bytes]:
        """Register a block, one item for each message; returns the reply subjects to send them with."""
        self._count += 1
        name = f"{self._name}-{self._count}"
        self._blocks[name] = Block(messages, items)
        self.in_flight += len(messages)
        head = b"%b.%b" % (self._head, name.encode())
        return [head + end for end in _ends(len(messages))]

    def deliver(self, msg: Msg) -> None:
        """Take an answer. Many are of no interest: progress reports, and answers about a batch that has ended."""
        if msg.payload.startswith(_REPORT):
            return
        block = self._blocks.pop(msg.subject[self._cut :].partition(".")[0], None)
        if block is None:
            return
        self.in_flight -= len(block.messages)
        ack = _ack_of(msg)
        if ack is None or ack.count != len(block.messages):
            self.again.append(block)
            return
        self.acked += ack.count
        self.last_seq = max(self.last_seq, ack.seq)


def _ack_of(msg: Msg) -> PubAck | None:
    try:
        return decode_publish(msg)
    except Error:  # the message it is about is published again by itself, and answered with it
        return None
