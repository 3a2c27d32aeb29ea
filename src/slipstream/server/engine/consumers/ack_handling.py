"""Ack handling of a consumer: acks, naks and the redelivery of messages whose ack is overdue.

An ack settles a message for good. A nak or an overdue ack puts it into the redelivery queue, until it was delivered
`max_deliver` times. One timer per consumer looks for overdue acks; acks that arrive in time never touch a timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec

from slipstream.api import NOT_JSON, AckPolicy, ConsumerConfig, read_json
from slipstream.api.times import nanoseconds, parse_duration
from slipstream.server.engine.consumers.advisories import ConsumerAdvisories
from slipstream.server.engine.consumers.config import sample_frequency
from slipstream.server.engine.consumers.delivery_state import DeliveryState, due
from slipstream.server.engine.consumers.persistence import StateWriter
from slipstream.server.engine.consumers.timing import MILLISECOND, EarliestTimer
from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.services import Services

LONGEST_DELAY = 2**63 - 1
AT_ONCE = 2048  # messages that await their acks: beyond that an ack of all settles them in slices
PIECE = 256  # messages that it settles between two pauses
PIECE_UNITS = 2  # of work (`engine.jobs`) for each
REMOVED = "Unacknowledged message was deleted"


class NakBody(msgspec.Struct):
    """The JSON argument of a nak."""

    delay: Annotated[int, msgspec.Meta(ge=-(2**63), le=LONGEST_DELAY)] = 0


def nak_delay(argument: bytes) -> int | None:
    """The delay that a nak asks for, in nanoseconds; None without one, or with one that cannot be parsed."""
    if not argument:
        return None
    try:
        return read_json(argument, NakBody).delay if argument[:1] == b"{" else parse_duration(argument.decode())
    except NOT_JSON:
        return None


class AckHandling:
    """What acks, and their absence, do to the delivery state of one consumer."""

    def __init__(
        self,
        services: Services,
        state: DeliveryState,
        writer: StateWriter,
        advisories: ConsumerAdvisories,
        *,
        prefix: str,
        wake: Callable[[], None],
        settled: Callable[[Iterable[int]], None],
        next_request: Callable[[str, bytes, int], None],
    ) -> None:
        """`prefix` begins the ack subjects; `wake` has a chunk delivered, `settled` tells the stream's retention which
        messages this consumer needs no more, and `next_request` takes the pull inside a `+NXT`."""
        self.prefix = prefix
        self.required: bool = False  # whether messages are to be acked
        self.max_pending: int = 0  # messages that may await their acks at one time; 0: no bound
        self._services = services
        self._state = state
        self._writer = writer
        self._advisories = advisories
        self._wake = wake
        self._settled = settled
        self._next_request = next_request
        self._cumulative = False  # an ack covers all messages before it
        self._waits: tuple[int, ...] = (0,)  # for the ack of the first, second, … delivery
        self._max_deliver = 0  # 0: no bound
        self._sampled = 0  # percent of acks that are reported
        self._timer = EarliestTimer(services.timers, self._look)
        self._stopped = False
        self._settle_all: SettleAll | None = None

    def configure(self, config: ConsumerConfig) -> None:
        """Take over a configuration."""
        self.required = config.ack_policy != AckPolicy.NONE
        self.max_pending = max(config.max_ack_pending, 0) if self.required else 0
        self._cumulative = config.ack_policy == AckPolicy.ALL
        self._waits = tuple(map(nanoseconds, config.backoff)) or (nanoseconds(config.ack_wait),)
        self._max_deliver = max(config.max_deliver, 0)
        self._sampled = sample_frequency(config)

    @property
    def full(self) -> bool:
        """Whether as many messages await their acks as may."""
        return 0 < self.max_pending <= len(self._state.pending)

    def deadlines(self) -> list[int]:
        """When the acks that are awaited are overdue."""
        waits, counts, last = self._waits, self._state.counts, len(self._waits) - 1
        return [time + waits[min(counts.get(seq, 0), last)] for seq, (_, time) in self._state.pending.items()]

    # Acks. Hot: every message that is acked passes here.

    def receive(self, tokens: list[str], at: int, reply: str, payload: bytes, now: int) -> bool:
        """Take an ack. From `at` on `tokens` are delivery count, stream sequence, consumer sequence, time, pending."""
        if not self.required or self._stopped:
            return False
        try:
            times, seq, dseq = int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 2])
        except ValueError:  # malformed: it was for this consumer, and changes nothing
            return True
        answered = True
        if self._cumulative and len(self._state.pending) > AT_ONCE and _settles(payload):
            return self._acked_in_slices(seq, dseq, times, reply, payload, now)
        if payload == b"+ACK" or not payload or payload == b"+OK":
            answered = self._acked(seq, dseq, times, now)
        elif payload.startswith(b"+NXT"):
            self._acked(seq, dseq, times, now)
            self._next_request(reply, payload[4:], now)
            return True
        elif payload.startswith(b"-NAK"):
            self._naked(seq, dseq, times, payload[4:].strip(), now)
        elif payload == b"+WPI":
            self._in_progress(seq, now)
        elif payload.startswith(b"+TERM"):
            answered = self._terminated(seq, dseq, times, payload[5:].strip(), now)
        if reply and answered:
            self._writer.confirm(reply)
        return True

    def _acked(self, seq: int, dseq: int, times: int, now: int, *, sampled: bool = True) -> bool:
        """Settle a message; False if it cannot have been delivered."""
        state = self._state
        if seq > state.delivered:  # not delivered yet: a client that made the subject up gets no answer
            return False
        was_full = self.full
        if self._cumulative:
            settled: Iterable[int] = state.settle_to(seq) if dseq > state.floor_dseq else ()
        else:
            entry = state.pending.get(seq)
            if sampled and entry is not None and self._sampled and self._services.router.chance() * 100 < self._sampled:
                self._advisories.acked(seq, dseq, times, now - entry[1])
            settled = (seq,) if state.settle(seq) else ()  # a second ack settles nothing, and is answered
        state.last_ack = state.last_active = now
        self._writer.mark()
        if settled:
            self._settled(settled)
        if was_full:  # otherwise deliveries did not wait for acks
            self._wake()
        return True

    def _acked_in_slices(self, seq: int, dseq: int, times: int, reply: str, payload: bytes, now: int) -> bool:
        """Settle a message and the very many before it as a job, the oldest first: each with its removal from the
        stream in one group, and the ack is answered when the last one is durable. Further acks meanwhile join the job;
        a crash leaves the newest of them unacknowledged, as if the ack had been lost."""
        state, is_next = self._state, payload.startswith(b"+NXT")
        if seq > state.delivered:
            return True
        state.last_ack = state.last_active = now
        if self._settle_all is not None:
            self._settle_all.seq = max(self._settle_all.seq, seq)
        elif dseq > state.floor_dseq:
            self._settle_all = SettleAll(self, seq)
            jobs = self._services.jobs
            jobs.go_on(self._settle_all, jobs.load.asker or self)
        if is_next:
            self._next_request(reply, payload[4:], now)
        elif reply:
            if self._settle_all is not None:
                self._settle_all.replies.append(reply)
            else:
                self._writer.confirm(reply)
        if payload.startswith(b"+TERM"):
            self._advisories.terminated(seq, dseq, times, payload[5:].strip().decode(errors="replace"))
        return True

    def admits_job(self) -> bool:
        """Whether a job that settles very many messages may go on, or waits for a commit first."""
        return self._stopped or self._writer.admits_job()

    def settle_some(self, seqs: list[int]) -> bool:
        """Settle messages of a job, if they still await their acks; False if the consumer is gone."""
        if self._stopped:
            return False
        was_full = self.full
        settled = [seq for seq in seqs if self._state.settle(seq)]
        self._writer.mark()
        if settled:
            self._settled(settled)
        if was_full:
            self._wake()
        return True

    def settled_all(self, seq: int, replies: list[str]) -> None:
        """All messages up to one are settled: the floor is there."""
        self._settle_all = None
        if rest := self._state.settle_to(seq):
            self._settled(rest)
        self._writer.mark()
        for reply in replies:
            self._writer.confirm(reply)

    def awaited_to(self, seq: int) -> list[int]:
        """The messages up to one whose ack is awaited, the oldest last."""
        return sorted([at for at in self._state.pending if at <= seq], reverse=True)

    def _naked(self, seq: int, dseq: int, times: int, argument: bytes, now: int) -> None:
        state = self._state
        if seq not in state.pending:
            return
        self._advisories.refused(seq, dseq, times)
        delay = nak_delay(argument)
        if delay is not None:
            # Not before the delay is over: as if it had been delivered so that its ack is overdue just then.
            state.queue.pop(seq, None)
            state.touch(seq, now + delay - self._wait_of(seq))
            self._writer.mark()
            self.arm(now + delay)
        elif self.exhausted(seq):
            self.give_up(seq)
        else:
            state.queue[seq] = None
        self._wake()

    def _in_progress(self, seq: int, now: int) -> None:
        state = self._state
        if not state.touch(seq, now):
            return
        if seq in state.queue:  # its ack was overdue: no timer looks for it any more
            del state.queue[seq]
            self.arm(now + self._wait_of(seq))
        state.last_active = now
        self._writer.mark()

    def _wait_of(self, seq: int) -> int:
        """How long the ack of a message's last delivery may take."""
        return self._waits[min(self._state.counts.get(seq, 0), len(self._waits) - 1)]

    def _terminated(self, seq: int, dseq: int, times: int, reason: bytes, now: int) -> bool:
        answered = self._acked(seq, dseq, times, now, sampled=False)
        self._advisories.terminated(seq, dseq, times, reason.decode(errors="replace"))
        return answered

    # Messages that are not redelivered.

    def exhausted(self, seq: int) -> bool:
        """Whether a message was delivered as often as it may be."""
        return 0 < self._max_deliver <= self._state.times(seq)

    def give_up(self, seq: int) -> None:
        """A message was delivered as often as it may be, without an ack."""
        times = self._state.times(seq)
        self._state.give_up(seq)
        self._advisories.given_up(seq, times)
        self._writer.mark()

    def removed(self, seq: int) -> None:
        """A message that awaits its ack is not in the stream any more."""
        state = self._state
        dseq, times = state.pending[seq][0], state.times(seq)
        state.settle(seq)
        state.last_ack = self._services.router.now
        self._advisories.terminated(seq, dseq, times, REMOVED)
        self._writer.mark()
        self._wake()

    # Redelivery.

    def delivered(self, now: int) -> None:
        """A chunk was delivered: its acks are awaited from now on."""
        state = self._state
        state.last_active = state.last_delivery = now
        if self.required and state.pending and self._waits[0]:
            self.arm(now + max(min(self._waits), MILLISECOND))  # or an ack wait of 1 ns would redeliver without a pause
        self._writer.mark()

    def arm(self, when: int) -> None:
        """Look for overdue acks at that time, or earlier."""
        self._timer.arm(when)

    def waits_changed(self, old: ConsumerConfig, now: int) -> None:
        """An update may have made acks overdue: look soon."""
        if self._waits != (nanoseconds(old.ack_wait),) and self._state.pending:
            self.arm(now + 100 * MILLISECOND)

    def _look(self, now: int) -> None:
        """Queue the messages whose ack is overdue."""
        state = self._state
        if not self._waits[0] or not state.pending:  # no ack wait: messages stay pending until they are acked
            return
        overdue, soonest = due(state.pending, state.counts, self._waits, now)
        for seq in overdue:
            if seq in state.queue:
                continue
            if self.exhausted(seq):
                self.give_up(seq)
            else:
                state.queue[seq] = None
        if soonest:  # with very many pending, not too often: a pass over them takes about 2 µs for each
            self.arm(max(soonest, now + MILLISECOND + 2000 * len(state.pending)))
        if overdue:
            self._writer.mark()
            self._wake()

    def stop(self) -> None:
        """Take no more acks."""
        self._stopped = True
        self._timer.stop()
        self._next_request = _no_request


