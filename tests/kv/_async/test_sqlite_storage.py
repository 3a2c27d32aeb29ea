"""The SQLite backend: the suite of all backends, in memory and in a file, and its own rules."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slipstream import BucketConfig, Placement, Republish
from slipstream.errors import (
    ApiError,
    BucketNotFoundError,
    BucketOptionsError,
    KeyNotFoundError,
    StoreError,
    StreamNameInUseError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.kv import Operation
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.kv._async.sqlite_storage import SqliteStorage, open_sqlite
from tests._async.concurrency import sleep, spawn
from tests.kv._async.behaviour import Behaviour

SECOND = 10**9


@pytest.mark.spec("KV-28")
class TestInMemory(Behaviour):
    @asynccontextmanager
    async def bucket(self, config: BucketConfig) -> AsyncIterator[KeyValue[bytes]]:
        kv = await open_local_key_value(config=config)
        try:
            yield kv
        finally:
            await kv.close()


@pytest.mark.spec("KV-28")
class TestInAFile(Behaviour):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "bucket.db")

    @asynccontextmanager
    async def bucket(self, config: BucketConfig) -> AsyncIterator[KeyValue[bytes]]:
        kv = await open_local_key_value(self.path, config)
        try:
            yield kv
        finally:
            await kv.close()


class Clock:
    def __init__(self) -> None:
        self.ns = 1_800_000_000 * SECOND

    def __call__(self) -> int:
        return self.ns


async def in_virtual_time(config: BucketConfig) -> tuple[KeyValue[bytes], Clock]:
    clock = Clock()
    storage: SqliteStorage = await open_sqlite(config=config, now=clock)
    return KeyValue(storage), clock


async def test_a_file_holds_its_bucket(tmp_path: Path) -> None:
    path, config = str(tmp_path / "b.db"), BucketConfig(bucket="b", history=2)
    kv = await open_local_key_value(path, config)
    revision = await kv.put("a", b"1")
    with pytest.raises(StoreError, match="locked"):
        await open_local_key_value(path)
    await kv.close()
    kv = await open_local_key_value(path)
    assert (await kv.get("a")).revision == revision
    assert await kv.put("a", b"2") == revision + 1
    assert (await kv.status()).history == 2
    await kv.close()
    with pytest.raises(StreamNameInUseError, match="other options: history: wanted 3, it has 2") as different:
        await open_local_key_value(path, BucketConfig(bucket="b", history=3))
    assert isinstance(different.value, BucketOptionsError)
    assert different.value.differences == {"history": (3, 2)}
    with pytest.raises(StreamNameInUseError, match="must contain bucket 'c', got 'b'"):
        await open_local_key_value(path, BucketConfig(bucket="c", history=2))


async def test_there_must_be_a_bucket_or_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(BucketNotFoundError):
        await open_local_key_value(str(tmp_path / "none.db"))
    with pytest.raises(UsageError, match="config must be set"):
        await open_local_key_value()
    (tmp_path / "garbage.db").write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match="not a database"):
        await open_local_key_value(str(tmp_path / "garbage.db"))


async def test_values_expire() -> None:
    kv, clock = await in_virtual_time(BucketConfig(bucket="b", ttl=timedelta(seconds=10), value_ttl=True))
    await kv.put("a", b"1")
    await kv.put("b", b"2", ttl=timedelta(seconds=3))
    clock.ns += 3 * SECOND
    assert await kv.keys() == ["a"]
    with pytest.raises(KeyNotFoundError):
        await kv.get("b")
    clock.ns += 7 * SECOND
    assert await kv.keys() == []
    assert (await kv.status()).values == 0


async def test_the_ttl_of_a_value_must_be_enabled_and_is_capped_by_the_bucket() -> None:
    kv, clock = await in_virtual_time(BucketConfig(bucket="b", ttl=timedelta(seconds=10), value_ttl=True))
    await kv.put("a", b"1", ttl=timedelta(hours=1))
    clock.ns += 10 * SECOND
    assert await kv.keys() == []
    kv, _ = await in_virtual_time(BucketConfig(bucket="b"))
    with pytest.raises(ApiError, match="TTL is disabled") as caught:
        await kv.put("a", b"1", ttl=timedelta(hours=1))
    assert caught.value.err_code == 10166
    assert await kv.keys() == []


@pytest.mark.parametrize("is_file", [False, True])
async def test_a_waiting_watch_raises_when_the_bucket_is_closed_or_destroyed(tmp_path: Path, is_file: bool) -> None:
    for end, error in ((KeyValue.destroy, BucketNotFoundError), (KeyValue.close, UsageError)):
        path = str(tmp_path / f"{end.__name__}.db") if is_file else ":memory:"
        kv = await open_local_key_value(path, BucketConfig(bucket="b"))
        await kv.put("a", b"1")
        watch = await kv.watch()
        await watch.initial()
        change = spawn(partial(watch.next, timeout=5))
        await sleep(0.05)
        await end(kv)
        with pytest.raises(error, match=r"destroyed|closed"):
            await change.result()
        for ask in (watch.next, kv.keys, kv.status, kv.watch):
            with pytest.raises(error):
                await ask()
        await kv.close()
        await kv.close()


async def test_expired_values_leave_a_marker_if_limit_marker_ttl_is_set() -> None:
    kv, clock = await in_virtual_time(BucketConfig(bucket="b", limit_marker_ttl=timedelta(seconds=60)))
    await kv.put("a", b"1", ttl=timedelta(seconds=3))
    await kv.put("b", b"1")
    watch = await kv.watch(updates_only=True)
    clock.ns += 3 * SECOND
    assert await watch.next() is None
    entry = await watch.next(timeout=20)
    assert entry is not None
    assert (entry.key, entry.operation, entry.marker) == ("a", Operation.EXPIRED, "MaxAge")
    with pytest.raises(KeyNotFoundError, match="MaxAge"):
        await kv.get("a")
    assert await kv.keys() == ["b"]
    clock.ns += 60 * SECOND
    with pytest.raises(KeyNotFoundError):
        await kv.history("a")
    assert await kv.create("a", b"2") > entry.revision


async def test_a_full_bucket_drops_its_oldest_entries() -> None:
    kv, _ = await in_virtual_time(BucketConfig(bucket="b", max_bytes=500))
    for n in range(20):
        await kv.put(f"k{n}", b"x" * 50)
    status = await kv.status()
    assert status.bytes <= 500
    keys = await kv.keys()
    assert keys == [f"k{n}" for n in range(20)][-len(keys) :]


async def test_concurrent_updates_do_not_overwrite_each_other(tmp_path: Path) -> None:
    kv = await open_local_key_value(str(tmp_path / "b.db"), BucketConfig(bucket="b"))
    await kv.put("n", b"0")

    async def add() -> None:
        done = 0
        while done < 10:
            entry = await kv.get("n")
            with suppress(WrongLastSequenceError):
                await kv.update("n", b"%d" % (int(entry.value) + 1), last=entry.revision)
                done += 1

    adders = [spawn(add) for _ in range(5)]
    for adder in adders:
        await adder.result()
    assert (await kv.get("n")).value == b"50"
    await kv.close()


# unasync: off
async def test_cancelled_calls_leave_the_file_consistent(tmp_path: Path) -> None:
    kv = await open_local_key_value(str(tmp_path / "b.db"), BucketConfig(bucket="b", history=3))
    chance = random.Random(3)
    for _ in range(30):
        tasks = [asyncio.create_task(kv.put(f"k{n}", b"x" * 100)) for n in range(5)]
        await asyncio.sleep(chance.uniform(0, 0.004))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await kv.put("after", b"1") == (await kv.status()).last_revision
    for key in await kv.keys():
        assert len(await kv.history(key)) <= 3
    await kv.close()


# unasync: on


@pytest.mark.spec("KV-43")
@pytest.mark.parametrize(
    "option",
    [
        {"replicas": 3},
        {"mirror": "origin"},
        {"sources": ("origin",)},
        {"placement": Placement(cluster="east")},
        {"republish": Republish(src=">", dest="copy.>")},
        {"compression": True},
        {"stream": "OTHER"},
        {"subject_prefix": "other"},
    ],
    ids=lambda option: next(iter(option)),
)
async def test_an_option_without_effect_is_rejected(option: dict[str, Any]) -> None:
    name = next(iter(option))
    with pytest.raises(UsageError, match=f"{name} must not be set for a local bucket"):
        await open_local_key_value(config=BucketConfig(bucket="b", **option))


@pytest.mark.spec("KV-43")
async def test_the_storage_of_a_local_bucket_is_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="storage of this local bucket must be 'file' or not set, got 'memory'"):
        await open_local_key_value(str(tmp_path / "b.db"), BucketConfig(bucket="b", storage="memory"))
    with pytest.raises(UsageError, match="storage of this local bucket must be 'memory' or not set, got 'file'"):
        await open_local_key_value(config=BucketConfig(bucket="b", storage="file"))
    kv = await open_local_key_value(config=BucketConfig(bucket="b", storage="memory", replicas=1))
    await kv.close()


async def test_every_call_after_destroy_says_that_the_bucket_is_gone() -> None:
    kv = await open_local_key_value(config=BucketConfig(bucket="b"))
    await kv.put("a", b"1")
    watch = await kv.watch()
    await watch.initial()
    await kv.destroy()
    calls: list[Any] = [
        partial(kv.get, "a"),
        partial(kv.get, "a", revision=1),
        partial(kv.put, "a", b"2"),
        partial(kv.create, "a", b"2"),
        partial(kv.delete, "a"),
        partial(kv.purge, "a"),
        partial(kv.history, "a"),
        kv.keys,
        kv.get_range,
        kv.snapshot,
        kv.watch,
        kv.purge_deletes,
        kv.status,
        kv.destroy,
        partial(watch.next, timeout=5),
    ]
    for call in calls:
        with pytest.raises(BucketNotFoundError, match="bucket 'b' was destroyed"):
            await call()
    await watch.close()
    await kv.close()


@pytest.mark.spec("KV-52")
async def test_a_local_bucket_takes_any_consistency_and_is_the_latest() -> None:
    for consistency in ("own-writes", "any", "latest"):
        kv = await open_local_key_value(config=BucketConfig(bucket="b"), consistency=consistency)
        await kv.put("a", b"1")
        assert (await kv.get("a")).value == b"1"
        await kv.close()
    with pytest.raises(UsageError, match="consistency must be 'own-writes', 'any' or 'latest', got 'some'"):
        await open_local_key_value(config=BucketConfig(bucket="b"), consistency="some")
