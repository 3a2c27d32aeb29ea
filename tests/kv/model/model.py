"""What a bucket is, in plain Python, and which answers of it are allowed.

Theory of operation
-------------------
A bucket is a list of entries per key, the oldest first, and one counter of revisions. Each change of it, by a write, by
time or by request, makes a new *state*; all states of a bucket's life are kept. A read is described by the first state
that it may show:

- a read of one key must be the answer of one of the states from there on,
- a listing likewise, each key on its own,
- a range (history) must have every entry that is in all of those states, and none that is in none of them,
- a snapshot must be one of those states as a whole.

Where no copy lags there is one such state, the present one, so that answers are exact. Where copies lag, the promise of
the read decides: the first state with the revision that it must reflect.

The model predicts what writes do. What time and size limits do is taken from the server (`Found`: what its leader
holds) and checked: an entry may be gone only if it was due, must be gone if it is overdue, and leaves a marker where
one is promised. So the model needs neither the server's clock nor its way to count bytes, and works in real time too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipstream.kv import Operation

SECOND = 1_000_000_000
Key = tuple[str, ...]
Filter = tuple[str, ...]
# Where it was the last of its key. A marker, and the mark of a purge, are themselves what would be left.
LEAVE_MARKER = frozenset({Operation.PUT, Operation.DELETE})


class Kept(NamedTuple):
    """An entry. Values are whatever the codec of the bucket takes; marks have none."""

    revision: int
    key: Key
    operation: Operation
    value: Any = None
    created: int = 0
    ttl: int = 0  # its own, in nanoseconds; 0: none

    @property
    def is_live(self) -> bool:
        return self.operation is Operation.PUT


class Write(NamedTuple):
    """What a client wrote: the entry without what the server adds."""

    key: Key
    operation: Operation
    value: Any = None
    ttl: int = 0


class Raw(NamedTuple):
    """A stored message, as its leader has it."""

    revision: int
    subject: str
    created: int
    is_marker: bool


class Found(NamedTuple):
    """What the leader holds: the revisions, and the messages that are new to the model."""

    now: int
    last: int
    kept: frozenset[int]
    new: list[Raw]


class State(NamedTuple):
    revision: int
    kept: Mapping[Key, tuple[Kept, ...]]

    def newest(self, key: Key) -> Kept | None:
        kept = self.kept.get(key)
        return kept[-1] if kept else None

    def live(self) -> dict[Key, Kept]:
        return {key: kept[-1] for key, kept in self.kept.items() if kept[-1].is_live}

    def entries(self) -> set[Kept]:
        return {entry for kept in self.kept.values() for entry in kept}

    def revisions(self) -> set[int]:
        return {entry.revision for entry in self.entries()}


@dataclass(slots=True)
class Limits:
    """The options of a bucket that remove entries; times in nanoseconds."""

    history: int = 1
    ttl: int = 0
    marker_ttl: int = 0
    has_max_bytes: bool = False


@dataclass(slots=True)
class Model:
    """One life of a bucket, from its creation to its destruction."""

    limits: Limits
    slack: int  # how late a server may expire an entry, and how far its clock may be ahead
    revision: int = 0
    kept: dict[Key, list[Kept]] = field(default_factory=dict)
    log: dict[int, Kept] = field(default_factory=dict)
    states: list[State] = field(default_factory=lambda: [State(0, {})])
    subjects: dict[str, Key] = field(default_factory=dict)
    removed: dict[Key, list[Kept]] = field(default_factory=dict)  # by request or time, without a trace for some copy
    passing: set[int] = field(default_factory=set)  # markers that came and went while time passed
    now: int = 0  # by the server's clock, when the model was last settled
    expired: list[tuple[int, Kept]] = field(default_factory=list)  # entries, and when they were found to be gone

    # What happens

    def settle(self, found: Found, written: Mapping[int, Write] | None = None, *, held_at: int | None = None) -> None:
        """Take over what the leader holds. `written`: what clients wrote since the last time, by revision.

        `held_at`: the state in which copies lag. They never get what is written and expires meanwhile, so that they may
        keep what it has replaced.
        """
        assert found.last >= self.revision, f"the newest revision is {found.last}, and was {self.revision}"
        before, written, new = self.revision, written or {}, {raw.revision: raw for raw in found.new}
        self.now = found.now
        owed = self._expire(found, held_at)
        replaced = 0  # markers that a write has replaced, or followed
        for revision in sorted({*new, *written}):
            if revision in written:
                self._append_written(revision, written[revision], new.get(revision), found.now)
                replaced += owed.pop(written[revision].key, None) is not None
            else:
                self._append_marker(new[revision], owed)
        passed = set(range(before + 1, found.last + 1)) - written.keys() - new.keys()
        assert len(passed) <= len(owed) + replaced, f"revisions {sorted(passed)} were never written"
        self.passing |= passed
        self.revision = found.last
        self._evict(found)
        self._push()
        wanted = self.present.revisions()
        assert wanted == found.kept, f"kept are {sorted(found.kept)}, not {sorted(wanted)}"
        for key, due in owed.items():
            assert due + self.limits.marker_ttl <= found.now + self.slack, f"{key} expired, and has no marker"

    def _expire(self, found: Found, held_at: int | None) -> dict[Key, int]:
        """Remove what is gone and was due; returns the keys that must have got a marker, and since when."""
        owed: dict[Key, int] = {}
        for key, kept in self.kept.items():
            for entry in kept[:]:
                due = self.due(entry)
                if entry.revision in found.kept:
                    assert due is None or due > found.now - self.slack, f"{entry} was due, and is still there"
                elif due is not None and self.is_due(entry, found.now):
                    kept.remove(entry)
                    self.expired.append((found.now, entry))
                    if held_at is not None and entry.revision > self.states[held_at].revision:
                        self._note_removed(key, entry.revision, held_at)
                    if not kept and self.limits.marker_ttl and entry.operation in LEAVE_MARKER:
                        owed[key] = due
        self._push()
        return owed

    def due(self, entry: Kept) -> int | None:
        """When an entry expires; None: never."""
        ttls = [ttl for ttl in (entry.ttl, self.limits.ttl) if ttl]
        return entry.created + min(ttls) if ttls else None

    def is_due(self, entry: Kept, now: int) -> bool:
        """Whether an entry may be gone at a time."""
        due = self.due(entry)
        return due is not None and due <= now + self.slack

    def _append_written(self, revision: int, write: Write, raw: Raw | None, now: int) -> None:
        """An entry of a client. It is not found if a later one has replaced it already."""
        if raw is not None:
            assert self.subjects.setdefault(raw.subject, write.key) == write.key
        created = now if raw is None else raw.created
        self._append(Kept(revision, write.key, write.operation, write.value, created, write.ttl))

    def _append(self, entry: Kept) -> None:
        kept = self.kept.setdefault(entry.key, [])
        if entry.ttl or entry.operation in (Operation.PURGE, Operation.EXPIRED):
            kept.clear()  # decision: a value with a TTL replaces the key's history, as a purge does
        kept.append(entry)
        del kept[: -self.limits.history]
        self.log[entry.revision] = entry
        self.revision = entry.revision
        self._push()

    def _append_marker(self, raw: Raw, owed: dict[Key, int]) -> None:
        assert raw.is_marker, f"revision {raw.revision} was never written"
        key = self.subjects[raw.subject]
        assert owed.pop(key, None) is not None, f"{key} has a marker at {raw.revision}, and did not expire"
        self._append(Kept(raw.revision, key, Operation.EXPIRED, None, raw.created, self.limits.marker_ttl))

    def _evict(self, found: Found) -> None:
        """A bucket with a size limit may have removed its oldest entries."""
        if self.limits.has_max_bytes:
            first = min(found.kept, default=found.last + 1)
            for kept in self.kept.values():
                kept[:] = [entry for entry in kept if entry.revision >= first]

    def remove(self, key: Key, below: int, since: int) -> None:
        """Entries of a key below a revision were removed by request: no trace of them is left.

        Copies that lag (their state is the one at `since`) may never learn of them, nor of what replaced them.
        """
        kept = self.kept.get(key, [])
        self._note_removed(key, below, since)
        kept[:] = [entry for entry in kept if entry.revision >= below]
        self._push()

    def _note_removed(self, key: Key, below: int, since: int) -> None:
        known = {entry for state in self.states[since:] for entry in state.kept.get(key, ())}
        self.removed.setdefault(key, []).extend(entry for entry in known if entry.revision < below)

    def limit(self, limits: Limits) -> None:
        """The bucket got other options."""
        self.limits = limits
        for kept in self.kept.values():
            del kept[: -limits.history]
        self._push()

    def _push(self) -> None:
        state = State(self.revision, {key: tuple(kept) for key, kept in self.kept.items() if kept})
        if state != self.states[-1]:
            self.states.append(state)

    # What may be answered: `since` is the index of the first state that a read may show

    @property
    def present(self) -> State:
        return self.states[-1]

    def index_of(self, revision: int) -> int:
        """The first state that reflects a revision."""
        return next((at for at, state in enumerate(self.states) if state.revision >= revision), len(self.states) - 1)

    def newest(self, key: Key, since: int) -> list[Kept | None]:
        """What a read of a key may find: an entry, or that it has none."""
        return [state.newest(key) for state in self.states[since:]]

    def expired_lately(self, key: Key) -> list[Kept]:
        """Entries of a key that a copy may not have removed yet: each server has a timer of its own."""
        return [entry for at, entry in self.expired if entry.key == key and self.now - at <= self.slack]

    def ever(self, since: int) -> set[Kept]:
        """The entries of a range that may be read."""
        return set().union(*(state.entries() for state in self.states[since:]))

    def always(self, since: int) -> set[Kept]:
        """The entries of a range that must be read."""
        first, *later = (state.entries() for state in self.states[since:])
        return first.intersection(*later)

    def as_of(self, revision: int) -> dict[Key, Kept]:
        """What had a value right after a revision: by the log, which a bucket does not have."""
        newest = {entry.key: entry for entry in self.log.values() if entry.revision <= revision}
        return {key: entry for key, entry in newest.items() if entry.is_live}


def matches(pattern: Filter, key: Key) -> bool:
    """Whether a filter matches a key: `*` is one token, a last `>` one or more."""
    if pattern and pattern[-1] == ">":
        return len(key) >= len(pattern) and matches(pattern[:-1], key[: len(pattern) - 1])
    return len(pattern) == len(key) and all(one in ("*", token) for one, token in zip(pattern, key, strict=True))


def matches_any(patterns: Iterable[Filter], key: Key) -> bool:
    """Whether one of the filters matches; none: all keys."""
    patterns = list(patterns)
    return not patterns or any(matches(pattern, key) for pattern in patterns)
