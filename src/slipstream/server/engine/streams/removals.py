"""Removals of very many messages, in slices: purges, and what rollups replace.

Theory of operation
===================

A removal is a filter and a sequence: every message that matches and is older than that goes. Nothing is ever added
below a sequence that was reached, so a removal may be interrupted, repeated and begun again without another result.
Up to `AT_ONCE` messages a purge needs none of this: it is carried out where it was asked for, in one group. A purge of
all subjects needs it in memory only: a store on disk forgets a range of messages at once, and removes them later.

**What readers see meanwhile.** The subjects are purged one after the other. One with at most `SLICE` messages is purged
in one group: readers see all of its messages or none. A subject with more loses its oldest messages first, and so does
a stream in memory that is purged by sequence. What does not match is not touched, what is published after the request
stays, and the response waits for the last group.

**A crash** leaves the removal in the record of the stream, where it is from the first group that removed something:
the restarted server completes it. A purge that was not answered is therefore carried out as a whole or not at all,
though not in one moment.

**A lost group** (a full disk) brings its messages back, and perhaps takes the record: the removal starts over. If the
group is lost that the removal waits for before it begins, the messages of that group go with it, and so do their
sequences: the removal ends before them, since other messages will have them.

**Another purge** removes what it finds; both are answered with what they removed. **The deletion** of the stream ends
the removal, with the error that there is no such stream. The client that asked may leave: the purge goes on.

**A rollup** is the same with the message itself as its end: the message is stored at once, in one group with the record
of what is still to go, and its ack waits until all of that is gone. A further rollup of the subject moves the end. If
the group of a rollup message is lost, so is its removal.

**The rollups of an atomic batch** remove `AT_ONCE_IN_BATCH` messages in its group; what the others replace is removed
in slices as well. All messages of the batch are there from its group on, and its ack waits until all is gone that they
replace.

**A limit** of the stream takes what a removal under way is to remove before it takes anything else, also after a
restart: what a purge in one moment would have made superfluous to remove stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from slipstream.errors import CorruptRecordError, StoreError, StreamNotFoundError
from slipstream.server.engine.jobs import SLICE_UNITS, Progress
from slipstream.server.engine.journal import Journal
from slipstream.server.engine.ports import LogSnapshot, StreamLog, Walk, has_wildcard

AT_ONCE = 512  # messages
AT_ONCE_IN_BATCH = 256  # by the rollups of an atomic batch: removing one message of each subject costs the most
SLICE = 512  # messages of one subject in one group
LOOKED = 64  # subjects without messages, and rollups, that a limit looks at
UNITS = 4  # of work (`engine.jobs`) for a message
MAX_PENDING = 512  # changes in the open group at which it waits for a commit: so do the acks of all others

Done = Callable[[int, Exception | None], None]  # how many messages were removed, or why not all


class PurgedStream(Protocol):
    """The stream, as a removal sees it."""

    journal: Journal
    log: StreamLog

    def removal_changed(self, removal: Removal) -> None:
        """A purge began, or is over: store which ones there are."""

    def rollup_ended(self, pattern: str) -> None:
        """A rollup's removal is over."""


def is_long(log: StreamLog, pattern: str, *, below: int = 0, keep: int = 0) -> bool:
    """Whether a purge may take too long for one turn. One of everything does not, nor one without a filter where the
    store has a way of its own."""
    if pattern in ("", ">"):
        state = log.state
        if log.purges_at_once or not (keep or 0 < below <= state.last_seq):
            return False
        return min(below - state.first_seq if below else state.messages, state.messages - keep) > AT_ONCE
    return (log.state.messages if has_wildcard(pattern) else log.count_of(pattern)) > AT_ONCE


