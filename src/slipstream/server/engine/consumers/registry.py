"""The consumers of one stream: made, found again after a start, told of every commit, and asked what may be removed.

With retention by interest or as a work queue a message goes when nobody needs it any more. That is decided on the
writer's side, together with the ack that decides it: both are in the same group, so a crash takes back both or neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from slipstream.api import AckPolicy, ConsumerConfig, DeliverPolicy, Retention
from slipstream.errors import ConsumerNotFoundError, CorruptRecordError, ErrorCode
from slipstream.server.engine.consumers import config as rules
from slipstream.server.engine.consumers.ack_handling import AckReply
from slipstream.server.engine.consumers.consumer import LAZY, Consumer, StoredConsumer
from slipstream.server.engine.consumers.deliver_policy import SkipList, exists
from slipstream.server.engine.consumers.delivery_state import HEAD_SIZE, DeliveryState
from slipstream.server.engine.consumers.pull import PullConsumer
from slipstream.server.engine.consumers.push import PushConsumer
from slipstream.server.engine.journal import Keeper
from slipstream.server.engine.ports import Changes
from slipstream.server.engine.services import Host, Progress
from slipstream.server.engine.timers import Timer
from slipstream.wire import overlaps

if TYPE_CHECKING:
    from slipstream.server.engine.streams.stream import Stream

NEXT_PREFIX = "$JS.API.CONSUMER.MSG.NEXT."
PIECE = 1024


class Consumers:
    """Those of one stream, by name."""

    def __init__(self, host: Host, stream: Stream) -> None:
        self.host = host
        self.stream = stream
        self.items: dict[str, Consumer] = {}
        self._leaving: dict[int, None] = {}  # settled messages whose removal is not durable yet
        self._owed: dict[int, None] = {}  # settled messages that a mirror or source has not got yet
        self._lazy: Timer | None = None

    def __len__(self) -> int:
        return len(self.items)

    def find(self, name: str) -> Consumer:
        consumer = self.items.get(name)
        if consumer is None:
            raise ConsumerNotFoundError
        return consumer

    # Making, changing, deleting.

    def put(self, config: ConsumerConfig, action: str, now: int, *, pedantic: bool) -> Consumer:
        """Make or change a consumer as a request says; raises the ApiError of the first rule that is broken."""
        stream = self.stream.config
        old = self.items.get(config.durable_name or config.name)
        if old is not None:
            config = config.replace(pause_until=old.config.pause_until)
        limits = self.host.limits
        config = rules.complete(config, stream, pedantic=pedantic, most=limits.max_ack_pending)
        config = rules.with_level(config)
        rules.check(config, stream, most=limits.max_ack_pending)
        if old is not None:
            return self._update(old, config, action, now)
        if action == "update":
            raise ErrorCode.CONSUMER_DOES_NOT_EXIST.error()
        most = min((n for n in (stream.max_consumers, limits.max_consumers) if n > 0), default=0)
        if 0 < most <= len(self.items):
            raise ErrorCode.MAXIMUM_CONSUMERS_LIMIT.error()
        self._check_queue(config)
        return self._create(config, now)

    def _create(self, config: ConsumerConfig, now: int) -> Consumer:
        name = config.durable_name or config.name
        if len(name.encode()) > rules.MAX_NAME:
            raise ErrorCode.CONSUMER_NAME_TOO_LONG.error(max=rules.MAX_NAME)
        while not name or (not config.name and name in self.items):
            name = config.durable_name or self.host.token(8)
        if not config.durable_name and not config.inactive_threshold:
            config = config.replace(inactive_threshold=rules.INACTIVE)
        consumer = self._add(name, config, now)
        if consumer.persistent:
            self.stream.log.keep(f"{name}\0c", consumer.stored())
            self.stream.journal.catalog = True
        self.when_durable(consumer)
        return consumer

    def when_durable(self, consumer: Consumer) -> None:
        """Begin once everything so far is committed: the consumer itself, and what was published before it."""
        journal = self.stream.journal

        def begin() -> None:
            if self.items.get(consumer.name) is consumer:
                consumer.begin()
                consumer.advisories.action("create")
                if consumer.paused:
                    consumer.advisories.paused(consumer.config.pause_until)

        if journal.unfinished:
            journal.after.append(begin)
        else:
            begin()

    def _add(self, name: str, config: ConsumerConfig, created: int, ledger: DeliveryState | None = None) -> Consumer:
        kind = PushConsumer if config.deliver_subject else PullConsumer
        if not self.items:
            self.stream.log.watch(True)
            self.stream.journal.readers[self] = None
        consumer = self.items[name] = kind(self, name, config, created=created, ledger=ledger)
        self.host.add(f"{NEXT_PREFIX}{self.stream.name}.{name}", consumer)
        self.host.desk.consumers[self.stream.name, name] = consumer
        return consumer

    def _update(self, old: Consumer, config: ConsumerConfig, action: str, now: int) -> Consumer:
        if not config.durable_name and not config.inactive_threshold:
            config = config.replace(inactive_threshold=rules.INACTIVE)
        if not old.config.name and not old.config.durable_name:
            config = config.replace(name="")  # the server gave it its name
        if action == "create" and config != old.config:
            raise ErrorCode.CONSUMER_ALREADY_EXISTS.error()
        if self.stream.config.retention == Retention.WORK_QUEUE:
            self._check_unique(config, but=old.name)
        rules.check_update(old.config, config, bound=old.bound)
        if config != old.config:
            self.change(old, config, now)
        return old

    def change(self, consumer: Consumer, config: ConsumerConfig, now: int) -> None:
        """Give a consumer another configuration, which was checked."""
        fewer = rules.filters_of(config) != rules.filters_of(consumer.config)
        consumer.change(config, now)
        if consumer.persistent:
            self.stream.log.keep(f"{consumer.name}\0c", consumer.stored())
            self.stream.journal.catalog = True
        if fewer and self.stream.config.retention == Retention.INTEREST:
            self.sweep()

    def delete(self, consumer: Consumer) -> None:
        """A consumer is not wanted any more."""
        consumer.advisories.action("delete")
        self._drop(consumer, deleted=True)
        if consumer.persistent:
            mine = f"{consumer.name}\0"
            for key in [key for key in self.stream.log.kept() if key.startswith(mine)]:
                self.stream.log.keep(key, None)
            self.stream.journal.catalog = True
        if self.stream.config.retention == Retention.INTEREST:
            self.sweep()

    def expire(self, consumer: Consumer, _: int) -> None:
        """Nobody has used a consumer for long enough."""
        self.delete(consumer)

    def _drop(self, consumer: Consumer, *, deleted: bool) -> None:
        consumer.stop(deleted=deleted)
        del self.items[consumer.name]
        self.host.discard(f"{NEXT_PREFIX}{self.stream.name}.{consumer.name}", consumer)
        self.host.desk.consumers.pop((self.stream.name, consumer.name), None)
        self.stream.journal.keepers.pop(consumer, None)
        if not self.items:
            self._leaving.clear()
            self.stream.log.watch(False)
            self.stream.journal.readers.pop(self, None)

    def stop(self) -> None:
        """The stream is gone."""
        for consumer in list(self.items.values()):
            consumer.advisories.action("delete")
            self._drop(consumer, deleted=True)

    def retire(self) -> None:
        """The server stops."""
        for consumer in self.items.values():
            consumer.retire()

    # Work queues.

    def _check_queue(self, config: ConsumerConfig) -> None:
        if self.stream.config.retention != Retention.WORK_QUEUE or config.direct or config.sourcing:
            return
        if config.ack_policy != AckPolicy.EXPLICIT:
            raise ErrorCode.CONSUMER_WQ_REQUIRES_EXPLICIT_ACK.error()
        if config.deliver_policy != DeliverPolicy.ALL:
            raise ErrorCode.CONSUMER_WQ_NOT_DELIVER_ALL.error()
        if self.items and not rules.filters_of(config):
            raise ErrorCode.CONSUMER_WQ_MULTIPLE_UNFILTERED.error()
        self._check_unique(config, but="")

    def _check_unique(self, config: ConsumerConfig, *, but: str) -> None:
        mine = rules.filters_of(config)
        for other in self.items.values():
            if other.name == but or other.config.direct or other.config.sourcing:
                continue
            theirs = other.filters.patterns
            if mine and (not theirs or any(overlaps(a, b) for a in mine for b in theirs)):
                raise ErrorCode.CONSUMER_WQ_NOT_UNIQUE.error()

    # After a start, and after a group was lost.

    def restore(self, now: int) -> None:
        """Make the consumers those of the store."""
        kept = by_consumer(self.stream.log.kept())
        stored = {
            name: msgspec.json.decode(records["c"], type=StoredConsumer)
            for name, records in kept.items()
            if "c" in records
        }
        for consumer in list(self.items.values()):
            entry = stored.pop(consumer.name, None)
            if not consumer.persistent:
                consumer.begin()  # what it waited for is decided, one way or the other
                consumer.recount()
                continue
            if entry is None or entry.created != consumer.created:
                self._drop(consumer, deleted=True)
                if entry is not None:
                    stored[consumer.name] = entry
                continue
            config = ConsumerConfig.from_dict(entry.config)
            if config != consumer.config:
                consumer.change(config, now)
            blocks = [key for key in kept[consumer.name] if key[0] == "b"]  # also those that the lost group had emptied
            consumer.ledger.all_changed(int(key[1:], 16) for key in blocks)
            self.mark(consumer)
            consumer.begin()
            consumer.recount()
        for name, entry in stored.items():
            self._load(name, entry, kept[name])
        if self._leaving:  # the acks are in the books: what they took out goes again
            self.mark(self)

    def save(self) -> None:
        """Take out again what a lost group had taken out."""
        for seq in self._leaving:
            self.stream.log.remove(seq)

    def _load(self, name: str, entry: StoredConsumer, records: dict[str, bytes]) -> None:
        head = records.get("s")
        ledger: DeliveryState | None = None
        skips: SkipList | None = None
        if head is not None:
            blocks = [value for key, value in records.items() if key[0] == "b"]
            ledger = DeliveryState.restored(head[:HEAD_SIZE], blocks)
            skips = SkipList.unpack(head[HEAD_SIZE:])
        consumer = self._add(name, ConsumerConfig.from_dict(entry.config), entry.created, ledger)
        consumer.skips = skips
        consumer.last_active = self.host.now
        consumer.begin()

    def recount(self) -> None:
        """Messages came that no consumer was told of: out of a snapshot."""
        for consumer in self.items.values():
            consumer.recount()
            consumer.wake()

    # What is committed, and what is to be.

    def committed(self, now: int) -> None:  # noqa: ARG002
        """A group was finished."""
        news = self.stream.log.news()
        self.hand_on()
        if news is None:
            return
        if self._leaving:
            self._left(news)
        consumers = list(self.items.values())
        filtered = any(consumer.filters.patterns for consumer in consumers)
        added = Counter(subject for _, subject in news.added) if filtered else {}
        for consumer in consumers:
            consumer.committed(news, added)

    def _left(self, news: Changes) -> None:
        leaving = self._leaving
        if news.recount:
            self._leaving = {seq: None for seq in leaving if exists(self.stream.log, seq)}
        for seq, _ in news.removed:
            leaving.pop(seq, None)

    def purged(self, pattern: str) -> None:
        """Messages are being purged: once that is durable, consumers are behind them."""

        def tell() -> None:
            for consumer in self.items.values():
                consumer.purged(pattern)

        if self.items:
            self.stream.journal.after.append(tell)

    def mark(self, keeper: Keeper) -> None:
        """The books of a consumer are to be written, with the next group; one is made if none comes."""
        journal = self.stream.journal
        if keeper in journal.keepers:
            return
        journal.keepers[keeper] = None
        if self._lazy is None or self._lazy.action is None:
            self._lazy = self.host.timers.at(self.host.now + LAZY, self._hurry)

    def _hurry(self, _: int) -> None:
        self.stream.journal.hurried = True

    def answer(self, reply: str, source: AckReply, *, kept: bool) -> None:
        """Answer an ack when it is durable; `kept`: the books have nothing new."""
        journal = self.stream.journal
        if not kept or journal.unfinished:
            journal.answers.append((reply, 0, source, b""))
        else:
            self.host.send(reply, b"", b"")

    # Retention.

    def settled(self, seqs: Iterable[int]) -> None:
        """A consumer needs these messages no more."""
        retention = self.stream.config.retention
        if retention == Retention.LIMITS:
            return
        for seq in seqs:
            if retention == Retention.WORK_QUEUE or not self._needed(seq):
                if self.stream.takers and self._lacked(seq):
                    self._owed[seq] = None
                else:
                    self._remove(seq)

    def _remove(self, seq: int) -> None:
        if self.stream.log.remove(seq):
            self._leaving[seq] = None

    def _lacked(self, seq: int) -> bool:
        """Whether a mirror or a source of another stream is still to get a message."""
        behind = [taker for taker in self.stream.takers if taker.lacks(seq)]
        try:
            record = self.stream.log.get(seq) if behind else None
        except CorruptRecordError:
            return False
        return record is not None and any(taker.covers(record.subject) for taker in behind)

    def hand_on(self) -> None:
        """Take out what mirrors and sources have got by now, up to the first that one of them still lacks: looking at
        all of them with every commit would cost more than it gives."""
        while self._owed and not self._lacked(seq := next(iter(self._owed))):
            del self._owed[seq]
            self._remove(seq)

    def _needed(self, seq: int) -> bool:
        if len(self.items) == 1 and not next(iter(self.items.values())).filters.patterns:
            return next(iter(self.items.values())).needs(seq, "")
        try:
            record = self.stream.log.get(seq)
        except CorruptRecordError:
            return False
        return record is not None and any(consumer.needs(seq, record.subject) for consumer in self.items.values())

    def offered(self, seq: int, subject: str) -> None:
        """A new message, by interest: if it is nobody's business it counts, and is not kept."""
        if not any(consumer.filters.covers(subject) for consumer in self.items.values()) and not self.taken(subject):
            self.stream.log.remove(seq)

    def taken(self, subject: str) -> bool:
        """Whether a mirror or a source of another stream wants the messages of a subject: that is an interest too."""
        return any(taker.covers(subject) for taker in self.stream.takers)

    def sweep(self) -> None:
        """Remove what nobody needs any more, after a consumer went or wants less than before."""
        if not self.items and not self.stream.takers:
            self.stream.log.purge()
            return
        sweep = Sweep(self)
        if not self.host.start(sweep):  # too much is going on already: at once, rather than not at all
            while sweep.run()[0] is Progress.MORE:
                pass


