"""Bounded in-memory cache of the newest entries of a bucket, with statistics: what it may answer, and why not.

Pure; time is an argument. A feed of all changes keeps it fresh, applied in order. A key evicted to keep the bound is
unknown, not absent, until it changes again.

Theory of operation. A feed reports what is written, never what is removed without a trace: values that expire, that a
full bucket evicts, that are purged by the stream's own API, or that go with a bucket which is destroyed and made again.
So an entry is answered only while its presence is *proven*: by its time, and by a check of the bucket's state, asked of
the leader at most `recheck_after` seconds ago.

- An entry with a TTL, of its own or of the bucket, is not answered once the server's clock may have reached its end.
- Where the state is that of the last check, nothing was removed in between: what was proven still is.
- Where it has changed, and the cache has every key and exactly the changes up to that state, it is enough to count: as
  many subjects as keys prove that each of them is still there. (Limits and purges remove the oldest entries of a key
  first; where single messages may be deleted from a history, the count proves nothing. Nor does it while it is open
  whether a key whose value expired has an older one, unless all of these are counted.)
- Otherwise nothing that was held before is proven any more: each key is read again when it is asked for.
- An entry written after a check existed after it: until the next one it is as good as proven. So is the result of a
  read. A follower or a mirror may not have removed it yet, so a later check proves it further only if the leader sent
  it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Generic, NamedTuple, TypeVar

from slipstream.api import StreamInfo
from slipstream.api.times import SECOND, nanoseconds
from slipstream.kv.entry import Entry
from slipstream.wire.arguments import check_integer

V = TypeVar("V")

_OVERHEAD = 400  # bytes of a small entry beside its key and value, roughly
CLOCK_MARGIN = SECOND // 10  # the clocks of a cluster's servers differ: an entry is taken for expired that much earlier
EXPIRY_LAG = 5 * SECOND  # a server may take that long to remove what has expired: its count of subjects says nothing
UNPROVEN_EPOCH, DOUBTED_EPOCH = -1, -2
MAX_UNKNOWN = 10_000
_FOREVER = 2**63


class Miss(StrEnum):
    """Why a read was answered by the bucket and not by memory."""

    BEHIND = "behind"  # the cache is not as new as the read asks for
    EXPIRED = "expired"  # the TTL of the entry has ended, or may have
    NOT_HELD = "not held"  # evicted, or outside the filters
    OFFLINE = "offline"  # no feed: closed, disconnected, or loading
    UNCHECKED = "unchecked"  # the bucket was not checked in time
    UNPROVEN = "unproven"  # something may have been removed without a trace


class Verdict(Enum):
    """What a check of the bucket means for the cache."""

    PROVEN = "proven"  # every entry held is still there
    UNPROVEN = "unproven"  # entries must be read again, one by one
    REMOVED = "removed"  # the same, and keys are held that are gone: loading the bucket again would help
    REPLACED = "replaced"  # it is another bucket: load it


@dataclass(slots=True)
class CacheStats:
    """Statistics of a read cache.

    `hits` were answered from memory (`absent` of them: the key does not exist), `misses` by the bucket, `reasons` says
    how many of them why. `checks` of the bucket found everything in its place, or did not (`doubts`); `loads` is how
    often the bucket was read as a whole.
    """

    hits: int = 0
    absent: int = 0
    misses: int = 0
    updates: int = 0
    evicted: int = 0
    entries: int = 0
    bytes: int = 0
    checks: int = 0
    doubts: int = 0
    loads: int = 0
    reasons: dict[Miss, int] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """The share of reads that were answered from memory."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else 0.0

    @property
    def behind(self) -> int:
        """How many reads required a newer revision than the cache had."""
        return self.reasons.get(Miss.BEHIND, 0)

    def missed(self, why: Miss) -> None:
        """Count a read that the bucket answers."""
        self.misses += 1
        self.reasons[why] = self.reasons.get(why, 0) + 1


class _Held(NamedTuple, Generic[V]):
    entry: Entry[V]
    epoch: int  # how many doubts there had been when it was proven
    counts: int  # how many counts had proven the cache when it came: only a later one can have counted it


