"""Acks become progress, and silence becomes redeliveries: the side of a consumer that listens.

An ack settles a message for good, a nak or an overdue ack puts it into the queue of those to deliver again, until it
was delivered as often as it may be. One timer per consumer looks for what is overdue; acks that come in time cost none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slipstream.errors import ApiError
from slipstream.server.engine.consumers import config
from slipstream.server.engine.consumers.advisories import ConsumerAdvisories
from slipstream.server.engine.consumers.delivery_state import DeliveryState, due
from slipstream.server.engine.services import Host
from slipstream.server.engine.timers import Timer

if TYPE_CHECKING:
    from slipstream.server.engine.consumers.registry import Consumers
    from slipstream.server.engine.journal import Home

MILLISECOND = 1_000_000
REMOVED = "Unacknowledged message was deleted"


class AckReply:
    """The empty answer to an ack; a lost one is not answered."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def ack(self, seq: int) -> tuple[str, int]:  # noqa: ARG002
        return "", 0

    def failure(self, error: ApiError) -> bytes:  # noqa: ARG002
        return b""


class Settling:
    """What a consumer does with acks; the attributes are the consumer's."""

    group: Consumers
    host: Host
    ledger: DeliveryState
    advisories: ConsumerAdvisories
    stopped: bool
    acks: bool
    last_active: int
    _waits: tuple[int, ...]  # for an ack of the first, second, … delivery
    _max_deliver: int
    _ack_all: bool
    _sampled: int
    _reply: AckReply
    _ack_timer: Timer | None

    @property
    def full(self) -> bool:
        raise NotImplementedError

    @property
    def kept(self) -> bool:
        """Whether its books are written already, or need not be."""
        raise NotImplementedError

    def touch(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        raise NotImplementedError

    def ack(self, tokens: list[str], at: int, reply: str, payload: bytes, now: int) -> bool:
        """Take an ack."""
        if not self.acks or self.stopped:
            return False
        try:
            times, seq, dseq = int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 2])
        except ValueError:
            return True
        answered = True
        if payload == b"+ACK" or not payload or payload == b"+OK":
            answered = self._acked(seq, dseq, times, now)
        elif payload.startswith(b"+NXT"):
            self._acked(seq, dseq, times, now)
            self.next_request(reply, payload[4:], now)
            return True
        elif payload.startswith(b"-NAK"):
            self._naked(seq, dseq, times, payload[4:].strip(), now)
        elif payload == b"+WPI":
            self._in_progress(seq, now)
        elif payload.startswith(b"+TERM"):
            answered = self._terminated(seq, dseq, times, payload[5:].strip(), now)
        if reply and answered:
            self.group.answer(reply, self._reply, kept=self.kept)
        return True

    def next_request(self, reply: str, payload: bytes, now: int) -> None:
        """A pull, or what takes one for it."""
        raise NotImplementedError

    def flow(self, subject: str, now: int) -> None:
        """The answer to a flow control request; none was made."""

    def _acked(self, seq: int, dseq: int, times: int, now: int, *, sampled: bool = True) -> bool:
        """Settle a message; False if it cannot have been delivered."""
        ledger = self.ledger
        if seq > ledger.delivered:
            return False
        was_full = self.full
        if self._ack_all:
            settled: Iterable[int] = ledger.settle_to(seq) if dseq > ledger.floor_dseq else ()
        else:
            entry = ledger.pending.get(seq)
            if sampled and entry is not None and self._sampled and self.host.sample(self._sampled):
                self.advisories.acked(seq, dseq, times, now - entry[1])
            settled = (seq,) if ledger.settle(seq) else ()
        ledger.last_ack = self.last_active = now
        self.touch()
        if settled:
            self.group.settled(settled)
        if was_full:
            self.wake()
        return True

    def _naked(self, seq: int, dseq: int, times: int, argument: bytes, now: int) -> None:
        ledger = self.ledger
        if seq not in ledger.pending:
            return
        self.advisories.refused(seq, dseq, times)
        delay = config.nak_delay(argument)
        if delay is not None:
            ledger.queue.pop(seq, None)
            wait = self._waits[min(ledger.counts.get(seq, 0), len(self._waits) - 1)]
            ledger.touch(seq, now + delay - wait)
            self.touch()
            self._arm_acks(now + delay)
        elif self._max_deliver and ledger.times(seq) >= self._max_deliver:
            self._give_up(seq)
        else:
            ledger.queue[seq] = None
        self.wake()

    def _in_progress(self, seq: int, now: int) -> None:
        if self.ledger.touch(seq, now):
            self.ledger.queue.pop(seq, None)
            self.last_active = now
            self.touch()

    def _terminated(self, seq: int, dseq: int, times: int, reason: bytes, now: int) -> bool:
        answered = self._acked(seq, dseq, times, now, sampled=False)
        self.advisories.terminated(seq, dseq, times, reason.decode(errors="replace"))
        return answered

    def _give_up(self, seq: int) -> None:
        times = self.ledger.times(seq)
        self.ledger.give_up(seq)
        self.advisories.given_up(seq, times)
        self.touch()

    def _arm_acks(self, when: int) -> None:
        """Look for overdue acks at that time, or earlier."""
        timer = self._ack_timer
        if timer is not None and timer.action is not None:
            if timer.when <= when:
                return
            timer.cancel()
        self._ack_timer = self.host.timers.at(when, self._look)

    def _look(self, now: int) -> None:
        """Whose ack is overdue?"""
        ledger = self.ledger
        if not self._waits[0] or not ledger.pending:
            return
        overdue, soonest = due(ledger.pending, ledger.counts, self._waits, now)
        for seq in overdue:
            if seq in ledger.queue:
                continue
            if self._max_deliver and ledger.times(seq) >= self._max_deliver:
                self._give_up(seq)
            else:
                ledger.queue[seq] = None
        if soonest:  # with very many pending, not too often: looking through them takes time
            self._arm_acks(max(soonest, now + MILLISECOND + 2000 * len(ledger.pending)))
        if overdue:
            self.touch()
            self.wake()
