"""The entry cache: what it knows, what it evicts, and its statistics."""

from __future__ import annotations

import pytest

from slipstream.errors import UsageError
from slipstream.kv.cache import EntryCache
from slipstream.kv.entry import Entry, Operation


def put(key: str, revision: int, value: bytes = b"v") -> Entry[bytes]:
    return Entry("b", key, value, revision, 0, 0, Operation.PUT)


def cache(max_entries: int = 10, max_bytes: int = 1_000_000) -> EntryCache[bytes]:
    return EntryCache(max_entries, max_bytes)


@pytest.mark.parametrize(("entries", "size"), [(0, 1), (1, 0), (-1, 5)])
def test_a_cache_has_bounds(entries: int, size: int) -> None:
    with pytest.raises(UsageError, match="at least 1, got"):
        cache(entries, size)


def test_a_complete_cache_knows_that_a_key_is_absent() -> None:
    held = cache()
    held.apply([put("a", 1), put("a", 2, b"new"), put("b", 3)])
    assert held.look("a") == (True, put("a", 2, b"new"))
    assert held.look("nope") == (True, None)
    assert (held.revision, held.stats.updates, held.stats.entries) == (3, 3, 2)


def test_the_least_recently_used_entry_is_evicted_and_then_unknown() -> None:
    held = cache(max_entries=2)
    held.apply([put("a", 1), put("b", 2)])
    held.look("a")
    held.apply([put("c", 3)])
    assert held.look("b") == (False, None)
    assert held.look("nope") == (False, None)  # one key is unknown, so any other may be too
    assert held.look("a")[0]
    assert (held.stats.evicted, held.stats.entries) == (1, 2)


def test_entries_are_evicted_to_keep_the_bound_of_bytes() -> None:
    held = cache(max_bytes=2000)
    held.apply([put("a", 1, b"x" * 500), put("b", 2, b"x" * 500), put("c", 3, b"x" * 500)])
    assert held.stats.bytes <= 2000
    assert held.look("a") == (False, None)
    assert held.look("c")[0]


def test_a_read_is_learned_only_if_no_change_came_between() -> None:
    held = cache(max_entries=1)
    held.apply([put("a", 1), put("b", 2)])
    held.learn(put("a", 1), as_of=1)  # the feed went on to 2 since
    assert held.look("a") == (False, None)
    held.learn(put("a", 1), as_of=2)
    assert held.look("a") == (True, put("a", 1))


def test_removed_entries_are_dropped() -> None:
    held = cache()
    held.apply([put("a", 1), put("b", 2)])
    held.drop("a", below=2)
    held.drop("b", below=2)  # its entry is not below
    assert held.look("a") == (True, None)
    assert held.look("b")[1] is not None
    held.clear()
    assert (held.revision, held.stats.entries, held.stats.bytes) == (0, 0, 0)


def test_the_hit_rate_is_the_share_of_hits() -> None:
    stats = cache().stats
    assert stats.hit_rate == 0.0
    stats.hits, stats.misses = 3, 1
    assert stats.hit_rate == 0.75
