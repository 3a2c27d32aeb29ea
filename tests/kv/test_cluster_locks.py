"""Locks on a nats-server cluster of three: `check()` never passes twice at once, whatever happens to the servers."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

import pytest

from slipstream import BucketConfig, connect
from slipstream.errors import Error, LeaseLostError
from slipstream.kv._async.lease import Lock
from tests.cluster import NODES, Cluster
from tests.lock_history import Pass, check_history

TTL = 2.0
SEED = 31


class Contender:
    """One program, connected to one server first: it takes the lock, holds it for a while and gives it back."""

    def __init__(self, cluster: Cluster, bucket: str, name: str, node: str) -> None:
        self.passes: list[Pass] = []
        self._urls = [cluster.url(node), *cluster.urls]
        self._bucket = bucket
        self._name = name
        self._random = random.Random(name)

    async def run(self) -> None:
        async with connect(self._urls, reconnect_wait=0.1) as nc:
            lock = (await nc.jetstream(timeout=10).key_value(self._bucket)).lock("job", ttl=TTL, name=self._name)
            while True:
                with suppress(Error):  # no leader for longer than two leases
                    await lock.acquire()
                    await self._hold(lock, self._random.choice((0.2, 5.0)))
                with suppress(Error):
                    await lock.release()

    async def _hold(self, lock: Lock, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (before := time.monotonic()) < until:
            try:
                token = lock.check()
            except LeaseLostError:
                return
            self.passes.append(Pass(self._name, token, before, time.monotonic()))
            await asyncio.sleep(0.002)


async def strike(cluster: Cluster, stream: str, fault: str, seconds: float, rng: random.Random) -> None:
    """One fault of the server that leads the bucket, or of another one."""
    node = await asyncio.to_thread(cluster.leader, stream) if rng.random() < 0.7 else rng.choice(NODES)
    if fault == "freeze":
        cluster.freeze(node)
        try:
            await asyncio.sleep(seconds)
        finally:
            cluster.thaw(node)
    elif fault == "isolate":
        with cluster.isolated(node):
            await asyncio.sleep(seconds)
    else:
        await asyncio.to_thread(cluster.kill, node)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(cluster.start, node)
    await asyncio.sleep(1)


async def contend(cluster: Cluster, bucket: str, faults: list[str]) -> list[Pass]:
    """What four programs recorded while servers failed one after the other."""
    rng = random.Random(SEED)
    async with connect(cluster.urls) as nc:
        await nc.jetstream(timeout=15).create_key_value(BucketConfig(bucket=bucket, replicas=3, value_ttl=True))
    contenders = [Contender(cluster, bucket, name, node) for name, node in zip("abcd", (*NODES, NODES[0]), strict=True)]
    tasks = [asyncio.create_task(each.run()) for each in contenders]
    try:
        for fault in faults:
            await strike(cluster, f"KV_{bucket}", fault, rng.choice((1.0, TTL * 1.5, 6.0)), rng)
        seen = max((each.token for contender in contenders for each in contender.passes), default=0)
        async with asyncio.timeout(60):  # it goes on when the servers do
            while not any(each.token > seen for contender in contenders for each in contender.passes[-1:]):
                await asyncio.sleep(0.1)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [each for contender in contenders for each in contender.passes]


@pytest.mark.spec("KV-31", on="C N")
@pytest.mark.timeout(240)
async def test_a_lock_on_a_cluster_is_safe_while_its_servers_are_frozen_and_cut_off(fresh: str) -> None:
    with Cluster() as cluster:
        passes = await contend(cluster, fresh, ["freeze", "isolate", "freeze"])
    assert len(check_history(passes)) >= 2


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_lock_on_a_cluster_is_safe_under_many_faults(fresh: str) -> None:
    with Cluster() as cluster:
        passes = await contend(cluster, fresh, ["freeze", "isolate", "kill"] * 15)
    assert len(check_history(passes)) >= 30