class Sweep:
    """Looks through a stream for messages that no consumer needs, a piece at a time."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers
        log = consumers.stream.log
        self._seq, self._last = log.committed.first_seq, log.state.last_seq

    def run(self) -> tuple[Progress, int]:
        """Look at the next messages."""
        stream, items = self._consumers.stream, self._consumers.items
        log = stream.log
        if self._seq > self._last or not (items or stream.takers):
            return Progress.DONE, 0
        try:
            records = log.scan("", self._seq, limit=PIECE)
        except CorruptRecordError as exc:
            self._seq = max(self._seq, exc.seq) + 1
            return Progress.MORE, 1
        if not records:  # the rest, if there is any, is not committed yet
            seqs = range(max(self._seq, log.committed.last_seq + 1), self._last + 1)
            records = [record for seq in seqs if (record := log.peek(seq)) is not None]
        for record in records:
            needed = any(consumer.needs(record.seq, record.subject) for consumer in items.values())
            if not needed and not (stream.takers and self._consumers.taken(record.subject)):
                log.remove(record.seq)
        self._seq = records[-1].seq + 1 if records else self._last + 1
        return Progress.MORE, len(records)


def by_consumer(kept: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """What is kept for consumers, by their names: one look through all of it, however many there are."""
    found: dict[str, dict[str, bytes]] = {}
    for key, value in kept.items():
        name, _, rest = key.partition("\0")
        if rest:
            found.setdefault(name, {})[rest] = value
    return found
