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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

# The time to live of a message is in its header: stores keep an index of the moments, made of nothing else, so that
# expired messages are found at the cost of the expired ones alone.
from slipstream.api.ttl import NEVER as NEVER
from slipstream.api.ttl import expires_at as expires_at
from slipstream.api.ttl import parse_ttl as parse_ttl
from slipstream.api.ttl import time_to_live as time_to_live

# Which filter covers which subject is part of the contract: a store takes the rule from here.
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

    def last_seq_of(self, subject: str) -> int:
        """Sequence of the newest message on a subject (or a filter with wildcards, slower); 0 if there is none."""

    def first_seq_of(self, subject: str) -> int:
        """Sequence of the oldest message on a literal subject; 0 if there is none."""

    def count_of(self, subject: str) -> int:
        """How many messages a literal subject has."""

    def peek(self, seq: int) -> Record | None:
        """The message with that sequence, committed or not. A damaged record raises CorruptRecordError."""

    def next_expiry(self) -> int:
        """When the first message with a time to live expires (`expires_at`), or a moment before; 0 if none has one."""

    def take_expired(self, now: int, limit: int) -> list[int]:
        """Sequences, in order, of up to `limit` committed messages whose time to live has expired at `now`. Each is
        returned once: the caller removes them within the same group."""

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
        """The message with that sequence. A record that fails its checksum raises CorruptRecordError."""

    def last(self, pattern: str) -> Record | None:
        """The newest message that matches the filter."""

    def scan(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> list[Record]:
        """Up to `limit` messages from `seq` on that match the filter (`>` or empty: all), in order; stops early, but
        not before the first, once payloads and headers exceed `max_bytes` (if not 0). A record that fails its
        checksum ends the answer before it; if it would be the first, CorruptRecordError is raised. Each call is a
        fresh look: no reader stays open between calls."""

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


class Group(Protocol):
    """Changes that are committed together."""

    @property
    def size(self) -> int:
        """How many changes it holds."""


class Store(Protocol):
    """All streams of a server."""

    def size_of(self, subject: str, header: bytes, payload: bytes) -> int:
        """The size of a message in the statistics and against `max_bytes`."""

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

    def damaged(self) -> list[tuple[str, int]]:
        """Stream and sequence of the messages among them (some thousands at most), in the order they were found."""

    def seal(self) -> Group:
        """Close the open group and open the next."""

    def begin(self, group: Group) -> None: ...

    def write_some(self, group: Group) -> bool: ...

    def commit(self, group: Group) -> None: ...

    def finish(self, group: Group) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


def record_size(subject: str, header: bytes, payload: bytes) -> int:
    """The size of a message against `max_bytes`: nats-server's formula for its file store, so that limits mean the
    same."""
    fixed = 22 + (len(subject) if subject.isascii() else len(subject.encode())) + len(payload) + 8
    return fixed + 4 + len(header) if header else fixed


def memory_size(subject: str, header: bytes, payload: bytes) -> int:
    """The same by its formula for streams in memory."""
    return (len(subject) if subject.isascii() else len(subject.encode())) + len(header) + len(payload) + 16
