"""Enforcement of lowered limits: removes the messages that exceed them, in slices.

**Per subject.** `SubjectTrim` enforces a reduced `max_msgs_per_subject`. A stream with few messages too many is trimmed
at once, within the group of its new configuration; the rest of a larger one is a job. That the trim is incomplete is
stored with the configuration: a restarted server repeats it.

**Of all subjects.** `LimitTrim` enforces `max_msgs` and `max_bytes` from the oldest message on. What is too much
follows from the configuration alone, so nothing is stored: a restarted server begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.journal import Journal
from slipstream.server.engine.ports import StreamLog, Walk

SLICE = 256  # messages in one turn
UNITS = 4  # of work (`engine.jobs`) for a message
LOOKED = 16  # subjects for a unit
MAX_PENDING = 512  # changes in the open group at which it waits for a commit: so do the acks of all others


class SubjectTrim:
    """One pass over the subjects of a stream."""

    def __init__(self, journal: Journal, log: StreamLog, limit: int, done: Callable[[], None]) -> None:
        self._journal, self._log, self._limit, self._done = journal, log, limit, done
        self._subjects: Iterator[tuple[str, int]] = log.subjects(">")
        self._uncommitted = range(log.committed.last_seq + 1, log.state.last_seq + 1)  # not in `subjects`
        self._over = False
        self._steps = self._trim()

    def stop(self) -> None:
        """The limit changed, or the stream was deleted."""
        self._over = True

    def run(self) -> tuple[Progress, int]:
        """Trim some subjects."""
        if self._over:
            return Progress.DONE, 0
        if not self._journal.admits(MAX_PENDING):
            return Progress.BLOCKED, 0
        units = self._work()
        return (Progress.DONE if self._over else Progress.MORE), units

    def work(self) -> bool:
        """The same without regard to the open group; False when all subjects are done."""
        self._work()
        return not self._over

    def _work(self) -> int:
        units = 0
        try:
            while units < SLICE * UNITS:
                units += next(self._steps)
        except StopIteration:
            self._over = True
            self._done()
        return units

    def _trim(self) -> Walk[None]:
        for looked, (subject, messages) in enumerate(self._subjects, 1):
            if messages > self._limit:
                yield from self._trim_subject(subject)
            if looked % LOOKED == 0:
                yield 1
        for subject in {record.subject for seq in self._uncommitted if (record := self._log.peek(seq)) is not None}:
            yield from self._trim_subject(subject)

    def _trim_subject(self, subject: str) -> Walk[None]:
        log, at = self._log, 0
        end = log.state.last_seq + 1
        while at < end and (excess := log.count_of(subject) - self._limit) > 0:
            count, at = log.purge_some(subject, at, below=end, limit=min(excess, SLICE))
            yield UNITS * count


class LimitTrim:
    """Removes the oldest messages of a stream, until its limits hold."""

    def __init__(self, journal: Journal, trim: Callable[[int], int]) -> None:
        """`trim` removes so many messages at most, and says how many are removed; 0 once the limits hold."""
        self._journal, self._trim = journal, trim
        self.is_over = False
        self.after: list[Callable[[], None]] = []

    def stop(self) -> None:
        """The limits hold, or the stream was deleted."""
        self.is_over = True
        after, self.after = self.after, []
        for done in after:
            done()

    def run(self) -> tuple[Progress, int]:
        """Remove some messages."""
        if self.is_over:
            return Progress.DONE, 0
        if not self._journal.admits(MAX_PENDING):
            return Progress.BLOCKED, 0
        try:
            count = self._trim(SLICE)
        except CorruptRecordError:  # the next message that is published tries again
            count = 0
        if not count:
            self.stop()
            return Progress.DONE, 1
        return Progress.MORE, 1 + UNITS * count
