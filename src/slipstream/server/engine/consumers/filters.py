"""Filters of a consumer over a log: which messages they cover, the next of them, how many are left.

A message that several filters cover counts once. Filters of one consumer are never parts of each other, but two of them
may share some subjects (`a.*.c` and `a.b.*`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.bounds import MAX_STEPS
from slipstream.server.engine.ports import LogSnapshot, Record, StreamLog, Walk
from slipstream.wire import SubjectSet

CACHED = 16 * 1024
PIECE = 1024
MANY = 16  # filters: from here on messages are read in order, and looked at one by one


class Filters:
    """The filter subjects of one consumer."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        """No pattern, or `>`, covers everything."""
        self.patterns: tuple[str, ...] = () if ">" in patterns else patterns
        self.set: SubjectSet = SubjectSet(self.patterns)
        self._literals = self.set.literals
        self._known: dict[str, bool] = {}

    @cached_property
    def is_disjoint(self) -> bool:
        """Whether no subject is covered by two filters, as far as that is known."""
        if len(self.patterns) < 2:
            return True
        known = SubjectSet()
        for pattern in self.patterns:
            if known.overlapping(pattern) is not None or known.steps > MAX_STEPS:  # too much work to say: perhaps not
                return False
            known.add(pattern)
        return True

    def covers(self, subject: str) -> bool:
        """Whether a message on that subject is covered."""
        if not self.patterns or subject in self._literals:
            return True
        if not self.set.wildcards:
            return False
        known = self._known.get(subject)
        if known is None:
            if len(self._known) >= CACHED:
                self._known.clear()
            known = self._known[subject] = self.set.matches(subject)
        return known

    def total(self, counts: Mapping[str, int]) -> int:
        """How many messages are covered, of some that are counted by subject."""
        if not self.set.wildcards:
            return sum(counts.get(subject, 0) for subject in self._literals)
        return sum(count for subject, count in counts.items() if self.covers(subject))

    def scan(self, log: StreamLog, seq: int, *, limit: int, max_bytes: int) -> tuple[list[Record], int]:
        """The next messages from `seq` on, with a bound on the work, and where to go on: nothing else is covered before
        that sequence. It is beyond the committed last sequence once all was looked at."""
        if len(self.patterns) < 2:
            return log.scan_some(self.patterns[0] if self.patterns else "", seq, limit=limit, max_bytes=max_bytes)
        if len(self.patterns) >= MANY:
            records, following = log.scan_some("", seq, limit=PIECE, max_bytes=4 * max_bytes)
            chosen = [record for record in records if self.covers(record.subject)]
            return (chosen, following) if len(chosen) <= limit else (chosen[:limit], chosen[limit - 1].seq + 1)
        found: dict[int, Record] = {}
        following = max(seq, log.committed.last_seq + 1)
        broken: CorruptRecordError | None = None
        for pattern in self.patterns:
            try:
                records, its_following = log.scan_some(pattern, seq, limit=limit, max_bytes=max_bytes)
            except CorruptRecordError as exc:
                if not exc.seq:
                    raise
                broken = exc if broken is None or exc.seq < broken.seq else broken
                its_following = exc.seq
                records = []
            for record in records:
                found[record.seq] = record
            # From where one scan ended, its filter may cover more messages: none of another filter from there on may
            # go out before them.
            following = min(following, its_following)
        chosen = [found[at] for at in sorted(found) if at < following]
        if broken is not None and not chosen and broken.seq == following:
            raise broken
        return (chosen, following) if len(chosen) <= limit else (chosen[:limit], chosen[limit - 1].seq + 1)

    def count(self, log: StreamLog, seq: int) -> int:
        """How many messages are covered from `seq` on."""
        if not self.patterns:
            return log.count("", seq)
        if self.is_disjoint:
            return sum(log.count(pattern, seq) for pattern in self.patterns)
        total = 0
        while True:
            try:
                records = log.scan("", seq, limit=PIECE)
            except CorruptRecordError as exc:  # its subject is not known: a consumer may have to stop in front of it
                if not exc.seq:
                    return total
                total += 1
                seq = max(seq, exc.seq) + 1
                continue
            if not records:
                return total
            total += sum(1 for record in records if self.covers(record.subject))
            seq = records[-1].seq + 1

    def count_walk(self, snapshot: LogSnapshot, seq: int) -> Walk[int]:
        """The same of a snapshot, in slices."""
        if len(self.patterns) < MANY and self.patterns and self.is_disjoint:
            total = 0
            for pattern in self.patterns:
                total += yield from snapshot.count((pattern,), seq)
                yield 1
            return total
        return (yield from snapshot.count(self.patterns or ("",), seq))

    def last_walk(self, snapshot: LogSnapshot) -> Walk[int]:
        """The sequence of the newest message of a snapshot, in slices; 0 if there is none."""
        best = 0 if self.patterns else snapshot.committed.last_seq
        for pattern in self.patterns:
            best = max(best, (yield from snapshot.last(pattern)))
            yield 1
        return best

    @property
    def is_literal(self) -> bool:
        """Whether there are a few filters, without wildcards."""
        return 0 < len(self.patterns) < MANY and not self.set.wildcards

    def last(self, log: StreamLog) -> int:
        """The sequence of the newest message; 0 if there is none."""
        if not self.patterns:
            return log.committed.last_seq
        return max(_last_seq(log, pattern) for pattern in self.patterns)


def _last_seq(log: StreamLog, pattern: str) -> int:
    try:
        record = log.last(pattern)
    except CorruptRecordError as exc:
        return exc.seq
    return record.seq if record is not None else 0
