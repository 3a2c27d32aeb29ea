"""The embedded backend: the suite of all backends, in memory and in a file, and what is its own."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream import BucketConfig
from slipstream.errors import (
    ApiError,
    BucketNotFoundError,
    KeyNotFoundError,
    StoreError,
    StreamNameInUseError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.kv import Operation
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.kv._async.sqlite_storage import SqliteStorage, open_sqlite
from slipstream.kv._sync.key_value import open_local_key_value as open_blocking
from tests.kv.behaviour import Behaviour

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
    with pytest.raises(StreamNameInUseError, match="another configuration"):
        await open_local_key_value(path, BucketConfig(bucket="b", history=3))


async def test_there_must_be_a_bucket_or_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(BucketNotFoundError):
        await open_local_key_value(str(tmp_path / "none.db"))
    with pytest.raises(UsageError, match="config must be set"):
        await open_local_key_value()
    (tmp_path / "garbage.db").write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match="not a database"):
        await open_local_key_value(str(tmp_path / "garbage.db"))


async def test_values_go_when_their_time_is_up() -> None:
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


async def test_a_ttl_of_a_value_is_the_buckets_to_allow_and_to_bound() -> None:
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
async def test_who_waits_for_entries_is_told_that_there_will_be_none(tmp_path: Path, is_file: bool) -> None:
    for end, error in ((KeyValue.destroy, BucketNotFoundError), (KeyValue.close, UsageError)):
        path = str(tmp_path / f"{end.__name__}.db") if is_file else ":memory:"
        kv = await open_local_key_value(path, BucketConfig(bucket="b"))
        await kv.put("a", b"1")
        watch = await kv.watch()
        await watch.initial()
        news = asyncio.create_task(watch.next(timeout=5))
        await asyncio.sleep(0.05)
        await end(kv)
        with pytest.raises(error, match=r"destroyed|closed"):
            await news
        for ask in (watch.next, kv.keys, kv.status, kv.watch):
            with pytest.raises(error):
                await ask()
        await kv.close()
        await kv.close()


def test_a_blocking_watch_is_told_that_its_bucket_is_closed(tmp_path: Path) -> None:
    kv = open_blocking(str(tmp_path / "b.db"), BucketConfig(bucket="b"))
    with kv.watch() as watch:
        assert watch.initial() == []
        threading.Timer(0.05, kv.close).start()
        with pytest.raises(UsageError, match="closed"):
            watch.next(timeout=5)


async def test_limits_leave_a_marker_where_the_bucket_says_so() -> None:
    kv, clock = await in_virtual_time(BucketConfig(bucket="b", limit_marker_ttl=timedelta(seconds=60)))
    await kv.put("a", b"1", ttl=timedelta(seconds=3))
    await kv.put("b", b"1")
    watch = await kv.watch(updates_only=True)
    clock.ns += 3 * SECOND
    assert await watch.next() is None
    entry = await watch.next(timeout=1)
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


async def test_writers_at_once_do_not_lose_each_other(tmp_path: Path) -> None:
    kv = await open_local_key_value(str(tmp_path / "b.db"), BucketConfig(bucket="b"))
    await kv.put("n", b"0")

    async def add() -> None:
        done = 0
        while done < 10:
            entry = await kv.get("n")
            with suppress(WrongLastSequenceError):
                await kv.update("n", b"%d" % (int(entry.value) + 1), last=entry.revision)
                done += 1

    await asyncio.gather(*(add() for _ in range(5)))
    assert (await kv.get("n")).value == b"50"
    await kv.close()


async def test_calls_that_are_cancelled_leave_the_file_whole(tmp_path: Path) -> None:
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


WRITER = """
import sys
from slipstream import BucketConfig
from slipstream.kv._sync.key_value import open_local_key_value
kv = open_local_key_value(sys.argv[1], BucketConfig(bucket="b", history=64))
for n in range(10**6):
    print(kv.put(f"k{n % 100}", b"%d" % n), flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(300)]
    process.kill()
    rest = process.stdout.read().splitlines()
    process.wait(timeout=20)
    process.stdout.close()
    last = int(rest[-1]) if rest and rest[-1].isdigit() else acknowledged[-1]
    kv = open_blocking(str(path))
    assert kv.status().last_revision >= acknowledged[-1]
    for revision in (*acknowledged, last):
        assert kv.get(f"k{(revision - 1) % 100}", revision=revision).value == b"%d" % (revision - 1)
    kv.close()


def test_the_blocking_bucket_without_a_server(tmp_path: Path) -> None:
    kv = open_blocking(str(tmp_path / "b.db"), BucketConfig(bucket="b", history=2))
    revision = kv.put("a", b"1")
    assert kv.get("a", min_last_revision=revision).value == b"1"
    with kv.watch() as watch:
        assert [entry.key for entry in watch.initial()] == ["a"]
        kv.put("b", b"2")
        entry = watch.next(timeout=5)
        assert entry is not None
        assert entry.value == b"2"
    assert [entry.key for entry in kv.get_range("*").values()] == ["a", "b"]
    kv.close()
