"""Per-subject trim: enforces a reduced `max_msgs_per_subject`, some subjects at a time.

A stream with few subjects is trimmed at once, within the group of its new configuration; the rest of a larger one is a
job. That the trim is incomplete is stored with the configuration: a restarted server repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.journal import Journal
from slipstream.server.engine.ports import StreamLog

SLICE = 1000  # subjects in one turn
MAX_PENDING = 4096  # changes in the open group at which it waits for a commit


class SubjectTrim:
    """One pass over the subjects of a stream."""

    def __init__(self, journal: Journal, log: StreamLog, limit: int, done: Callable[[], None]) -> None:
        self._journal, self._log, self._limit, self._done = journal, log, limit, done
        self._subjects: Iterator[tuple[str, int]] = log.subjects(">")
        self._uncommitted = range(log.committed.last_seq + 1, log.state.last_seq + 1)  # not in `subjects`
        self._over = False

    def stop(self) -> None:
        """The limit changed, or the stream was deleted."""
        self._over = True

    def run(self) -> tuple[Progress, int]:
        """Trim some subjects."""
        if self._over:
            return Progress.DONE, 0
        if not self._journal.admits(MAX_PENDING):
            return Progress.BLOCKED, 0
        if self.work():
            return Progress.MORE, 0
        return Progress.DONE, 0

    def work(self) -> bool:
        """The same without regard to the open group; False when all subjects are done."""
        count = 0
        for subject, messages in islice(self._subjects, SLICE):
            count += 1
            if messages > self._limit:
                self._log.purge(pattern=subject, keep=self._limit)
        if count == SLICE:
            return True
        for subject in {record.subject for seq in self._uncommitted if (record := self._log.peek(seq)) is not None}:
            if self._log.count_of(subject) > self._limit:
                self._log.purge(pattern=subject, keep=self._limit)
        self._over = True
        self._done()
        return False
