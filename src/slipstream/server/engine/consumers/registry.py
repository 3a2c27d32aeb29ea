"""The consumers of one stream: created, updated, deleted, and restored from the store.

The registry follows the commits of the stream for all of its consumers. It watches the log for changes only while it
has a consumer.
"""

from __future__ import annotations

from slipstream.api import AckPolicy, ConsumerConfig, DeliverPolicy, Retention
from slipstream.errors import ConsumerNotFoundError, ErrorCode
from slipstream.server.engine.consumers import config as rules
from slipstream.server.engine.consumers.config import read_config
from slipstream.server.engine.consumers.consumer import Consumer
from slipstream.server.engine.consumers.cursor import Cursor
from slipstream.server.engine.consumers.delivery_state import DeliveryState
from slipstream.server.engine.consumers.filters import CommitNews, FilterIndex
from slipstream.server.engine.consumers.parent import ParentStream
from slipstream.server.engine.consumers.persistence import (
    LazyCommit,
    block_numbers,
    by_consumer,
    read_state,
)
from slipstream.server.engine.consumers.retention import InterestRetention
from slipstream.server.engine.services import Services
from slipstream.server.engine.subject_index import SubjectIndex

NEXT_PREFIX = "$JS.API.CONSUMER.MSG.NEXT."


def _claims(config: ConsumerConfig) -> tuple[str, ...]:
    """The messages of a work queue that are the consumer's alone."""
    if config.direct or config.sourcing:
        return ()
    return rules.filters_of(config) or (">",)


