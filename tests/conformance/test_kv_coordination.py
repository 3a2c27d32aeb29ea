"""Locks and elections under faults, with a checker: never two holders at once, never a token accepted out of order.

Contenders have clocks that show different times and run at different speeds, connections that are cut, and holders that
stall between looking at their lease and acting, or die. The resource refuses a token lower than one it has seen. (Whole
processes are stopped by signals in `_async/test_kv_leases.py`.)
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import pytest

from slipstream import BucketConfig, Client, connect
from slipstream.errors import Error, LeaseLostError
from slipstream.kv import Operation
from slipstream.kv._async.lease import Lease, Lock
from slipstream.kv._async.storage import Storage, WrappedStorage
from slipstream.kv.bucket import BucketStatus
from tests.lock_history import Pass, check_history
from tests.proxy import Proxy, proxy_to

TTL = timedelta(seconds=1)


def clock(offset: float, rate: float) -> Callable[[], float]:
    return lambda: offset + time.monotonic() * rate


class Resource:
    """What a lock protects: it takes a write only with a token that is not lower than the highest it has seen."""

    def __init__(self) -> None:
        self.highest = 0
        self.accepted: list[tuple[int, str]] = []
        self.refused = 0

    def write(self, token: int, name: str) -> None:
        if token < self.highest:
            self.refused += 1
            return
        self.highest = token
        self.accepted.append((token, name))


class Checker:
    """Looks at all leases at once: at no moment may two of them be held."""

    def __init__(self, leases: list[Lease]) -> None:
        self.leases = leases
        self.looks = 0

    def look(self) -> None:
        self.looks += 1
        held = [lease.name for lease in self.leases if lease.is_held]
        assert len(held) <= 1, f"two holders at once: {held}"


class Stallable(WrappedStorage[bytes]):
    """The bucket as a holder sees it that stalls: nothing it sends leaves, its renewals neither."""

    def __init__(self, inner: Storage[bytes]) -> None:
        super().__init__(inner)
        self.runs = asyncio.Event()
        self.runs.set()

    async def write_path(self, *, timeout: float | None = None) -> Sequence[BucketStatus]:
        await self.runs.wait()
        return await super().write_path(timeout=timeout)

    async def append(
        self,
        key: str,
        value: bytes | None,
        *,
        operation: Operation = Operation.PUT,
        last: int | None = None,
        ttl: timedelta | None = None,
        timeout: float | None = None,
    ) -> int:
        await self.runs.wait()
        return await super().append(key, value, operation=operation, last=last, ttl=ttl, timeout=timeout)


class Run:
    """One fault run: what every contender shares."""

    def __init__(self, bucket: str, seed: int, seconds: float) -> None:
        self.bucket = bucket
        self.chance = random.Random(seed)
        self.resource = Resource()
        self.checker = Checker([])
        self.passes: list[Pass] = []
        self._until = time.monotonic() + seconds

    def is_over(self) -> bool:
        self.checker.look()
        return time.monotonic() > self._until

    async def contend(self, url: str, name: str) -> None:
        """Contend until the end; after each death as another program."""
        lives = 0
        while not self.is_over():
            lives += 1
            await asyncio.sleep(0.01)
            with suppress(Error):  # also of a connection that is refused
                async with connect(url, reconnect_wait=0.02, reconnect_max_wait=0.1) as nc:
                    await self._live(nc, f"{name}.{lives}")

    async def _live(self, nc: Client, name: str) -> None:
        storage = Stallable((await nc.jetstream(timeout=1).key_value(self.bucket)).storage)
        now = clock(self.chance.uniform(-1e6, 1e6), self.chance.uniform(0.96, 1.04))
        lock = Lock(storage, "lock", ttl=TTL, name=name, now=now)
        self.checker.leases.append(lock)
        while not self.is_over():
            try:
                await lock.acquire(timeout=2)
            except Error:
                continue
            with suppress(LeaseLostError):
                await self._hold(lock, storage)
            if self.chance.random() >= 0.7:  # it dies without a release
                return
            await lock.release()

    async def _hold(self, lock: Lock, storage: Stallable) -> None:
        for _ in range(self.chance.randrange(1, 6)):
            before = time.monotonic()
            token = lock.check()
            self.passes.append(Pass(lock.name, token, before, time.monotonic()))
            self.checker.look()
            if self.chance.random() < 0.15:  # it stalls between the check and the write, longer than its lease
                storage.runs.clear()
                await asyncio.sleep(self.chance.uniform(1.2, 1.8))
                storage.runs.set()
            self.resource.write(token, lock.name)
            await asyncio.sleep(self.chance.uniform(0, 0.05))


async def cut_now_and_then(proxy: Proxy, chance: random.Random, is_over: Callable[[], bool]) -> None:
    while not is_over():
        await asyncio.sleep(chance.uniform(0.3, 0.9))
        proxy.is_refusing = chance.random() < 0.5
        proxy.cut()
        await asyncio.sleep(chance.uniform(0.0, 0.8))
        proxy.is_refusing = False


async def fault_run(url: str, bucket: str, *, seed: int, seconds: float, value_ttl: bool) -> Resource:
    """Four contenders, three of them behind connections that are cut; the whole history is checked."""
    async with connect(url) as direct, proxy_to(url) as one, proxy_to(url) as two:
        await direct.jetstream().create_key_value(BucketConfig(bucket=bucket, value_ttl=value_ttl))
        run = Run(bucket, seed, seconds)
        await asyncio.gather(
            *(run.contend(each, f"c{number}") for number, each in enumerate((url, one.url, two.url, one.url))),
            cut_now_and_then(one, run.chance, run.is_over),
            cut_now_and_then(two, run.chance, run.is_over),
        )
    assert run.checker.looks > 50
    check_history(run.passes)
    return run.resource


def check_writes(resource: Resource) -> None:
    tokens = [token for token, _ in resource.accepted]
    assert tokens == sorted(tokens)
    owners: dict[int, str] = {}
    for token, name in resource.accepted:
        assert owners.setdefault(token, name) == name, f"token {token} was two holders'"


@pytest.mark.parametrize("value_ttl", [False, True], ids=["observed", "ttl"])
async def test_locks_are_safe_under_faults(any_server: str, fresh: str, value_ttl: bool) -> None:
    resource = await fault_run(any_server, fresh, seed=11, seconds=8, value_ttl=value_ttl)
    check_writes(resource)
    assert len({token for token, _ in resource.accepted}) >= 3
    assert len({name for _, name in resource.accepted}) >= 2


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
async def test_locks_are_safe_under_faults_for_longer(any_server: str, fresh: str, seed: int) -> None:
    check_writes(await fault_run(any_server, fresh, seed=seed, seconds=30, value_ttl=bool(seed % 2)))


@pytest.mark.steady
async def test_a_claim_whose_ack_is_lost_is_recognized(any_server: str, fresh: str) -> None:
    async with connect(any_server) as direct, proxy_to(any_server) as proxy:
        kv = await direct.jetstream().create_key_value(BucketConfig(bucket=fresh))
        async with connect(proxy.url) as nc:
            lock = (await nc.jetstream().key_value(fresh)).lock("l", ttl=timedelta(seconds=6))

            def lose_acks(frame: bytes) -> list[bytes]:
                return [] if b'"stream":' in frame and b'"seq":' in frame else [frame]

            proxy.fault = lose_acks
            assert not await lock.try_acquire()  # the server has it, we do not know
            proxy.fault = lambda frame: [frame]
            assert await lock.try_acquire()
            entry = await kv.get("l")
            assert lock.token == entry.revision
            assert lock.remaining() < 5.4 - 2  # it counts from the claim that was sent first
            assert await lock.release()


@pytest.mark.steady
async def test_a_holder_without_a_connection_loses_its_lease(any_server: str, fresh: str) -> None:
    async with connect(any_server) as direct, proxy_to(any_server) as proxy:
        kv = await direct.jetstream().create_key_value(BucketConfig(bucket=fresh))
        async with connect(proxy.url, reconnect_wait=0.02, reconnect_max_wait=0.1) as nc:
            lock = (await nc.jetstream().key_value(fresh)).lock("l", ttl=TTL)
            token = await lock.acquire(timeout=5)
            other = kv.lock("l", ttl=TTL)
            waiting = asyncio.create_task(other.acquire(timeout=20))
            await asyncio.sleep(0.1)
            proxy.is_refusing = True
            proxy.cut()
            assert await waiting > token
            assert not lock.is_held
            proxy.is_refusing = False
            assert await lock.wait_lost(timeout=10)
            with pytest.raises(LeaseLostError):
                lock.check()
            assert other.is_held
            await other.release()


@pytest.mark.steady
async def test_a_cancelled_acquisition_holds_no_lease(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        one, other = kv.lock("l", ttl=TTL), kv.lock("l", ttl=TTL)
        await one.acquire()
        task = asyncio.create_task(other.acquire())
        await asyncio.sleep(0.2)
        await one.release()
        while not other.is_held:  # it is, and its watch is being closed
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
            return  # it was quicker
        assert not other.is_held
        await one.acquire(timeout=10)  # nobody renews it
        await one.release()
        before = len(nc._session.subscriptions)
        await other.acquire(timeout=10)
        for wait in range(10):  # cancelled anywhere, its watch goes too
            task = asyncio.create_task(one.acquire())
            await asyncio.sleep(0.001 * wait)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len(nc._session.subscriptions) <= before


@pytest.mark.steady
async def test_concurrent_renewals_keep_the_lease(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        lock = kv.lock("l", ttl=3 * TTL)  # much longer than a busy machine stands still
        await lock.acquire()
        for _ in range(20):
            await asyncio.gather(*(lock.renew(b"%d" % n) for n in range(5)))
        await asyncio.sleep(3.5)  # the background's own go on
        assert lock.is_held
        await lock.release()