class Removal:
    """One purge, as a job."""

    def __init__(
        self,
        stream: PurgedStream,
        pattern: str,
        *,
        below: int,
        keep: int,
        begins: Callable[[], None] | None,
        done: Done,
    ) -> None:
        """Everything before `below` must be committed. With `keep` so many of the newest stay. `begins` is called
        before the first message is removed, and again if the group that it was called in is lost; None: the removal
        began before the server was started."""
        self._stream, self.pattern, self.below, self._keep = stream, pattern or ">", below, keep
        self._begins, self._done = begins, done
        self._purged = self._durable = 0
        self.is_over = False
        self._names: deque[str] = deque()  # whose messages go
        self._at = 0  # the next of the first of them
        self._has_found = False  # which messages go: from here on it adds changes to the open group
        self._steps = self._work()
        self._resume()

    def _resume(self) -> None:
        if self._begins is None and (self.pattern == ">" or not has_wildcard(self.pattern)):
            self._names, self._at, self._has_found = deque((self.pattern,)), 0, True

    @property
    def is_recorded(self) -> bool:
        """Whether it is known which messages go, and they do."""
        return not self._keep and not self.is_over

    def run(self) -> tuple[Progress, int]:
        """Remove some messages."""
        if self.is_over:
            return Progress.DONE, 0
        if self._has_found and not self._stream.journal.admits(MAX_PENDING):
            return Progress.BLOCKED, 0
        units, before = 0, self._purged
        try:
            while units < SLICE_UNITS:
                units += next(self._steps)
        except StopIteration:
            self._end(None)
            return Progress.DONE, units
        except StoreError as exc:
            self._end(exc)
            return Progress.DONE, units
        if self._purged != before:
            self._stream.journal.after.append(partial(self._committed, self._purged))
        return Progress.MORE, units

    def stop(self) -> None:
        """The stream was deleted."""
        if not self.is_over:
            self.is_over = True
            self._steps.close()
            self._done(self._purged, StreamNotFoundError())

    def start_over(self) -> None:
        """A group was lost."""
        if not self.is_over:
            self._steps.close()
            self._has_found = False
            self._purged, self._steps = self._durable, self._work()
            self._resume()

    def remove(self, limit: int) -> int:
        """Remove so many messages at most, in place of those that a limit would remove; returns how many."""
        count = looked = 0
        while not count and self._has_found and not self.is_over and self._names and looked < LOOKED:
            count = self._remove_some(limit)
            looked += 1
        if count:
            self._stream.journal.after.append(partial(self._committed, self._purged))
        return count

    def _remove_some(self, limit: int) -> int:
        count, self._at = self._stream.log.purge_some(self._names[0], self._at, below=self.below, limit=limit)
        self._purged += count
        if self._at >= self.below:
            self._names.popleft()
            self._at = 0
        return count

    def _committed(self, purged: int) -> None:
        self._durable = purged

    def _end(self, error: Exception | None) -> None:
        self.is_over = True
        self._stream.removal_changed(self)
        self._done(self._purged, error)

    def _work(self) -> Walk[None]:
        log, names = self._stream.log, deque((self.pattern,))
        if self.pattern == ">":
            if self._keep:
                self.below, self._keep = min(self.below, log.newest(self._keep)), 0
        elif self._keep or has_wildcard(self.pattern):
            snapshot = log.snapshot()
            try:
                snapshot.hold()
                if self._keep:
                    self.below = yield from _cutoff(snapshot, self.pattern, self._keep, self.below)
                    self._keep = 0
                if has_wildcard(self.pattern):
                    found = yield from snapshot.subjects(self.pattern)
                    names = deque([subject for subject, _ in found])
            finally:
                snapshot.close()
        if not self._has_found:
            self._names, self._at, self._has_found = names, 0, True
        if self._begins is not None:
            self._begins()
        self._stream.removal_changed(self)
        while self._names:
            yield 1 + UNITS * self._remove_some(SLICE)


class Rollup:
    """The removal of what one or more rollup messages of a subject replace, as a job."""

    def __init__(self, stream: PurgedStream, pattern: str) -> None:
        """`pattern` is the subject, or `>`."""
        self._stream, self.pattern = stream, pattern
        self.below = self._at = 0
        self.is_over = False
        self._waiting: deque[tuple[int, Callable[[Exception | None], None]]] = deque()

    @property
    def is_recorded(self) -> bool:
        return not self.is_over

    def extend(self, seq: int) -> None:
        """All that is older than this rollup message goes."""
        self.below = seq

    def wait(self, done: Callable[[Exception | None], None]) -> None:
        """Call `done` once all is removed that is older than the last rollup message."""
        if self.is_over:  # a limit has taken the last of it already
            done(None)
        else:
            self._waiting.append((self.below, done))

    def run(self) -> tuple[Progress, int]:
        """Remove some messages."""
        if self.is_over:
            return Progress.DONE, 0
        if not self._stream.journal.admits(MAX_PENDING):
            return Progress.BLOCKED, 0
        before = self._at
        try:
            count = self.remove(SLICE)
        except StoreError as exc:
            self.stop(exc)
            self._stream.rollup_ended(self.pattern)
            return Progress.DONE, 1
        if self._at == before and not self.is_over:
            return Progress.BLOCKED, 1  # the rest is not committed yet
        return (Progress.DONE if self.is_over else Progress.MORE), 1 + UNITS * count

    def remove(self, limit: int) -> int:
        """Remove so many messages at most; returns how many."""
        if self.pattern != ">" and has_wildcard(self.pattern):
            count = self._remove_covered(limit)
        else:
            count, self._at = self._stream.log.purge_some(self.pattern, self._at, below=self.below, limit=limit)
        while self._waiting and self._waiting[0][0] <= self._at:
            self._waiting.popleft()[1](None)
        if self._at >= self.below:
            self.is_over = True
            self._stream.rollup_ended(self.pattern)
        return count

    def _remove_covered(self, limit: int) -> int:
        """The same for a subject that looks like a filter: what that covers goes, as far as it is committed."""
        log, count = self._stream.log, 0
        try:
            records, at = log.scan_some(self.pattern, self._at, limit=limit)
        except CorruptRecordError as exc:
            if not exc.seq:
                raise
            records, at = [], exc.seq + 1
        for record in records:
            if record.seq < self.below:
                count += log.remove(record.seq)
        self._at = max(self._at, min(at, log.committed.last_seq + 1, self.below))
        return count

    def stop(self, error: Exception) -> None:
        """The stream was deleted, or nothing more can be removed."""
        self.is_over = True
        while self._waiting:
            self._waiting.popleft()[1](error)

    def start_over(self, below: int, error: Exception) -> None:
        """A group was lost. What is older than `below` is still to go; later rollup messages are lost, with `error`."""
        self.below, self._at, self.is_over = below, 0, not below
        while self._waiting and self._waiting[-1][0] > below:
            self._waiting.pop()[1](error)


def _cutoff(snapshot: LogSnapshot, pattern: str, keep: int, below: int) -> Walk[int]:
    """The sequence of the oldest of the newest `keep` messages that match and are before `below`; 1 if there are not
    more than that."""
    behind = yield from snapshot.count((pattern,), below)
    low, high = 1, below
    while low < high:  # from `low` on there are at least `keep`, or `low` is 1; from `high + 1` on there are not
        middle = (low + high + 1) // 2
        found = yield from snapshot.count((pattern,), middle)
        yield 1
        if found - behind >= keep:
            low = middle
        else:
            high = middle - 1
    return low
