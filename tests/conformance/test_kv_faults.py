"""Watches whose connection is cut, whose frames are lost or doubled, whose server is killed: no update is skipped or
comes twice, a watch that cannot go on says so, and no consumer is left behind."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from slipstream import BucketConfig, connect, connect_blocking
from slipstream.errors import BucketNotFoundError, Error, StaleReadError
from slipstream.jetstream._async.stream import Stream
from slipstream.kv import Entry
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.watch import Watch
from tests.proxy import proxy_to, whole
from tests.servers import OurProcess, RealProcess

HISTORY = 64
FAST = {"reconnect_wait": 0.01, "reconnect_max_wait": 0.1}


async def put_all(kv: KeyValue[bytes], first: int, count: int, pause: float = 0.0) -> None:
    """Each key is written fewer times than its history holds, so that nothing may be missing."""
    for n in range(first, first + count):
        await kv.put(f"k.{n // 32}", b"%d" % n)
        if pause:
            await asyncio.sleep(pause)


def is_of_a_watch(frame: bytes) -> bool:
    """Whether a frame of the server is an entry of a bucket."""
    return frame.startswith((b"MSG", b"HMSG")) and b"$KV." in frame.split(b"\r\n")[0]


def is_heartbeat(frame: bytes) -> bool:
    return frame.startswith(b"HMSG") and b"NATS/1.0 100 Idle Heartbeat" in frame


@pytest.fixture
def fast_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches whose heartbeats come so often that losing three of them takes no time."""
    defaults = Stream.ordered_consumer.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "heartbeat", 0.2)


async def read(watch: Watch[bytes], count: int) -> list[int]:
    seen: list[int] = []
    while len(seen) < count:
        entries = await watch.next_entries(timeout=30)
        seen += [int(entry.value) for entry in entries]
    return seen


async def no_consumers(kv: KeyValue[bytes]) -> bool:
    deadline = time.monotonic() + 15
    while (await kv.status()).stream_info.state.consumer_count:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


