"""Publishes whose expected last sequence is that of a wildcard: the lookup takes a walk over subjects, in slices.

A message is checked against the writer's view at the moment at which it is stored, whatever changes during the walk.
The walk finds the newest committed message of each filter; what was committed meanwhile is looked through as part of
it, and what is not committed yet at its end. A message that was found and is removed before the end makes it begin
again. The client's further input waits, as for any search (`engine.jobs`): what it sends is stored in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipstream.errors import CorruptRecordError, StoreError
from slipstream.server.engine.jobs import AccountJobs
from slipstream.server.engine.ports import StreamLog, Walk, has_wildcard
from slipstream.wire import SubjectSet, is_valid_filter

AT_ONCE = 2048  # subjects, for all filters together
LOOKED = 32  # subjects for a unit of work
CHUNK = 256  # messages that were committed during the walk
TRIES = 32

Known = dict[str, int]  # filter -> the sequence of its newest message


def wildcards(subjects: Iterable[str]) -> list[str]:
    """The filters among the subjects of expectations."""
    return [subject for subject in subjects if subject and has_wildcard(subject)]


def takes_search(jobs: AccountJobs, log: StreamLog, filters: list[str]) -> bool:
    """Whether looking at all subjects for each of the filters may take too long for one turn; otherwise the work is
    counted."""
    looks = log.state.subjects * len(filters)
    if looks > AT_ONCE:
        return True
    jobs.load.units += looks // LOOKED
    return False


class WildcardSearch:
    """The search for the newest messages of filters."""

    def __init__(
        self, jobs: AccountJobs, log: StreamLog, filters: list[str], done: Callable[[Known | StoreError], None]
    ):
        """`done` is called with what was found, in the turn of which it is true. Equal filters are searched once."""
        self._jobs, self._log, self._done = jobs, log, done
        self._filters = SubjectSet(each for each in filters if is_valid_filter(each))  # others match no subject
        self._found: Known = dict.fromkeys(filters, 0)
        self._tries = 0

    def begin(self) -> None:
        """Begin, or begin again."""
        self._tries += 1
        if self._tries > TRIES:
            self._done(StoreError("messages of the expected subject were removed while they were searched"))
        elif self._log.is_crowded:
            self._done(StoreError("too many searches at once"))
        else:
            if not self._jobs.search(self._walk(), self._finish, self._done):
                self._done(StoreError("too many searches at once"))

    def _walk(self) -> Walk[int]:
        """The sequence up to which the newest messages are known."""
        log, found = self._log, self._found
        snapshot = log.snapshot()
        try:
            snapshot.hold()
            at = snapshot.committed.last_seq
            for each in found:
                found[each] = yield from snapshot.last(each)
        finally:
            snapshot.close()
        while at < log.committed.last_seq:
            records = log.scan("", at + 1, limit=CHUNK)
            for record in records:
                self._note(record.seq, record.subject)
            at = records[-1].seq if records else log.committed.last_seq
            yield CHUNK // 4
        return at

    def _note(self, seq: int, subject: str) -> None:
        for each in self._filters.matching(subject):
            self._found[each] = seq

    def _finish(self, at: int) -> None:
        log = self._log
        try:
            for seq in range(at + 1, log.state.last_seq + 1):
                record = log.peek(seq)
                if record is not None:
                    self._note(seq, record.subject)
            is_gone = any(seq and not _is_there(log, seq) for seq in self._found.values())
        except StoreError as exc:
            self._done(exc)
            return
        if is_gone:
            self.begin()
        else:
            self._done(self._found)


def _is_there(log: StreamLog, seq: int) -> bool:
    try:
        return log.peek(seq) is not None
    except CorruptRecordError:  # damaged, and there: reading it reports that
        return True
