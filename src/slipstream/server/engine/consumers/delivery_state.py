"""Delivery state of a consumer: what was delivered, what awaits its ack, what is to be redelivered.

Plain data: no clock and no I/O. `pending` is in the order of the stream, with the consumer sequence and the time of the
last delivery. `counts` says how often a message was delivered beyond the first time; a message that is in there and not
pending was given up. The ack floor is below the oldest message that is still pending.

What changed is written in blocks of 64 stream sequences: the cost of keeping the state durable is that of the work done
since, not of all that is pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from struct import Struct

from slipstream.server.engine.consumers.deliver_policy import SkipList

BLOCK = 6  # 64 sequences to a block: a page of the store holds one
SPARE = 1024
LAST = 2**63 - 1  # the times that fit an entry
_HEAD = Struct("<QQQQQqq")
HEAD_SIZE = _HEAD.size
_ENTRY = Struct("<QQqI")  # stream sequence, consumer sequence (0: not pending), time, count

Pending = tuple[int, int]  # consumer sequence, time


class DeliveryState:
    """The deliveries of one consumer."""

    def __init__(self, start: int) -> None:
        """`start` is the first stream sequence of interest."""
        self.next_seq: int = start  # where the search for the next new message begins
        self.dseq: int = 0  # the consumer sequence that was assigned last
        self.delivered: int = start - 1  # the highest stream sequence delivered
        self.floor_dseq: int = 0
        self.floor_seq: int = start - 1
        self.last_delivery: int = 0  # when
        self.last_ack: int = 0  # when
        self.last_active = 0  # when it was used last, in any way; not kept
        self.pending: dict[int, Pending] = {}
        self.counts: dict[int, int] = {}
        self.queue: dict[int, None] = {}  # to be redelivered, in this order
        self.skips: SkipList | None = None  # of the last messages of all subjects, those to come
        # `pending` is a dict, and settling its first entries makes finding its first one slow: the dict has to skip all
        # that were deleted. So the order is kept aside.
        self._order: deque[int] = deque()  # what was delivered, in order; the front may be settled already
        self._dirty: set[int] = set()

    # Deliveries.

    def deliver(self, seq: int, now: int) -> int:
        """A new message that is to be acked goes out; its consumer sequence."""
        self.dseq += 1
        self.delivered = seq
        self.pending[seq] = (self.dseq, now)
        self._order.append(seq)
        self._dirty.add(seq >> BLOCK)
        self._tidy()
        return self.dseq

    def deliver_all(self, seqs: list[int], now: int) -> None:
        """New messages that are to be acked go out, in order."""
        dseq, pending = self.dseq, self.pending
        for seq in seqs:
            dseq += 1
            pending[seq] = (dseq, now)
        self.dseq = dseq
        self.delivered = seqs[-1]
        self._order += seqs
        self._dirty.update([seq >> BLOCK for seq in seqs])
        self._tidy()

    def _tidy(self) -> None:
        """Bound what is remembered behind a message that is not acked for long."""
        if len(self._order) > SPARE + 2 * len(self.pending):
            self._order = deque(self.pending)

    def hand_over(self, seq: int) -> int:
        """A new message that needs no ack goes out; its consumer sequence."""
        self.dseq += 1
        self.delivered = self.floor_seq = seq
        self.floor_dseq = self.dseq
        return self.dseq

    def deliver_again(self, seq: int, now: int) -> tuple[int, int]:
        """A pending message is redelivered; its new consumer sequence, and how often it was delivered by now."""
        self.queue.pop(seq, None)
        self.dseq += 1
        # The ack floor goes by the consumer sequence of the first delivery: the entry keeps it, and its position.
        self.pending[seq] = (self.pending[seq][0], now)
        count = self.counts[seq] = self.counts.get(seq, 0) + 1
        self._dirty.add(seq >> BLOCK)
        return self.dseq, count + 1

    def times(self, seq: int) -> int:
        """How often a message was delivered."""
        return self.counts.get(seq, 0) + 1

    # Acks.

    def settle(self, seq: int) -> bool:
        """A message needs no ack any more; False if it did not. One that was given up does: its ack may come late."""
        entry = self.pending.pop(seq, None)
        counted = self.counts.pop(seq, None) is not None
        if counted or entry is not None:
            self._dirty.add(seq >> BLOCK)
        if entry is None:
            return counted
        if self.queue:  # nearly always empty: an ack does not pay for redeliveries
            self.queue.pop(seq, None)
        self._move_floor(entry[0], seq)
        return True

    def settle_to(self, seq: int) -> list[int]:
        """A message and all before it need no ack any more; those that were pending."""
        settled = [at for at in self.pending if at <= seq]
        entry = self.pending.get(seq)
        for at in settled:
            del self.pending[at]
            self.counts.pop(at, None)
            self.queue.pop(at, None)
            self._dirty.add(at >> BLOCK)
        if not self.pending:
            self.floor_dseq, self.floor_seq = self.dseq, self.delivered
            self._order.clear()
        elif settled:
            self.floor_seq = max(self.floor_seq, seq)
            self.floor_dseq = max(self.floor_dseq, entry[0] if entry is not None else self._first()[0] - 1)
        return settled

    def give_up(self, seq: int) -> None:
        """A message was delivered as often as it may be; its count stays, as its ack may still arrive."""
        entry = self.pending.pop(seq, None)
        self.queue.pop(seq, None)
        self.counts[seq] = self.counts.get(seq, 0) or 1  # at least one, or nothing would tell that it was given up
        self._dirty.add(seq >> BLOCK)
        if entry is not None:
            self._move_floor(entry[0], seq)

    def forget_below(self, first: int) -> bool:
        """The stream begins at `first` now: what is before needs no ack; whether anything was pending there."""
        gone = [seq for seq in self.pending if seq < first]
        for seq in [*gone, *(seq for seq in self.counts if seq < first)]:
            self.pending.pop(seq, None)
            self.counts.pop(seq, None)
            self.queue.pop(seq, None)
            self._dirty.add(seq >> BLOCK)
        if gone and self.pending:
            self.floor_dseq, self.floor_seq = self._first()[0] - 1, max(self.floor_seq, first - 1)
        elif gone:
            # Nothing is pending any more: the floor is where deliveries are.
            self.floor_dseq, self.floor_seq = self.dseq, max(self.delivered, self.floor_seq)
        return bool(gone)

    def pass_over(self, start: int) -> None:
        """Everything before `start` was purged."""
        self.next_seq = max(self.next_seq, start)
        self.delivered = max(self.delivered, start - 1)
        if not self.pending:
            self.floor_dseq, self.floor_seq = self.dseq, self.delivered
        else:
            self._first()
            self.floor_seq = max(self.floor_seq, min(start, self._order[0]) - 1)

    def touch(self, seq: int, now: int) -> bool:
        """The time of a pending message's delivery counts from `now`; False if it is not pending."""
        entry = self.pending.get(seq)
        if entry is None:
            return False
        self.pending[seq] = (entry[0], max(-LAST, min(now, LAST)))  # a nak may ask for any delay
        self._dirty.add(seq >> BLOCK)
        return True

    def _move_floor(self, dseq: int, seq: int) -> None:
        if not self.pending:
            self.floor_dseq, self.floor_seq = self.dseq, self.delivered
            self._order.clear()
        elif dseq == self.floor_dseq + 1:
            # It was the oldest pending message: the floor moves up to the next one, over all that were settled before.
            self.floor_dseq, self.floor_seq = dseq, seq
            first = self._first()
            if first[0] > dseq:
                self.floor_dseq, self.floor_seq = first[0] - 1, self._order[0] - 1

    def _first(self) -> Pending:
        """The oldest pending message."""
        order, pending = self._order, self.pending
        while order[0] not in pending:
            order.popleft()
        return pending[order[0]]

    # Records.

    def changed(self) -> dict[int, bytes]:
        """The blocks that changed since the last call (empty: nothing is left in them)."""
        blocks = {number: self._pack_block(number) for number in self._dirty}
        self._dirty.clear()
        return blocks

    def all_changed(self, blocks: Iterable[int] = ()) -> None:
        """Everything is to be written again, also the `blocks` that are kept."""
        self._dirty.update(blocks)
        self._dirty.update(seq >> BLOCK for seq in (*self.pending, *self.counts))

    def _pack_block(self, number: int) -> bytes:
        parts = []
        pending, counts = self.pending, self.counts
        for seq in range(number << BLOCK, (number + 1) << BLOCK):
            entry, count = pending.get(seq), counts.get(seq, 0)
            if entry is not None:
                parts.append(_ENTRY.pack(seq, entry[0], entry[1], count))
            elif count:
                parts.append(_ENTRY.pack(seq, 0, 0, count))
        return b"".join(parts)

    def head(self) -> bytes:
        """The sequences and times, as a record of fixed size."""
        return _HEAD.pack(
            self.next_seq,
            self.dseq,
            self.delivered,
            self.floor_dseq,
            self.floor_seq,
            self.last_delivery,
            self.last_ack,
        )

    @classmethod
    def restored(cls, head: bytes, blocks: Iterable[bytes]) -> DeliveryState:
        """The state in its records."""
        state = cls(1)
        (
            state.next_seq, state.dseq, state.delivered, state.floor_dseq, state.floor_seq,
            state.last_delivery, state.last_ack,
        ) = _HEAD.unpack(head)  # fmt: skip
        entries = sorted(entry for block in blocks for entry in _ENTRY.iter_unpack(block))
        for seq, dseq, time, count in entries:
            if dseq:
                state.pending[seq] = (dseq, time)
                state._order.append(seq)
            if count:
                state.counts[seq] = count
        return state

    def clock_set_back(self, now: int) -> None:
        """Deliveries that lie in the future, because the machine's clock was set back while the server was down, count
        from `now`: otherwise their messages would not be redelivered before the clock is there again."""
        ahead = max(self.last_delivery, self.last_ack) - now
        if ahead > 0:
            self.last_delivery, self.last_ack = self.last_delivery - ahead, self.last_ack - ahead
            for seq, (dseq, time) in self.pending.items():
                self.pending[seq] = (dseq, max(time - ahead, -LAST))
            self.all_changed()

    def reset(self, start: int) -> None:
        """Begin again, from a stream sequence, as if nothing had been delivered."""
        self._dirty.update(seq >> BLOCK for seq in (*self.pending, *self.counts))
        self.pending.clear()
        self.counts.clear()
        self.queue.clear()
        self._order.clear()
        self.next_seq = start
        self.delivered = self.floor_seq = start - 1
        self.dseq = self.floor_dseq = 0
        self.last_delivery = self.last_ack = 0


def due(
    pending: Mapping[int, Pending], counts: Mapping[int, int], waits: tuple[int, ...], now: int
) -> tuple[list[int], int]:
    """The pending messages whose ack is overdue, in order, and when the next one will be (0: none).

    `waits` are the times to wait for an ack of the first, second, … delivery; the last one is for all further ones.
    """
    overdue: list[int] = []
    soonest = 0
    last = len(waits) - 1
    for seq, (_, time) in pending.items():
        deadline = time + (waits[0] if not last else waits[min(counts.get(seq, 0), last)])
        if deadline <= now:
            overdue.append(seq)
        elif not soonest or deadline < soonest:
            soonest = deadline
    return overdue, soonest
