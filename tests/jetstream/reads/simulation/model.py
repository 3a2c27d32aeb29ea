"""A model of a nats-server stream with its replicas and mirrors: what each copy holds, and what it answers.

The stream is a history: a list of operations (a message, or an edit of the limits) with the exact state after each. A
copy is one of these:

- a leader's store, exact as of its last operation, also when the leader was deposed;
- a follower that replays the log: exact as of where it is;
- a follower that catches up after a snapshot: what the snapshot deleted vanishes first, then the survivors arrive in
  order, read from the leader's store of that moment: complete in survivors, not exact;
- a mirror: survivors in order, by its own limits, filter and storage.

Nothing here is random and nothing waits: `world.py` decides what happens when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from slipstream.api import GetRequest, Storage, StreamConfig, StreamInfo, StreamState, format_time
from slipstream.api.stream import StreamSource
from slipstream.errors import TooManyResultsError
from slipstream.jetstream.reads.direct_get import BatchItem, EndOfBatch, Replies, StoredMessage
from slipstream.wire import has_wildcard, matches

STREAM = "S"
EPOCH = 1_800_000_000_000_000_000  # nanoseconds: when the virtual clock shows 0
SECOND = 1_000_000_000
ENTRY_BYTES = {"file": 30, "memory": 16}  # of one stored message: a file store counts more
MOST_SUBJECTS = 1_024
PAGE = 2  # messages of a multi-subject get with a limit of bytes
JOIN_LAG = 1  # a mirror answers Direct Gets once no more than that is pending (10 on a server, with longer streams)
ROLLUP_HEADER = {
    "": b"",
    "sub": b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n",
    "all": b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n",
}


class Entry(NamedTuple):
    """A message of the stream. Times are unique, so that (seq, time) tells one generation from another."""

    seq: int
    subject: str
    time: int
    rollup: str = ""

    def answered(self, stream: str) -> StoredMessage:
        """The message as a reply carries it."""
        return StoredMessage(self.subject, self.seq, self.time, ROLLUP_HEADER[self.rollup], b"", stream)


class Limits(NamedTuple):
    """The part of a configuration that decides what a store keeps; `replicas` and `storage` with it."""

    per_subject: int = -1
    max_msgs: int = -1
    max_bytes: int = -1
    rollups: bool = False
    storage: str = "file"
    replicas: int = 1

    @property
    def removes(self) -> bool:
        """Whether messages leave the interior of the stream."""
        return self.per_subject > 0 or self.max_msgs > 0 or self.max_bytes > 0 or self.rollups


UNLIMITED = Limits()


class Store:
    """What one copy holds, in the order of sequences, and its last sequence."""

    __slots__ = ("last", "messages")

    def __init__(self, messages: Mapping[int, Entry] | None = None, last: int = 0) -> None:
        self.messages: dict[int, Entry] = dict(messages or {})
        self.last = last

    @property
    def first(self) -> int:
        """The sequence of the first message; without any, the next one."""
        return next(iter(self.messages), self.last + 1)

    def append(self, entry: Entry, limits: Limits) -> None:
        """Store a message, and remove what it pushes out."""
        messages = self.messages
        if entry.rollup and limits.rollups:
            is_all = entry.rollup == "all"
            for seq in [seq for seq, old in messages.items() if is_all or old.subject == entry.subject]:
                del messages[seq]
        messages[entry.seq] = entry
        self.last = entry.seq
        if limits.per_subject > 0:
            self._trim_subject(entry.subject, limits.per_subject)
        self._trim(limits)

    def trim(self, limits: Limits) -> None:
        """Remove what new limits do not keep."""
        if limits.per_subject > 0:
            for subject in {entry.subject for entry in self.messages.values()}:
                self._trim_subject(subject, limits.per_subject)
        self._trim(limits)

    def _trim_subject(self, subject: str, most: int) -> None:
        seqs = [seq for seq, entry in self.messages.items() if entry.subject == subject]
        for seq in seqs[:-most]:
            del self.messages[seq]

    def _trim(self, limits: Limits) -> None:
        most = limits.max_msgs if limits.max_msgs > 0 else len(self.messages)
        if limits.max_bytes > 0:
            most = min(most, limits.max_bytes // ENTRY_BYTES[limits.storage])
        for seq in list(self.messages)[: max(len(self.messages) - most, 0)]:
            del self.messages[seq]

    def newest(self, subject: str) -> Entry | None:
        """The newest message of a subject or pattern."""
        is_pattern = has_wildcard(subject)
        for entry in reversed(self.messages.values()):
            if entry.subject == subject or (is_pattern and matches(subject, entry.subject)):
                return entry
        return None

    def following(self, seq: int, pattern: str = ">") -> Iterator[Entry]:
        """The messages of a pattern from a sequence on."""
        for entry in self.messages.values():
            if entry.seq >= seq and (pattern == ">" or matches(pattern, entry.subject)):
                yield entry


class History:
    """One life of the stream: its operations, and the exact state after each of them."""

    def __init__(self, created: int, limits: Limits) -> None:
        self.created = created
        self.ops: list[Entry | Limits] = [limits]
        self.states: list[dict[int, Entry]] = [{}]
        self.lasts = [0]
        self.index = [0]  # of a sequence: the number of its operation
        self.limits = limits
        self._store = Store()

    def write(self, subject: str, time: int, rollup: str = "") -> Entry:
        """A message is committed."""
        entry = Entry(self.last + 1, subject, time, rollup)
        self._store.append(entry, self.limits)
        self.index.append(len(self.ops))
        self._done(entry)
        return entry

    def edit(self, limits: Limits) -> None:
        """The limits are changed, which may remove messages."""
        self.limits = limits
        self._store.trim(limits)
        self._done(limits)

    def _done(self, op: Entry | Limits) -> None:
        self.ops.append(op)
        self.states.append(dict(self._store.messages))
        self.lasts.append(self._store.last)

    @property
    def last(self) -> int:
        """The last sequence."""
        return self._store.last

    @property
    def now(self) -> int:
        """The number of the last operation."""
        return len(self.ops) - 1

    def limits_at(self, number: int) -> Limits:
        """The limits after an operation."""
        while not isinstance(op := self.ops[number], Limits):
            number -= 1
        return op


class Member:
    """A replica of the stream on one node."""

    __slots__ = (
        "answers",
        "applied",
        "catching_up",
        "cut_at",
        "history",
        "joins_at",
        "limits",
        "logged",
        "node",
        "store",
    )

    def __init__(self, node: str, history: History) -> None:
        self.node = node
        self.history = history
        self.store = Store()
        self.limits = history.limits_at(0)
        self.applied = 0  # operations in the store
        self.logged = 0  # operations in the log, which count for the majority
        self.catching_up = -1  # the operation of the snapshot; -1: it replays the log
        self.cut_at: float | None = None  # since when it hears nothing of the others
        self.answers = True  # Direct Gets
        self.joins_at = 0.0

    def replay(self) -> bool:
        """Apply the next operation of the log; False if there is none."""
        if self.catching_up >= 0 or self.applied >= self.logged:
            return False
        self.applied += 1
        op = self.history.ops[self.applied]
        if isinstance(op, Limits):
            self.limits = op
            self.store.trim(op)
        elif op.seq > self.store.last:  # else the catch-up brought it, or something behind it
            self.store.append(op, self.limits)
        return True

    def replay_all(self) -> None:
        """Apply all of the log."""
        while self.replay():
            pass

    def begin_catchup(self, snapshot: int) -> None:
        """A snapshot arrives: what it does not have is deleted at once, and the last sequence stays or jumps."""
        kept = self.history.states[snapshot]
        self.limits = self.history.limits_at(snapshot)
        store, last = self.store, self.history.lasts[snapshot]
        store.messages = {seq: entry for seq, entry in store.messages.items() if seq in kept}
        first = next(iter(kept), last + 1)
        store.last = max(store.last, first - 1)
        self.catching_up = snapshot

    def catch_up(self) -> None:
        """The next survivor arrives, as the leader's store of this moment has it, or the end of the snapshot."""
        store, last = self.store, self.history.lasts[self.catching_up]
        if store.last >= last:
            self.applied, self.catching_up = self.catching_up, -1
            return
        for seq, entry in self.history.states[-1].items():
            if seq > last:
                break
            if seq > store.last:
                store.append(entry, self.limits._replace(rollups=False))
                return
        store.last = last

    @property
    def is_cut(self) -> bool:
        """Whether it hears nothing of the others."""
        return self.cut_at is not None


