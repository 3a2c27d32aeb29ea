"""The promise on a real cluster, whose replicas and mirror are held and released at random, under concurrent clients.

A checker goes over the history of all of it: no stale read, no view that went back, no range with a gap, and no read
rejected: the leader is connected and up to date all the time, so that every read has a replica that can answer it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time

import pytest

from slipstream import BucketConfig, StreamConfig, connect
from slipstream.api import Placement, StreamSource
from slipstream.errors import Error, KeyNotFoundError, MessageNotFoundError
from slipstream.facade._async.client import JetStream
from slipstream.jetstream._async.stream import Stream
from slipstream.jetstream.reads.direct_get import StoredMessage
from tests.cluster import NODES, Cluster
from tests.jetstream.reads.history import History, KeyRead, RangeRead
from tests.jetstream.test_cluster import replicated

KEYS = [f"k{n}" for n in range(12)]
PATHS = ("last", "last", "last", "absent", "many", "wild", "next", "seq", "range", "leader")


class Trouble(threading.Thread):
    """Holds a follower back, in its replication or in everything the leader says to it; releases; cuts routes."""

    def __init__(self, cluster: Cluster, stream: str, seed: int) -> None:
        super().__init__(name="trouble", daemon=True)
        self._cluster = cluster
        self._stream = stream
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.holds = 0

    def run(self) -> None:
        while not self._over.is_set():
            leader = self._cluster.leader(self._stream)
            follower = self._random.choice(self._cluster.others(leader))
            self._cluster.proxy.hold(leader, follower, system_only=self._random.random() < 0.8)
            self.holds += 1
            self._over.wait(self._random.uniform(0.05, 1.2))
            if self._random.random() < 0.05:
                self._cluster.proxy.drop(leader, follower)
            self._cluster.proxy.release(leader, follower)
            self._over.wait(self._random.uniform(0.0, 0.1))

    def stop(self) -> None:
        self._over.set()
        self.join(30)
        self._cluster.proxy.release_all()


class Reader:
    """Reads by every path in turn, each with what it must have seen: all that was acknowledged to anybody before, and
    all that this reader saw."""

    def __init__(self, name: str, stream: Stream, history: History, seed: int) -> None:
        self.name = name
        self.stream = stream
        self.history = history
        self.random = random.Random(seed)
        self.subject = f"{stream.name}."
        self.seen = 0

    async def read(self) -> None:
        path = self.random.choice(PATHS)
        wanted = max(self.history.last, self.seen)
        key = self.random.choice(KEYS)
        begin = time.monotonic()
        try:
            await getattr(self, f"_{path}")(key, wanted)
        except Error as error:
            spent = time.monotonic() - begin
            self.history.rejected.append(f"{self.name} {path} of {key} at {wanted} after {spent:.1f} s: {error!r}")

    def _got(self, path: str, key: str, wanted: int, got: StoredMessage | None) -> None:
        self.seen = max(self.seen, got.seq if got is not None else 0)
        self.history.reads.append(KeyRead(self.name, path, key, wanted, got))

    async def _last(self, key: str, wanted: int) -> None:
        try:
            got = await self.stream.get_last(self.subject + key, min_last_seq=wanted)
        except MessageNotFoundError:
            got = None
        self._got("get_last", key, wanted, got)

    async def _absent(self, key: str, wanted: int) -> None:
        try:
            await self.stream.get_last(f"{self.subject}never.{key}", min_last_seq=wanted)
        except MessageNotFoundError:
            return
        raise Error("a key that was never written exists")

    async def _leader(self, key: str, wanted: int) -> None:
        try:
            got = await self.stream.get_last(self.subject + key, min_last_seq=wanted, from_leader=True)
        except MessageNotFoundError:
            got = None
        self._got("leader", key, wanted, got)

    async def _many(self, _: str, wanted: int) -> None:
        found = await self.stream.get_last_many([f"{self.subject}*"], min_last_seq=wanted)
        for each in KEYS:
            self._got("many", each, wanted, found.get(self.subject + each))

    async def _wild(self, _: str, wanted: int) -> None:
        got = await self.stream.get_last(f"{self.subject}>", min_last_seq=wanted)
        seen = [wanted] if got.seq >= wanted else [got.seq]  # nothing is ever deleted: the last is the last
        self.history.ranges.append(RangeRead(self.name, "wild", "", wanted, wanted, seen))

    async def _next(self, key: str, wanted: int) -> None:
        start = self.random.randint(1, wanted)
        try:
            got = [(await self.stream.get_next(self.subject + key, seq=start, min_last_seq=wanted)).seq]
        except MessageNotFoundError:
            got = []
        self.history.ranges.append(
            RangeRead(self.name, "next", key, start, min(got[0] if got else wanted, wanted), got)
        )

    async def _seq(self, _: str, wanted: int) -> None:
        seq = self.random.randint(1, wanted)
        got = await self.stream.get(seq, min_last_seq=wanted)
        self.history.ranges.append(RangeRead(self.name, "seq", "", seq, seq, [got.seq]))

    async def _range(self, key: str, wanted: int) -> None:
        key = self.random.choice((key, ""))
        start = max(wanted - self.random.randint(0, 60), 1)
        subject = self.subject + key if key else ""
        got = [message.seq async for message in self.stream.read(start=start, end=wanted, subject=subject)]
        self.history.ranges.append(RangeRead(self.name, "range", key, start, wanted, got))


async def write(js: JetStream, name: str, history: History, seed: int, operations: int) -> None:
    values = itertools.count()
    rng = random.Random(seed)
    while len(history) < operations:
        key, value = rng.choice(KEYS), b"%d-%d" % (seed, next(values))
        try:
            ack = await js.publish(f"{name}.{key}", value, timeout=20)
        except Error:  # a route was cut, or the client went to another server: whether it was stored is not known
            await asyncio.sleep(0.05)
            continue
        history.wrote(ack.seq, key, value)
        await asyncio.sleep(rng.uniform(0, 0.01))


async def read(reader: Reader, operations: int) -> None:
    while len(reader.history) < operations:
        await reader.read()


async def session(js: JetStream, name: str, who: str, history: History, seed: int, operations: int) -> None:
    """Writes and reads through a session, which must see its own writes and never go back."""
    rng = random.Random(seed)
    values = itertools.count()
    async with js.session() as own:
        stream = own.stream(name)
        while len(history) < operations:
            key = rng.choice(KEYS)
            if rng.random() < 0.2:
                value = b"%s-%d" % (who.encode(), next(values))
                try:
                    ack = await own.publish(f"{name}.{key}", value, timeout=20)
                except Error:
                    await asyncio.sleep(0.05)
                    continue
                history.wrote(ack.seq, key, value)
            wanted = own.seen(name)
            try:
                got: StoredMessage | None = await stream.get_last(f"{name}.{key}")
            except MessageNotFoundError:
                got = None
            except Error as error:
                history.rejected.append(f"{who} at {wanted}: {error!r}")
                continue
            history.reads.append(KeyRead(who, "session", key, wanted, got))
            if rng.random() < 0.02:
                own = js.session(own.token())  # goes on elsewhere
                stream = own.stream(name)


async def promise(cluster: Cluster, name: str, operations: int, seed: int) -> History:
    async with connect(cluster.urls) as nc:
        await replicated(nc.jetstream(), name, cluster)
        mirror = StreamConfig(
            name=f"{name}_COPY",
            mirror=StreamSource(name=name),
            mirror_direct=True,
            placement=Placement(tags=(cluster.others(cluster.leader(name))[0],)),
        )
        await nc.jetstream().create_stream(mirror)
        history = History()
        history.wrote((await nc.jetstream().publish(f"{name}.{KEYS[0]}", b"first")).seq, KEYS[0], b"first")
    trouble = Trouble(cluster, name, seed)
    clients = [await connect([cluster.url(NODES[n % 3]), *cluster.urls]) for n in range(6)]
    try:
        trouble.start()
        contexts = [client.jetstream(timeout=20) for client in clients]
        streams = [js.stream(name) for js in contexts]
        async with asyncio.TaskGroup() as group:
            for n in range(2):
                group.create_task(write(contexts[n], name, history, seed + n, operations))
            for n in range(12):
                group.create_task(read(Reader(f"r{n}", streams[n % 6], history, seed + 100 + n), operations))
            for n in range(4):
                group.create_task(session(contexts[n], name, f"s{n}", history, seed + 200 + n, operations))
        assert trouble.holds > 3
        stats = [js.read_stats for js in contexts]
        print(f"{len(history)} operations, {trouble.holds} holds, {stats}")
        assert sum(each.retried for each in stats) > 20, "nothing was ever stale: the trouble is no trouble"
    finally:
        trouble.stop()
        for client in clients:
            await client.close()
    return history


@pytest.mark.spec("RW-19", on="C N")
async def test_no_read_is_stale_or_goes_back_or_is_rejected_while_replicas_are_held(
    cluster: Cluster, fresh: str
) -> None:
    history = await promise(cluster, fresh, 6_000, seed=7)
    assert history.broken() == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1])
def test_a_hundred_thousand_operations(cluster: Cluster, fresh: str, seed: int) -> None:
    history = asyncio.run(promise(cluster, fresh, 100_000, seed))
    assert history.broken() == []


async def test_the_checker_finds_what_plain_reads_break(cluster: Cluster, fresh: str) -> None:
    """The same trouble without the promise: stale reads and views that go back."""
    async with connect(cluster.urls) as nc:
        js = nc.jetstream()
        stream = await replicated(js, fresh, cluster)
        history = History()
        cluster.wait_until_level(fresh, (await js.publish(f"{fresh}.k0", b"0")).seq)
        with cluster.stale(fresh):
            for n in range(1, 60):
                ack = await js.publish(f"{fresh}.k0", b"%d" % n)
                history.wrote(ack.seq, "k0", b"%d" % n)
                got = await stream.get_last(f"{fresh}.k0")
                history.reads.append(KeyRead("plain", "get_last", "k0", history.last, got))
                seqs = [message.seq async for message in stream.read(start=2)]
                history.ranges.append(RangeRead("plain", "range", "", 2, ack.seq, seqs))
        broken = history.broken()
        for what in ("stale", "went back", "range"):
            assert any(line.startswith(what) for line in broken), what


async def test_a_bucket_keeps_the_promise_too(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=15)
        bucket = await js.create_key_value(BucketConfig(bucket=fresh, replicas=3, history=3))
        name = f"KV_{fresh}"
        cluster.wait_for_direct(name)
        trouble = Trouble(cluster, name, 3)
        trouble.start()
        try:
            for n in range(60):
                if n % 5 == 4:
                    revision = await bucket.delete("k") if n % 2 else await bucket.purge("k")
                    with pytest.raises(KeyNotFoundError):
                        await bucket.get("k", min_last_revision=revision)
                    assert "k" not in await bucket.keys(min_last_revision=revision)
                else:
                    revision = await bucket.put("k", b"%d" % n)
                    assert (await bucket.get("k", min_last_revision=revision)).value == b"%d" % n
                    assert (await bucket.get("k", revision=revision, min_last_revision=revision)).value == b"%d" % n
                    assert "k" in await bucket.keys(min_last_revision=revision)
        finally:
            trouble.stop()