class EntryCache(Generic[V]):
    """Entries by key; the least recently used is evicted first.

    `is_whole` says that the feed has every key, so that keys can be compared with the subjects of the stream.
    """

    def __init__(self, max_entries: int, max_bytes: int, *, recheck_after: float, is_whole: bool = True) -> None:
        check_integer(max_entries, "max_entries", least=1)
        check_integer(max_bytes, "max_bytes", least=1)
        self.stats: CacheStats = CacheStats()
        self.revision: int = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._recheck_after = recheck_after
        self._is_whole = is_whole
        self._can_count = is_whole  # False once the subjects of a stream turned out to be others than the keys
        self._was_counted = False
        self._entries: OrderedDict[str, _Held[V]] = OrderedDict()
        self._ends: list[tuple[int, str, int]] = []  # a heap: when a revision of a key expires
        self._epoch = 0  # counts doubts
        self._proven = 0  # entries up to this revision that the last count has counted are proven, whatever their epoch
        self._counts = 0  # that have proven the cache
        self._unproven: set[str] = set()  # keys whose entry another than the leader sent: good until the next check
        self._unknown: dict[str, int] = {}  # keys whose entry has expired, and when, by the server's clock
        self._is_complete = True  # every other key that has an entry is held: a key not held is absent
        self._info: StreamInfo | None = None  # the last check
        self._checked_at = 0.0
        self._expired_at = 0  # when, by the server's clock, the last entry expired

    @property
    def epoch(self) -> int:
        """How many doubts there were: what was read before the last one proves nothing."""
        return self._epoch

    @property
    def can_count(self) -> bool:
        """Whether a check that is made when all changes are applied can prove the whole cache."""
        return self._can_count and self._is_complete

    # Checks of the bucket

    def begin(self, info: StreamInfo, sent: float) -> None:
        """Start empty, with the state that the bucket had when the request of `sent` was answered, or later."""
        self._entries.clear()
        self._ends.clear()
        self._unproven.clear()
        self._unknown.clear()
        self._epoch += 1
        self._can_count, self._was_counted = self._is_whole, False
        self._proven = self.revision = self._expired_at = 0
        self._is_complete = True
        self.stats.entries = self.stats.bytes = 0
        self.stats.loads += 1
        self._info, self._checked_at = info, sent

    def check(self, info: StreamInfo, sent: float, as_of: int) -> Verdict:
        """Compare with the bucket's state; the request was sent at `sent`, when `as_of` was the newest revision."""
        before = self._info
        if before is None or info.created != before.created or info.state.last_seq < before.state.last_seq:
            return Verdict.REPLACED  # until `begin`: while one loads, others that check must not go on with what was
        self._info, self._checked_at = info, sent
        self.stats.checks += 1
        if info.config.max_age != before.config.max_age:
            self._ends = [end for held in self._entries.values() if (end := self._end_of(held.entry))]
            heapq.heapify(self._ends)
        self._drop_expired(info, sent)
        if info.state.first_seq != before.state.first_seq:
            self._drop_below(info.state.first_seq)
        # An expired value may have uncovered an older one of its key: either all of these keys are there as well, or
        # it is not known which keys are missing.
        uncovered = len(self._unknown) if info.config.max_msgs_per_subject != 1 else 0
        is_counted = self._is_countable(info) and as_of == info.state.last_seq
        if is_counted and len(self._entries) + uncovered == info.state.num_subjects:
            self._was_counted = True
            self._proven = as_of
            self._counts += 1
            self._unproven.clear()
            return Verdict.PROVEN
        for key in self._unproven:
            self._distrust(key, UNPROVEN_EPOCH)
        self._unproven.clear()
        if _fingerprint(info) == _fingerprint(before):
            return Verdict.PROVEN
        self._epoch += 1
        self._proven = 0
        self.stats.doubts += 1
        is_counted = is_counted and not uncovered
        if is_counted and not self._was_counted:  # right after loading: the stream has subjects that are no keys
            self._can_count = False
        return Verdict.REMOVED if is_counted and self._was_counted else Verdict.UNPROVEN

    def _is_countable(self, info: StreamInfo) -> bool:
        config = info.config
        has_deletes = config.max_msgs_per_subject != 1 and not config.deny_delete  # they may uncover an older entry
        is_expiring = bool(self._expired_at) and info.ts - self._expired_at < EXPIRY_LAG
        return self.can_count and not has_deletes and not is_expiring

    def _drop_expired(self, info: StreamInfo, sent: float) -> None:
        now = self._server_time(sent)
        while self._ends and self._ends[0][0] <= now:
            _, key, revision = heapq.heappop(self._ends)
            held = self._entries.get(key)
            if held is not None and held.entry.revision == revision:
                self._remove(key)
                self._unknown[key] = self._expired_at = now
        if info.config.max_msgs_per_subject == 1:  # otherwise an older entry may be the newest of its key now
            while self._unknown and now - next(iter(self._unknown.values())) >= EXPIRY_LAG:
                del self._unknown[next(iter(self._unknown))]
        if len(self._unknown) > MAX_UNKNOWN:
            self._unknown.clear()
            self._is_complete = False

    def _drop_below(self, first: int) -> None:
        """Drop entries before the first of the stream: they are gone, and with them their keys."""
        for key in [key for key, held in self._entries.items() if held.entry.revision < first]:
            self._remove(key)

    # Changes

    def apply(self, entries: Iterable[Entry[V]], *, is_initial: bool = False) -> None:
        """Apply changes, in order. `is_initial`: those that existed, read after `begin`."""
        floor = self._info.state.last_seq if self._info is not None else 0
        for entry in entries:
            self.revision = entry.revision
            self.stats.updates += 1
            # One that is not newer than the check may have been removed before it: the feed was behind, or a follower.
            is_proven = entry.revision > floor or (is_initial and self._is_of_leader(entry))
            self._put(entry, self._epoch if is_proven else UNPROVEN_EPOCH)
        self._evict()

    def learn(self, entry: Entry[V], as_of: int, epoch: int) -> None:
        """Hold the result of a read that was at least as new as `as_of`, if there was no change and no doubt since.

        Otherwise a newer entry of the key may have been applied and evicted again meanwhile, or removed.
        """
        if self.revision == as_of >= entry.revision and epoch == self._epoch:
            self._put(entry, epoch)
            if not self._is_of_leader(entry):
                self._unproven.add(entry.key)
            self._evict()

    def _is_of_leader(self, entry: Entry[V]) -> bool:
        """Whether the stream itself sent an entry, and has no followers."""
        config = self._info.config if self._info is not None else None
        return config is not None and config.num_replicas <= 1 and entry.stream in (config.name, entry.bucket)

    def drop(self, key: str, below: int) -> None:
        """Drop a key whose entries below a revision were removed from the bucket."""
        held = self._entries.get(key)
        if held is not None and held.entry.revision < below:
            self._remove(key)

    def doubt(self, key: str) -> None:
        """The bucket contradicted what is held of a key: it must be read again."""
        self._distrust(key, DOUBTED_EPOCH)

    def _distrust(self, key: str, epoch: int) -> None:
        held = self._entries.get(key)
        if held is not None:
            self._entries[key] = held._replace(epoch=epoch)

    # Reads

    def look(self, key: str, now: float) -> Entry[V] | Miss | None:
        """The newest entry of a key, None if it has none, or why that is not known."""
        info = self._info
        if info is None or now - self._checked_at >= self._recheck_after:
            return Miss.UNCHECKED
        held = self._entries.get(key)
        if held is None:
            if key in self._unknown:
                return Miss.EXPIRED
            if not self._is_complete:
                return Miss.NOT_HELD
            # The key may be among the changes that the check saw and the feed has not brought yet.
            return Miss.BEHIND if self._is_whole and self.revision < info.state.last_seq else None
        entry = held.entry
        if held.epoch != self._epoch and not self._is_counted(held):
            return Miss.UNPROVEN
        if (end := self._end_of(entry)) and end[0] <= self._server_time(now):
            return Miss.EXPIRED
        self._entries.move_to_end(key)
        return entry

    # Bookkeeping

    def _is_counted(self, held: _Held[V]) -> bool:
        """Whether the last count proves an entry: it was there then, and nothing spoke against it since."""
        was_there = held.counts < self._counts and held.entry.revision <= self._proven
        return was_there and held.epoch != DOUBTED_EPOCH

    def _server_time(self, now: float) -> int:
        """The server's clock now, at the latest: it answered the last check after that was sent. Unknown: no end."""
        if self._info is None or self._info.ts <= 0:
            return _FOREVER
        return self._info.ts + round((now - self._checked_at) * SECOND) + CLOCK_MARGIN

    def _end_of(self, entry: Entry[V]) -> tuple[int, str, int] | None:
        """When an entry expires, with its key and revision; None if it does not."""
        age = nanoseconds(self._info.config.max_age) if self._info is not None else 0
        ends = [end for end in (entry.expires, age and entry.created + age) if end > 0]
        return (min(ends), entry.key, entry.revision) if ends and entry.expires >= 0 else None

    def _put(self, entry: Entry[V], epoch: int) -> None:
        self._remove(entry.key)
        self._unknown.pop(entry.key, None)
        self._unproven.discard(entry.key)
        self._entries[entry.key] = _Held(entry, epoch, self._counts)
        self.stats.bytes += _size(entry)
        self.stats.entries = len(self._entries)
        if end := self._end_of(entry):
            heapq.heappush(self._ends, end)

    def _remove(self, key: str) -> None:
        held = self._entries.pop(key, None)
        if held is not None:
            self.stats.bytes -= _size(held.entry)
            self.stats.entries = len(self._entries)

    def _evict(self) -> None:
        stats = self.stats
        while len(self._entries) > self._max_entries or stats.bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))
            stats.evicted += 1
            self._is_complete = False


def _fingerprint(info: StreamInfo) -> tuple[object, ...]:
    """What changes when something is written or removed."""
    state, config = info.state, info.config
    return state.last_seq, state.messages, state.first_seq, state.num_subjects, state.num_deleted, config.max_age


def _size(entry: Entry[V]) -> int:
    value = entry.value
    return _OVERHEAD + len(entry.key) + (len(value) if isinstance(value, bytes) else 0)
