"""Copies that are not the stream as of their last sequence, on real servers: each is believed by no read.

A mirror or follower that was away receives only what still exists. Until it is level it shows a key's version from
before it went, or nothing, although its last sequence is behind a version that was acknowledged in between.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from slipstream import BucketConfig, StreamConfig, connect
from slipstream.api import Placement, StreamSource
from slipstream.errors import Error, KeyNotFoundError, MessageNotFoundError, StaleReadError
from slipstream.facade._async.client import JetStream
from slipstream.jetstream._async.stream import Stream
from slipstream.kv._async.key_value import KeyValue
from slipstream.testing import TestServer
from tests.cluster import NODES, Cluster, wait_for

KEYS = [f"k{n}" for n in range(300)]
PADDING = b"." * 400
SLOW, SLOWER = 300_000, 80_000  # bytes per second: some seconds for all keys; raft needs more than a mirror
FILL = os.urandom(1_000_000)  # a raft log is compacted at 8 MB; random, because the log compresses what it can
FILLS = 9
CATCH_UP_TIMEOUT = 30.0


async def write_all(js: JetStream, prefix: str, value: bytes) -> int:
    """Every key once; gives the last sequence."""
    async with js.publisher(timeout=20) as publisher:
        for key in KEYS:
            await publisher.publish(prefix + key, value + PADDING)
    assert publisher.last_ack is not None
    return publisher.last_ack.seq


async def outcomes(reads: Callable[[str], Awaitable[bytes]], keys: list[str]) -> Counter[str]:
    """What the keys' values begin with, and how often; the name of an error stands for the error."""
    found = await asyncio.gather(*(reads(key) for key in keys), return_exceptions=True)
    return Counter(each.split(b".")[0].decode() if isinstance(each, bytes) else type(each).__name__ for each in found)


async def value_of(bucket: KeyValue[bytes], key: str) -> bytes:
    return (await bucket.get(key)).value


class CatchUp:
    """A copy on its way from `wanted` to `last`, watched in the background, and whether it was seen in between."""

    def __init__(self, cluster: Cluster, node: str, copy: str, wanted: int, last: int) -> None:
        self.wanted = wanted
        self._cluster, self._node, self._copy, self._last = cluster, node, copy, last
        self._watching = asyncio.create_task(self._watch())
        self.was_between = False

    async def _watch(self) -> None:
        async with asyncio.timeout(CATCH_UP_TIMEOUT):
            while (at := await asyncio.to_thread(self._cluster.last_seq, self._node, self._copy)) < self._last:
                self.was_between = self.was_between or self.wanted <= at
                await asyncio.sleep(0.02)

    def is_over(self) -> bool:
        """Whether the copy is level; raises if that takes too long."""
        if self._watching.done():
            self._watching.result()
        return self._watching.done()

    async def close(self) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)


# F1: a mirror


@asynccontextmanager
async def mirror_catching_up(
    cluster: Cluster, js: JetStream, config: StreamConfig, prefix: str, write: Callable[[], Coroutine[None, None, int]]
) -> AsyncIterator[CatchUp]:
    """A stream on n1 whose mirror on n2 was away: every key was written before, then by `write`, then again."""
    copy = f"{config.name}_COPY"
    mirror = StreamConfig(
        name=copy,
        mirror=StreamSource(name=config.name),
        mirror_direct=True,
        max_msgs_per_subject=1,
        allow_rollup_hdrs=config.allow_rollup_hdrs,
        placement=Placement(tags=("n2",)),
    )
    await js.create_stream(config.replace(placement=Placement(tags=("n1",))))
    await js.create_stream(mirror)
    first = await write_all(js, prefix, b"first")
    await asyncio.to_thread(wait_for, lambda: cluster.last_seq("n2", copy) >= first, "the mirror")
    await asyncio.to_thread(cluster.wait_for_direct, config.name, 2)
    with cluster.isolated("n2"):
        wanted = await write()
        last = await write_all(js, prefix, b"later")
        for other in ("n1", "n3"):
            cluster.proxy.drop(other, "n2")
    try:
        cluster.proxy.pace("n1", "n2", SLOWER)  # and nothing else: clients of n3 reach the mirror at once
        catch_up = CatchUp(cluster, "n2", copy, wanted, last)
        yield catch_up
        await catch_up.close()
    finally:
        cluster.proxy.release("n1", "n2")


