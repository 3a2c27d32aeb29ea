"""A consumer: a server-side cursor into a stream, with the state of its deliveries.

Theory of operation. A message passes through these states, for one consumer:

    upcoming --deliver--> pending --ack, term--> settled
                            |  ^
             nak, ack_wait  v  |  redeliver, until max_deliver; then given up, with an advisory
                        redelivery queue

Each part of that is a class of its own, and a `Consumer` is made of one of each:

* `DeliveryState` (delivery_state) has the sequences, the pending messages and the redelivery queue. It is plain data,
  and all of it that survives a restart.
* `StateWriter` (persistence) writes what changed of it with the groups of the stream's store, and answers an ack when
  the group that holds it is durable.
* `Cursor` (cursor) reads the next messages from the committed view of the log and knows how many are left.
* `AckHandling` (ack_handling) settles messages, and queues those for redelivery whose ack is overdue.
* `PullDelivery` or `PushDelivery` (pull, push) decides who gets the next messages and encodes them.
* `DeliveryJob` (job) says when: it is woken by commits, pulls, acks and timers, and delivers a chunk at a time.

They are given to each other as arguments, in that order; none knows the `Consumer`, which starts, changes and stops
them. A consumer begins (`begin`) once the group that created it is durable, and may then wait for `min_last_seq` before
it looks for its first message.

Three invariants. A delivered message is committed, so a crash cannot take it back. An answered ack is durable; plain
acks of the last 20 ms may be lost, and their messages are then redelivered. `left` is exact at all times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from slipstream.api import ConsumerConfig, DeliverPolicy, ReplayPolicy
from slipstream.api.times import nanoseconds
from slipstream.errors import ErrorCode, StoreError
from slipstream.server.engine.consumers.ack_handling import AckHandling
from slipstream.server.engine.consumers.ack_router import ACK_PREFIX
from slipstream.server.engine.consumers.advisories import ConsumerAdvisories
from slipstream.server.engine.consumers.config import config_record, filters_of
from slipstream.server.engine.consumers.cursor import Cursor
from slipstream.server.engine.consumers.deliver_policy import SkipList
from slipstream.server.engine.consumers.delivery_state import DeliveryState
from slipstream.server.engine.consumers.filters import CommitNews
from slipstream.server.engine.consumers.job import DeliveryJob
from slipstream.server.engine.consumers.parent import ParentStream
from slipstream.server.engine.consumers.persistence import LazyCommit, StateWriter
from slipstream.server.engine.consumers.pull import PullDelivery
from slipstream.server.engine.consumers.push import PushDelivery
from slipstream.server.engine.consumers.timing import IdleTimer
from slipstream.server.engine.jobs import SLICE_UNITS, Progress
from slipstream.server.engine.ports import Walk
from slipstream.server.engine.services import Services

MOST_COUNTS = 8  # in slices, that are out of date when they are complete


class Consumer:
    """One consumer of a stream."""

    def __init__(
        self,
        services: Services,
        stream: ParentStream,
        name: str,
        config: ConsumerConfig,
        *,
        created: int,
        commit: LazyCommit,
        settled: Callable[[Iterable[int]], None],
        expire: Callable[[Consumer], None],
        state: DeliveryState | None = None,
        after: int | None = None,
    ) -> None:
        """Without `state` it is a new one and begins where its configuration says. `settled` takes the messages that
        it needs no more; `expire` deletes it when it has not been used for long enough."""
        self.name = name
        self.config: ConsumerConfig = config
        self.created = created
        self.stream_name: str = stream.name
        self.state: DeliveryState = state if state is not None else DeliveryState(1)
        self.state.last_active = created
        self.advisories: ConsumerAdvisories = ConsumerAdvisories(services, stream.name, name)
        self.writer: StateWriter = StateWriter(commit, stream.log, name, self.state)
        self.services = services
        self._stream = stream
        self._log = stream.log
        self._job = DeliveryJob(services, self.advisories, lambda now: self.delivery.deliver(now))
        self._acks = AckHandling(
            services,
            self.state,
            self.writer,
            self.advisories,
            prefix=f"{ACK_PREFIX}{stream.name}.{name}.",
            wake=self._job.wake,
            settled=settled,
            next_request=lambda reply, payload, now: self.delivery.next_request(reply, payload, now),
        )
        self.cursor: Cursor = Cursor(
            stream.log,
            self.state,
            self.writer,
            self._acks,
            settled=settled,
            as_of=stream.as_of,
            work=services.jobs.load,
            started=state is not None,
            after=after,
        )
        self._idle = IdleTimer(
            services.timers, used_until=lambda now: self.delivery.used_until(now), expire=lambda: expire(self)
        )
        self._configure(config)
        self.delivery: PullDelivery | PushDelivery
        if config.deliver_subject:
            self.delivery = PushDelivery(services, stream, name, self.cursor, self._acks, self._job, self._idle, config)
        else:
            self.delivery = PullDelivery(
                services, self.cursor, self._acks, self._job, self._idle, self.advisories, config
            )
        self._is_large = self.cursor.needs_search(config, one_per_subject=self._one_per_subject)
        self._has_begun = False
        self._search: StartSearch | CountSearch | None = None
        self._counts_in_vain = 0  # in a row
        self._purged: list[str] = []  # filters of purges while it is counted
        self._missed: list[CommitNews] = []  # commits since it began
        # Not by a method of its own: a call less for every ack.
        self.ack: Callable[[list[str], int, str, bytes, int], bool] = self._acks.receive
        self.flow: Callable[[str, int], None] = self.delivery.flow

    # Configuration.

    @property
    def persistent(self) -> bool:
        """Whether it is to outlive the process."""
        return not self.config.mem_storage

    def _configure(self, config: ConsumerConfig) -> None:
        self.config = config
        self.writer.persistent = self.persistent
        self.cursor.configure(config)
        self._acks.configure(config)
        self._job.set_pause(config.pause_until)
        self._idle.threshold = nanoseconds(config.inactive_threshold)

    def record(self) -> bytes:
        """What the store keeps beside the delivery state."""
        return config_record(self.created, self.config, self.cursor.after)

    def change(self, config: ConsumerConfig, now: int) -> None:
        """Take over another configuration."""
        old = self.config
        self._configure(config)
        self.delivery.configure(config)
        if self._search is not None and filters_of(old) != filters_of(config):
            self._end_search()
            self._is_large = self.cursor.needs_search(config, one_per_subject=self._one_per_subject)
            if self._has_begun:
                self._job.live = True
            else:
                self.begin()
        if filters_of(old) != filters_of(config) and self._job.live:
            self._count_again(reviews=True)
        if old.pause_until != config.pause_until:
            self._job.arm_pause(now)
            self.advisories.paused(config.pause_until)
        if old.inactive_threshold != config.inactive_threshold:
            self._idle.arm(now)
        self._acks.waits_changed(old, now)
        self._job.wake()

    # Life.

    def begin(self) -> None:
        """Find the first message and deliver: the consumer is durable."""
        if self._job.stopped or self._job.live or self._search is not None:
            return
        if self.cursor.started:
            if self._begin_count(reviews=True):
                return
        elif not self.cursor.held and self._begin_search():
            return
        self._go_live()

    def _go_live(self, *, is_counted: bool = False) -> None:
        """Deliver from now on; `is_counted`: it is known where, and how many messages are left."""
        self._job.live = True
        now = self.services.router.now
        if not self._has_begun:
            self._has_begun = True
            self.delivery.begin(now)
        if not is_counted:
            if self.cursor.started:
                self.cursor.forget_removed(now)
            elif not self.cursor.held:
                self._start()
            self.cursor.recount()
        self._job.arm_pause(now)
        self._idle.arm(now)
        if self.state.pending:
            self._acks.arm(now)
        if self.config.replay_policy == ReplayPolicy.ORIGINAL:
            self._job.replay(self._log.committed.last_seq)
        self._job.wake()

    def _start(self) -> None:
        self.cursor.start(self.config, one_per_subject=self._one_per_subject)

    @property
    def _one_per_subject(self) -> bool:
        return self._stream.config.max_msgs_per_subject == 1

    # The start of a consumer of a large stream is a search in slices, as of one state; what is committed in the
    # meantime is followed when it is over. Until then the consumer is not live, as if it were not durable yet.

    @property
    def will_search(self) -> bool:
        """Whether it is new and begins with a search. That is decided when it is made: the response depends on it."""
        return not self.cursor.started and self._is_large

    @property
    def is_searching(self) -> bool:
        """Whether it looks for its first message, or counts: what a report would say is not known yet."""
        return self._search is not None

    def _begin_search(self) -> bool:
        """Look for the first message in slices, if that may take long."""
        if not self._is_large or self._log.is_crowded:
            return False
        walk = self.cursor.search(self.config, one_per_subject=self._one_per_subject)
        self._search, self._missed = StartSearch(walk, self._found), []
        if self._search.run()[0] is Progress.MORE:  # the first slice at once: its snapshot is of now
            jobs = self.services.jobs
            jobs.go_on(self._search, jobs.load.asker or self)
        return True

    def _found(self, start: int, skips: SkipList | None, left: int) -> None:
        missed, self._search, self._missed = self._missed, None, []
        self.cursor.start_at(start, skips, left)
        now = self.services.router.now
        if any(news.recount for news in missed):
            self.cursor.review_skips()
            self.cursor.recount()
        else:
            for news in missed:
                self.cursor.committed(news, now)
        self._go_live(is_counted=True)

    # A consumer whose messages are to be counted again delivers nothing until that is done, in slices as well.

    def _count_again(self, *, reviews: bool) -> None:
        """Count what is left; `reviews`: messages may have left the stream, or the filters, without a note of it."""
        if self._begin_count(reviews=reviews):
            return
        if reviews:
            self.cursor.forget_removed(self.services.router.now)
            self.cursor.review_skips()
        self.cursor.recount()

    def _begin_count(self, *, reviews: bool) -> bool:
        """Count what is left in slices, if that may take long."""
        if not self.cursor.is_long_count or self._log.is_crowded or self._counts_in_vain > MOST_COUNTS:
            return False
        walk = self.cursor.recount_walk(self.services.router.now, reviews=reviews)
        self._search, self._missed = CountSearch(walk, self._counted), []
        self._job.live = False
        if self._search.run()[0] is Progress.MORE:
            jobs = self.services.jobs
            jobs.go_on(self._search, jobs.load.asker or self)
        return True

    def _counted(self, left: int | None) -> None:
        """What is left, or None if it could not be read: it is counted when deliveries come to the end."""
        missed, self._search, self._missed = self._missed, None, []
        if left is not None:
            self.cursor.left = left
        if any(news.recount for news in missed):
            self._counts_in_vain += 1  # a stream that is purged all the time: in the end it is counted in one piece
            self._job.live = True
            self._count_again(reviews=True)
            if self.is_searching:  # not `_search`: for a type checker it is None since the first line
                return
        else:
            now = self.services.router.now
            for news in missed:
                self.cursor.committed(news, now)
        self._counts_in_vain = 0
        if not self._has_begun:
            self._go_live(is_counted=True)
        self._job.live = True
        if self._purged:
            patterns, self._purged = self._purged, []
            for pattern in patterns:
                self.cursor.purged(pattern)
        self._job.wake()

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.stop()
            self._search, self._missed = None, []

    def reset(self, seq: int) -> int:
        """Begin again from a stream sequence, or (0) from the ack floor; returns where that is."""
        config = self.config
        if seq:
            first, text = 0, ""
            if config.deliver_policy == DeliverPolicy.BY_START_SEQUENCE:
                first, text = config.opt_start_seq, "below start seq"
            elif config.deliver_policy == DeliverPolicy.BY_START_TIME:
                first, text = self._log.time_to_seq(config.opt_start_time or 0), "below start time"
            elif config.deliver_policy != DeliverPolicy.ALL:
                raise ErrorCode.CONSUMER_INVALID_RESET.error(err="not allowed")
            if seq < first:
                raise ErrorCode.CONSUMER_INVALID_RESET.error(err=text)
        seq = seq or self.state.floor_seq + 1
        self.cursor.move(seq)
        if self._search is not None:
            self._end_search()
            if self._has_begun:
                self._job.live = True
            else:
                self._go_live(is_counted=True)
        if self._job.live:
            self._count_again(reviews=False)
        self.writer.mark()
        self._job.wake()
        return seq

    def stop(self) -> None:
        """The consumer is deleted: no more deliveries, and nothing more is written.

        Its parts let go of each other, so that it is freed now: a server may have many short-lived consumers, with
        thousands of pending messages each, and collects garbage seldom.
        """
        self._end_search()
        self._job.stop()
        self._acks.stop()
        self._idle.stop()
        self.delivery.stop()
        self.writer.stop()

    def retire(self) -> None:
        """The server shuts down: no more deliveries."""
        self._end_search()
        self._job.live = False
        self.delivery.retire()

    # Commits.

    def added(self, first: int, count: int) -> bool:
        """Follow a commit that only added messages, from the sequence `first` on; False if that takes a look at them.
        Of thousands of consumers, most have no filter and wait for a request: they do nothing but count."""
        if self._search is not None or not self._job.live or not self.cursor.added(first, count):
            return False
        if self.cursor.left and self.delivery.is_wanted:
            self._job.wake()
        return True

    def committed(self, news: CommitNews) -> None:
        """A group was committed."""
        if self._search is not None:
            self._missed.append(news)
            return
        if not self._job.live:
            return
        if not self.cursor.started:
            self.resume()
            return
        if news.recount and self.cursor.is_long_count:
            self._count_again(reviews=True)
        else:
            self.cursor.committed(news, self.services.router.now)
        if self.cursor.left and self.delivery.is_wanted:  # of thousands of consumers most wait for a request
            self._job.wake()

    def resume(self) -> None:
        """The stream may have reached the sequence that the consumer waits for."""
        if self._job.live and not self.cursor.held:
            if not self.cursor.started:
                self._job.live = False
                self._is_large = self.cursor.needs_search(self.config, one_per_subject=self._one_per_subject)
                self.begin()
            self._job.wake()

    def purged(self, pattern: str) -> None:
        """Messages that match were purged on request."""
        if self._job.live:
            self.cursor.purged(pattern)
        elif isinstance(self._search, CountSearch):
            self._purged.append(pattern)

    def recount(self) -> None:
        """Count what is left from the log, and deliver it."""
        if self._search is not None:
            return
        self._count_again(reviews=False)
        self._job.wake()

    # Reports.

    @property
    def paused(self) -> bool:
        return self._job.paused

    @property
    def left(self) -> int:
        """How many messages are still to be delivered for the first time."""
        return self.cursor.left

    @property
    def waiting(self) -> int:
        """How many pull requests wait."""
        return self.delivery.waiting

    @property
    def bound(self) -> bool:
        """Whether the deliver subject has a subscriber."""
        return self.delivery.bound

    def pins(self) -> list[dict[str, Any]]:
        """The state of the priority groups."""
        return self.delivery.pins()

    def unpin(self, group: str) -> bool:
        """Unpin the client of a priority group; False if the consumer has no such group."""
        if group not in self.config.priority_groups or not isinstance(self.delivery, PullDelivery):
            return False
        self.delivery.unpin("admin", group)
        return True


class StartSearch:
    """The search for the first message of a consumer, as a job."""

    def __init__(
        self, walk: Walk[tuple[int, SkipList | None, int]], found: Callable[[int, SkipList | None, int], None]
    ) -> None:
        self._walk, self._found = walk, found

    def stop(self) -> None:
        """The result is not wanted any more."""
        self._found = _ignore
        self._walk.close()

    def run(self) -> tuple[Progress, int]:
        units = 0
        try:
            while units < SLICE_UNITS:
                units += next(self._walk)
        except StopIteration as end:
            if end.value is not None:  # stopped
                self._found(*end.value)
            return Progress.DONE, units
        return Progress.MORE, units


class CountSearch:
    """The count of what is left for a consumer, as a job."""

    def __init__(self, walk: Walk[int], counted: Callable[[int | None], None]) -> None:
        self._walk, self._counted = walk, counted
        self._is_stopped = False

    def stop(self) -> None:
        """The result is not wanted any more."""
        self._is_stopped = True
        self._walk.close()

    def run(self) -> tuple[Progress, int]:
        units = 0
        if self._is_stopped:
            return Progress.DONE, 0
        try:
            while units < SLICE_UNITS:
                units += next(self._walk)
        except StopIteration as end:
            self._counted(end.value)
            return Progress.DONE, units
        except StoreError:
            self._counted(None)
            return Progress.DONE, units
        return Progress.MORE, units


def _ignore(_: int, __: SkipList | None, ___: int) -> None:
    """In place of the consumer."""
