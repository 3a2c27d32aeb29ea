"""A read cache where values go without a message, on our server and on nats-server: it never keeps what is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import pytest

from slipstream import BucketConfig, StreamConfig, connect
from slipstream.errors import KeyNotFoundError
from slipstream.kv._async.key_value import CachedKeyValue, KeyValue
from slipstream.kv._async.stream_storage import StreamFeed
from slipstream.kv.cache import Miss
from slipstream.kv.codecs import Base64Keys
from tests._async.concurrency import sleep, until

SECOND = timedelta(seconds=1)
SOON = timedelta(seconds=0.2)  # for tests that wait until a check notices
LATE = timedelta(hours=1)  # for tests in which no check may help


@asynccontextmanager
async def cached(kv: KeyValue[bytes], *filters: str, recheck_after: timedelta) -> AsyncIterator[CachedKeyValue[bytes]]:
    cache = await kv.cached(*filters, recheck_after=recheck_after)
    try:
        yield cache
    finally:
        await cache.close()


async def value(kv: KeyValue[bytes], key: str, *, min_last_revision: int = 0) -> bytes | None:
    try:
        return (await kv.get(key, min_last_revision=min_last_revision)).value
    except KeyNotFoundError:
        return None


async def has(kv: KeyValue[bytes], key: str, expected: bytes | None) -> bool:
    return await value(kv, key) == expected


async def is_hit(cache: CachedKeyValue[bytes], key: str) -> bool:
    """Whether a read is answered from memory."""
    hits = cache.stats.hits
    await value(cache, key)
    return cache.stats.hits > hits


@pytest.mark.spec("KV-21", "KV-47")
@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("markers", [0, 1])
@pytest.mark.steady
async def test_an_expired_value_is_not_returned(any_server: str, fresh: str, history: int, markers: int) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = BucketConfig(bucket=fresh, history=history, value_ttl=True, limit_marker_ttl=markers * SECOND)
        kv = await js.create_key_value(config)
        await kv.put("ours", b"old")
        await kv.put("theirs", b"old")
        async with cached(kv, recheck_after=LATE) as cache:
            assert await is_hit(cache, "ours")
            await kv.put("ours", b"new", ttl=SECOND)
            # As other clients do: without a rollup, so that the older value comes back.
            await js.publish(f"$KV.{fresh}.theirs", b"new", ttl=SECOND)
            await until(lambda: cache.stats.updates >= 4)
            await sleep(0.8)  # nothing can expire yet; from here on without a pause, to be there when it does
            after = b"old" if history > 1 else None
            seen: set[tuple[str, bytes | None]] = set()
            while (await value(kv, "ours"), await value(kv, "theirs")) != (None, after):
                seen |= {("ours", await value(cache, "ours")), ("theirs", await value(cache, "theirs"))}
            for _ in range(3):  # at once, without a check
                assert (await value(cache, "ours"), await value(cache, "theirs")) == (None, after)
            assert seen <= {("ours", b"new"), ("ours", None), ("theirs", b"new"), ("theirs", after)}


@pytest.mark.spec("KV-21", "KV-47")
async def test_a_bucket_with_a_ttl_is_cached_and_its_values_expire(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, ttl=LATE))
        await kv.put("k", b"1")
        async with cached(kv, recheck_after=LATE) as cache:
            assert await is_hit(cache, "k")
        short = await js.create_key_value(BucketConfig(bucket=f"{fresh}s", ttl=SECOND))
        await short.put("k", b"1")
        async with cached(short, recheck_after=LATE) as cache:
            await sleep(0.8)  # it cannot expire before
            while await value(short, "k") is not None:
                assert await value(cache, "k") in (b"1", None)
            assert await value(cache, "k") is None
            assert await short.create("k", b"2") == 2
            await until(partial(has, cache, "k", b"2"))


@pytest.mark.spec("KV-21", "KV-47")
async def test_a_ttl_that_the_bucket_gets_later_is_noticed(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh))
        await kv.put("k", b"1")
        async with cached(kv, recheck_after=SOON) as cache:
            await until(partial(is_hit, cache, "k"))
            await js.update_key_value(BucketConfig(bucket=fresh, ttl=SECOND))
            await until(partial(has, cache, "k", None))
            assert await value(kv, "k") is None


@pytest.mark.spec("KV-21", "KV-47")
async def test_a_bucket_that_is_made_again_is_another_one(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, connect(any_server) as two:
        js, config = nc.jetstream(), BucketConfig(bucket=fresh)
        kv = await js.create_key_value(config)
        for n in range(5):
            await kv.put(f"k{n}", b"old")
        async with cached(kv, recheck_after=SOON) as cache:
            await until(partial(is_hit, cache, "k3"))
            await cache.put("own", b"old")
            await two.jetstream().delete_key_value(fresh)
            theirs = await two.jetstream().create_key_value(config)
            revision = 0
            for _ in range(6):  # the same revisions
                revision = await theirs.put("k0", b"new life")
            await until(partial(has, cache, "k3", None))
            assert await value(cache, "k0", min_last_revision=revision) == b"new life"
            assert await value(cache, "own") is None
            await until(partial(is_hit, cache, "k0"))
            await theirs.put("k0", b"newer")
            await until(partial(has, cache, "k0", b"newer"))
        async with cached(kv, recheck_after=SOON) as cache:
            await kv.destroy()
            kv = await js.create_key_value(config)
            await kv.put("k1", b"x")  # fewer revisions
            await until(partial(has, cache, "k0", None))
            assert await value(cache, "k1") == b"x"


@pytest.mark.spec("KV-21", "KV-47")
async def test_a_write_shows_that_the_bucket_was_made_again(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the feed or a check has noticed it: the revision of the write is one that the cache knows already."""
    async with connect(any_server) as nc, connect(any_server) as two:
        kv = await nc.jetstream().create_key_value(fresh)
        for n in range(5):
            await kv.put(f"k{n}", b"old")
        async with cached(kv, recheck_after=LATE) as cache:
            assert await is_hit(cache, "k3")
            monkeypatch.setattr(StreamFeed, "is_live", True)
            await two.jetstream().delete_key_value(fresh)
            await two.jetstream().create_key_value(fresh)
            assert await cache.put("own", b"new") == 1
            assert await value(cache, "own") == b"new"
            assert await value(cache, "k3") is None
            monkeypatch.undo()
            await until(partial(is_hit, cache, "own"))


