"""The interface of stores: streams as logs of messages, changed in groups that become durable together.

Two views of every log. The **writer's** view is the engine's own: it sees each change at once, so that the next command
is checked against it. The **reader's** view moves only when a group is committed: no reader sees a message that a crash
could still take back. `seq` counts from 1 and never goes back; times are nanoseconds since the epoch.

A group holds the changes of one turn of the server's loop. The engine seals it, the driver calls `begin`
(may block: in a thread), `write_some` (on the loop, in slices, until it says True), `commit` (blocks on the disk: in
the same thread as `begin`, always the same one) and `finish` (on the loop; moves the reader's view). Groups are
committed one at a time, in order: the next one collects changes in the meantime, and is sealed when this one is
finished. When `begin`, `write_some` or `commit` raises, the driver calls `abandon`: every uncommitted group, the open
one too, is dropped and both views are as of the last commit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

# The time to live of a message is in its header: stores keep an index of the moments, made of nothing else, so that
# expired messages are found at the cost of the expired ones alone.
from slipstream.api.ttl import NEVER as NEVER
from slipstream.api.ttl import expires_at as expires_at
from slipstream.api.ttl import parse_ttl as parse_ttl
from slipstream.api.ttl import time_to_live as time_to_live

# Which filter covers which subject is part of the contract: a store takes the rule from here.
from slipstream.wire import SubjectSet, is_valid_filter
from slipstream.wire.subjects import has_wildcard as has_wildcard
from slipstream.wire.subjects import matcher as matcher


class Record(NamedTuple):
    """One stored message."""

    seq: int
    time: int
    subject: str
    header: bytes
    payload: bytes


class LogState(NamedTuple):
    """Statistics of a log. Of an empty log `first_seq` is `last_seq + 1`, and both times are as they were last.

    `last_time` is that of the message added last, even if it is removed. After a purge of very many messages, but not
    of all, `subjects` may count some that have none left, until the store has removed them.
    """

    messages: int = 0
    bytes: int = 0  # by the store's `size_of`
    first_seq: int = 1
    last_seq: int = 0
    first_time: int = 0
    last_time: int = 0
    subjects: int = 0


class Changes(NamedTuple):
    """The changes of groups to a log: sequences with their subjects. A message that a group added and removed is in
    both lists."""

    added: list[tuple[int, str]]
    removed: list[tuple[int, str]]
    recount: bool  # there are more changes than listed: counters must start over


FEW_PATTERNS = 8  # up to so many are tried one after the other
STEPS = 16  # nodes of a set of filters that are visited in the time in which one filter is tried
SORT_RUN = 2048  # items that are sorted at once

Result = TypeVar("Result")
Sorted = TypeVar("Sorted", int, tuple[str, int])

# A long read in slices: yields the units of work done since the last slice, and returns its result. A unit is about
# 5 microseconds. Nothing but the walk itself knows how far it is; `close` ends it early.
Walk = Generator[int, None, Result]


class LogSnapshot(Protocol):
    """The reader's view of a log at one moment, for walks over very many subjects or messages.

    Every walk answers as of the moment at which the snapshot was made, whatever is committed between its slices. A
    snapshot takes space until it is closed, and must be closed.
    """

    @property
    def committed(self) -> LogState: ...

    def hold(self) -> None:
        """Make the snapshot good for several walks, one after the other: call it before the first pause."""

    def get(self, seq: int) -> Record | None: ...

    def last(self, pattern: str) -> Walk[int]:
        """Sequence of the newest message that matches; 0 if there is none."""

    def next(self, pattern: str, seq: int) -> Walk[Record | None]:
        """The first message from `seq` on that matches."""

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> Walk[list[int] | None]:
        """As `StreamLog.multi_last`."""

    def count(self, patterns: Sequence[str], seq: int) -> Walk[int]:
        """How many messages from `seq` on match one of the filters (at least one filter)."""

    def subjects(self, pattern: str) -> Walk[list[tuple[str, int]]]:
        """Subjects that match the filter, sorted, each with its number of messages."""

    def gaps(self, limit: int) -> Walk[list[int]]:
        """Sequences without a message between the first and the last one, in order, at most `limit`."""

    def close(self) -> None:
        """Free what the snapshot holds. Twice does no harm."""


class StreamLog(Protocol):
    """One stream's messages."""

    # The writer's view.

    @property
    def state(self) -> LogState:
        """Statistics, uncommitted changes included."""

    def append(self, time: int, subject: str, header: bytes, payload: bytes) -> int:
        """Add a message; returns its sequence, which is `state.last_seq + 1`."""

    def skip(self, seq: int) -> None:
        """The next message gets this sequence, if it is not beyond it already: what a mirror does where its upstream
        has a gap. Cheapest as a group's first change to the log."""

    def remove(self, seq: int) -> bool:
        """Remove one message, wherever it is; False if it does not exist."""

    def purge(self, *, pattern: str = "", below: int = 0, keep: int = 0) -> int:
        """Remove the messages that match `pattern` (all, if empty or `>`) with a sequence under `below` (any, if
        0), except the newest `keep` of them; returns how many. An emptied log keeps counting from its last sequence; a
        purge of everything under `below` beyond the last sequence, without `keep`, moves the next one to `below`."""

    def purge_some(self, subject: str, seq: int, *, below: int, limit: int) -> tuple[int, int]:
        """Remove up to `limit` messages of a literal subject (of all, if it is `>`), the oldest from `seq` on that are
        before `below`; returns how many, and the sequence to go on from, which is `below` once none is left."""

    purges_at_once: bool  # in a bounded time, whatever the number of messages that a purge without a pattern removes

    def newest(self, keep: int) -> int:
        """The sequence of the oldest of the newest `keep` messages; the first one if there are not so many."""

    def last_seq_of(self, subject: str) -> int:
        """Sequence of the newest message on a subject (or a filter with wildcards, slower); 0 if there is none."""

    def first_seq_of(self, subject: str) -> int:
        """Sequence of the oldest message on a literal subject; 0 if there is none."""

    def count_of(self, subject: str) -> int:
        """How many messages a literal subject has."""

    @property
    def headers_from(self) -> int:
        """Messages before this sequence have no headers; 0: none has any. A store that does not know says 1."""

    def peek(self, seq: int) -> Record | None:
        """The message with that sequence, committed or not. A damaged record raises CorruptRecordError."""

    def next_expiry(self) -> int:
        """When the first message with a time to live expires (`expires_at`), or a moment before; 0 if none has one."""

    def take_expired(self, now: int, limit: int) -> list[int]:
        """Sequences, in order, of committed messages whose time to live has expired at `now`: up to `limit`, or fewer
        where to remove them costs much. Each is returned once: the caller removes them within the same group."""

    # Beside the messages: small records of the engine (consumers, schedules), by name.

    def keep(self, key: str, value: bytes | None) -> None:
        """Store a record as part of the open group; None deletes it. A purge does not touch the records."""

    def kept(self) -> Mapping[str, bytes]:
        """All records, as the writer sees them."""

    # The reader's view.

    @property
    def committed(self) -> LogState:
        """Statistics as of the last commit."""

    def get(self, seq: int) -> Record | None:
        """The message with that sequence. A record that fails its checksum, or that is missing though it was not
        removed, raises CorruptRecordError."""

    def last(self, pattern: str) -> Record | None:
        """The newest message that matches the filter."""

    def scan(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> list[Record]:
        """Up to `limit` messages from `seq` on that match the filter (`>` or empty: all), in order; stops early, but
        not before the first, once payloads and headers exceed `max_bytes` (if not 0). A record that fails its
        checksum ends the answer before it; if it would be the first, CorruptRecordError is raised. Each call is a
        fresh look: no reader stays open between calls."""

    def scan_some(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> tuple[list[Record], int]:
        """As `scan`, with a bound on the work: returns what was found, and the sequence to go on from. Before that one
        nothing else matches; it is beyond the committed last sequence once all was looked at. Going on after a commit
        is safe: a sequence that was passed never gets a message."""

    def snapshot(self) -> LogSnapshot:
        """The present state, for walks in slices. Its first walk must begin before the next commit."""

    @property
    def is_crowded(self) -> bool:
        """Whether so many snapshots are open that there must not be another one."""

    def count(self, pattern: str, seq: int) -> int:
        """How many messages from `seq` on match the filter."""

    def time_to_seq(self, time: int) -> int:
        """The lowest sequence stored at or after `time`; `last_seq + 1` if there is none. Times are taken to ascend;
        where they do not, the answer is some sequence where they pass `time`."""

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> list[int] | None:
        """Sequences, in order, of the newest message at or below `up_to` (any, if 0) of each subject that matches one
        of the filters; None when there are more than `limit` of them."""

    def subjects(self, pattern: str) -> Iterator[tuple[str, int]]:
        """Subjects that match the filter, sorted, each with its number of messages."""

    def watch(self, on: bool) -> None:
        """Record what is added and removed from now on (or stop), for `news`."""

    def news(self) -> Changes | None:
        """The changes of the groups finished since the last call; None: no change, or `watch` is off."""


class Work:
    """Counts units of work (see `Walk`) that a call to a store takes and its caller cannot foresee."""

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units: int = 0


MOST_UNFORESEEN = 256  # units, from which on what is read in slices is cut short


class Group(Protocol):
    """Changes that are committed together."""

    @property
    def size(self) -> int:
        """How many changes it holds."""


class Scrubber(Protocol):
    """A search for damage through all that a store has, in slices: `begin` and `finish` on the loop, `read` in a thread
    in between. After a whole round the next one begins."""

    @property
    def rounds(self) -> int:
        """How many are complete."""

    def begin(self) -> bool:
        """Prepare a slice; False if it must wait."""

    def read(self) -> None:
        """Read it: waits for the disk."""

    def finish(self) -> tuple[int, bool]:
        """Report the damage that was found, as readers do; the bytes that were read, and whether a round is complete.
        To be called after `begin`, whatever became of `read`."""


class Compaction(Protocol):
    """A copy of a store's file without its free space, made in slices: `begin` and `finish` on the loop, `work` in a
    thread in between. When `finish` says so, `replace` runs in the thread of commits while no group is under way, and
    `switch` on the loop before the next one begins."""

    @property
    def before(self) -> int:
        """Bytes of the file."""

    @property
    def after(self) -> int:
        """Bytes of the copy, once it has replaced the file."""

    def begin(self) -> bool:
        """Prepare a slice; False if it must wait."""

    def work(self) -> None:
        """Do it: waits for the disk. Raises StoreError."""

    def finish(self) -> bool:
        """To be called after `begin`, whatever became of `work`; whether the copy is ready to replace the file."""

    def replace(self) -> None: ...

    def switch(self) -> None:
        """To be called after `replace`, whatever became of it."""

    def close(self) -> None:
        """To be called in the end, in a thread: removes the copy that did not replace the file."""


class Savepoints(Protocol):
    """Moments that a store can return to, for tests. They nest: a return to one forgets those that were set later."""

    def add_savepoint(self) -> int:
        """Remember the present state, in which nothing may be uncommitted; returns the savepoint's number."""

    def roll_back(self, number: int) -> None:
        """Return to a savepoint, which stays set. Changes that are not committed are dropped."""


class Store(Protocol):
    """All streams of a server."""

    def size_of(self, subject: str, header: bytes, payload: bytes) -> int:
        """The size of a message in the statistics and against `max_bytes`."""

    def measure(self, work: Work) -> None:
        """Count there, from now on, the work that callers cannot foresee: messages are compared with their sums when
        one of their block is looked at for the first time."""

    def streams(self) -> Iterable[tuple[str, bytes]]:
        """Name and configuration of every stream, as the writer sees it."""

    def create(self, name: str, config: bytes) -> StreamLog:
        """A new, empty stream; its configuration is opaque here."""

    def configure(self, name: str, config: bytes) -> None:
        """Replace a stream's configuration."""

    def delete(self, name: str) -> None:
        """Delete a stream and all its messages; the space is freed in the background of later groups."""

    def log(self, name: str) -> StreamLog:
        """The log of an existing stream (the same object each time)."""

    @property
    def pending(self) -> int:
        """How many changes the open group holds."""

    @property
    def backlog(self) -> bool:
        """Whether work is left from earlier groups (space to free, indexes to write); empty groups get it done."""

    @property
    def corrupt_records(self) -> int:
        """How often a record did not match its checksum since the store was opened."""

    @property
    def named_records(self) -> int:
        """How many of those are told by `damaged`, `losses` and `faults`, or were until the messages were removed."""

    def damaged(self) -> list[tuple[str, int]]:
        """Stream and sequence of the messages among them (some thousands at most), in the order they were found."""

    def losses(self) -> list[tuple[str, int, int, int]]:
        """Stream, first and last sequence of the ranges in which messages are missing, and how many."""

    def faults(self) -> list[str]:
        """Damage beside messages that the last round of the scrubber has found, in words."""

    @property
    def scrubber(self) -> Scrubber | None:
        """None: nothing is stored that could be damaged."""

    @property
    def file_usage(self) -> tuple[int, int]:
        """Bytes of the store's file, and how many of them are in use."""

    def compact(self) -> Compaction:
        """Begin to copy the file without its free space. Raises StoreError."""

    @property
    def savepoints(self) -> Savepoints | None:
        """None: the store has none."""

    def seal(self) -> Group:
        """Close the open group and open the next."""

    def begin(self, group: Group) -> None: ...

    def write_some(self, group: Group) -> bool: ...

    def commit(self, group: Group) -> None: ...

    def finish(self, group: Group) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


def matches_any(patterns: Iterable[str]) -> Callable[[str], bool]:
    """A predicate for the subjects that one of the filters covers; an empty filter covers all."""
    return matching(patterns)[0]


def matching(patterns: Iterable[str]) -> tuple[Callable[[str], bool], int]:
    """The same, and how many times the work of a single filter it is at most: walks count with it."""
    chosen = list(dict.fromkeys(pattern or ">" for pattern in patterns))
    if len(chosen) == 1:
        return matcher(chosen[0]), 1
    if ">" in chosen:
        return matcher(">"), 1
    if len(chosen) > FEW_PATTERNS:
        known = SubjectSet([pattern for pattern in chosen if is_valid_filter(pattern)])  # others match no subject
        return known.matches, 1 + known.most_steps() // STEPS
    literals = frozenset(pattern for pattern in chosen if not has_wildcard(pattern))
    fits = [matcher(pattern) for pattern in chosen if pattern not in literals]
    if not fits:
        return literals.__contains__, 1
    return (lambda subject: subject in literals or any(one(subject) for one in fits)), 1


def sorted_walk(items: list[Sorted]) -> Walk[list[Sorted]]:
    """Sort very many in slices: runs first, which are then merged, two and two."""
    runs: list[list[Sorted]] = []
    for at in range(0, len(items), SORT_RUN):
        runs.append(sorted(items[at : at + SORT_RUN]))
        if len(items) > SORT_RUN:
            yield SORT_RUN // 8
    while len(runs) > 1:
        merged: list[list[Sorted]] = []
        for at in range(0, len(runs) - 1, 2):
            merged.append((yield from _merged(runs[at], runs[at + 1])))
        runs = merged + runs[len(merged) * 2 :]
    return runs[0] if runs else []


def _merged(left: list[Sorted], right: list[Sorted]) -> Walk[list[Sorted]]:
    """Two sorted lists as one. A slice has the items up to the lower end of the next run of each."""
    result: list[Sorted] = []
    at, other = 0, 0
    while at < len(left) and other < len(right):
        ends = min(at + SORT_RUN, len(left)), min(other + SORT_RUN, len(right))
        last = min(left[ends[0] - 1], right[ends[1] - 1])
        to, other_to = bisect_right(left, last, at, ends[0]), bisect_right(right, last, other, ends[1])
        result += sorted(left[at:to] + right[other:other_to])  # two runs: linear
        at, other = to, other_to
        yield SORT_RUN // 16
    result += left[at:]
    result += right[other:]
    return result


def record_size(subject: str, header: bytes, payload: bytes) -> int:
    """The size of a message against `max_bytes`: nats-server's formula for its file store, so that limits mean the
    same."""
    fixed = 22 + (len(subject) if subject.isascii() else len(subject.encode())) + len(payload) + 8
    return fixed + 4 + len(header) if header else fixed


def memory_size(subject: str, header: bytes, payload: bytes) -> int:
    """The same by its formula for streams in memory."""
    return (len(subject) if subject.isascii() else len(subject.encode())) + len(header) + len(payload) + 16
