"""The behaviour of a bucket: one suite that every backend and wrapper passes, on both drivers.

Subclasses open a bucket of their kind: `tests/kv/_async/test_sqlite_storage.py` and
`tests/conformance/_async/test_kv_backends.py`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from slipstream import BucketConfig
from slipstream.errors import (
    ApiError,
    BucketNotFoundError,
    HistoryLostError,
    KeyExistsError,
    KeyNotFoundError,
    KeyRevisionError,
    ReadOnlyError,
    RequestTimeoutError,
    StaleReadError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.kv import Operation
from slipstream.kv._async.key_value import KeyValue
from tests._async.concurrency import spawn, until


class Behaviour:
    """One test per rule; a subclass defines `bucket`."""

    bad_filters: tuple[str, ...] = ("a*", "a.>.b", ".a", "a b")

    @asynccontextmanager
    async def bucket(self, config: BucketConfig) -> AsyncIterator[KeyValue[bytes]]:
        """A fresh bucket, closed at the end."""
        raise NotImplementedError(config)
        yield

    async def test_put_and_get(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            first = await kv.put("a.b", b"\x00\xff")
            second = await kv.put("empty", b"")
            assert second > first > 0
            entry = await kv.get("a.b")
            assert entry[:4] == (kv.bucket, "a.b", b"\x00\xff", first)
            assert entry.created > 1_700_000_000 * 10**9
            assert (entry.delta, entry.operation, entry.marker) == (0, Operation.PUT, "")
            assert (await kv.get("empty")).value == b""
            with pytest.raises(KeyNotFoundError, match="no value for key 'nope'"):
                await kv.get("nope")
            with pytest.raises(UsageError, match="key must"):
                await kv.put("a..b", b"")

    async def test_a_value_that_is_not_bytes_is_rejected(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            wrong: list[Any] = [None, 0, False, "", 5, "x", []]
            writer = kv.writer()
            for value in wrong:
                for write in (kv.put, kv.create, writer.put):
                    with pytest.raises((UsageError, TypeError)):
                        await write("a", value)
            await writer.flush()
            assert await kv.keys() == []
            good: list[Any] = [b"", bytearray(b"1"), memoryview(b"12")]
            for value in good:
                await kv.put("a", value)
                assert (await kv.get("a")).value == bytes(value)

    async def test_create_update_delete_and_purge(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=5)) as kv:
            first = await kv.create("k", b"1")
            with pytest.raises(KeyExistsError) as caught:
                await kv.create("k", b"2")
            assert caught.value.revision == first
            second = await kv.update("k", b"2", last=first)
            wrong = f"^key 'k' in bucket '{kv.bucket}' is at revision {second}, not {first}$"
            with pytest.raises(WrongLastSequenceError, match=wrong) as stale:
                await kv.update("k", b"3", last=first)
            assert isinstance(stale.value, KeyRevisionError)
            assert (stale.value.key, stale.value.revision, stale.value.expected) == ("k", second, first)
            with pytest.raises(KeyRevisionError, match=wrong):
                await kv.delete("k", last=first)
            with pytest.raises(KeyRevisionError, match=wrong):
                await kv.purge("k", last=first)
            with pytest.raises(KeyRevisionError, match=r"has no entry, expected revision 7$"):
                await kv.update("none", b"", last=7)
            mark = await kv.delete("k", last=second)
            with pytest.raises(KeyNotFoundError, match=f"DEL, revision {mark}"):
                await kv.get("k")
            assert (await kv.get("k", revision=first)).value == b"1"
            again = await kv.create("k", b"4")
            mark = await kv.purge("k")
            with pytest.raises(KeyNotFoundError, match="PURGE"):
                await kv.get("k")
            with pytest.raises(KeyNotFoundError):
                await kv.get("k", revision=again)
            await kv.create("k", b"5")
            assert (await kv.get("k")).value == b"5"

    async def test_a_revision_is_only_found_under_its_own_key(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=2)) as kv:
            one, two = await kv.put("a", b"1"), await kv.put("b", b"2")
            assert (await kv.get("a", revision=one)).value == b"1"
            with pytest.raises(KeyNotFoundError, match="another key"):
                await kv.get("a", revision=two)
            with pytest.raises(KeyNotFoundError):
                await kv.get("a", revision=two + 1)

    async def test_history_limits_the_entries_of_each_key(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=3)) as kv:
            for n in range(5):
                await kv.put("k", b"%d" % n)
                await kv.put("other", b"%d" % n)
            await kv.delete("k")
            history = await kv.history("k")
            assert [entry.value for entry in history] == [b"3", b"4", b""]
            assert [entry.delta for entry in history] == [2, 1, 0]
            assert [entry.operation for entry in history] == [Operation.PUT, Operation.PUT, Operation.DELETE]
            await kv.purge("k")
            assert [entry.operation for entry in await kv.history("k")] == [Operation.PURGE]
            with pytest.raises(KeyNotFoundError):
                await kv.history("nope")

    async def test_keys_and_ranges(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=2)) as kv:
            assert await kv.keys() == []
            async with kv.writer() as writer:
                for key in ("a.x", "a.y", "b.x", "b.y.z", "c"):
                    await writer.put(key, key.encode())
                await writer.put("a.x", b"new")
                await writer.delete("b.x")
                await writer.purge("c")
            assert await kv.keys() == ["a.y", "b.y.z", "a.x"]
            assert sorted(await kv.keys("a.>")) == ["a.x", "a.y"]
            assert await kv.keys("*.x") == ["a.x"]
            assert sorted(await kv.keys("*.x", "a.*", "b.>")) == ["a.x", "a.y", "b.y.z"]
            assert [key async for key in kv.iter_keys("b.>")] == ["b.y.z"]
            assert {key: entry.value for key, entry in (await kv.get_range("a.*")).items()} == {
                "a.y": b"a.y",
                "a.x": b"new",
            }
            assert await kv.delete_range("a.*") == 2
            assert await kv.keys() == ["b.y.z"]
            assert await kv.purge_range(">") == 1
            assert await kv.keys() == []
            for bad in self.bad_filters:
                with pytest.raises(UsageError, match="key filter"):
                    await kv.keys(bad)
            with pytest.raises(UsageError, match="at least one filter"):
                await kv.delete_range()

    async def test_a_snapshot_is_exact_or_raises(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=2)) as kv:
            await kv.put("a", b"1")
            at = await kv.put("b", b"1")
            deleted = await kv.delete("a")
            await kv.put("c", b"1")
            shot = await kv.snapshot(revision=at)
            assert {key: entry.value for key, entry in shot.items()} == {"a": b"1", "b": b"1"}
            assert list(await kv.snapshot(revision=deleted)) == ["b"]
            assert list(await kv.snapshot()) == ["b", "c"]
            assert list(await kv.snapshot("c", "b", revision=at)) == ["b"]
            await kv.put("b", b"2")
            await kv.put("b", b"3")
            with pytest.raises(HistoryLostError, match="key 'b' was written 2 times since"):
                await kv.snapshot(revision=at)
            assert list(await kv.snapshot("c", revision=at)) == []
            now = await kv.purge("c")
            with pytest.raises(HistoryLostError, match="left of key 'c' since is a mark"):
                await kv.snapshot("c", revision=at)
            with pytest.raises(HistoryLostError, match="its newest revision is"):
                await kv.snapshot(revision=now + 1)

    async def test_purge_deletes_removes_deleted_keys_for_good(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=3)) as kv:
            for key in ("a", "b", "c"):
                await kv.put(key, b"1")
            await kv.delete("a")
            await kv.purge("b")
            assert await kv.purge_deletes(older_than=timedelta(hours=1)) == 2
            assert [entry.operation for entry in await kv.history("a")] == [Operation.DELETE]
            assert (await kv.status()).values == 3
            assert await kv.purge_deletes(older_than=timedelta(0), recorded=True) == 2
            with pytest.raises(KeyNotFoundError):
                await kv.history("a")
            assert await kv.keys() == ["c"]
            assert (await kv.status()).values == 1
            with pytest.raises(HistoryLostError, match="removed for good"):
                await kv.snapshot(revision=3)
            assert list(await kv.snapshot(revision=(await kv.status()).last_revision)) == ["c"]

    async def test_status(self, fresh: str) -> None:
        config = BucketConfig(bucket=fresh, history=4, ttl=timedelta(hours=1), max_value_size=200)
        async with self.bucket(config) as kv:
            await kv.put("a", b"1")
            last = await kv.put("a", b"2")
            status = await kv.status()
            assert (status.bucket, status.values, status.history) == (fresh, 2, 4)
            assert (status.ttl, status.last_revision) == (timedelta(hours=1), last)
            assert status.bytes > 0
            with pytest.raises(Exception, match="message size exceeds maximum allowed"):
                await kv.put("a", b"x" * 1000)

    @pytest.mark.steady
    async def test_a_read_is_at_least_as_new_as_min_last_revision(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            revision = await kv.put("a", b"1")
            assert (await kv.get("a", min_last_revision=revision)).value == b"1"
            assert (await kv.get("a", revision=revision, min_last_revision=revision)).value == b"1"
            assert await kv.keys(min_last_revision=revision) == ["a"]
            assert len(await kv.history("a", min_last_revision=revision)) == 1
            with pytest.raises(StaleReadError):
                await kv.get("a", min_last_revision=revision + 1, timeout=1.5)
            with pytest.raises(StaleReadError):
                await kv.keys(min_last_revision=revision + 1, timeout=1.2)

    async def test_a_read_only_handle_rejects_every_write(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            await kv.put("a", b"1")
            before = (await kv.status()).last_revision
            ro = kv.read_only()
            writes: list[Any] = [
                lambda: ro.put("a", b"2"),
                lambda: ro.create("b", b"2"),
                lambda: ro.update("a", b"2", last=1),
                lambda: ro.delete("a"),
                lambda: ro.purge("a"),
                lambda: ro.delete_range(">"),
                lambda: ro.purge_range(">"),
                ro.destroy,
            ]
            for write in writes:
                with pytest.raises(ReadOnlyError, match="read-only"):
                    await write()
            with pytest.raises(ReadOnlyError):
                ro.writer()
            assert (await ro.get("a")).value == b"1"
            assert await ro.keys() == ["a"]
            assert len(await ro.history("a")) == 1
            assert (await ro.status()).last_revision == before
            async with await ro.watch() as watch:
                assert [entry.key for entry in await watch.initial()] == ["a"]

    async def test_a_watch_returns_the_initial_data_then_changes(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=3)) as kv:
            await kv.put("a", b"1")
            await kv.put("a", b"2")
            await kv.put("b.c", b"1")
            await kv.delete("b.c")
            async with await kv.watch() as watch:
                first, second, marker = [await watch.next(timeout=5) for _ in range(3)]
                assert first is not None
                assert second is not None
                assert (first.key, first.value, second.key, second.operation) == ("a", b"2", "b.c", Operation.DELETE)
                assert marker is None
                assert watch.is_current
                revision = await kv.put("d", b"3")
                news = await watch.next(timeout=5)
                assert news is not None
                assert (news.key, news.value, news.revision) == ("d", b"3", revision)
                assert watch.revision == revision
                with pytest.raises(RequestTimeoutError):
                    await watch.next(timeout=0.05)

    async def test_the_end_of_the_initial_data_is_always_marked(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            async with await kv.watch() as watch:
                assert await watch.next(timeout=5) is None
            async with await kv.watch("nope", "no.>") as watch:
                assert await watch.initial() == []
            await kv.put("a", b"1")
            async with await kv.watch("b") as watch:
                assert await watch.next(timeout=5) is None
            async with await kv.watch(updates_only=True) as watch:
                assert await watch.next(timeout=5) is None
                await kv.put("a", b"2")
                entry = await watch.next(timeout=5)
                assert entry is not None
                assert entry.value == b"2"

    async def test_options_of_a_watch(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=3)) as kv:
            await kv.put("a.x", b"1")
            second = await kv.put("a.x", b"2")
            await kv.put("a.y", b"3")
            await kv.delete("a.y")
            await kv.put("b", b"4")

            async def initial(*filters: str, **options: bool | int) -> list[tuple[str, bytes]]:
                async with await kv.watch(*filters, **options) as watch:  # type: ignore[arg-type]
                    return [(entry.key, entry.value) for entry in await watch.initial()]

            assert await initial("a.>", include_history=True) == [
                ("a.x", b"1"), ("a.x", b"2"), ("a.y", b"3"), ("a.y", b"")
            ]  # fmt: skip
            assert await initial(ignore_deletes=True) == [("a.x", b"2"), ("b", b"4")]
            assert await initial("a.x", "b", resume_from=second) == [("a.x", b"2"), ("b", b"4")]
            assert await initial(meta_only=True) == [("a.x", b""), ("a.y", b""), ("b", b"")]
            assert await initial("a.x", meta_only=True, include_history=True) == [("a.x", b""), ("a.x", b"")]
            assert await initial("a.*", "*.x", ignore_deletes=True) == [("a.x", b"2")]
            last = (await kv.status()).last_revision
            assert await initial("b", min_last_revision=last) == [("b", b"4")]
            with pytest.raises(UsageError, match="mutually exclusive"):
                await kv.watch(include_history=True, updates_only=True)
            with pytest.raises(UsageError, match="key filter"):
                await kv.watch("a*")

    @pytest.mark.spec("KV-43")
    async def test_a_watch_with_meta_only_returns_no_values(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=3)) as kv:
            await kv.put("a", b"1")
            last = await kv.put("a", b"2")
            for options in ({}, {"include_history": True}, {"resume_from": last}, {"min_last_revision": last}):
                async with await kv.watch(meta_only=True, **options) as watch:
                    assert {entry.value for entry in await watch.initial()} == {b""}
            async with await kv.watch(meta_only=True, updates_only=True) as watch:
                assert await watch.next(timeout=5) is None
                changed = await kv.put("a", b"3")
                entry = await watch.next(timeout=5)
                assert entry is not None
                assert (entry.value, entry.revision, entry.operation) == (b"", changed, Operation.PUT)

    @pytest.mark.spec("KV-43")
    async def test_delta_is_the_number_of_newer_entries_of_the_key_or_absent(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=5)) as kv:
            first = await kv.put("a", b"0")
            for key in ("a", "z", "a"):
                await kv.put(key, b"1")
            at = await kv.put("z", b"1")

            async def deltas(*filters: str, **options: bool | int) -> list[tuple[str, int | None]]:
                async with await kv.watch(*filters, **options) as watch:  # type: ignore[arg-type]
                    return [(entry.key, entry.delta) for entry in await watch.initial()]

            assert (await kv.get("a")).delta == 0
            assert (await kv.get("a", revision=first)).delta in (2, None)
            assert [entry.delta for entry in await kv.history("a")] == [2, 1, 0]
            assert [entry.delta for entry in (await kv.get_range()).values()] == [0, 0]
            assert {key: entry.delta for key, entry in (await kv.snapshot(revision=first)).items()} == {"a": 2}
            assert {key: entry.delta for key, entry in (await kv.snapshot()).items()} == {"a": 0, "z": 0}
            assert await deltas() == [("a", 0), ("z", 0)]
            assert await deltas(min_last_revision=at) == [("a", 0), ("z", 0)]
            assert await deltas("a", include_history=True) == [("a", 2), ("a", 1), ("a", 0)]
            assert await deltas("a", resume_from=first + 1) == [("a", 1), ("a", 0)]
            right = [("a", 2), ("a", 1), ("z", 1), ("a", 0), ("z", 0)]
            for options in ({}, {"min_last_revision": at}):
                for filters in ((), ("a", "z"), ("*", "a")):
                    found = await deltas(*filters, include_history=True, **options)
                    assert [key for key, _ in found] == [key for key, _ in right]
                    assert all(got[1] in (want[1], None) for got, want in zip(found, right, strict=True))
                    assert found[-1] == ("z", 0)
            async with await kv.watch("a", "z") as watch:
                await watch.initial()
                await kv.put("a", b"2")
                entry = await watch.next(timeout=5)
                assert entry is not None
                assert entry.delta == 0

    async def test_many_changes_reach_a_watch_in_order(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=64)) as kv, await kv.watch() as watch:
            assert await watch.initial() == []

            async def write() -> None:
                async with kv.writer() as writer:
                    for n in range(500):
                        await writer.put(f"k.{n % 10}", b"%d" % n)

            task = spawn(write)
            seen: list[bytes] = []
            while len(seen) < 500:
                seen += [entry.value for entry in await watch.next_entries(timeout=10)]
            await task.result()
            assert seen == [b"%d" % n for n in range(500)]

    @pytest.mark.steady
    async def test_a_cache_answers_only_if_it_is_new_enough(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            await kv.put("a", b"1")
            await kv.put("gone", b"1")
            await kv.delete("gone")
            cached = await kv.cached(recheck_after=timedelta(hours=1))
            try:
                assert (await cached.get("a")).value == b"1"
                for missing in ("gone", "nope"):
                    with pytest.raises(KeyNotFoundError):
                        await cached.get(missing)
                assert (cached.stats.hits, cached.stats.absent, cached.stats.misses) == (3, 1, 0)
                revision = await cached.put("a", b"2")
                assert (await cached.get("a")).value == b"2"
                assert (await cached.get("a", min_last_revision=revision)).value == b"2"
                other = await kv.put("b", b"3")
                assert (await cached.get("b", min_last_revision=other)).value == b"3"
                await until(lambda: cached.stats.updates >= 4)
                hits = cached.stats.hits
                assert (await cached.get("b")).value == b"3"
                assert cached.stats.hits == hits + 1
                with pytest.raises(StaleReadError):
                    await cached.get("b", min_last_revision=other + 1, timeout=1.5)
            finally:
                await cached.close()

    async def test_a_cache_keeps_its_bound_and_its_filters(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            for n in range(10):
                await kv.put(f"a.{n}", b"%d" % n)
            await kv.put("b", b"x")
            cached = await kv.cached("a.*", max_entries=4, recheck_after=timedelta(hours=1))
            try:
                assert cached.stats.entries == 4
                assert cached.stats.evicted == 6
                assert (await cached.get("b")).value == b"x"
                assert (await cached.get("a.0")).value == b"0"
                assert (await cached.get("a.0")).value == b"0"
                assert cached.stats.misses == 2
                assert cached.stats.entries == 4
                assert 0 < cached.stats.hit_rate < 1
            finally:
                await cached.close()

    @pytest.mark.steady
    async def test_a_cache_does_not_return_what_has_expired(self, fresh: str) -> None:
        config = BucketConfig(bucket=fresh, history=3, ttl=timedelta(hours=1), value_ttl=True)
        async with self.bucket(config) as kv:
            for key in ("stays", "goes"):
                await kv.put(key, b"old")
            await kv.put("goes", b"new", ttl=1)
            cached = await kv.cached(recheck_after=timedelta(hours=1))  # no check helps
            try:

                async def is_gone() -> bool:
                    found = await cached.get_range("goes")
                    with suppress(KeyNotFoundError):
                        assert (await cached.get("goes")).value == b"new"
                    return not found

                await until(is_gone)
                with pytest.raises(KeyNotFoundError):
                    await cached.get("goes")
                assert (await cached.get("stays")).value == b"old"
                assert cached.stats.hits >= 1
                assert sum(cached.stats.reasons.values()) == cached.stats.misses
            finally:
                await cached.close()

    async def test_the_time_between_checks_of_a_cache_is_not_negative(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            with pytest.raises(UsageError, match="recheck_after must be 0"):
                await kv.cached(recheck_after=-1)

    @pytest.mark.parametrize("markers", [0, 1])
    @pytest.mark.steady
    async def test_a_value_with_a_ttl_replaces_the_history_and_nothing_comes_back(
        self, fresh: str, markers: int
    ) -> None:
        second = timedelta(seconds=1)
        config = BucketConfig(bucket=fresh, history=3, value_ttl=True, limit_marker_ttl=timedelta(seconds=markers))
        async with self.bucket(config) as kv:
            await kv.put("put", b"old")
            await kv.put("put", b"older")
            await kv.put("put", b"goes", ttl=second)
            await kv.put("create", b"old")
            await kv.delete("create")
            await kv.create("create", b"goes", ttl=second)
            await kv.update("update", b"goes", last=await kv.put("update", b"old"), ttl=second)
            await kv.put("stays", b"old")
            await kv.put("stays", b"new")
            await kv.put("after", b"goes", ttl=second)
            await kv.put("after", b"no ttl")  # replaces a value with a TTL: this one stays
            with pytest.raises(WrongLastSequenceError):
                await kv.update("after", b"x", last=1, ttl=second)
            seen: set[bytes] = set()

            async def are_gone() -> bool:
                async with await kv.watch("put", "create", "update", include_history=True) as watch:
                    seen.update(entry.value for entry in await watch.initial() if not entry.is_deleted)
                return set(await kv.keys()) == {"stays", "after"}

            await until(are_gone)
            assert seen <= {b"goes"}  # no older value beside it, and none behind it
            assert [entry.value for entry in await kv.history("stays")] == [b"old", b"new"]
            entry = await kv.get("after")
            assert (entry.value, entry.expires) == (b"no ttl", 0)

    async def test_a_ttl_is_rejected_unless_the_bucket_allows_it(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh)) as kv:
            for ttl in (1, timedelta(hours=1)):
                with pytest.raises(ApiError, match=r"TTL is disabled in bucket .*: create it with value_ttl=True"):
                    await kv.put("a", b"1", ttl=ttl)
            await kv.put("a", b"1")
            with pytest.raises(ApiError, match="value_ttl=True"):
                await kv.purge("a", ttl=1)
            assert (await kv.get("a")).value == b"1"

    async def test_a_ttl_that_the_server_would_lengthen_is_rejected(self, fresh: str) -> None:
        config = BucketConfig(bucket=fresh, history=2, limit_marker_ttl=timedelta(minutes=5))
        async with self.bucket(config) as kv:
            assert (await kv.status()).shortest_ttl == timedelta(minutes=5)
            short: list[Any] = [
                lambda: kv.put("a", b"1", ttl=299),
                lambda: kv.create("a", b"1", ttl=timedelta(seconds=1)),
                lambda: kv.update("a", b"1", last=0, ttl=2.5),
                lambda: kv.purge("a", ttl=1),
            ]
            for write in short:
                with pytest.raises(UsageError, match=r"ttl must be at least limit_marker_ttl \(0:05:00\)"):
                    await write()
            assert (await kv.status()).last_revision == 0
            await kv.put("a", b"1", ttl=300)
            entry = await kv.get("a")
            assert entry.expires - entry.created == 300 * 10**9

    async def test_a_ttl_is_counted_in_whole_seconds_rounded_up(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, limit_marker_ttl=timedelta(minutes=5))) as kv:
            for ttl, seconds in ((60, 60), (60.001, 61), (timedelta(seconds=61, microseconds=1), 62)):
                await kv.put("a", b"1", ttl=ttl)
                entry = await kv.get("a")
                assert entry.expires - entry.created == seconds * 10**9
            wrong: list[Any] = [0, -1, 0.999, timedelta(milliseconds=1)]
            for ttl in wrong:
                with pytest.raises(UsageError, match="ttl must be at least 1 second"):
                    await kv.put("a", b"1", ttl=ttl)
            others: list[Any] = ["5s", True]
            for ttl in others:
                with pytest.raises(UsageError, match="ttl must be a timedelta or a number of seconds"):
                    await kv.put("a", b"1", ttl=ttl)

    async def test_every_call_on_a_destroyed_bucket_says_that_it_does_not_exist(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=2)) as kv:
            revision = await kv.put("a", b"1")
            writer = kv.writer()
            await kv.destroy()

            async def write() -> None:
                await writer.put("a", b"2")
                await writer.flush()

            calls: list[Any] = [
                lambda: kv.put("a", b"2"),
                lambda: kv.purge("a"),
                lambda: kv.get("a"),
                lambda: kv.get("a", revision=revision),
                lambda: kv.history("a"),
                lambda: kv.watch(),
                lambda: kv.watch(include_history=True),
                lambda: kv.keys(),
                lambda: kv.get_range("a"),
                lambda: kv.delete_range("a"),
                lambda: kv.snapshot(),
                lambda: kv.purge_deletes(older_than=timedelta(0)),
                lambda: kv.status(),
                lambda: kv.destroy(),
                write,
            ]
            for call in calls:
                with pytest.raises(BucketNotFoundError, match=kv.bucket):
                    await call()

    # Where a watch is: `revision` is the last one that the program got

    @pytest.mark.spec("KV-53")
    async def test_revision_of_a_watch_is_that_of_the_entry_returned_last(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=5)) as kv:
            revisions = [await kv.put(f"k{n}", b"%d" % n) for n in range(10)]
            mark = await kv.delete("k9")
            async with await kv.watch(include_history=True) as watch:
                assert watch.revision < revisions[0]
                for revision in revisions[:3]:
                    entry = await watch.next(timeout=5)
                    assert entry is not None
                    assert entry.revision == watch.revision == revision  # although more have arrived
                rest = await watch.next_entries(timeout=5)
                assert watch.revision == rest[-1].revision
            async with await kv.watch(ignore_deletes=True, resume_from=revisions[-1]) as watch:
                assert watch.revision == revisions[-1] - 1
                entry = await watch.next(timeout=5)
                assert entry is not None
                assert entry.revision == revisions[-1]
                assert await watch.next(timeout=5) is None
                assert watch.revision == mark  # passed with the entry before it

    @pytest.mark.spec("KV-53")
    async def test_revision_of_a_watch_for_changes_begins_where_the_bucket_is(self, fresh: str) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=5)) as kv:
            last = [await kv.put(f"k{n}", b"") for n in range(3)][-1]
            async with await kv.watch(updates_only=True) as watch:
                assert watch.revision == last
                assert await watch.next(timeout=5) is None
                assert watch.revision == last
            new = await kv.put("k0", b"1")
            async with await kv.watch(resume_from=watch.revision + 1) as watch:
                assert [entry.revision for entry in await watch.initial()] == [new]
            async with await kv.watch("none") as watch:  # nothing matches: what comes is a change
                assert await watch.next(timeout=5) is None
                assert watch.revision <= new

    @pytest.mark.spec("KV-53")
    async def test_initial_data_that_is_interrupted_is_returned_by_the_next_read(
        self, fresh: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.bucket(BucketConfig(bucket=fresh, history=5)) as kv:
            revisions = [await kv.put(f"k{n}", b"") for n in range(4)]
            async with await kv.watch(include_history=True) as watch:
                before, receive = watch.revision, watch._receive

                async def in_two(timeout: float | None) -> Any:
                    entries = await receive(timeout)
                    monkeypatch.setattr(watch, "_receive", times_out)
                    return entries

                async def times_out(_timeout: float | None) -> Any:
                    raise RequestTimeoutError("no more for now")

                monkeypatch.setattr(watch, "_receive", in_two)
                with pytest.raises(RequestTimeoutError):
                    await watch.initial(timeout=5)
                assert watch.revision == before
                monkeypatch.setattr(watch, "_receive", receive)
                assert [entry.revision for entry in await watch.initial(timeout=5)] == revisions

    @pytest.mark.spec("KV-53")
    @pytest.mark.parametrize("ignore_deletes", [False, True])
    @pytest.mark.parametrize("include_history", [False, True])
    @pytest.mark.parametrize("filters", [(), ("a.*", "c.*", "b.1")])
    async def test_watch_resumed_at_its_revision_loses_and_repeats_nothing(
        self, fresh: str, filters: tuple[str, ...], include_history: bool, ignore_deletes: bool
    ) -> None:
        """A watch that is cut at any entry, again and again, while the bucket is written: the parts are the whole."""
        chance = random.Random(f"{filters}{include_history}{ignore_deletes}")
        keys = [f"{letter}.{digit}" for letter in "abcd" for digit in range(3)]

        async def write(kv: KeyValue[bytes], count: int) -> None:
            for _ in range(count):
                key = chance.choice(keys)
                await (kv.delete(key) if chance.random() < 0.3 else kv.put(key, b"%d" % chance.randrange(100)))

        async def whole(kv: KeyValue[bytes], **options: Any) -> list[tuple[str, int]]:
            async with await kv.watch(*filters, ignore_deletes=ignore_deletes, **options) as watch:
                return [(entry.key, entry.revision) for entry in await watch.initial()]

        async with self.bucket(BucketConfig(bucket=fresh, history=64)) as kv:
            await write(kv, 30)
            start = await whole(kv, include_history=include_history)
            watch = await kv.watch(*filters, include_history=include_history, ignore_deletes=ignore_deletes)
            parts: list[tuple[str, int]] = []
            cuts = passed = 0
            for part in range(12):
                for _ in range(chance.randrange(4)):
                    if chance.random() < 0.2:
                        found = await watch.next_entries(timeout=5) if not watch.is_current else []
                        parts += [(entry.key, entry.revision) for entry in found]
                    elif not watch.is_current and (entry := await watch.next(timeout=5)) is not None:
                        parts.append((entry.key, entry.revision))
                if not part:
                    cuts = len(parts)
                    passed = watch.revision
                await watch.close()
                await write(kv, chance.randrange(4))
                watch = await kv.watch(*filters, ignore_deletes=ignore_deletes, resume_from=watch.revision + 1)
            parts += [(entry.key, entry.revision) for entry in await watch.initial()]
            await watch.close()
            assert parts[:cuts] == [found for found in start if found[1] <= passed]
            assert parts[cuts:] == [found for found in await whole(kv, include_history=True) if found[1] > passed]