@pytest.mark.spec("KV-10")
@pytest.mark.usefixtures("fast_heartbeats")
@pytest.mark.parametrize("history", [HISTORY, 5])
async def test_a_watch_survives_lost_connections_lost_and_duplicated_messages(
    any_server: str, fresh: str, history: int
) -> None:
    """Whatever is lost: with a history that holds all writes every one arrives, otherwise all that the bucket keeps."""
    number = itertools.count(1)

    def fault(frame: bytes) -> list[bytes]:
        if is_heartbeat(frame):
            return []
        if not is_of_a_watch(frame):
            return [frame]  # answers pass
        n = next(number)
        return [] if n % 47 == 0 else [frame, frame] if n % 31 == 0 else [frame]

    async with connect(any_server) as direct, proxy_to(any_server) as proxy:
        kv = await direct.jetstream().create_key_value(BucketConfig(bucket=fresh, history=history))
        await put_all(kv, 0, 50)
        async with connect(proxy.url, **FAST) as nc:  # type: ignore[arg-type]
            theirs = await nc.jetstream().key_value(fresh)
            async with await theirs.watch("k.>", include_history=True) as watch:
                proxy.fault = fault
                seen: list[int] = []
                reading = asyncio.create_task(read_until(watch, 299, seen))
                for first in range(50, 300, 50):
                    await put_all(kv, first, 50)
                    proxy.cut()
                await reading
                kept = [int(entry.value) for n in range(300 // 32 + 1) for entry in await kv.history(f"k.{n}")]
                assert seen == sorted(set(seen))  # none twice, in order
                assert set(kept) <= set(seen)
                assert len(kept) == (300 if history == HISTORY else 50)
                proxy.fault = whole
                await put_all(kv, 300, 5)
                assert await read(watch, 5) == list(range(300, 305))
                assert watch.is_current
        assert await no_consumers(kv)


async def read_until(watch: Watch[bytes], last: int, seen: list[int]) -> None:
    while last not in seen[-1:]:
        seen += [int(entry.value) for entry in await watch.next_entries(timeout=30)]


@pytest.mark.spec("KV-10")
@pytest.mark.usefixtures("fast_heartbeats")
@pytest.mark.parametrize("is_all_lost", [False, True], ids=["heartbeats", "heartbeats-and-entries"])
async def test_a_watch_that_hears_nothing_goes_on_with_a_new_consumer(
    any_server: str, fresh: str, is_all_lost: bool
) -> None:
    async with connect(any_server) as direct, proxy_to(any_server) as proxy:
        kv = await direct.jetstream().create_key_value(BucketConfig(bucket=fresh, history=5))
        for n in range(8):
            await kv.put("k", b"%d" % n)
        async with connect(proxy.url, **FAST) as nc:  # type: ignore[arg-type]
            theirs = await nc.jetstream().key_value(fresh)
            async with await theirs.watch(include_history=True) as watch:
                assert [int(entry.value) for entry in await watch.initial()] == [3, 4, 5, 6, 7]
                consumers = proxy.sent.count(b"CONSUMER.CREATE")

                def fault(frame: bytes) -> list[bytes]:
                    is_new = proxy.sent.count(b"CONSUMER.CREATE") > consumers
                    is_lost = is_heartbeat(frame) or (is_all_lost and is_of_a_watch(frame))
                    return [] if is_lost and not is_new else [frame]

                proxy.fault = fault
                reading = asyncio.create_task(read(watch, 3))
                if is_all_lost:
                    await put_three(kv, 8)
                async with asyncio.timeout(20):  # its own clock tells it that three heartbeats are missing
                    while proxy.sent.count(b"CONSUMER.CREATE") == consumers:
                        await asyncio.sleep(0.01)
                if not is_all_lost:
                    await put_three(kv, 8)
                assert await reading == [8, 9, 10]
                await put_three(kv, 11)
                assert await read(watch, 3) == [11, 12, 13]
        assert await no_consumers(kv)


async def put_three(kv: KeyValue[bytes], first: int) -> None:
    for n in range(first, first + 3):
        await kv.put("k", b"%d" % n)


async def test_an_idle_watch_continues_after_a_reconnect(any_server: str, fresh: str) -> None:
    async with connect(any_server) as direct, proxy_to(any_server) as proxy:
        kv = await direct.jetstream().create_key_value(BucketConfig(bucket=fresh, history=HISTORY))
        async with connect(proxy.url, **FAST) as nc:  # type: ignore[arg-type]
            theirs = await nc.jetstream().key_value(fresh)
            async with await theirs.watch() as empty, await theirs.watch(updates_only=True) as news:
                assert await empty.next(timeout=5) is None
                assert await news.next(timeout=5) is None
                proxy.is_refusing = True
                proxy.cut()  # nobody reads at this moment
                await put_all(kv, 0, 5)  # written while there is no connection
                proxy.is_refusing = False
                assert await read(empty, 5) == list(range(5))  # all of them, not only the last
                assert await read(news, 5) == list(range(5))
                await put_all(kv, 5, 5)
                assert await read(empty, 5) == list(range(5, 10))
        assert await no_consumers(kv)


async def test_a_watch_recovers_from_lost_heartbeats(any_server: str, fresh: str) -> None:
    async with connect(any_server) as direct, proxy_to(any_server) as proxy:
        kv = await direct.jetstream().create_key_value(BucketConfig(bucket=fresh, history=HISTORY))
        await put_all(kv, 0, 3)
        async with connect(proxy.url, **FAST) as nc:  # type: ignore[arg-type]
            theirs = await nc.jetstream().key_value(fresh)
            async with await theirs.watch(include_history=True) as watch:
                assert len(await watch.initial()) == 3
                name = watch._feed._consumer.consumer_name  # type: ignore[attr-defined]
                await direct.jetstream().stream(f"KV_{fresh}").delete_consumer(name)  # silently gone
                await put_all(kv, 3, 3)
                assert await read(watch, 3) == [3, 4, 5]


async def test_a_watch_whose_new_consumer_takes_a_second_to_prove_goes_on(any_server: str, fresh: str) -> None:
    """Over a slow link: a reader that asks every half second whether it has all must leave a creation its time."""
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=3))
        for n in range(9):
            await kv.put(f"k{n % 3}", b"%d" % n)
        async with await kv.watch() as watch:
            feed: Any = watch._feed
            consumer = feed._consumer
            create, tries = consumer._create, []

            async def create_slowly(deadline: float) -> None:
                tries.append(deadline)
                if deadline - nc.now() < 1.0:
                    raise StaleReadError("no consumer was placed in time", stream=consumer.stream, min_last_seq=1)
                await create(deadline)

            consumer._create = create_slowly
            consumer._discard_consumer()
            seen = [await watch.next(timeout=20) for _ in range(4)]
            assert [entry and entry.value for entry in seen] == [b"6", b"7", b"8", None]
            assert len(tries) == 1


