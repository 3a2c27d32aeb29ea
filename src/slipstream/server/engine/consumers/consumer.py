"""One consumer: committed messages of a stream become deliveries, acks become progress, silence becomes redeliveries.

What push and pull consumers share. A consumer reads what is committed: nobody is shown what a crash can take back. It
works in chunks, as a job of the engine, whenever there is something to deliver and somebody to deliver it to. How many
messages are left (`left`) is counted once and then kept right with every commit and every delivery.

Its books are written with the groups of the stream's store: at once where an answer waits for them, otherwise with the
next group, which is called for after `LAZY` at the latest. So a crash can take back plain acks of the last moments and
delivery counts; the messages then come again. It never takes back an ack that was answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.api import AckPolicy, ConsumerConfig, DeliverPolicy, ReplayPolicy, encode_json
from slipstream.errors import CorruptRecordError, ErrorCode, StoreError
from slipstream.server.engine.consumers import config as rules
from slipstream.server.engine.consumers.ack_handling import MILLISECOND, REMOVED, AckReply, Settling
from slipstream.server.engine.consumers.advisories import ConsumerAdvisories
from slipstream.server.engine.consumers.deliver_policy import SkipList, exists, starting_point
from slipstream.server.engine.consumers.delivery_state import DeliveryState
from slipstream.server.engine.consumers.filters import Filters
from slipstream.server.engine.ports import Changes, Record
from slipstream.server.engine.services import Progress
from slipstream.server.engine.timers import Timer
from slipstream.wire import overlaps, subset_of

if TYPE_CHECKING:
    from slipstream.server.engine.consumers.registry import Consumers

CHUNK = 512
CHUNK_BYTES = 256 * 1024
LAZY = 20_000_000
RETRY = 10 * MILLISECOND
FAILED = 1000 * MILLISECOND


def nanos(value: timedelta) -> int:
    return (value // timedelta(microseconds=1)) * 1000


class StoredConsumer(msgspec.Struct, frozen=True):
    """What the store keeps of a consumer beside its books."""

    created: int
    config: dict[str, Any]


class Consumer(Settling):
    """What push and pull consumers have in common."""

    def __init__(
        self, group: Consumers, name: str, config: ConsumerConfig, *, created: int, ledger: DeliveryState | None = None
    ) -> None:
        """Without `ledger` it is a new one and begins where its configuration says."""
        self.group = group
        self.host = group.host
        self.name = name
        self.created = created
        self.log = group.stream.log
        self.advisories = ConsumerAdvisories(self.host, group.stream.name, name)
        self.stopped = False
        self.live = False  # whether it is durable and may deliver
        self.left = 0  # messages of its filters from `next_seq` on
        self._new = ledger is None
        self.ledger = ledger if ledger is not None else DeliveryState(1)
        self._after = group.stream.log.state.last_seq  # what is new is behind it
        self.skips: SkipList | None = None
        self._scheduled = False
        self._ack_timer: Timer | None = None
        self._idle_timer: Timer | None = None  # ends an ephemeral that nobody uses
        self._pause_timer: Timer | None = None
        self._pace_timer: Timer | None = None  # the next delivery is not before
        self._reply = AckReply(self.host.switch)
        self._ack_prefix = f"$JS.ACK.{group.stream.name}.{name}."
        self.last_active = created
        self.threshold = 0
        self.configure(config)
        self._replay_to = 0
        self._replayed: tuple[int, int] | None = None  # time of the last message, and when it was delivered

    # Configuration.

    @property
    def durable(self) -> bool:
        return bool(self.config.durable_name)

    @property
    def persistent(self) -> bool:
        """Whether it is to outlive the process."""
        return not self.config.mem_storage

    def configure(self, config: ConsumerConfig) -> None:
        """Take over a configuration."""
        self.config = config
        self.filters = Filters(rules.filters_of(config))
        self.acks = config.ack_policy != AckPolicy.NONE
        self._ack_all = config.ack_policy == AckPolicy.ALL
        self._waits = tuple(map(nanos, config.backoff)) or (nanos(config.ack_wait),)
        self._max_deliver = max(config.max_deliver, 0)  # 0: no bound
        self._max_pending = max(config.max_ack_pending, 0) if self.acks else 0
        self._sampled = rules.sample_frequency(config)
        self._bare = config.headers_only
        self.threshold = nanos(config.inactive_threshold)

    def stored(self) -> bytes:
        return encode_json(StoredConsumer(self.created, self.config.to_dict()))

    def change(self, config: ConsumerConfig, now: int) -> None:
        """An update."""
        old = self.config
        self.configure(config)
        if rules.filters_of(old) != rules.filters_of(config) and self.live:
            if self.skips is not None:
                self.skips.review(self.log, self.filters)
                self._leave_skips()
            self.recount()
        if old.pause_until != config.pause_until:
            self._arm_pause(now)
            self.advisories.paused(config.pause_until)
        if old.inactive_threshold != config.inactive_threshold:
            self.arm_idle(now)
        if self._waits != (nanos(old.ack_wait),) and self.ledger.pending:
            self._arm_acks(now + 100 * MILLISECOND)
        self.wake()

    # Life.

    def begin(self) -> None:
        """It is durable: find its place and deliver."""
        if self.stopped or self.live:
            return
        self.live = True
        now = self.host.now
        if not self._new:
            self._look_over()
        elif not self.held:
            self._find_start()
        self.recount()
        self._arm_pause(now)
        self.arm_idle(now)
        if self.ledger.pending:
            self._arm_acks(now)
        if self.config.replay_policy == ReplayPolicy.ORIGINAL:
            self._replay_to = self.log.committed.last_seq
        self.wake()

    def _look_over(self) -> None:
        """What left the stream without the books being told, before a start or among very many, needs no ack."""
        ledger = self.ledger
        gone = ledger.forget_below(self.log.committed.first_seq)
        for seq in [*ledger.pending, *ledger.counts]:
            if not exists(self.log, seq):
                ledger.settle(seq)
                gone = True
        if gone:
            ledger.last_ack = self.host.now
            self.touch()

    @property
    def held(self) -> bool:
        """Whether the stream has not reached the sequence that the consumer waits for."""
        return self.config.min_last_seq > self.log.committed.last_seq

    def _find_start(self) -> None:
        self._new = False
        start, self.skips = starting_point(self.config, self.filters, self.log, after=self._after)
        by_subject = self.config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT
        if by_subject and self.group.stream.config.max_msgs_per_subject == 1:  # the last one is the only one
            start, self.skips = self.log.committed.first_seq, None
        self.ledger = DeliveryState(start)
        self.touch()

    def reset(self, seq: int) -> int:
        """Begin again from a stream sequence, or (0) from the floor of the acks; where that is."""
        config = self.config
        if seq:
            first, text = 0, ""
            if config.deliver_policy == DeliverPolicy.BY_START_SEQUENCE:
                first, text = config.opt_start_seq, "below start seq"
            elif config.deliver_policy == DeliverPolicy.BY_START_TIME:
                first, text = self.log.time_to_seq(config.opt_start_time or 0), "below start time"
            elif config.deliver_policy != DeliverPolicy.ALL:
                raise ErrorCode.CONSUMER_INVALID_RESET.error(err="not allowed")
            if seq < first:
                raise ErrorCode.CONSUMER_INVALID_RESET.error(err=text)
        seq = seq or self.ledger.floor_seq + 1
        self._new, self.skips = False, None
        self.ledger.reset(seq)
        if self.live:
            self.recount()
        self.touch()
        self.wake()
        return seq

    def stop(self, *, deleted: bool) -> None:  # noqa: ARG002
        """No more; `deleted`: for good, and not only with this server."""
        self.stopped = True
        self.live = False
        for timer in (self._ack_timer, self._idle_timer, self._pause_timer, self._pace_timer):
            if timer is not None:
                timer.cancel()

    # Keeping the books.

    def touch(self) -> None:
        """The books changed."""
        if self.persistent:
            self.group.mark(self)

    @property
    def kept(self) -> bool:
        """Whether its books are written already, or need not be."""
        return self not in self.group.stream.journal.keepers

    def save(self) -> None:
        """Put the changes of the books into the open group."""
        if self.stopped:
            return
        keep = self.log.keep
        keep(f"{self.name}\0s", self.ledger.head() + (self.skips.pack() if self.skips is not None else b""))
        for number, block in self.ledger.changed().items():
            keep(f"{self.name}\0b{number:x}", block or None)

    # Counting.

    def recount(self) -> None:
        """Count what is left anew."""
        if self.skips is None or self.skips.done:
            self.left = self.filters.count(self.log, self.ledger.next_seq)
        else:
            self.left = len(self.skips) + self.filters.count(self.log, self.skips.resume)

    def committed(self, news: Changes, added: Mapping[str, int]) -> None:
        """A group was committed; `added` counts its new messages by subject."""
        if not self.live:
            return
        if self._new:
            if not self.held:
                self._find_start()
                self.recount()
                self.wake()
            return
        if news.recount:
            self._look_over()
            if self.skips is not None:
                self.skips.review(self.log, self.filters)
                self._leave_skips()
            self.recount()
        else:
            self._follow(news, added)
        if self.left:
            self.wake()

    def purged(self, pattern: str) -> None:
        """Messages that match were taken out on purpose: they count as passed over."""
        if not self.live or self._new or self.skips is not None:
            return
        mine, start = self.filters.patterns, self.log.committed.first_seq
        if pattern not in ("", ">") and mine and all(subset_of(filter_, pattern) for filter_ in mine):
            try:
                left = self.log.scan(pattern, 0, limit=1)
                start = left[0].seq if left else self.log.committed.last_seq + 1
            except CorruptRecordError as exc:
                start = max(start, exc.seq)
        elif pattern and mine and not any(overlaps(filter_, pattern) for filter_ in mine):
            return
        self.ledger.pass_over(start)
        self.touch()

    def _follow(self, news: Changes, added: Mapping[str, int]) -> None:
        ledger, covers, skips = self.ledger, self.filters.covers, self.skips
        if skips is not None and skips.done:
            skips = None
        if not self.filters.patterns:
            self.left += len(news.added)
        else:
            self.left += self.filters.total(added)
        for seq, subject in news.removed:
            if seq in ledger.pending:
                self._removed(seq)
            elif seq in ledger.counts:
                ledger.settle(seq)
                self.touch()
            if skips is not None and seq < skips.resume:
                self.left -= skips.lost(seq)
            elif seq >= ledger.next_seq and covers(subject):
                self.left -= 1
        if skips is not None:
            self._leave_skips()

    def _leave_skips(self) -> None:
        """What is left of the last ones of all subjects may be gone: then everything behind them comes next."""
        if self.skips is not None and self.skips.done:
            self.ledger.next_seq = max(self.ledger.next_seq, self.skips.resume)

    def _removed(self, seq: int) -> None:
        """A message that waits for its ack is not in the stream any more."""
        dseq, times = self.ledger.pending[seq][0], self.ledger.times(seq)
        self.ledger.settle(seq)
        self.ledger.last_ack = self.host.now
        self.advisories.terminated(seq, dseq, times, REMOVED)
        self.touch()
        self.wake()

    # Delivering.

    def wake(self) -> None:
        """See whether there is something to do, soon."""
        if self._scheduled or not self.live or self.stopped or self._pace_timer is not None:
            return
        self._scheduled = self.host.start(self)
        if not self._scheduled:
            self._pace(self.host.now + RETRY)

    def run(self) -> tuple[Progress, int]:
        """Deliver one chunk."""
        if self.stopped or self._pace_timer is not None:
            self._scheduled = False
            return Progress.DONE, 0
        try:
            progress, sent = self.work(self.host.now)
        except StoreError:  # whoever asks for the message is told; deliveries are tried again
            self._scheduled = False
            self._pace(self.host.now + FAILED)
            return Progress.DONE, 0
        except Exception:  # told by whoever runs jobs; this consumer tries again, and is not silent for good
            self._scheduled = False
            self._pace(self.host.now + FAILED)
            raise
        if progress is Progress.DONE:
            self._scheduled = False
        return progress, sent

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:
        """Take a pull."""
        raise NotImplementedError

    def work(self, now: int) -> tuple[Progress, int]:
        raise NotImplementedError

    @property
    def paused(self) -> bool:
        until = self.config.pause_until
        return until is not None and until > self.host.now

    @property
    def full(self) -> bool:
        """Whether as many messages wait for their ack as may."""
        return 0 < self._max_pending <= len(self.ledger.pending)

    @property
    def at_end(self) -> bool:
        """Whether nothing is left to deliver now."""
        return not self.ledger.queue and self.left <= 0

    def upcoming(self, limit: int) -> tuple[list[Record], list[Record]]:
        """What is to be delivered again, and what for the first time, next. Nothing is booked yet."""
        again = self._again(limit) if self.ledger.queue else []
        limit = min(limit - len(again), CHUNK)
        if self._max_pending:
            limit = min(limit, self._max_pending - len(self.ledger.pending))
        if limit <= 0 or self.left <= 0 or self._new:
            return again, []
        return again, self._new_ones(limit)

    def _again(self, limit: int) -> list[Record]:
        found: list[Record] = []
        for seq in list(self.ledger.queue):
            if self._max_deliver and self.ledger.times(seq) >= self._max_deliver:
                self._give_up(seq)
                continue
            try:
                record = self.log.get(seq)
            except CorruptRecordError:
                record = None
            if record is None:
                self._removed(seq)
                continue
            found.append(record)
            if len(found) >= limit:
                break
        return found

    def _new_ones(self, limit: int) -> list[Record]:
        while True:
            try:
                while self.skips is not None and not self.skips.done:
                    if found := self.skips.next(self.log, limit):
                        return found
                    self._leave_skips()
                return self.filters.scan(self.log, self.ledger.next_seq, limit=limit, max_bytes=CHUNK_BYTES)
            except CorruptRecordError as exc:  # it is told by whoever asks for that message; the others are delivered
                if not exc.seq:
                    return []
                self.skip_over(exc.seq)

    def skip_over(self, seq: int) -> None:
        """A message cannot be read: go on behind it."""
        self.ledger.next_seq = seq + 1
        self.recount()
        self.touch()

    def exhausted(self) -> None:
        """There should be more, and there is not: count again."""
        if not self.ledger.queue:
            self.ledger.next_seq = max(self.ledger.next_seq, self.log.committed.last_seq + 1)
            self.recount()

    def book(self, record: Record, now: int) -> None:
        """A new message went out."""
        ledger, seq = self.ledger, record[0]
        if self.acks:
            ledger.deliver(seq, now)
        else:
            ledger.hand_over(seq)
        self.left -= 1
        if self.skips is not None and not self.skips.done:
            self.skips.took(seq)
            ledger.next_seq = self.skips.resume if self.skips.done else seq + 1
        else:
            ledger.next_seq = seq + 1

    def book_all(self, records: list[Record], now: int) -> None:
        """New messages went out, in a row. Hot."""
        if self.skips is not None and not self.skips.done:
            for record in records:
                self.book(record, now)
            if not self.acks:
                self.group.settled([record[0] for record in records])
            return
        seqs = [record[0] for record in records]
        self.left -= len(seqs)
        self.ledger.next_seq = seqs[-1] + 1
        if self.acks:
            self.ledger.deliver_all(seqs, now)
        else:
            self.ledger.dseq += len(seqs) - 1
            self.ledger.hand_over(seqs[-1])
            self.group.settled(seqs)

    def after_chunk(self, now: int) -> None:
        """Something was delivered."""
        self.last_active = self.ledger.last_delivery = now
        if self.acks and self.ledger.pending and self._waits[0]:
            self._arm_acks(now + min(self._waits))
        self.touch()

    def shown(self, record: Record) -> tuple[bytes, bytes]:
        """Header and payload as this consumer shows them."""
        _, _, _, header, payload = record
        if not self._bare:
            return header, payload
        ours = f"Nats-Msg-Size: {len(payload)}\r\n\r\n".encode()
        return (header[:-2] if header.endswith(b"\r\n\r\n") else b"NATS/1.0\r\n") + ours, b""

    def ack_subject(self, record: Record, times: int, left: int) -> str:
        return f"{self._ack_prefix}{times}.{record[0]}.{self.ledger.dseq + 1}.{record[1]}.{left}"

    # Pace.

    def _pace(self, when: int) -> None:
        """Nothing more before `when`."""

        def go_on(_: int) -> None:
            self._pace_timer = None
            self.wake()

        self._pace_timer = self.host.timers.at(when, go_on)

    def too_early(self, record: Record, now: int) -> bool:
        """Replay at the original speed: whether a message's time has not come yet."""
        if not self._replay_to:
            return False
        if record.seq > self._replay_to or self._replayed is None:
            return False
        when = self._replayed[1] + record.time - self._replayed[0]
        if when <= now:
            return False
        self._pace(when)
        return True

    def replayed(self, record: Record, now: int) -> None:
        """A message was delivered at the original speed."""
        if self._replay_to:
            self._replayed = (record.time, now)
            if record.seq >= self._replay_to:
                self._replay_to = 0

    # Pausing, and the end of those that nobody uses.

    def _arm_pause(self, now: int) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
        until = self.config.pause_until
        if until is not None and until > now:
            self._pause_timer = self.host.timers.at(until, self._resume)

    def _resume(self, _: int) -> None:
        self._pause_timer = None
        self.advisories.paused(self.config.pause_until)
        self.wake()

    def arm_idle(self, now: int) -> None:
        """Look after the threshold whether anybody uses the consumer."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self.threshold:
            self._idle_timer = self.host.timers.at(now + self.threshold, self._check_idle)

    def _check_idle(self, now: int) -> None:
        used = self.used_until(now)
        if used + self.threshold <= now:
            self.group.expire(self, now)
        else:
            self._idle_timer = self.host.timers.at(used + self.threshold, self._check_idle)

    def ack_deadlines(self) -> list[int]:
        """When the acks that are awaited are overdue."""
        waits, counts, last = self._waits, self.ledger.counts, len(self._waits) - 1
        return [time + waits[min(counts.get(seq, 0), last)] for seq, (_, time) in self.ledger.pending.items()]

    def used_until(self, now: int) -> int:
        """When it was in use last."""
        raise NotImplementedError

    # What the group asks.

    def needs(self, seq: int, subject: str) -> bool:
        """Whether a message must stay in the stream for this consumer (retention by interest)."""
        ledger = self.ledger
        if not self.filters.covers(subject):
            return False
        if self._new or seq >= ledger.next_seq or seq in ledger.pending:
            return True
        return seq in ledger.counts

    @property
    def waiting(self) -> int:
        """How many pulls wait."""
        return 0

    @property
    def bound(self) -> bool:
        """Whether somebody listens on the deliver subject."""
        return False

    def pins(self) -> list[dict[str, Any]]:
        """The state of the priority groups."""
        return []

    def retire(self) -> None:
        """The server stops: no more deliveries."""
        self.live = False