@pytest.mark.spec("KV-54")
@pytest.mark.parametrize("read", ["history", "keys", "get_range", "snapshot"])
@pytest.mark.steady
async def test_reads_of_a_bucket_that_is_made_again_do_not_wait_for_the_old_one(
    any_server: str, fresh: str, read: str
) -> None:
    """What was written to the old bucket is not asked of the new one, also before a check has noticed it."""
    async with connect(any_server) as nc, connect(any_server) as two:
        kv = await nc.jetstream().create_key_value(fresh)
        async with cached(kv, recheck_after=LATE) as cache:
            await cache.put("a", b"old")
            await cache.put("b", b"old")
            await two.jetstream().delete_key_value(fresh)
            await (await two.jetstream().create_key_value(fresh)).put("a", b"new")
            if read == "history":
                assert [entry.value for entry in await cache.history("a", timeout=2)] == [b"new"]
            else:
                assert list(await getattr(cache, read)(timeout=2)) == ["a"]


@pytest.mark.spec("KV-21", "KV-47")
@pytest.mark.parametrize("filters", [(), ("k.*",)], ids=["whole", "filtered"])
@pytest.mark.parametrize("removal", ["subject", "stream", "message", "limit", "history"])
async def test_what_is_removed_without_a_message_is_noticed(
    any_server: str, fresh: str, removal: str, filters: tuple[str, ...]
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        limit = 2000 if removal == "limit" else -1
        config = StreamConfig(name=f"KV_{fresh}", subjects=(f"$KV.{fresh}.>",), allow_direct=True, max_bytes=limit)
        history = 3 if removal == "history" else 1
        stream = await js.create_stream(config.replace(max_msgs_per_subject=history))
        kv = await js.key_value(fresh)
        await kv.put("k.a", b"older")
        revision = await kv.put("k.a", b"v")
        await kv.put("k.b", b"v")
        async with cached(kv, *filters, recheck_after=SOON) as cache:
            await until(partial(is_hit, cache, "k.a"))
            for _ in range(3):
                await cache.get("k.a")
                await kv.put("other", b"x")  # writes do not hide a removal
            if removal == "subject":
                await stream.purge(subject=f"$KV.{fresh}.k.a")
            elif removal == "stream":
                await stream.purge()
            elif removal == "limit":
                for n in range(10):
                    await kv.put(f"fill.{n}", b"y" * 300)
            else:
                await stream.delete_message(revision)
            expected = b"older" if removal == "history" else None
            await kv.put("other", b"y")
            await until(partial(has, cache, "k.a", expected))
            assert await value(kv, "k.a") == expected
            await kv.put("k.a", b"again")
            await until(partial(has, cache, "k.a", b"again"))
            assert sum(cache.stats.reasons.values()) == cache.stats.misses


@pytest.mark.spec("KV-21", "KV-47")
async def test_a_key_whose_mark_another_handle_removed_can_be_created_through_the_cache(
    any_server: str, fresh: str
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh))
        await kv.put("a", b"1")
        await kv.delete("a")
        async with cached(kv, recheck_after=LATE) as cache:
            assert await value(cache, "a") is None
            await kv.purge_deletes(older_than=timedelta(0))
            revision = await cache.create("a", b"2")
            assert (await cache.get("a")).revision == revision


@pytest.mark.spec("KV-21", "KV-47")
async def test_a_session_sees_its_own_writes_through_a_cache(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, ttl=LATE))
        async with nc.jetstream().session() as session:
            kv = await session.key_value(fresh)
            async with cached(kv, recheck_after=SOON) as cache:
                for n in range(50):
                    await (kv if n % 2 else cache).put(f"k.{n % 3}", b"%d" % n)
                    assert await value(cache, f"k.{n % 3}") == b"%d" % n
                assert await cache.delete("k.0")
                assert await value(cache, "k.0") is None