def _settles(payload: bytes) -> bool:
    return not payload or payload in (b"+ACK", b"+OK") or payload.startswith((b"+NXT", b"+TERM"))


def _no_request(reply: str, payload: bytes, now: int) -> None:
    """In place of the delivery of a deleted consumer."""


class SettleAll:
    """The ack of very many messages at once, as a job."""

    def __init__(self, acks: AckHandling, seq: int) -> None:
        self.seq = seq  # up to which messages are settled; a later ack may raise it
        self.replies: list[str] = []
        self._acks = acks
        self._left: list[int] = []  # the oldest last
        self._listed_to = 0

    def run(self) -> tuple[Progress, int]:
        """Settle some messages."""
        if not self._left and self._listed_to < self.seq:
            self._listed_to = self.seq
            self._left = self._acks.awaited_to(self.seq)
            return Progress.MORE, len(self._left) // 32
        if not self._acks.admits_job():
            return Progress.BLOCKED, 0
        part = self._left[-PIECE:]
        del self._left[-PIECE:]
        part.reverse()
        if not self._acks.settle_some(part):
            return Progress.DONE, 0
        if self._left or self._listed_to < self.seq:
            return Progress.MORE, PIECE_UNITS * len(part)
        self._acks.settled_all(self.seq, self.replies)
        return Progress.DONE, PIECE_UNITS * len(part)
