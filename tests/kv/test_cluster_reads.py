"""Handles of every kind on a bucket of three replicas with a read replica, while servers of the cluster fail.

Each key has one writer, so its revisions are known. No read shows a revision below what its handle was promised to
reflect; a key is absent only where a mark at or behind that revision may be its newest entry.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from slipstream import BucketConfig, connect
from slipstream.errors import Error, KeyNotFoundError
from slipstream.facade._async.client import JetStream
from slipstream.kv._async.key_value import KeyValue
from tests.cluster import NODES, Cluster

KEYS = [f"k.{n}" for n in range(12)]
PAUSE = 0.02


@dataclass
class History:
    """What was acknowledged, and what reads showed that they must not."""

    wrong: list[str] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    stored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    marks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))  # the newest delete or purge
    unsure: set[str] = field(default_factory=set)  # keys of which a mark may be stored that was not acknowledged
    is_over: bool = False

    def judge(self, reader: str, key: str, floor: int, revision: int | None) -> None:
        """`revision`: None if the key was absent."""
        self.reads[reader] += 1
        if revision is None:
            is_wrong = floor > 0 and self.marks[key] < floor and key not in self.unsure
        else:
            is_wrong = revision < floor
        if is_wrong:
            self.wrong.append(f"{time.time():.3f} {reader} of {key}: {revision}, must reflect {floor}")


async def keep_writing(kv: KeyValue[bytes], keys: list[str], history: History, rng: random.Random) -> None:
    """One write after the other, each repeated until it is acknowledged; some are read back."""
    while not history.is_over:
        key = rng.choice(keys)
        mark = rng.choice((kv.delete, kv.purge, *[None] * 8))
        write = partial(kv.put, key, b"v") if mark is None else partial(mark, key)
        is_mark = mark is not None
        if is_mark:
            history.unsure.add(key)
        revision, is_repeated = 0, False
        while not revision:
            try:
                revision = await write()
            except Error:
                is_repeated = True
                if history.is_over:
                    return
                await asyncio.sleep(0.05)
        history.stored[key] = max(history.stored[key], revision)
        if is_mark:
            history.marks[key] = max(history.marks[key], revision)
            if not is_repeated:  # else one that was sent before may still arrive
                history.unsure.discard(key)
        if rng.random() < 0.5:
            await read("own write", kv, key, revision, history)
        await asyncio.sleep(rng.uniform(0, 2 * PAUSE))


async def read(reader: str, kv: KeyValue[bytes], key: str, floor: int, history: History) -> int:
    """The revision that was found; 0 if there was none, or no answer."""
    try:
        revision: int | None = (await kv.get(key)).revision
    except KeyNotFoundError:
        revision = None
    except Error:
        history.refused[reader] += 1
        return 0
    history.judge(reader, key, floor, revision)
    return revision or 0


async def keep_reading(reader: str, kv: KeyValue[bytes], history: History, rng: random.Random) -> None:
    """Gets, and listings now and then. What a read showed, later ones through the handle must reflect."""
    seen = dict.fromkeys(KEYS, 0)
    floors = history.stored if reader == "latest" else seen
    while not history.is_over:
        key = rng.choice(KEYS)
        seen[key] = max(seen[key], await read(reader, kv, key, floors[key], history))
        if rng.random() < 0.1:
            wanted = dict(floors)
            try:
                keys = set(await kv.keys())
            except Error:
                history.refused[reader] += 1
                continue
            for key in KEYS:
                if key not in keys:
                    history.judge(f"keys of {reader}", key, wanted[key], None)
        await asyncio.sleep(rng.uniform(0, 2 * PAUSE))


async def strike(cluster: Cluster, js: JetStream, stream: str, rng: random.Random) -> None:
    """One fault, and a moment without any."""
    node = rng.choice(NODES)
    match rng.choice(("freeze", "isolate", "hold", "step down")):
        case "freeze":
            cluster.freeze(node)
            try:
                await asyncio.sleep(rng.choice((1, 3, 8)))
            finally:
                cluster.thaw(node)
        case "isolate":
            with cluster.isolated(node):
                await asyncio.sleep(rng.choice((2, 6)))
        case "hold":
            leader = await asyncio.to_thread(cluster.leader, stream)
            follower = rng.choice(cluster.others(leader))
            cluster.hold_replica(leader, follower)
            try:
                await asyncio.sleep(3)
            finally:
                cluster.release_replica(leader, follower)
        case _:
            with suppress(Error):
                await js.client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", b"", timeout=3)
    await asyncio.sleep(1)


async def run(bucket: str, faults: int, seed: int) -> History:
    history, rng = History(), random.Random(seed)
    with Cluster() as cluster:
        clients = [await connect([cluster.url(NODES[n % 3]), *cluster.urls], reconnect_wait=0.1) for n in range(4)]
        try:
            contexts = [client.jetstream(timeout=10) for client in clients]
            await contexts[0].create_key_value(BucketConfig(bucket=bucket, replicas=3, history=2))
            await contexts[0].create_key_value(BucketConfig(bucket=f"{bucket}-copy", mirror=bucket))
            await _work(cluster, contexts, bucket, faults, history, rng)
        finally:
            for client in clients:
                await client.close()
    return history


async def _work(
    cluster: Cluster, contexts: list[JetStream], bucket: str, faults: int, history: History, rng: random.Random
) -> None:
    one, two, three, four = contexts
    handles = {
        "own": await four.key_value(bucket),
        "latest": await two.key_value(bucket, consistency="latest"),
        "session": await three.session().key_value(bucket),
        "replica": await four.key_value(f"{bucket}-copy"),
        "cached": await (await three.key_value(bucket)).cached(recheck_after=0.5),
        "cached, filtered": await (await four.key_value(bucket)).cached("k.>", recheck_after=0.5),
        "cached in a session": await (await two.session().key_value(bucket)).cached(recheck_after=0.5),
    }
    writers = [(await one.key_value(bucket), KEYS[::2]), (await two.key_value(bucket), KEYS[1::2])]
    tasks = [asyncio.create_task(keep_writing(kv, keys, history, rng)) for kv, keys in writers]
    tasks += [asyncio.create_task(keep_reading(name, kv, history, rng)) for name, kv in handles.items()]
    try:
        for _ in range(faults):
            await strike(cluster, one, f"KV_{bucket}", rng)
        history.is_over = True
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
    finally:
        for task in tasks:
            task.cancel()
        for name, kv in handles.items():
            if name.startswith("cached"):
                await kv.close()


@pytest.mark.spec("KV-50", "KV-51", on="C N")
@pytest.mark.timeout(240)
async def test_handles_of_every_kind_keep_their_promise_while_servers_fail(fresh: str) -> None:
    history = await run(fresh, 4, seed=50)
    assert history.wrong == []
    assert all(history.reads[name] for name in ("own", "latest", "session", "replica", "cached", "own write"))


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_handles_of_every_kind_keep_their_promise_for_longer(fresh: str) -> None:
    history = await run(fresh, 80, seed=51)
    print(dict(history.reads), dict(history.refused))
    assert history.wrong == []