@pytest.mark.spec("RW-19", on="C N")
async def test_a_mirror_that_catches_up_is_not_believed(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.url("n3")) as nc:
        js = nc.jetstream(timeout=20)
        config = StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True, max_msgs_per_subject=1)
        stream = js.stream(fresh)

        async def write() -> int:
            return await write_all(js, f"{fresh}.", b"mine")

        seen: Counter[str] = Counter()
        async with mirror_catching_up(cluster, js, config, f"{fresh}.", write) as catch_up:

            async def get(key: str) -> bytes:
                return (await stream.get_last(f"{fresh}.{key}", min_last_seq=catch_up.wanted)).data

            while not catch_up.is_over():
                seen += await outcomes(get, KEYS[-60:])
                newest = await stream.get_last_many([f"{fresh}.*"], min_last_seq=catch_up.wanted)
                seen += Counter(message.data.split(b".")[0].decode() for message in newest.values())
                assert len(newest) == len(KEYS)
        assert catch_up.was_between
        assert seen.keys() <= {"mine", "later"}


@pytest.mark.spec("RW-13", on="C N")
async def test_a_session_reads_its_own_write_beside_a_mirror_that_catches_up(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.url("n3")) as nc:
        js = nc.jetstream(timeout=20)
        config = BucketConfig(bucket=fresh).stream_config()
        session = js.session()
        mine: dict[str, int] = {}

        async def write() -> int:
            bucket = await session.key_value(fresh)
            for key in KEYS[-20:]:
                mine[key] = await bucket.put(key, b"mine")
            return mine[KEYS[-1]]

        async with mirror_catching_up(cluster, js, config, f"$KV.{fresh}.", write) as catch_up:
            while not catch_up.is_over():
                bucket = await js.session(session.token()).key_value(fresh)
                entries = await asyncio.gather(*(bucket.get(key) for key in mine))
                assert all(entry.revision >= mine[entry.key] for entry in entries)
        assert catch_up.was_between


# F2: a follower


@asynccontextmanager
async def follower_catching_up(cluster: Cluster, name: str, prefix: str, js: JetStream) -> AsyncIterator[CatchUp]:
    """A follower that gets a snapshot. Every key was written twice meanwhile; `wanted` is the last of the first."""
    leader = cluster.leader(name)
    behind = next(node for node in cluster.others(leader) if node != cluster.meta_leader())
    cluster.hold_replica(leader, behind)
    try:
        wanted = await write_all(js, prefix, b"mine")
        await write_all(js, prefix, b"later")
        for _ in range(FILLS):
            await js.publish(f"{prefix}fill", FILL)
        last = (await js.publish(f"{prefix}fill", b"")).seq
    finally:
        cluster.proxy.drop(leader, behind)
        cluster.release_replica(leader, behind)
    try:
        cluster.proxy.pace(leader, behind, SLOW)
        catch_up = CatchUp(cluster, behind, name, wanted, last)
        yield catch_up
        await catch_up.close()
    finally:
        cluster.release_replica(leader, behind)


