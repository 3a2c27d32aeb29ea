"""Filters of a consumer over a log: which messages they cover, the next of them, how many are left.

A message that several filters cover counts once. Filters of one consumer are never parts of each other, but two of them
may share some subjects (`a.*.c` and `a.b.*`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.bounds import MAX_STEPS
from slipstream.server.engine.ports import Record, StreamLog
from slipstream.wire import SubjectSet

CACHED = 16 * 1024
PIECE = 1024
MANY = 16  # filters: from here on messages are read in order, and looked at one by one


class Filters:
    """The filter subjects of one consumer."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        """No pattern, or `>`, covers everything."""
        self.patterns = () if ">" in patterns else patterns
        self.set = SubjectSet(self.patterns)
        self._literals = self.set.literals
        self._known: dict[str, bool] = {}

    @cached_property
    def _disjoint(self) -> bool:
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

    def scan(self, log: StreamLog, seq: int, *, limit: int, max_bytes: int) -> list[Record]:
        """The next messages from `seq` on; fewer than `limit` do not mean that there are no more."""
        if len(self.patterns) < 2:
            return log.scan(self.patterns[0] if self.patterns else "", seq, limit=limit, max_bytes=max_bytes)
        found: dict[int, Record] = {}
        horizon = log.committed.last_seq
        broken: CorruptRecordError | None = None
        for pattern in self.patterns:
            try:
                records = log.scan(pattern, seq, limit=limit, max_bytes=max_bytes)
            except CorruptRecordError as exc:
                if not exc.seq:
                    raise
                broken = exc if broken is None or exc.seq < broken.seq else broken
                horizon = min(horizon, exc.seq - 1)
                continue
            for record in records:
                found[record.seq] = record
            # Where a scan ended early, that filter may cover more messages behind its last one: none of another filter
            # from there on may go out before them.
            if records and _more(log, pattern, records[-1].seq + 1):
                horizon = min(horizon, records[-1].seq)
        chosen = [found[at] for at in sorted(found) if at <= horizon][:limit]
        if broken is not None and not chosen:
            raise broken
        return chosen

    def count(self, log: StreamLog, seq: int) -> int:
        """How many messages are covered from `seq` on."""
        if not self.patterns:
            return log.count("", seq)
        if self._disjoint:
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


def _more(log: StreamLog, pattern: str, seq: int) -> bool:
    try:
        return bool(log.scan(pattern, seq, limit=1))
    except CorruptRecordError:
        return True