@dataclass
class Mirror:
    """A mirror of the stream, with one replica of its own."""

    name: str
    node: str
    created: int
    limits: Limits = UNLIMITED
    filter: str = ""
    start: int = 0
    store: Store = field(default_factory=Store)
    is_connected: bool = True
    answers: bool = False  # Direct Gets: from when it was level once

    def feed(self, messages: Mapping[int, Entry], last: int) -> bool:
        """The next survivor that the upstream's store has; False if there is none."""
        after = max(self.store.last, self.start - 1)
        found = False
        for seq, entry in messages.items():
            if seq > after and (not self.filter or matches(self.filter, entry.subject)):
                self.store.append(entry, self.limits)
                found = True
                break
        if last - self.store.last <= JOIN_LAG:
            self.answers = True
        return found

    def edit(self, limits: Limits) -> None:
        """Its limits are changed."""
        self.limits = limits
        self.store.trim(limits)

    def info(self, now: float, lag: int, *, deleted: bool, subjects: str) -> StreamInfo:
        """Stream info of the mirror itself."""
        return StreamInfo(
            config=config_of(self.name, self.limits, self.filter, self.start, is_mirror=True),
            created=self.created,
            state=state_of(self.store, deleted=deleted, subjects=subjects),
            cluster={"name": "C", "leader": self.node, "leader_since": timestamp(0.0)},
            mirror={"name": STREAM, "lag": lag, "active": SECOND},
            ts=nanoseconds(now),
        )