async def test_a_watch_of_a_destroyed_bucket_raises(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        async with await kv.watch() as watch:
            await watch.initial()
            await kv.destroy()
            with pytest.raises(BucketNotFoundError):
                await watch.next(timeout=30)
        with pytest.raises(BucketNotFoundError):
            await kv.watch()


async def test_closing_a_watch_ends_its_iteration(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        await kv.put("a", b"1")
        watch = await kv.watch()
        seen: list[Entry[bytes] | None] = []

        async def follow() -> None:
            async for entry in watch:
                seen.append(entry)

        task = asyncio.create_task(follow())
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        await watch.close()
        await asyncio.wait_for(task, 5)
        assert [entry and entry.key for entry in seen] == ["a", None]
        assert await no_consumers(kv)


async def _through_restarts(server: Any) -> None:
    """A watch, idle or busy, over three restarts of its server."""
    async with connect(server.url, reconnect_wait=0.05, reconnect_max_wait=0.2) as nc:
        kv = await nc.jetstream(timeout=10).create_key_value(BucketConfig(bucket="b", history=HISTORY))
        await put_all(kv, 0, 10)
        busy, idle = await kv.watch(include_history=True), await kv.watch(updates_only=True)
        assert await read(busy, 10) == list(range(10))
        n = 10
        for _ in range(3):
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            for _ in range(5):
                await _put_surely(kv, n)
                n += 1
            assert await read(busy, 5) == list(range(n - 5, n))
        assert await read(idle, n - 10) == list(range(10, n))
        await busy.close()
        await idle.close()
        assert await no_consumers(kv)


async def _put_surely(kv: KeyValue[bytes], n: int) -> None:
    """Once, whatever happens to the answer: at the revision that it must have."""
    async with asyncio.timeout(30):
        while True:
            try:
                key = f"k.{n // 32}"
                last = await kv.storage.last(key)
                if last is not None and last.value == b"%d" % n:
                    return
                await kv.update(key, b"%d" % n, last=last.revision if last else 0)
                return
            except Error:
                await asyncio.sleep(0.05)


async def test_a_watch_survives_restarts_of_our_server(tmp_path: Path) -> None:
    with OurProcess(tmp_path) as server:
        await _through_restarts(server)


async def test_a_watch_survives_restarts_of_nats_server(tmp_path: Path) -> None:
    with RealProcess(tmp_path) as server:
        await _through_restarts(server)


def _blocking_through_a_restart(server: Any) -> None:
    with connect_blocking(server.url, reconnect_wait=0.05, reconnect_max_wait=0.2) as nc:
        kv = nc.jetstream(timeout=10).create_key_value(BucketConfig(bucket="b", history=HISTORY))
        kv.put("k", b"0")
        with kv.watch(include_history=True) as watch, kv.watch(updates_only=True) as idle:
            assert [entry.value for entry in watch.initial()] == [b"0"]
            server.kill()
            server.start()
            deadline = time.monotonic() + 30
            for n in range(1, 6):
                while True:
                    try:
                        last = kv.storage.last("k")
                        if last is not None and last.revision == n:
                            kv.update("k", b"%d" % n, last=n)
                        break
                    except Error:
                        assert time.monotonic() < deadline
                        time.sleep(0.02)
            for each in (watch, idle):
                seen: list[bytes] = []
                while len(seen) < 5:
                    seen += [entry.value for entry in each.next_entries(timeout=30)]
                assert seen == [b"1", b"2", b"3", b"4", b"5"]


def test_a_blocking_watch_survives_a_restart_of_our_server(tmp_path: Path) -> None:
    with OurProcess(tmp_path) as server:
        _blocking_through_a_restart(server)


def test_a_blocking_watch_survives_a_restart_of_nats_server(tmp_path: Path) -> None:
    with RealProcess(tmp_path) as server:
        _blocking_through_a_restart(server)