@pytest.mark.spec("RW-19", on="C N")
async def test_a_follower_that_gets_a_snapshot_is_not_believed(cluster: Cluster, fresh: str) -> None:
    name, prefix = f"KV_{fresh}", f"$KV.{fresh}."
    async with connect(cluster.urls) as nc:
        await nc.jetstream(timeout=20).create_key_value(BucketConfig(bucket=fresh, replicas=3))
        await asyncio.to_thread(cluster.wait_for_direct, name)
    # What the leader sends to the follower is slowed: a client there would wait for every answer of the leader.
    async with connect(cluster.url(cluster.leader(name))) as nc:
        js = nc.jetstream(timeout=20)
        await asyncio.to_thread(cluster.wait_until_level, name, await write_all(js, prefix, b"first"))
        bucket, stream = await js.key_value(fresh), js.stream(name)
        seen: Counter[str] = Counter()
        async with follower_catching_up(cluster, name, prefix, js) as catch_up:
            session = js.session()
            session.note(name, catch_up.wanted)
            token = session.token()
            wanted = catch_up.wanted

            async def get(key: str) -> bytes:
                return (await stream.get_last(prefix + key, min_last_seq=wanted)).data

            while not catch_up.is_over():
                own = await js.session(token).key_value(fresh)
                seen += await outcomes(get, KEYS[::10])
                seen += await outcomes(partial(value_of, own), KEYS[5::10])
                assert {*KEYS} <= {*await bucket.keys(min_last_revision=wanted)}
                assert len(await stream.get_last_many([f"{prefix}*"], min_last_seq=wanted)) >= len(KEYS)
        assert catch_up.was_between
        assert seen.keys() <= {"mine", "later"}


# F3 and F4: mirrors that change, or only look whole


async def copy_level(js: JetStream, name: str, last: int) -> None:
    async with asyncio.timeout(20):
        while (await js.stream(name).info()).state.last_seq < last:
            await asyncio.sleep(0.02)


async def until_found(stream: Stream, seq: int) -> None:
    """Until some copy answers with that message."""
    async with asyncio.timeout(20):
        while True:
            with suppress(MessageNotFoundError):
                await stream.get(seq)
                return


async def until_missing(stream: Stream, seq: int) -> None:
    """Until some copy answers that it has no such message."""
    async with asyncio.timeout(20):
        with suppress(MessageNotFoundError):
            while True:
                await stream.get(seq)


@pytest.mark.parametrize("change", ["edited", "made again"])
async def test_a_mirror_that_was_whole_is_not_believed_for_ever(real_url: str, fresh: str, change: str) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream(timeout=5)
        mirror = StreamConfig(name=f"{fresh}_COPY", mirror=StreamSource(name=fresh), mirror_direct=True)
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        await js.create_stream(mirror)
        last = [(await js.publish(f"{fresh}.{key}", b"x")).seq for key in "abbbbb"][-1]
        await copy_level(js, mirror.name, last)
        for _ in range(20):  # whatever the connection learns of it, it learns now
            assert (await stream.get(1, min_last_seq=last)).seq == 1
        if change == "edited":
            await js.update_stream(mirror.replace(max_msgs=2))
        else:
            await js.delete_stream(mirror.name)
            await js.create_stream(mirror.replace(mirror=StreamSource(name=fresh, filter_subject=f"{fresh}.b")))
            await copy_level(js, mirror.name, last)
        await until_missing(stream, 1)
        for _ in range(15):
            assert (await stream.get(1, min_last_seq=last)).seq == 1
            assert (await stream.get_last(f"{fresh}.a", min_last_seq=last)).seq == 1
            assert [message.seq async for message in stream.read(end=last, min_last_seq=last)] == [1, 2, 3, 4, 5, 6]
            assert len(await stream.get_last_many([f"{fresh}.*"], min_last_seq=last)) == 2


async def test_a_mirror_with_equal_max_bytes_and_other_storage_is_not_believed(real_url: str, fresh: str) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream(timeout=5)
        limits = StreamConfig(name=fresh, max_bytes=4_000)
        stream = await js.create_stream(limits.replace(subjects=(f"{fresh}.>",), allow_direct=True, storage="memory"))
        copy = limits.replace(name=f"{fresh}_COPY", mirror=StreamSource(name=fresh), mirror_direct=True, storage="file")
        await js.create_stream(copy)
        last = [(await js.publish(f"{fresh}.{n}", b"x" * 40)).seq for n in range(100)][-1]
        await copy_level(js, copy.name, last)
        first = (await stream.info()).state.first_seq
        assert (await js.stream(copy.name).info()).state.first_seq > first
        await until_missing(stream, first)
        for _ in range(15):
            assert (await stream.get(first, min_last_seq=last)).seq == first
            seqs = [message.seq async for message in stream.read(end=last, min_last_seq=last)]
            assert seqs == list(range(first, last + 1))


