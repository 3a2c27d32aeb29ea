"""Bounded in-memory cache of the newest entries of a bucket, with statistics.

Pure. The invariant: an entry held for a key is its newest one as of `revision`; of other keys nothing is claimed unless
the cache is complete. A feed of all changes must be applied in order; a key evicted to keep the bound is unknown, not
absent, until it changes again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from slipstream.errors import UsageError
from slipstream.kv.entry import Entry

V = TypeVar("V")

_OVERHEAD = 400  # bytes of a small entry beside its key and value, roughly


@dataclass(slots=True)
class CacheStats:
    """Statistics of a read cache.

    `hits` were answered from memory (`absent` of them: the key does not exist), `misses` by the bucket (`behind` of
    them: the cache was not as new as the read asked for).
    """

    hits: int = 0
    absent: int = 0
    misses: int = 0
    behind: int = 0
    updates: int = 0
    evicted: int = 0
    entries: int = 0
    bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of reads that were answered from memory."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else 0.0


class EntryCache(Generic[V]):
    """Entries by key; the least recently used is evicted first."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        if max_entries < 1 or max_bytes < 1:
            raise UsageError(
                f"max_entries and max_bytes of a cache must be at least 1, got {max_entries} and {max_bytes}"
            )
        self.stats = CacheStats()
        self.revision = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, Entry[V]] = OrderedDict()
        self._is_complete = True  # every key of the bucket that has an entry is held: a key not held is absent

    def apply(self, entries: Iterable[Entry[V]]) -> None:
        """Apply changes, in order."""
        for entry in entries:
            self.revision = entry.revision
            self.stats.updates += 1
            self._put(entry)
        self._evict()

    def _put(self, entry: Entry[V]) -> None:
        known = self._entries.pop(entry.key, None)
        if known is not None:
            self.stats.bytes -= _size(known)
        self._entries[entry.key] = entry
        self.stats.bytes += _size(entry)

    def _evict(self) -> None:
        stats = self.stats
        while len(self._entries) > self._max_entries or stats.bytes > self._max_bytes:
            _, entry = self._entries.popitem(last=False)
            stats.bytes -= _size(entry)
            stats.evicted += 1
            self._is_complete = False
        stats.entries = len(self._entries)

    def learn(self, entry: Entry[V], as_of: int) -> None:
        """Hold the result of a read that was at least as new as `as_of`, if no change was applied since.

        Otherwise a newer entry of the key may have been applied and evicted again meanwhile.
        """
        if self.revision == as_of >= entry.revision:
            self._put(entry)
            self._evict()

    def look(self, key: str) -> tuple[bool, Entry[V] | None]:
        """Whether the state of a key is known, and its newest entry (None: it has none)."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return True, entry
        return self._is_complete, None

    def drop(self, key: str, below: int) -> None:
        """Drop a key whose entries below a revision were removed from the bucket."""
        known = self._entries.get(key)
        if known is not None and known.revision < below:
            del self._entries[key]
            self.stats.bytes -= _size(known)
            self.stats.entries = len(self._entries)

    def clear(self) -> None:
        """Drop everything: changes may have been missed."""
        self._entries.clear()
        self._is_complete = True
        self.revision = 0
        self.stats.entries = self.stats.bytes = 0


def _size(entry: Entry[V]) -> int:
    value = entry.value
    return _OVERHEAD + len(entry.key) + (len(value) if isinstance(value, bytes) else 0)
