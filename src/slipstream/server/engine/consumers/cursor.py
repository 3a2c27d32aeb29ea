"""The cursor of a consumer: its position in the stream, the next messages, and how many are left.

The cursor reads the committed view of the log, so a delivered message can never be taken back by a crash. `left`, which
clients see as `num_pending`, is counted once (`recount`) and then kept exact: each commit adds and removes, each
delivery takes one away. Reading the next messages and recording that they went out are two steps (`upcoming`, then
`delivered` or `delivered_all`): what could not be sent is simply read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipstream.api import ConsumerConfig, DeliverPolicy
from slipstream.errors import CorruptRecordError
from slipstream.server.engine.consumers.ack_handling import AckHandling
from slipstream.server.engine.consumers.config import filters_of
from slipstream.server.engine.consumers.deliver_policy import (
    REVIEWED,
    SkipList,
    exists,
    starting_point,
    starting_walk,
)
from slipstream.server.engine.consumers.delivery_state import DeliveryState
from slipstream.server.engine.consumers.filters import CommitNews, Filters
from slipstream.server.engine.consumers.persistence import StateWriter
from slipstream.server.engine.ports import MOST_UNFORESEEN, Record, StreamLog, Walk, Work
from slipstream.wire import SubjectSet

CHUNK = 512
CHUNK_BYTES = 256 * 1024
FEW_MESSAGES = 2048  # of a stream in which a consumer's start is found in one piece
LOOK_UNITS = 256  # of work (`engine.jobs`) for a scan that found nothing yet


def _all_within(filters: Iterable[str], pattern: str) -> bool:
    purged = SubjectSet((pattern,))  # a request may send a very long one: it is taken apart once
    return all(filter_ == pattern or purged.covering(filter_) is not None for filter_ in filters)


class Cursor:
    """Where one consumer is in its stream."""

    def __init__(
        self,
        log: StreamLog,
        state: DeliveryState,
        writer: StateWriter,
        acks: AckHandling,
        *,
        settled: Callable[[Iterable[int]], None],
        as_of: Callable[[], int],
        work: Work,
        started: bool,
        after: int | None = None,
    ) -> None:
        """`started`: the state is that of a consumer that had begun before. `settled` tells the stream's retention
        which messages this consumer needs no more. `work`: what its job has done so far in this turn."""
        self.state = state
        self.filters: Filters = Filters(())
        self.left: int = 0  # messages of the filters from `state.next_seq` on
        self.started: bool = started
        self._log = log
        self._writer = writer
        self._acks = acks
        self._settled = settled
        # For `deliver_policy` new: what was published before the request, in the same turn even, is not new.
        # It is stored with the configuration: where the consumer begins is durable only some time after it was
        # acknowledged, and a server that crashed before finds its beginning again by this.
        self.after: int = after if after is not None else log.state.last_seq
        self._as_of = as_of
        self._work = work
        self._min_last_seq = 0
        self._is_reached = False
        self.stopped_at: int = 0  # the damaged message that it stands in front of
        self.is_looking: bool = False  # the last scan ended before the end of the log, and found nothing
        self._looked_to = 0  # before it nothing is left to deliver

    def configure(self, config: ConsumerConfig) -> None:
        """Take over a configuration."""
        self.filters = Filters(filters_of(config))
        self._looked_to = 0
        if config.min_last_seq != self._min_last_seq:
            self._min_last_seq, self._is_reached = config.min_last_seq, False

    # Position.

    @property
    def held(self) -> bool:
        """Whether the stream has not reached the sequence that the consumer waits for. Once it has, a gap that a mirror
        gets later does not matter."""
        if not self._is_reached:
            self._is_reached = self._min_last_seq <= self._as_of()
        return not self._is_reached

    @property
    def is_waiting(self) -> bool:
        """Whether it was held when that was last asked."""
        return not self._is_reached

    @property
    def at_end(self) -> bool:
        """Whether nothing is left to deliver now."""
        return not self.state.queue and self.left <= 0

    def start(self, config: ConsumerConfig, *, one_per_subject: bool) -> None:
        """Find the first message. `one_per_subject`: the stream keeps no more than the last of each subject."""
        self.started = True
        start, skips = starting_point(config, self.filters, self._log, after=self.after)
        if one_per_subject and config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT:
            start, skips = self._log.committed.first_seq, None  # the last ones are all there are
        self.state.reset(start)
        self.state.skips = skips
        self._writer.mark()

    def needs_search(self, config: ConsumerConfig, *, one_per_subject: bool) -> bool:
        """Whether finding the first message, and counting what is left from there on, may take long."""
        if self._log.state.messages <= FEW_MESSAGES or config.deliver_policy == DeliverPolicy.NEW:
            return False
        if not self.filters.patterns:
            return config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT and not one_per_subject
        by_position = config.deliver_policy in (DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME)
        return not self.filters.is_literal or by_position

    def search(self, config: ConsumerConfig, *, one_per_subject: bool) -> Walk[tuple[int, SkipList | None, int]]:
        """Where to begin, and how many messages are left from there on, as of now."""
        snapshot = self._log.snapshot()
        try:
            snapshot.hold()
            if one_per_subject and config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT:
                start: int = snapshot.committed.first_seq
                skips: SkipList | None = None
            else:
                walk = starting_walk(config, self.filters, self._log, snapshot, after=self.after)
                start, skips = yield from walk
            if skips is None or skips.done:
                left = yield from self.filters.count_walk(snapshot, start)
            else:
                left = len(skips) + (yield from self.filters.count_walk(snapshot, skips.resume))
            return start, skips, left
        finally:
            snapshot.close()

    def start_at(self, start: int, skips: SkipList | None, left: int) -> None:
        """Begin where a search says."""
        self.started = True
        self.state.reset(start)
        self.state.skips = skips
        self.left = left
        self._writer.mark()

    def move(self, seq: int) -> None:
        """Begin again from a sequence, as if nothing had been delivered."""
        self._looked_to = 0
        self.started = True
        self.state.skips = None
        self.state.reset(seq)

    def needs(self, seq: int, subject: str) -> bool:
        """Whether a message must stay in the stream for this consumer (retention by interest)."""
        state = self.state
        if not self.filters.covers(subject):
            return False
        if not self.started or seq >= state.next_seq or seq in state.pending:
            return True
        return seq in state.counts

    # Counting.

    def recount(self) -> None:
        """Count what is left from the log."""
        state = self.state
        if state.skips is None or state.skips.done:
            self.left = self.filters.count(self._log, state.next_seq)
        else:
            self.left = len(state.skips) + self.filters.count(self._log, state.skips.resume)

    @property
    def is_long_count(self) -> bool:
        """Whether counting what is left, or looking which pending messages are still there, may take long."""
        state = self.state
        listed = len(state.skips) if state.skips is not None else 0
        filtered = bool(self.filters.patterns) and self._log.committed.messages > FEW_MESSAGES
        return filtered or len(state.pending) + len(state.counts) + listed > max(FEW_MESSAGES, 0)

    def recount_walk(self, now: int, *, reviews: bool) -> Walk[int]:
        """What is left of the log as it is now, in slices; nothing must be delivered meanwhile. With `reviews` also
        drop pending messages and last messages that left the stream. The list of those counts as it is in the end:
        commits that are followed afterwards take away only what is still on it."""
        state = self.state
        snapshot = self._log.snapshot()
        try:
            snapshot.hold()
            skips = state.skips
            start = state.next_seq if skips is None or skips.done else skips.resume
            left = yield from self.filters.count_walk(snapshot, start)
        finally:
            snapshot.close()
        if reviews:
            yield from self._forget_walk(now)
            if state.skips is not None:
                yield from state.skips.review_walk(self._log, self.filters)
                self._leave_skips()
        return left + (len(state.skips) if state.skips is not None else 0)

    def _forget_walk(self, now: int) -> Walk[None]:
        state = self.state
        gone = state.forget_below(self._log.committed.first_seq)
        for looked, seq in enumerate([*state.pending, *state.counts], 1):
            if (seq in state.pending or seq in state.counts) and not exists(self._log, seq):
                state.settle(seq)
                gone = True
            if not looked % REVIEWED:
                yield REVIEWED // 2
        if gone:
            state.last_ack = now
            self._writer.mark()

    def review_skips(self) -> None:
        """Drop those last messages that left the stream, or are not covered any more."""
        if self.state.skips is not None:
            self.state.skips.review(self._log, self.filters)
            self._leave_skips()

    def _leave_skips(self) -> None:
        """Behind the last one of the skip list everything is next."""
        state = self.state
        if state.skips is not None and state.skips.done:
            state.next_seq = max(state.next_seq, state.skips.resume)

    def forget_removed(self, now: int) -> None:
        """Settle messages that left the stream without a note of it: before a start, or among very many."""
        state = self.state
        gone = state.forget_below(self._log.committed.first_seq)
        for seq in [*state.pending, *state.counts]:
            if not exists(self._log, seq):
                state.settle(seq)
                gone = True
        if gone:
            state.last_ack = now
            self._writer.mark()

    def committed(self, news: CommitNews, now: int) -> None:
        """Follow a commit."""
        if news.recount:
            self.forget_removed(now)
            self.review_skips()
            self.recount()
        else:
            self._follow(news)

    def added(self, first: int, count: int) -> bool:
        """Follow a commit that only added messages, from the sequence `first` on, all of which are still to come."""
        state = self.state
        if not self.started or self.filters.patterns or state.skips is not None or first < state.next_seq:
            return False
        self.left += count
        return True

    def _follow(self, news: CommitNews) -> None:
        state, skips = self.state, self.state.skips
        if skips is not None and skips.done:
            skips = None
        self.left += news.added_from(skips.resume if skips is not None else state.next_seq, self.filters)
        if not news.removed:
            return
        for seq in news.removed_of(state.pending):
            self._acks.removed(seq)
        for seq in news.removed_of(state.counts):
            state.settle(seq)
            self._writer.mark()
        if skips is None:
            self.left -= news.removed_from(state.next_seq, self.filters)
            return
        covers = self.filters.covers
        for seq, subject in news.removed:
            if seq < skips.resume:  # of those only the listed ones are still to come
                self.left -= skips.lost(seq)
            elif seq >= state.next_seq and covers(subject):
                self.left -= 1
        self._leave_skips()

    def purged(self, pattern: str) -> None:
        """Messages that match were purged on request: they count as passed over."""
        if not self.started or self.state.skips is not None:
            return
        log, mine = self._log, self.filters.patterns
        start = log.committed.first_seq
        if pattern not in ("", ">") and mine and _all_within(mine, pattern):
            try:
                left = log.scan(pattern, 0, limit=1)
                start = left[0].seq if left else log.committed.last_seq + 1
            except CorruptRecordError as exc:
                start = max(start, exc.seq)
        elif pattern and mine and self.filters.set.overlapping(pattern) is None:
            return
        self.state.pass_over(start)
        self._writer.mark()

    # The next messages.

    def upcoming(self, limit: int) -> tuple[list[Record], list[Record]]:
        """The next messages to redeliver, and the next new ones. Nothing is recorded yet."""
        state = self.state
        self.is_looking = False
        again = self._again(limit) if state.queue else []
        limit = min(limit - len(again), CHUNK)
        if self._acks.max_pending:  # redeliveries are pending already, and pass
            limit = min(limit, self._acks.max_pending - len(state.pending))
        if limit <= 0 or self.left <= 0 or not self.started:
            return again, []
        return again, self._new_ones(limit)

    def _again(self, limit: int) -> list[Record]:
        found: list[Record] = []
        for seq in list(self.state.queue):
            if self._acks.exhausted(seq):
                self._acks.give_up(seq)
                continue
            try:
                record = self._log.get(seq)
            except CorruptRecordError:  # it stays pending until it is removed
                continue
            if record is None:
                self._acks.removed(seq)
                continue
            found.append(record)
            if len(found) >= limit or self._work.units > MOST_UNFORESEEN:
                break
        return found

    def _new_ones(self, limit: int) -> list[Record]:
        """The next messages; none, if the very next one is damaged: a consumer stops in front of it."""
        state, self.stopped_at = self.state, 0
        try:
            while state.skips is not None and not state.skips.done:
                if found := state.skips.next(self._log, limit, self._work):
                    return found
                self._leave_skips()
            at = max(state.next_seq, self._looked_to)
            records, following = self.filters.scan(self._log, at, limit=limit, max_bytes=CHUNK_BYTES)
            if not records:
                self._looked_to = following
                self.is_looking = following <= self._log.committed.last_seq
            return records
        except CorruptRecordError as exc:
            self.stopped_at = max(exc.seq, state.next_seq)
            return []

    def found_nothing(self) -> None:
        """`left` says that there are more messages, and the log has none: count again."""
        if not self.state.queue and not self.stopped_at:
            self.state.next_seq = max(self.state.next_seq, self._log.committed.last_seq + 1)
            self.recount()

    # Deliveries.

    def delivered(self, record: Record, now: int) -> None:
        """Record that a new message went out."""
        state, seq = self.state, record[0]
        if self._acks.required:
            state.deliver(seq, now)
        else:
            state.hand_over(seq)
        self.left -= 1
        if state.skips is not None and not state.skips.done:
            state.skips.took(seq)
            state.next_seq = state.skips.resume if state.skips.done else seq + 1
        else:
            state.next_seq = seq + 1

    def delivered_all(self, records: list[Record], now: int) -> None:
        """Record that new messages in a row went out. Hot."""
        state = self.state
        if state.skips is not None and not state.skips.done:
            for record in records:
                self.delivered(record, now)
            if not self._acks.required:
                self._settled([record[0] for record in records])
            return
        seqs = [record[0] for record in records]
        self.left -= len(seqs)
        state.next_seq = seqs[-1] + 1
        if self._acks.required:
            state.deliver_all(seqs, now)
        else:
            state.dseq += len(seqs) - 1
            state.hand_over(seqs[-1])
            self._settled(seqs)

    def settle_unacked(self, seqs: list[int]) -> None:
        """Messages that need no ack went out, one at a time."""
        if seqs:
            self._settled(seqs)
