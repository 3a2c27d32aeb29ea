"""Filters of a consumer over a log: which messages they cover, the next of them, how many are left.

A message that several filters cover counts once. Filters of one consumer are never parts of each other, but two of them
may share some subjects (`a.*.c` and `a.b.*`).

A stream may have thousands of consumers, and a commit thousands of messages: if each consumer looked at each message,
a commit would take seconds, in which no other client is served. So messages are looked up among the filters of all
consumers once (`FilterIndex`), and a consumer takes the sum of its own filters (`CommitNews`). What is left for each is
a look at the lowest and the highest sequence, and at the shorter one of its pending messages and those that were
removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.bounds import MAX_STEPS
from slipstream.server.engine.ports import Changes, LogSnapshot, Record, StreamLog, Walk
from slipstream.wire import SubjectSet

CACHED = 16 * 1024
PIECE = 1024
FEW_REMOVED = 64  # that are looked up one by one
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


class FilterIndex:
    """The filters of all consumers of a stream."""

    def __init__(self) -> None:
        self._set = SubjectSet()
        self._users: dict[str, int] = {}  # filter -> consumers
        self._unfiltered = 0  # consumers

    def add(self, filters: Filters) -> None:
        """A consumer has these filters."""
        if not filters.patterns:
            self._unfiltered += 1
        for pattern in filters.patterns:
            self._set.add(pattern)
            self._users[pattern] = self._users.get(pattern, 0) + 1

    def remove(self, filters: Filters) -> None:
        """A consumer has these filters no longer."""
        if not filters.patterns:
            self._unfiltered -= 1
        for pattern in filters.patterns:
            self._users[pattern] -= 1
            if not self._users[pattern]:
                del self._users[pattern]
                self._set.discard(pattern)

    def covers(self, subject: str) -> bool:
        """Whether a message on that subject is for one of the consumers."""
        return self._unfiltered > 0 or self._set.matches(subject)

    def totals(self, counts: Mapping[str, int]) -> dict[str, int]:
        """How many messages each filter covers, of some that are counted by subject."""
        found = dict.fromkeys(self._users, 0)
        for subject, count in counts.items():
            for pattern in self._set.matching(subject):
                found[pattern] += count
        return found


class _Tally:
    """Messages of a commit, counted by filter when that is asked for first."""

    __slots__ = ("_by_filter", "_by_subject", "_index", "_messages")

    def __init__(self, index: FilterIndex, messages: list[tuple[int, str]]) -> None:
        self._index, self._messages = index, messages
        self._by_subject: Mapping[str, int] | None = None
        self._by_filter: Mapping[str, int] | None = None

    def of(self, filters: Filters) -> int:
        """How many the filters cover."""
        if not filters.patterns or not self._messages:
            return len(self._messages)
        if self._by_subject is None:
            self._by_subject = Counter([subject for _, subject in self._messages])
        if filters.set.wildcards and filters.is_disjoint:
            if self._by_filter is None:
                self._by_filter = self._index.totals(self._by_subject)
            # A commit that is followed late may be older than the filters of its consumer.
            if all(pattern in self._by_filter for pattern in filters.patterns):
                return sum(self._by_filter[pattern] for pattern in filters.patterns)
        return filters.total(self._by_subject)


class CommitNews:
    """The changes of a commit. Consumers that follow it later keep it until then."""

    def __init__(self, changes: Changes, index: FilterIndex) -> None:
        """`index` has the filters of the consumers as they are now."""
        self.added, self.removed, self.recount = changes
        self._added, self._removed = _Tally(index, self.added), _Tally(index, self.removed)
        self._gone: frozenset[int] | None = None
        self._lowest = self._highest = 0

    def added_from(self, seq: int, filters: Filters) -> int:
        """How many new messages from a sequence on are for the filters."""
        added = self.added
        if not added or added[-1][0] < seq:
            return 0
        if added[0][0] >= seq:
            return self._added.of(filters)
        return sum(1 for at, subject in added if at >= seq and filters.covers(subject))

    def removed_from(self, seq: int, filters: Filters) -> int:
        """How many of the messages that were removed from a sequence on were for the filters."""
        if not self.removed:
            return 0
        self._look()
        if self._highest < seq:
            return 0
        if self._lowest >= seq:
            return self._removed.of(filters)
        return sum(1 for at, subject in self.removed if at >= seq and filters.covers(subject))

    def removed_of(self, seqs: Collection[int]) -> list[int]:
        """Those of some sequences whose messages were removed; `seqs` can be asked for each."""
        if not seqs or not self.removed:
            return []
        if len(self.removed) <= FEW_REMOVED or len(self.removed) <= len(seqs):
            return [seq for seq, _ in self.removed if seq in seqs]
        gone = self._look()
        return sorted([seq for seq in seqs if seq in gone])

    def _look(self) -> frozenset[int]:
        if self._gone is None:
            self._gone = frozenset([seq for seq, _ in self.removed])
            self._lowest, self._highest = min(self._gone), max(self._gone)
        return self._gone