@pytest.mark.spec("KV-21", "KV-48")
@pytest.mark.steady
async def test_a_quiet_bucket_and_one_that_is_written_are_answered_from_memory(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=2))
        for n in range(20):
            await kv.put(f"k.{n}", b"%d" % n)
        soon = timedelta(seconds=0.6)  # so long a proof counts: two reads must fit in
        async with cached(kv, recheck_after=soon) as cache, cached(kv, "k.*", recheck_after=soon) as some:
            checks = cache.stats.checks, some.stats.checks
            for n in range(20):
                await kv.put("w", b"%d" % n)
                assert await value(cache, f"k.{n}") == await value(some, f"k.{n}") == b"%d" % n
            await until(lambda: cache.stats.checks > checks[0] + 3 and some.stats.checks > checks[1] + 3)
            await until(partial(is_hit, cache, "k.7"))  # checked, and counted: the whole cache is proven again
            await value(some, "k.7")
            await until(partial(is_hit, some, "k.7"))  # this key alone
            assert cache.stats.loads == some.stats.loads == 1
            assert (await cache.get("w")).value == b"19"


@pytest.mark.spec("KV-47")
async def test_what_was_shown_of_a_bucket_that_was_made_again_is_not_absent_by_memory(
    any_server: str, fresh: str
) -> None:
    """The handle has forgotten what it knew by key: all that it has seen counts for each of them."""
    async with connect(any_server) as nc, connect(any_server) as two:
        kv, other = await nc.jetstream().create_key_value(fresh), two.jetstream()
        async with cached(kv, recheck_after=LATE) as cache:
            assert await value(kv, "none") is None
            await other.delete_key_value(fresh)
            revision = await (await other.create_key_value(fresh)).put("b", b"new")
            assert (await cache.get("b", revision=revision)).value == b"new"
            await kv.status()  # it learns that the bucket is another one
            assert await value(cache, "b") == b"new"


@pytest.mark.spec("KV-48")
@pytest.mark.parametrize("consistency", ["own-writes", "any"])
async def test_a_cache_of_some_keys_answers_from_memory_whatever_its_handle_saw_of_others(
    any_server: str, fresh: str, consistency: str
) -> None:
    """Its feed does not bring the revisions of other keys, and must not wait for them for good."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(fresh)
        kv = await js.key_value(fresh, consistency=consistency)
        await kv.put("k.a", b"1")
        async with cached(kv, "k.*", recheck_after=LATE) as some:
            assert await is_hit(some, "k.a")
            last = await some.put("other", b"1")
            assert await value(some, "other") == b"1"
            assert await is_hit(some, "k.a")
            assert await value(kv, "k.a", min_last_revision=last) == b"1"  # as of a revision that the feed never brings
            assert await value(kv, "k.none", min_last_revision=last) is None
            assert await is_hit(some, "k.a")
            assert await is_hit(some, "k.none")
            async with some.writer() as writer:
                await writer.put("other", b"2")
            await value(some, "k.a")
            assert await value(some, "other") == b"2"
            last = await kv.put("k.a", b"2")  # and what is newer is not hidden by it
            assert await value(some, "k.a", min_last_revision=last) == b"2"
            await until(partial(is_hit, some, "k.a"))
            assert await value(some, "k.a") == b"2"


@pytest.mark.spec("KV-21", "KV-48")
async def test_statistics_say_why_a_read_went_to_the_bucket(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, value_ttl=True))
        await kv.put("k.a", b"1")
        await kv.put("other", b"1")
        async with cached(kv.with_codec(Base64Keys()), recheck_after=timedelta(0)) as cache:
            await cache.put("k.a", b"1")
            assert not await is_hit(cache, "k.a")  # every read goes to the bucket
            assert cache.stats.misses == sum(cache.stats.reasons.values()) == 1
        async with cached(kv, "k.*", recheck_after=LATE) as cache:
            await cache.get("other")
            assert cache.stats.reasons == {Miss.NOT_HELD: 1}
            last = await kv.put("other", b"2")
            await cache.get("k.a", min_last_revision=last)  # the feed has the keys of the filter alone
            assert cache.stats.reasons == {Miss.NOT_HELD: 1, Miss.BEHIND: 1}
        await cache.get("k.a")
        assert cache.stats.reasons[Miss.OFFLINE] == 1
        assert (cache.stats.misses, cache.stats.behind) == (3, 1)


# unasync: off
async def test_a_program_that_kept_the_loop_to_itself_waits_for_no_pause_between_checks(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that are answered from memory let no other task run: here until the last check is too old."""
    from slipstream.kv._async import cached_storage
    from slipstream.kv._async.runtime import clock

    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(fresh)
        await kv.put("k", b"1")
        async with cached(kv, recheck_after=2 * LATE) as cache:
            now = clock() + 3 * LATE.total_seconds()
            monkeypatch.setattr(cached_storage, "clock", lambda: now)
            assert not await is_hit(cache, "k")
            assert cache.stats.reasons == {Miss.UNCHECKED: 1}
            await until(lambda: cache.stats.checks == 2)
            assert await is_hit(cache, "k")


# unasync: on