def nanoseconds(now: float) -> int:
    """The virtual clock as nanoseconds since the epoch."""
    return EPOCH + int(now * 1000) * 1_000_000


@lru_cache(maxsize=4096)
def timestamp(now: float) -> str:
    """The virtual clock as text."""
    return format_time(nanoseconds(now))


@lru_cache(maxsize=1024)
def config_of(name: str, limits: Limits, filter_: str = "", start: int = 0, *, is_mirror: bool = False) -> StreamConfig:
    """The configuration as the server reports it."""
    source = StreamSource(name=STREAM, filter_subject=filter_, opt_start_seq=start) if is_mirror else None
    return StreamConfig(
        name=name,
        subjects=() if is_mirror else ("s.*",),
        max_msgs=limits.max_msgs,
        max_bytes=limits.max_bytes,
        max_msgs_per_subject=limits.per_subject,
        allow_rollup_hdrs=limits.rollups,
        storage=Storage(limits.storage),
        num_replicas=limits.replicas,
        allow_direct=True,
        mirror_direct=is_mirror,
        mirror=source,
    )


def state_of(store: Store, *, deleted: bool, subjects: str) -> StreamState:
    """The state of a store as the server reports it."""
    messages = store.messages
    first = store.first
    last_message = next(reversed(messages.values()), None)
    gone: tuple[int, ...] = ()
    if deleted and messages:
        gone = tuple(seq for seq in range(first, store.last + 1) if seq not in messages)
    counts: dict[str, int] = {}
    if subjects:
        for entry in store.following(0, subjects):
            counts[entry.subject] = counts.get(entry.subject, 0) + 1
    times: dict[str, Any] = {}
    if last_message is not None:
        times = {"first_ts": messages[first].time, "last_ts": last_message.time}
    return StreamState(
        messages=len(messages),
        bytes=len(messages),
        first_seq=first,
        last_seq=store.last,
        num_subjects=len({entry.subject for entry in messages.values()}),
        num_deleted=(store.last - first + 1 - len(messages)) if messages else 0,
        deleted=gone,
        subjects=counts,
        **times,
    )


# What a copy answers

_NOTHING = -1


def direct_get(store: Store, stream: str, request: GetRequest) -> Replies:
    """The replies of a copy to a Direct Get."""
    replies = Replies(stream)
    if request.multi_last:
        _multi_last(replies, store, stream, request)
    elif request.batch:
        _batch(replies, store, stream, request)
    else:
        found = message_get(store, request)
        if found is None:
            replies.is_missing = True
        else:
            replies.items.append(BatchItem(found.answered(stream), _NOTHING))
            replies.end = EndOfBatch(_NOTHING, found.seq, _NOTHING)
    return replies


def message_get(store: Store, request: GetRequest) -> Entry | None:
    """The answer to a get of one message."""
    if request.last_by_subj:
        return store.newest(request.last_by_subj)
    if request.next_by_subj:
        return next(store.following(max(request.seq, 1), request.next_by_subj), None)
    return store.messages.get(request.seq)


def _batch(replies: Replies, store: Store, stream: str, request: GetRequest) -> None:
    found = list(store.following(max(request.seq, 1), request.next_by_subj or ">"))
    if not found:
        replies.is_missing = True
        return
    sent = found[: request.batch]
    for number, entry in enumerate(sent, 1):
        replies.items.append(BatchItem(entry.answered(stream), len(found) - number))
    replies.end = EndOfBatch(len(found) - len(sent), sent[-1].seq, _NOTHING)


def _multi_last(replies: Replies, store: Store, stream: str, request: GetRequest) -> None:
    bound = request.up_to_seq
    newest: dict[str, Entry] = {}
    if not bound or bound <= store.last:  # a file store finds nothing beyond its last sequence
        for entry in store.messages.values():
            if bound and entry.seq > bound:
                break
            if any(matches(pattern, entry.subject) for pattern in request.multi_last):
                newest[entry.subject] = entry
    if len(newest) > MOST_SUBJECTS:
        replies.error = TooManyResultsError("too many results")
        return
    found = sorted(entry for entry in newest.values() if entry.seq >= request.seq)
    if not found:
        replies.is_missing = True
        return
    sent = found[: request.batch or (PAGE if request.max_bytes else len(found))]
    for number, entry in enumerate(sent, 1):
        replies.items.append(BatchItem(entry.answered(stream), len(found) - number))
    replies.end = EndOfBatch(len(found) - len(sent), sent[-1].seq, bound or store.last)