# F9: an end below what must have been seen


@pytest.mark.steady
async def test_a_range_that_ends_before_the_wanted_sequence_is_as_new_as_that(cluster: Cluster, fresh: str) -> None:
    name = f"KV_{fresh}"
    async with connect(cluster.urls) as nc:
        await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, replicas=3, history=5))
        await asyncio.to_thread(cluster.wait_for_direct, name)
    async with connect(cluster.url(cluster.leader(name))) as nc:  # API requests and their answers must pass
        js = nc.jetstream(timeout=10)
        bucket, stream, session = await js.key_value(fresh), js.stream(name), js.session()
        own = await session.key_value(fresh)
        last = [await bucket.put("secret", b"%d" % n) for n in range(4)][-1]
        await asyncio.to_thread(cluster.wait_until_level, name, last)
        with cluster.stale(name):
            purged = await own.purge("secret")
            await until_found(stream, 1)  # an old copy still has it
            for _ in range(15):
                assert [m.seq async for m in stream.read(end=last, min_last_seq=purged)] == []
                assert [m.seq async for m in session.stream(name).read(end=last)] == []
        for from_leader in (False, True):
            too_new = stream.read(end=last, min_last_seq=99, from_leader=from_leader, timeout=0.5)
            with pytest.raises(StaleReadError):
                [m.seq async for m in too_new]


# F12: windows of a deposed leader and of the real one (our server; which of the answers is lost decides)


@pytest.mark.parametrize("skip", range(8, 14))
async def test_answers_of_two_leaders_are_not_merged_into_one_range(skip: int) -> None:
    with TestServer() as server:
        async with connect(server.url) as nc:
            js = nc.jetstream(timeout=4)
            config = StreamConfig(name="S", subjects=("s",), num_replicas=3, allow_direct=True)
            stream = await js.create_stream(config)
            for n in range(4):
                await js.publish("s", b"%d" % n)
            server.depose("S", unaware=True)
            for n in range(6):
                await js.publish("s", b"%d" % n)
            server.drop("_INBOX.>", count=1, skip=skip)

            async def release() -> None:
                await asyncio.sleep(0.15)
                await asyncio.to_thread(server.release, "S")

            releasing = asyncio.create_task(release())
            try:
                seqs = [message.seq async for message in stream.read(start=1, end=10, from_leader=True)]
            except StaleReadError:  # refused is allowed, a hole is not
                seqs = list(range(1, 11))
            await releasing
            assert seqs == list(range(1, 11))


# F15: the stream's only server is down, its mirror is level


async def test_an_answer_that_proves_itself_needs_no_leader(cluster: Cluster, fresh: str) -> None:
    down = next(name for name in NODES if name != cluster.meta_leader())
    up = cluster.others(down)
    async with connect([cluster.url(name) for name in up]) as nc:
        js = nc.jetstream(timeout=5)
        config = StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True)
        await js.create_stream(config.replace(placement=Placement(tags=(down,))))
        mirror = StreamConfig(name=f"{fresh}_COPY", mirror=StreamSource(name=fresh), mirror_direct=True)
        await js.create_stream(mirror.replace(placement=Placement(tags=(up[0],))))
        await js.publish(f"{fresh}.old", b"old")
        last = (await js.publish(f"{fresh}.a", b"v")).seq
        await asyncio.to_thread(cluster.wait_for_direct, fresh, 2)
        await copy_level(js, mirror.name, last)
        cluster.kill(down)
        try:
            async with connect([cluster.url(name) for name in up]) as other:
                stream = other.jetstream(timeout=20).stream(fresh)
                found = await stream.get_last(f"{fresh}.a", min_last_seq=last)
                assert (found.seq, found.data, found.stream) == (last, b"v", mirror.name)
                with pytest.raises(Error) as refused:  # nothing can prove an older one while the stream is offline
                    await stream.get_last(f"{fresh}.old", min_last_seq=last, timeout=2)
                assert not isinstance(refused.value, (MessageNotFoundError, KeyNotFoundError))
        finally:
            cluster.start(down)
