"""The newest entries of a bucket, kept in memory within a bound, and the figures of how often they were enough.

Pure. The invariant: what is in here for a key is its newest entry as of `revision`, or nothing is said of the key. A
feed of all changes must be applied in order; a key that was dropped to keep the bound is forgotten, not remembered as
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
    """How a cache does. `hits` were answered here (`absent` of them: there is no such key), `misses` by the bucket."""

    hits: int = 0
    absent: int = 0
    misses: int = 0
    behind: int = 0  # of the misses: the cache was not as new as it was asked to be
    updates: int = 0
    evicted: int = 0
    entries: int = 0
    bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of reads that were answered here."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else 0.0


class EntryCache(Generic[V]):
    """Entries by key, the least recently used dropped first."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        if max_entries < 1 or max_bytes < 1:
            raise UsageError(f"bad bound of a cache: {max_entries} entries, {max_bytes} bytes: at least 1 is allowed")
        self.figures = CacheStats()
        self.revision = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, Entry[V]] = OrderedDict()
        self._is_whole = True  # every key of the bucket that has an entry is in here

    def apply(self, entries: Iterable[Entry[V]]) -> None:
        """Take changes, in order."""
        for entry in entries:
            self.revision = entry.revision
            self.figures.updates += 1
            self._put(entry)
        self._shrink()

    def _put(self, entry: Entry[V]) -> None:
        known = self._entries.pop(entry.key, None)
        if known is not None:
            self.figures.bytes -= _size(known)
        self._entries[entry.key] = entry
        self.figures.bytes += _size(entry)

    def _shrink(self) -> None:
        figures = self.figures
        while len(self._entries) > self._max_entries or figures.bytes > self._max_bytes:
            _, entry = self._entries.popitem(last=False)
            figures.bytes -= _size(entry)
            figures.evicted += 1
            self._is_whole = False
        figures.entries = len(self._entries)

    def learn(self, entry: Entry[V], as_of: int) -> None:
        """What a read found that was at least as new as `as_of`; kept only if the feed is still there.

        Then nothing newer can have come and been dropped again.
        """
        if self.revision == as_of >= entry.revision:
            self._put(entry)
            self._shrink()

    def look(self, key: str) -> tuple[bool, Entry[V] | None]:
        """Whether the cache knows of a key, and its newest entry (None: it has none)."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return True, entry
        return self._is_whole, None

    def drop(self, key: str, below: int) -> None:
        """A key's entries under a revision were removed."""
        known = self._entries.get(key)
        if known is not None and known.revision < below:
            del self._entries[key]
            self.figures.bytes -= _size(known)
            self.figures.entries = len(self._entries)

    def clear(self) -> None:
        """Forget everything: changes may have been missed."""
        self._entries.clear()
        self._is_whole = True
        self.revision = 0
        self.figures.entries = self.figures.bytes = 0


def _size(entry: Entry[V]) -> int:
    value = entry.value
    return _OVERHEAD + len(entry.key) + (len(value) if isinstance(value, bytes) else 0)
