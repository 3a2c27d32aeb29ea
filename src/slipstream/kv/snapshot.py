"""Snapshots: the values of a range of keys as of one revision, or a HistoryLostError if that cannot be known.

A bucket keeps the last few entries of each key, and a purge removes all entries before it. The state of a key as of
revision R is its last entry at or before R. That entry is known if any entry at or before R is left, because the
oldest entries of a key are removed first. If all entries left of a key are newer than R, it had no value at R only if
none of its entries can have been removed: it has fewer entries than the history holds, and the first of them is a
value, not a mark. Otherwise its past is lost, and the fold raises instead of guessing. Entries are removed while they
are read: a key with as many newer entries as the history holds, or purged since, may have had a later entry at or
before R than the one that was read, and is lost as well.

Keys that were removed for good (`purge_deletes`) leave no entry at all. Where that is recorded (`FORGOTTEN` in the
stream's metadata: up to which revision), snapshots of earlier revisions are rejected. So they are after the limits of
the bucket were lifted: what fits the present limits may lack what the former ones removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Generic, TypeVar

from slipstream.api import StreamConfig, StreamInfo
from slipstream.errors import HistoryLostError
from slipstream.kv.entry import Entry, Operation

V = TypeVar("V")

FORGOTTEN = "slipstream.kv.forgotten"  # stream metadata: entries up to that revision were removed without a trace


class Fold(Generic[V]):
    """Folds every kept entry of a range, those after the revision included; memory is one entry per key.

    The delta of an entry is the number of entries of its key after the revision.
    """

    def __init__(self, bucket: str, revision: int, history: int) -> None:
        self.bucket = bucket
        self.revision = revision
        self._history = history
        self._state: dict[str, Entry[V]] = {}
        # Keys first seen after the revision: how many entries, and the operation of the first.
        self._after: dict[str, tuple[int, Operation]] = {}
        self._newer: Counter[str] = Counter()  # of keys that have an entry at or before the revision
        self._purged: set[str] = set()  # those of them that were purged after it

    def feed(self, entries: Iterable[Entry[V]]) -> None:
        """Take entries; those of one key must be in the order of their revisions."""
        state, after, revision = self._state, self._after, self.revision
        for entry in entries:
            key = entry.key
            if entry.revision <= revision:
                state[key] = entry
            elif key not in state:
                count, first = after.get(key, (0, entry.operation))
                after[key] = (count + 1, first)
            else:
                self._newer[key] += 1
                if entry.operation == Operation.PURGE:
                    self._purged.add(key)

    def result(self) -> dict[str, Entry[V]]:
        """The keys that had a value, with their entries, in the order of revisions. Raises HistoryLostError."""
        for key, (count, first) in self._after.items():
            why = why_lost(key, count, first, history=self._history)
            if why:
                raise HistoryLostError(self.bucket, self.revision, why)
        newer, history = self._newer, self._history
        for key, count in newer.items():
            if key in self._purged or 0 < history <= count:  # what was read before it may not have been the last
                raise HistoryLostError(self.bucket, self.revision, f"key {key!r} was replaced while it was read")
        live = [entry._replace(delta=newer[key]) for key, entry in self._state.items() if not entry.is_deleted]
        return {entry.key: entry for entry in sorted(live, key=lambda entry: entry.revision)}


def why_lost(key: str, count: int, first: str, *, history: int) -> str:
    """Why the state of a key before its `count` remaining entries is unknown; empty if it had no value then.

    `first` is the operation of the oldest one. A `history` of 0 or less is unlimited.
    """
    if 0 < history <= count:
        return f"key {key!r} was written {count} times since, and {history} entries are kept"
    return f"all that is left of key {key!r} since is a mark ({first})" if first != Operation.PUT else ""


def check_past(bucket: str, revision: int, info: StreamInfo) -> None:
    """Raise HistoryLostError if entries up to a revision may have been removed without a trace at their keys."""
    config, state = info.config, info.state
    if revision > state.last_seq:
        raise HistoryLostError(bucket, revision, f"its newest revision is {state.last_seq}")
    if state.first_seq <= 1 and not state.num_deleted:  # nothing was ever removed
        return
    forgotten = forgotten_of(config)
    if forgotten > revision:
        raise HistoryLostError(bucket, revision, f"entries up to revision {forgotten} were removed for good")
    age = info.ts - info.created
    why = ""
    if config.max_age and age >= config.max_age.total_seconds() * 1e9:
        why = f"it keeps values for {config.max_age} and is older than that"
    elif config.allow_msg_ttl:
        why = "its values may have a TTL, and some are gone"
    elif config.max_bytes > 0 or config.max_msgs > 0:
        why = "its size is limited, and some entries are gone"
    if why:
        raise HistoryLostError(bucket, revision, why)


def forgotten_of(config: StreamConfig) -> int:
    """Up to which revision deleted keys may have been removed for good."""
    text = config.metadata.get(FORGOTTEN, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def with_forgotten(config: StreamConfig, revision: int) -> StreamConfig:
    """The configuration with that revision recorded."""
    return config.replace(metadata={**config.metadata, FORGOTTEN: str(revision)})