class Consumers:
    """The consumers of one stream, by name."""

    def __init__(self, services: Services, stream: ParentStream) -> None:
        self.items: dict[str, Consumer] = {}
        self._services = services
        self._stream = stream
        self._commit = LazyCommit(services, stream.journal)
        self._cursors: dict[str, Cursor] = {}  # those of `items`
        self._claimed = SubjectIndex()  # of a work queue: which consumer gets which messages
        self._filters = FilterIndex()
        self.retention: InterestRetention = InterestRetention(
            services, stream, self._commit, self._cursors, self._filters
        )

    def __len__(self) -> int:
        return len(self.items)

    def find(self, name: str) -> Consumer:
        consumer = self.items.get(name)
        if consumer is None:
            raise ConsumerNotFoundError
        return consumer

    # Creating, updating, deleting.

    def put(self, config: ConsumerConfig, action: str, now: int, *, pedantic: bool) -> Consumer:
        """Create or update a consumer as a request says; raises the ApiError of the first rule that is broken."""
        stream = self._stream.config
        old = self.items.get(config.durable_name or config.name)
        if old is not None:  # a pause is changed by its own request only
            config = config.replace(pause_until=old.config.pause_until)
        limits = self._services.limits
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
            name = config.durable_name or self._services.router.token(8)
        if not config.durable_name and not config.inactive_threshold:
            config = config.replace(inactive_threshold=rules.INACTIVE)
        consumer = self._add(name, config, now)
        if consumer.persistent:
            self._stream.log.keep(f"{name}\0c", consumer.record())
            self._stream.journal.catalog = True
        self._begin_when_durable(consumer)
        return consumer

    def _begin_when_durable(self, consumer: Consumer) -> None:
        """Begin once everything so far is committed: the consumer itself, and what was published before it."""
        journal, load = self._stream.journal, self._services.jobs.load
        asker = load.asker

        def begin() -> None:
            if self.items.get(consumer.name) is consumer:
                load.owner = asker
                try:
                    consumer.begin()
                finally:
                    load.owner = None
                consumer.advisories.action("create")
                if consumer.paused:
                    consumer.advisories.paused(consumer.config.pause_until)

        if journal.unfinished:
            journal.after.append(begin)
        else:
            begin()

    def _add(
        self,
        name: str,
        config: ConsumerConfig,
        created: int,
        state: DeliveryState | None = None,
        after: int | None = None,
    ) -> Consumer:
        stream, services = self._stream, self._services
        if not self.items:
            stream.log.watch(True)
            stream.journal.followers[self] = None
        consumer = self.items[name] = Consumer(
            services,
            stream,
            name,
            config,
            created=created,
            commit=self._commit,
            settled=self.retention.settled,
            expire=self.delete,
            state=state,
            after=after,
        )
        self._cursors[name] = consumer.cursor
        self._filters.add(consumer.cursor.filters)
        self._claim(name, config)
        services.router.add(f"{NEXT_PREFIX}{stream.name}.{name}", consumer.delivery)
        services.ack_router.consumers[stream.name, name] = consumer
        return consumer

    def _update(self, old: Consumer, config: ConsumerConfig, action: str, now: int) -> Consumer:
        # An ephemeral keeps its time limit. A request that does not repeat a durable's `durable_name` gives it none.
        ephemeral = not old.config.durable_name and old.config.inactive_threshold
        if ephemeral and not config.durable_name and not config.inactive_threshold:
            config = config.replace(inactive_threshold=rules.INACTIVE)
        if not old.config.name and not old.config.durable_name:
            config = config.replace(name="")  # the server gave it its name
        if action == "create" and config != old.config:
            raise ErrorCode.CONSUMER_ALREADY_EXISTS.error()
        if self._stream.config.retention == Retention.WORK_QUEUE:
            self._check_unique(config, but=old.name)
        rules.check_update(old.config, config, bound=old.bound)
        if config != old.config:
            self.change(old, config, now)
        return old

    def change(self, consumer: Consumer, config: ConsumerConfig, now: int) -> None:
        """Give a consumer another configuration, which was checked."""
        fewer = rules.filters_of(config) != rules.filters_of(consumer.config)
        self._configure(consumer, config, now)
        if consumer.persistent:
            self._stream.log.keep(f"{consumer.name}\0c", consumer.record())
            self._stream.journal.catalog = True
        if fewer and self._stream.config.retention == Retention.INTEREST:
            self.retention.sweep()

    def delete(self, consumer: Consumer) -> None:
        """Delete a consumer, and its records in the store."""
        consumer.advisories.action("delete")
        self._drop(consumer)
        if consumer.persistent:
            mine = f"{consumer.name}\0"
            for key in [key for key in self._stream.log.kept() if key.startswith(mine)]:
                self._stream.log.keep(key, None)
            self._stream.journal.catalog = True
        if self._stream.config.retention == Retention.INTEREST:
            self.retention.sweep()

    def _drop(self, consumer: Consumer) -> None:
        consumer.stop()
        stream, services = self._stream, self._services
        del self.items[consumer.name], self._cursors[consumer.name]
        self._filters.remove(consumer.cursor.filters)
        self._claimed.release(consumer.name, _claims(consumer.config))
        services.router.discard(f"{NEXT_PREFIX}{stream.name}.{consumer.name}", consumer.delivery)
        services.ack_router.consumers.pop((stream.name, consumer.name), None)
        if not self.items:
            self.retention.forget()
            stream.log.watch(False)
            stream.journal.followers.pop(self, None)

    def stop(self) -> None:
        """The stream is deleted."""
        for consumer in list(self.items.values()):
            consumer.advisories.action("delete")
            self._drop(consumer)

    def retire(self) -> None:
        """The server shuts down."""
        for consumer in self.items.values():
            consumer.retire()

    # Work queues.

    def _check_queue(self, config: ConsumerConfig) -> None:
        if self._stream.config.retention != Retention.WORK_QUEUE or config.direct or config.sourcing:
            return
        if config.ack_policy != AckPolicy.EXPLICIT:
            raise ErrorCode.CONSUMER_WQ_REQUIRES_EXPLICIT_ACK.error()
        if config.deliver_policy != DeliverPolicy.ALL:
            raise ErrorCode.CONSUMER_WQ_NOT_DELIVER_ALL.error()
        if self.items and not rules.filters_of(config):
            raise ErrorCode.CONSUMER_WQ_MULTIPLE_UNFILTERED.error()
        self._check_unique(config, but="")

    def _check_unique(self, config: ConsumerConfig, *, but: str) -> None:
        own = _claims(self.items[but].config) if but else ()
        if self._claimed.is_taken("consumer filter_subjects", rules.filters_of(config), owner=but, own=own):
            raise ErrorCode.CONSUMER_WQ_NOT_UNIQUE.error()

    def _claim(self, name: str, config: ConsumerConfig) -> None:
        if self._stream.config.retention == Retention.WORK_QUEUE:
            self._claimed.claim(name, _claims(config))

    def _configure(self, consumer: Consumer, config: ConsumerConfig, now: int) -> None:
        self._claimed.release(consumer.name, _claims(consumer.config))
        self._claim(consumer.name, config)
        self._filters.remove(consumer.cursor.filters)
        try:
            consumer.change(config, now)
        finally:
            self._filters.add(consumer.cursor.filters)

    # After a start, and after a group was lost.

    def restore(self, now: int) -> None:
        """Make the consumers those of the store."""
        kept = by_consumer(self._stream.log.kept())
        stored = {name: read_config(records["c"]) for name, records in kept.items() if "c" in records}
        for consumer in list(self.items.values()):
            entry = stored.pop(consumer.name, None)
            if not consumer.persistent:
                consumer.begin()  # the group that it waited for is decided, one way or the other
                consumer.recount()
                continue
            if entry is None or entry.created != consumer.created:
                self._drop(consumer)
                if entry is not None:
                    stored[consumer.name] = entry
                continue
            config = ConsumerConfig.from_dict(entry.config)
            if config != consumer.config:
                self._configure(consumer, config, now)
            # The delivery state in memory is ahead of the store's: all of it is written again, also the blocks that
            # the lost group had emptied.
            consumer.state.all_changed(block_numbers(kept[consumer.name]))
            self._commit.mark(consumer.writer)
            consumer.begin()
            consumer.recount()
        for name, entry in stored.items():
            consumer = self._add(
                name, ConsumerConfig.from_dict(entry.config), entry.created, read_state(kept[name]), entry.after
            )
            consumer.state.clock_set_back(now)
            consumer.state.last_active = self._services.router.now
            consumer.begin()
        self.retention.group_lost()

    def recount(self) -> None:
        """Messages were restored from a snapshot, without a commit that consumers could follow."""
        for consumer in self.items.values():
            consumer.recount()

    # Commits.

    def committed(self, now: int) -> None:  # noqa: ARG002
        """A group was finished."""
        news = self._stream.log.news()
        self.retention.remove_taken()
        if news is None:
            return
        self.retention.committed(news)
        count = 0 if news.recount or news.removed else len(news.added)
        first = news.added[0][0] if count else 0
        followed = CommitNews(news, self._filters)
        for consumer in list(self.items.values()):
            if not (count and consumer.added(first, count)):
                consumer.committed(followed)

    def resume(self) -> None:
        """A mirror's copy became worth more without a new message: consumers that wait for that look again."""
        for consumer in self.items.values():
            if consumer.cursor.is_waiting:
                consumer.resume()

    def purged(self, pattern: str) -> None:
        """Messages are being purged on request: once that is durable, consumers pass over them."""

        def pass_over() -> None:
            for consumer in self.items.values():
                consumer.purged(pattern)

        if self.items:
            self._stream.journal.after.append(pass_over)
