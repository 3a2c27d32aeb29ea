"""Retention by interest and as a work queue: which messages of a stream may be removed.

A message is removed when no consumer needs it any more and every mirror and source of another stream has it. That is
decided on the writer's side, together with the ack that decides it: both are in the same group, so a crash takes back
both or neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slipstream.api import Retention, StreamConfig
from slipstream.errors import CorruptRecordError
from slipstream.server.engine.consumers.cursor import Cursor
from slipstream.server.engine.consumers.deliver_policy import exists
from slipstream.server.engine.consumers.filters import FilterIndex
from slipstream.server.engine.consumers.parent import ParentStream
from slipstream.server.engine.consumers.persistence import LazyCommit
from slipstream.server.engine.jobs import SLICE_UNITS, Progress
from slipstream.server.engine.ports import Changes
from slipstream.server.engine.services import Services

PIECE = 256
CURSORS_PER_UNIT = 16  # of work (`engine.jobs`): consumers that are asked whether they need a message
TAKERS_PER_UNIT = 8  # mirrors and sources


class InterestRetention:
    """Removes the messages that the consumers of one stream do not need. After a lost group it is
    deferred state in the journal."""

    def __init__(
        self,
        services: Services,
        stream: ParentStream,
        commit: LazyCommit,
        cursors: Mapping[str, Cursor],
        filters: FilterIndex,
    ) -> None:
        """`cursors` are those of the stream's consumers, by name, and `filters` those of all of them; the registry
        keeps both up to date."""
        self._services = services
        self._stream = stream
        self._commit = commit
        self._cursors = cursors
        self._filters = filters
        self._known: StreamConfig | None = None  # the configuration that `_is_limits` is of
        self._is_limits = False
        self._leaving: dict[int, None] = {}  # settled messages whose removal is not durable yet
        self._owed: dict[int, None] = {}  # settled messages that a mirror or source has not got yet

    def settled(self, seqs: Iterable[int]) -> None:
        """A consumer needs these messages no more. Called for every ack."""
        config = self._stream.config
        if config is not self._known:  # a comparison of enums is felt for every ack
            self._known, self._is_limits = config, config.retention == Retention.LIMITS
        if self._is_limits:
            return
        retention = config.retention
        for seq in seqs:
            # In a work queue filters never overlap: the one consumer of a message is the one that settled it.
            if retention == Retention.WORK_QUEUE or not self._needed(seq):
                if self._stream.downstream and self._lacked(seq):
                    self._owed[seq] = None
                else:
                    self._remove(seq)

    def _remove(self, seq: int) -> None:
        if self._stream.log.remove(seq):
            self._leaving[seq] = None

    def _needed(self, seq: int) -> bool:
        if len(self._cursors) == 1:  # without filters there is no need to read the message for its subject
            cursor = next(iter(self._cursors.values()))
            if not cursor.filters.patterns:
                return cursor.needs(seq, "")
        try:
            record = self._stream.log.get(seq)
        except CorruptRecordError:  # for whom it is cannot be read
            return True
        if record is None:
            return False
        is_needed, looked = self._ask(seq, record.subject)
        self._services.jobs.load.units += looked // CURSORS_PER_UNIT
        return is_needed

    def _ask(self, seq: int, subject: str) -> tuple[bool, int]:
        """Whether a consumer needs a message, and how many were asked."""
        if not self._filters.covers(subject):
            return False, 1
        looked = 0
        for cursor in self._cursors.values():
            looked += 1
            if cursor.needs(seq, subject):
                return True, looked
        return False, looked

    def offered(self, seq: int, subject: str) -> None:
        """A new message, with retention by interest: where no consumer covers it, it counts and is not kept."""
        if not self._filters.covers(subject) and not self._taken(subject):
            self._stream.log.remove(seq)

    def sweep(self) -> None:
        """Remove what no consumer needs, after one was deleted or covers less than before."""
        if not self._cursors and not self._stream.downstream:
            self._stream.log.purge()
            return
        sweep = Sweep(self, self._stream, self._cursors)
        if not self._services.jobs.start(sweep):  # the engine has too many jobs: at once, rather than not at all
            while sweep.run()[0] is Progress.MORE:
                pass

    # Mirrors and sources of other streams are an interest too.

    def release(self, seq: int, subject: str) -> int:
        """Remove a message, unless a consumer needs it, or it is kept for a mirror or source alone. If it is kept for
        both, and the consumers need it no more, it is removed as soon as the others have it. Returns how many consumers
        were asked."""
        is_needed, looked = self._ask(seq, subject)
        if is_needed:
            return looked
        takers = [taker for taker in self._stream.downstream if taker.covers(subject)]
        if takers:
            is_committed = seq <= self._stream.log.committed.last_seq  # before, no other stream gets it
            if not is_committed or not self._filters.covers(subject):
                return looked
            if any(taker.lacks(seq) for taker in takers):
                self._owed[seq] = None
                return looked
        self._stream.log.remove(seq)
        return looked

    def _taken(self, subject: str) -> bool:
        self._services.jobs.load.units += len(self._stream.downstream) // TAKERS_PER_UNIT
        return any(taker.covers(subject) for taker in self._stream.downstream)

    def _lacked(self, seq: int) -> bool:
        """Whether a mirror or source is still to get a message."""
        behind = [taker for taker in self._stream.downstream if taker.lacks(seq)]
        try:
            record = self._stream.log.get(seq) if behind else None
        except CorruptRecordError:
            return True
        return record is not None and any(taker.covers(record.subject) for taker in behind)

    def remove_taken(self) -> None:
        """Remove what mirrors and sources have got by now, up to the first that one of them still lacks: looking at
        all of them with every commit would cost more than it gives."""
        while self._owed and not self._lacked(seq := next(iter(self._owed))):
            del self._owed[seq]
            # A consumer that was created while the message waited may need it.
            if self._stream.config.retention == Retention.WORK_QUEUE or not self._needed(seq):
                self._remove(seq)

    # Groups.

    def committed(self, news: Changes) -> None:
        """A group was finished: its removals are durable."""
        leaving = self._leaving
        if not leaving:
            return
        if news.recount:
            self._leaving = {seq: None for seq in leaving if exists(self._stream.log, seq)}
        for seq, _ in news.removed:
            leaving.pop(seq, None)

    def group_lost(self) -> None:
        """A group was lost: the acks are still in the delivery state, so what they removed is removed again."""
        if self._leaving:
            self._commit.mark(self)

    def save(self) -> None:
        """Remove again what a lost group had removed."""
        for seq in list(self._leaving):
            # The group may have had the copy as well, and there may be a new mirror or source.
            if self._stream.downstream and self._lacked(seq):
                del self._leaving[seq]
                self._owed[seq] = None
            else:
                self._stream.log.remove(seq)

    def forget(self) -> None:
        """The last consumer is gone."""
        self._leaving.clear()


class Sweep:
    """A job that looks through a stream for messages that are not needed, a piece at a time."""

    def __init__(self, retention: InterestRetention, stream: ParentStream, cursors: Mapping[str, Cursor]) -> None:
        self._retention = retention
        self._stream = stream
        self._cursors = cursors
        self._seq, self._last = stream.log.committed.first_seq, stream.log.state.last_seq

    def run(self) -> tuple[Progress, int]:
        """Look at the next messages."""
        log = self._stream.log
        if self._seq > self._last or not (self._cursors or self._stream.downstream):
            return Progress.DONE, 0
        try:
            records = log.scan("", self._seq, limit=PIECE)
        except CorruptRecordError as exc:
            self._seq = max(self._seq, exc.seq) + 1
            return Progress.MORE, 1
        if not records:  # the rest, if there is any, is not committed yet
            seqs = range(max(self._seq, log.committed.last_seq + 1), self._last + 1)
            records = [record for seq in seqs if (record := log.peek(seq)) is not None]
        units = asked = 0
        for record in records:
            asked += self._retention.release(record.seq, record.subject)
            units += 1
            self._seq = record.seq + 1
            if units + asked // CURSORS_PER_UNIT > SLICE_UNITS:
                return Progress.MORE, units + asked // CURSORS_PER_UNIT
        if not records:
            self._seq = self._last + 1
        return Progress.MORE, units + asked // CURSORS_PER_UNIT
