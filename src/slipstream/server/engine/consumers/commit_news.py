"""What a commit did to a stream, as its consumers follow it, and the filters of all of them as one.

A stream may have thousands of consumers, and a commit thousands of messages: if each consumer looked at each message,
a commit would take seconds, in which no other client is served. So messages are looked up among the filters of all
consumers once (`FilterIndex`), and a consumer takes the sum of its own filters. What is left for each is a look at the
lowest and the highest sequence, and at the shorter one of its pending messages and those that were removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from slipstream.server.engine.consumers.filters import Filters
from slipstream.server.engine.ports import Changes
from slipstream.wire import SubjectSet

FEW_REMOVED = 64  # that are looked up one by one


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
