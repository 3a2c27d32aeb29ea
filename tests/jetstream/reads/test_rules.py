"""The rules that close the holes of the proof, each on real servers in the state that made it necessary.

The numbers are those of docs/design/reads.md. Each test first shows what plain reads return in that state.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipstream import BucketConfig, Client, StreamConfig, connect, connect_blocking
from slipstream.api import GetRequest, StreamSource, SubjectTransform
from slipstream.errors import (
    Error,
    KeyNotFoundError,
    MessageNotFoundError,
    RequestTimeoutError,
    StaleReadError,
)
from slipstream.facade._async.client import JetStream
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.read_state import MOVE_INTERVAL
from tests.cluster import Cluster
from tests.conformance.test_streams import config
from tests.jetstream.test_cluster import replicated

Read = Callable[[], Awaitable[StoredMessage]]


async def outcomes(read: Read, times: int = 40) -> Counter[bytes]:
    """What a read returned, and how often; the name of an error stands for the error."""
    seen: Counter[bytes] = Counter()
    for _ in range(times):
        try:
            seen[(await read()).data] += 1
        except Error as error:
            seen[type(error).__name__.encode()] += 1
    return seen


async def until_seen(read: Read, data: bytes) -> None:
    """Ask until some responder gives that answer: who answers is chance."""
    for _ in range(400):
        if data in await outcomes(read, 5):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"no replica answered {data!r}")


async def lead(nc: Client, stream: str, name: str, cluster: Cluster) -> None:
    """Make a node the leader of a stream."""
    for _ in range(20):
        if cluster.leader(stream) == name:
            return
        body = b'{"placement":{"preferred":"%b"}}' % name.encode()
        await nc.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", body)
        await asyncio.sleep(0.3)
    raise AssertionError(f"{name} does not become the leader of {stream}")


async def publish_until_stored(js: JetStream, subject: str, data: bytes) -> int:
    """Publish again where the message went to a leader that was deposed: servers learn of another one bit by bit."""
    for _ in range(10):
        with contextlib.suppress(RequestTimeoutError):
            return (await js.publish(subject, data, timeout=2)).seq
    raise AssertionError(f"no leader stores {subject}")


# 1: a deposed leader answers Message Gets with what it had


@pytest.mark.steady
async def test_rule_1_a_deposed_leaders_word_is_not_believed(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        js = nc.jetstream()
        await replicated(js, fresh, cluster)
        cluster.wait_until_level(fresh, (await js.publish(f"{fresh}.a", b"old")).seq)
        old = cluster.meta_leader()  # a node that knows of no leader of the cluster would answer nothing
        await lead(nc, fresh, old, cluster)
        async with connect(cluster.url(old)) as lonely, connect([cluster.url(n) for n in cluster.others(old)]) as nc:
            stream, js = lonely.jetstream().stream(fresh), nc.jetstream()
            with cluster.isolated(old):
                await asyncio.to_thread(cluster.wait_for_other_leader, fresh, old)
                await publish_until_stored(js, f"{fresh}.a", b"new")
                seq = await publish_until_stored(js, f"{fresh}.b", b"new")
                plain = await stream.get_from_leader(GetRequest(last_by_subj=f"{fresh}.a"), timeout=2)
                assert plain.data == b"old"  # the leader that was, and does not know it
                reads: list[Read] = [
                    lambda: stream.get_last(f"{fresh}.a", from_leader=True, min_last_seq=seq, timeout=0.6),
                    lambda: stream.get_last(f"{fresh}.b", from_leader=True, min_last_seq=seq, timeout=0.6),
                    lambda: stream.get(seq, from_leader=True, min_last_seq=seq, timeout=0.6),
                    lambda: stream.get_last(f"{fresh}.b", min_last_seq=seq, timeout=0.6),
                ]
                for read in reads:
                    assert await outcomes(read, 1) <= Counter([b"StaleReadError", b"RequestTimeoutError"])
                with pytest.raises((StaleReadError, RequestTimeoutError)):
                    assert [m.seq async for m in stream.read(end=seq, timeout=0.6)] == [1]
                with pytest.raises((StaleReadError, RequestTimeoutError)):
                    assert [m.seq async for m in stream.read(end=seq, from_leader=True, timeout=0.6)] == [1]
            cluster.wait_until_level(fresh, seq)
            for read in reads:
                assert await outcomes(read, 1) == Counter([b"new"])


# 2: what moves no sequence is not covered; KV deletes and purges are messages, and are


@pytest.mark.spec("RW-15", on="C")
async def test_rule_2_a_purged_key_stays_purged_on_every_read(cluster: Cluster, fresh: str) -> None:
    name = f"KV_{fresh}"
    async with connect(cluster.urls) as nc:
        await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, replicas=3, history=5))
        cluster.wait_for_direct(name)
    async with connect(cluster.url(cluster.leader(name))) as nc:  # API requests and their answers must pass
        js = nc.jetstream(timeout=10)
        bucket = await js.key_value(fresh)
        first = await bucket.put("k", b"1")
        cluster.wait_until_level(name, await bucket.put("other", b"2"))
        stream = js.stream(name)
        with cluster.stale(name):
            purged = await bucket.purge("k")
            assert b"1" in await outcomes(lambda: stream.get(first))  # an old copy still has it
            for _ in range(30):
                with pytest.raises(KeyNotFoundError):
                    await bucket.get("k", min_last_revision=purged)
                with pytest.raises(MessageNotFoundError):
                    await stream.get(first, min_last_seq=purged)
                assert (await stream.get_next(f"$KV.{fresh}.k", min_last_seq=purged)).seq == purged
                assert await bucket.keys(min_last_revision=purged) == ["other"]


async def test_rule_2_a_message_pushed_out_by_a_limit_is_gone_and_its_neighbours_are_not(
    cluster: Cluster, fresh: str
) -> None:
    async with connect(cluster.urls) as nc:
        await replicated(nc.jetstream(), fresh, cluster, max_msgs_per_subject=2)
    async with connect(cluster.url(cluster.leader(fresh))) as nc:  # API requests and their answers must pass
        js = nc.jetstream(timeout=10)
        stream = js.stream(fresh)
        seqs = [(await js.publish(f"{fresh}.{key}", b"%d" % n)).seq for n, key in enumerate("aabba")]
        cluster.wait_until_level(fresh, seqs[-2])
        with cluster.stale(fresh):
            last = (await js.publish(f"{fresh}.b", b"last")).seq  # pushes out 3, as 5 did with 1
            assert await outcomes(lambda: stream.get(3)) >= Counter([b"2", b"MessageNotFoundError"])
            for _ in range(20):
                for gone in (1, 3):
                    with pytest.raises(MessageNotFoundError):
                        await stream.get(gone, min_last_seq=last)
                for kept, data in ((2, b"1"), (4, b"3"), (5, b"4")):
                    assert (await stream.get(kept, min_last_seq=last)).data == data
                assert (await stream.get_next(f"{fresh}.*", min_last_seq=last)).seq == 2
        assert js.read_stats.from_leader > 0


# 3: a stream that was deleted and made again while a replica was away


async def test_rule_3_an_older_stream_of_the_same_name_is_not_believed(cluster: Cluster, fresh: str) -> None:
    for attempt in range(5):
        if await made_again_behind_a_replica(cluster, f"{fresh}_{attempt}"):
            return
    pytest.fail("the cluster made the new stream with the held server in front, five times")


async def made_again_behind_a_replica(cluster: Cluster, name: str) -> bool:
    """False if the cluster chose the server that is held to lead the new stream: it cannot be written to then."""
    async with connect(cluster.urls) as nc:
        js = nc.jetstream()
        await replicated(js, name, cluster)
        last = [(await js.publish(f"{name}.{n % 2}", b"old")).seq for n in range(10)][-1]
        cluster.wait_until_level(name, last)
        keep = {cluster.leader(name), cluster.meta_leader()}
        away = next(node for node in cluster.nodes if node not in keep)
        async with connect(cluster.url(cluster.leader(name))) as near:
            js = near.jetstream()
            with cluster.unreplicated(away):
                await js.stream(name).delete()
                try:
                    stream = await js.create_stream(config(name, num_replicas=3), timeout=3)
                except RequestTimeoutError:
                    return False
                assert (await js.publish(f"{name}.0", b"new")).seq == 1
                await until_seen(lambda: stream.get_last(f"{name}.0"), b"old")
                for _ in range(25):
                    assert (await stream.get_last(f"{name}.0", min_last_seq=1)).data == b"new"
                    assert (await stream.get(1, min_last_seq=1)).data == b"new"
                    assert (await stream.get_last(f"{name}.*", min_last_seq=1)).data == b"new"
                    with pytest.raises(MessageNotFoundError):
                        await stream.get_last(f"{name}.1", min_last_seq=1)
                    assert [m.data async for m in stream.read(end=1)] == [b"new"]
    return True


# 4: mirrors that hold only a part


MIRRORS = {
    "filtered": lambda name: StreamSource(name=name, filter_subject=f"{name}.a"),
    "transforming": lambda name: StreamSource(
        name=name, subject_transforms=(SubjectTransform(src=f"{name}.a", dest=f"{name}.b"),)
    ),
}


async def test_rule_4_a_mirror_with_tighter_limits_is_not_believed(real_url: str, fresh: str) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        last = [(await js.publish(f"{fresh}.{key}", b"%d" % n)).seq for n, key in enumerate("aba")][-1]
        short = StreamConfig(name=f"{fresh}_SHORT", mirror=StreamSource(name=fresh), mirror_direct=True, max_msgs=1)
        await js.create_stream(short)
        await until_seen(lambda: stream.get(1), b"MessageNotFoundError")
        for _ in range(30):
            assert (await stream.get(1, min_last_seq=last)).data == b"0"
            assert (await stream.get_last(f"{fresh}.b", min_last_seq=last)).data == b"1"
            assert [m.seq async for m in stream.read(end=last)] == [1, 2, 3]


@pytest.mark.parametrize("kind", MIRRORS)
async def test_rule_4_a_mirror_that_is_no_whole_copy_is_not_believed(real_url: str, fresh: str, kind: str) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        last = [(await js.publish(f"{fresh}.{key}", b"mine " + key.encode())).seq for key in "aba"][-1]
        part = StreamConfig(name=f"{fresh}_PART", mirror=MIRRORS[kind](fresh), mirror_direct=True)
        await js.create_stream(part)
        wrong = b"MessageNotFoundError" if kind == "filtered" else b"mine a"
        await until_seen(lambda: stream.get_last(f"{fresh}.b"), wrong)
        for _ in range(40):
            assert (await stream.get_last(f"{fresh}.b", min_last_seq=last)).data == b"mine b"
            assert (await stream.get(2, min_last_seq=last)).data == b"mine b"
            assert (await stream.get_next(f"{fresh}.b", min_last_seq=last)).data == b"mine b"
            with pytest.raises(MessageNotFoundError):
                await stream.get_last(f"{fresh}.c", min_last_seq=last)
            assert [m.subject async for m in stream.read(end=last)] == [f"{fresh}.a", f"{fresh}.b", f"{fresh}.a"]
            newest = await stream.get_last_many([f"{fresh}.*"], min_last_seq=last)
            assert {subject: message.seq for subject, message in newest.items()} == {f"{fresh}.a": 3, f"{fresh}.b": 2}


@pytest.mark.spec("DG-06", on="N")
async def test_rule_4_a_whole_mirror_is_as_good_as_a_replica(real_url: str, fresh: str) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        last = (await js.publish(f"{fresh}.a", b"x")).seq
        copy = f"{fresh}_COPY"
        await js.create_stream(StreamConfig(name=copy, mirror=StreamSource(name=fresh), mirror_direct=True))
        for _ in range(400):
            if (await stream.get_last(f"{fresh}.a", min_last_seq=last)).stream == copy:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("the mirror never answered")
        answered = {(await stream.get_last(f"{fresh}.a", min_last_seq=last)).stream for _ in range(60)}
        assert answered == {fresh, copy}


# 5: a request with `up_to_seq` proves nothing


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_rule_5_a_bound_is_no_proof(cluster: Cluster, fresh: str, storage: str) -> None:
    async with connect(cluster.urls) as nc:
        await replicated(nc.jetstream(), fresh, cluster, storage=storage)
    async with connect(cluster.url(cluster.leader(fresh))) as nc:  # API requests and their answers must pass
        js = nc.jetstream(timeout=10)
        stream = js.stream(fresh)
        old = (await js.publish(f"{fresh}.a", b"old")).seq
        cluster.wait_until_level(fresh, old)
        with cluster.stale(fresh):
            last = (await js.publish(f"{fresh}.a", b"new")).seq
            # At once: a replica that is held for seconds begins an election.
            plain = await asyncio.gather(*(stream.get_last_many([f"{fresh}.a"], up_to_seq=100) for _ in range(40)))
            assert {found[f"{fresh}.a"].data for found in plain} == {b"old", b"new"}
            for up_to, data in (100, b"new"), (old, b"old"):
                reads = (stream.get_last_many([f"{fresh}.a"], up_to_seq=up_to, min_last_seq=last) for _ in range(25))
                assert {found[f"{fresh}.a"].data for found in await asyncio.gather(*reads)} == {data}


# 6: headers of a stored message that look like the server's


@pytest.mark.parametrize(
    "headers",
    [
        {"Status": "204", "Nats-UpTo-Sequence": "99"},
        {"Nats-Sequence": "99", "Nats-Num-Pending": "99", "Nats-UpTo-Sequence": "99", "Nats-Last-Sequence": "99"},
        {"Nats-Stream": "OTHER", "Nats-Time-Stamp": "2036-01-01T00:00:00Z", "Nats-Subject": "other"},
    ],
    ids=str,
)
@pytest.mark.steady
async def test_rule_6_headers_of_a_message_are_no_proof(real_url: str, fresh: str, headers: dict[str, str]) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        last = (await js.publish(f"{fresh}.a", b"x", headers=headers)).seq
        reads: list[Callable[[int], Awaitable[StoredMessage]]] = [
            lambda wanted: stream.get_last(f"{fresh}.a", min_last_seq=wanted, timeout=0.4),
            lambda wanted: stream.get(last, min_last_seq=wanted, timeout=0.4),
            lambda wanted: stream.get_next(f"{fresh}.*", min_last_seq=wanted, timeout=0.4),
        ]
        for read in reads:
            found = await read(last)
            assert (found.seq, found.stream, found.subject) == (last, fresh, f"{fresh}.a")
            assert found.headers.items() == list(headers.items())
            with pytest.raises(StaleReadError):
                await read(last + 1)
        with pytest.raises(StaleReadError):
            assert [m.seq async for m in stream.read(end=last + 1, timeout=0.4)] == [last]


# 7: a range that ends early on a lagging replica, and one whose end is gone


async def test_rule_7_a_lagging_replica_does_not_shorten_a_range(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        js = nc.jetstream()
        await replicated(js, fresh, cluster)
        half = [(await js.publish(f"{fresh}.{n % 3}", b"x")).seq for n in range(20)][-1]
        cluster.wait_until_level(fresh, half)
    async with connect(cluster.url(cluster.leader(fresh))) as nc:  # API requests and their answers must pass
        js = nc.jetstream(timeout=10)
        stream = js.stream(fresh)
        with cluster.stale(fresh):
            last = [(await js.publish(f"{fresh}.{n % 3}", b"x")).seq for n in range(20)][-1]
            for deleted in (40, 39, 25):  # the end goes, and the end before it
                await stream.delete_message(deleted)
            alive = [seq for seq in range(1, 41) if seq not in (25, 39, 40)]
            lengths: set[int] = set()
            for _ in range(20):  # the third copy may take its time, too
                lengths = {len([m async for m in stream.read()]) for _ in range(30)}
                if lengths == {20, len(alive)}:
                    break
            assert lengths == {20, len(alive)}  # an old copy has no more
            for _ in range(15):
                assert [m.seq async for m in stream.read(end=last)] == alive
                assert [m.seq async for m in stream.read(start=30, end=last)] == [n for n in alive if n >= 30]
                assert [m.seq async for m in stream.read(min_last_seq=last)] == alive
                assert [m.seq async for m in stream.read(start=39, end=last)] == []
                third = [m.seq async for m in stream.read(end=last, subject=f"{fresh}.1")]
                assert third == [seq for seq in alive if (seq - (1 if seq <= 20 else 21)) % 3 == 1]


# 8: a server that is cut off from its cluster


@pytest.mark.steady
async def test_rule_8_a_read_goes_to_another_server_when_this_one_is_cut_off(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        await replicated(nc.jetstream(), fresh, cluster)
        leader = cluster.leader(fresh)
    lonely = cluster.expendable(leader)
    urls = [cluster.url(name) for name in (lonely, *cluster.others(lonely))]
    async with connect(urls) as nc, connect(cluster.url(lonely)) as stuck, connect(cluster.url(leader)) as other:
        assert nc.server_info.server_name == lonely
        stream = nc.jetstream(timeout=20).stream(fresh)
        await stream.info()
        start = time.monotonic()
        with cluster.isolated(lonely):
            last = (await other.jetstream().publish(f"{fresh}.a", b"new")).seq
            with pytest.raises((StaleReadError, RequestTimeoutError)):
                await stuck.jetstream().stream(fresh).get_last(f"{fresh}.a", min_last_seq=last, timeout=1)
            found = await asyncio.gather(*(stream.get_last(f"{fresh}.a", min_last_seq=last) for _ in range(10)))
            assert {message.data for message in found} == {b"new"}
            assert nc.server_info.server_name != lonely
            assert [m.data async for m in stream.read(end=last)] == [b"new"]
        # The next server may send tries to the lonely one, for as long as it takes it for alive: then once more.
        assert 1 <= nc.jetstream().read_stats.moves <= 1 + (time.monotonic() - start) // MOVE_INTERVAL
        assert nc.jetstream().read_stats.failed == 0


@pytest.mark.steady
def test_rule_8_in_the_blocking_client_too(cluster: Cluster, fresh: str) -> None:
    with connect_blocking(cluster.urls) as nc:
        nc.jetstream().create_stream(config(fresh, num_replicas=3))
        cluster.wait_for_direct(fresh)
    leader = cluster.leader(fresh)
    lonely = cluster.expendable(leader)
    urls = [cluster.url(name) for name in (lonely, *cluster.others(lonely))]
    with connect_blocking(urls) as nc, connect_blocking(cluster.url(leader)) as other:
        stream = nc.jetstream(timeout=10).stream(fresh)
        start = time.monotonic()
        with cluster.isolated(lonely), ThreadPoolExecutor(4) as pool:
            last = other.jetstream().publish(f"{fresh}.a", b"new").seq
            found = pool.map(lambda _: stream.get_last(f"{fresh}.a", min_last_seq=last).data, range(8))
            assert set(found) == {b"new"}
            assert nc.server_info.server_name != lonely
        # The next server may send tries to the lonely one, for as long as it takes it for alive: then once more.
        assert 1 <= nc.jetstream().read_stats.moves <= 1 + (time.monotonic() - start) // MOVE_INTERVAL


@pytest.mark.steady
async def test_rule_8_a_range_goes_on_from_where_it_was(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        js = nc.jetstream()
        await replicated(js, fresh, cluster)
        async with js.publisher() as publisher:
            for _ in range(60_000):
                await publisher.publish(f"{fresh}.a", b"x" * 50)
        cluster.wait_until_level(fresh, 60_000)
    lonely = cluster.expendable(cluster.leader(fresh))
    async with connect([cluster.url(name) for name in (lonely, *cluster.others(lonely))]) as nc:
        seqs: list[int] = []
        stream = nc.jetstream(timeout=10).stream(fresh)
        with cluster.isolated(lonely):
            async for columns in stream.read_columns(end=60_000):
                seqs += columns.seqs
        assert seqs == list(range(1, 60_001))


# 9: a replica that catches up from nothing has, for a moment, not even what is old


async def test_rule_9_no_key_is_missing_while_a_replica_catches_up(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        await replicated(nc.jetstream(), fresh, cluster, max_msgs_per_subject=1)
    leader = cluster.leader(fresh)
    behind = cluster.others(leader)[0]
    async with connect([cluster.url(name) for name in cluster.others(behind)]) as nc:
        js = nc.jetstream(timeout=15)
        stream = js.stream(fresh)
        cluster.hold_replica(leader, behind)
        async with js.publisher(timeout=20) as publisher:
            for n in range(20_000):
                await publisher.publish(f"{fresh}.{n % 300}", b"%d" % n)
        cluster.proxy.drop(leader, behind)
        missing, is_level, is_released = 0, False, False
        while not is_level:
            keys = [f"{fresh}.{k}" for k in range(missing % 7, 300, 7)]
            plain = await asyncio.gather(*(stream.get_last(key) for key in keys), return_exceptions=True)
            missing += sum(isinstance(found, MessageNotFoundError) for found in plain)
            found = await asyncio.gather(*(stream.get_last(key, min_last_seq=publisher.acked) for key in keys))
            assert all(int(message.data) >= 19_700 for message in found)
            if missing and not is_released:
                is_released = True
                cluster.proxy.pace(leader, behind, 2_000_000)  # about a second for all
            is_level = cluster.last_seq(behind, fresh) >= publisher.acked
        cluster.release_replica(leader, behind)


@pytest.mark.steady
async def test_rule_4_a_mirror_of_a_part_proves_only_what_is_new_enough(real_url: str, fresh: str) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        part = f"{fresh}_PART"
        source = StreamSource(name=fresh, filter_subject=f"{fresh}.a")
        await js.create_stream(StreamConfig(name=part, mirror=source, allow_direct=True))
        for key in ("a", "b", "a"):
            await js.publish(f"{fresh}.{key}", key.encode())
        mirror = js.stream(part)
        assert (await mirror.get_last(f"{fresh}.a", min_last_seq=3)).seq == 3
        await js.publish(f"{fresh}.b", b"")
        with pytest.raises(StaleReadError, match="mirrors a part"):
            await mirror.get_last(f"{fresh}.a", min_last_seq=4, timeout=0.5)
        with pytest.raises(StaleReadError, match="mirrors a part"):
            assert [m async for m in mirror.read(min_last_seq=4, timeout=0.5)]


async def test_rule_4_a_mirror_read_by_its_name_is_proven_by_its_origin(real_url: str, fresh: str) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh, max_msgs_per_subject=2))
        copy = StreamConfig(name=f"{fresh}_COPY", mirror=StreamSource(name=fresh), allow_direct=True)
        await js.create_stream(copy)
        last = [(await js.publish(f"{fresh}.{key}", key.encode())).seq for key in "ababa"][-1]
        mirror = js.stream(f"{fresh}_COPY")
        assert [m.seq async for m in mirror.read(subject=f"{fresh}.a", end=last)] == [3, 5]
        assert [m.seq async for m in mirror.read(min_last_seq=last)] == [2, 3, 4, 5]
        newest = await mirror.get_last_many([f"{fresh}.*"], min_last_seq=last)
        assert {subject: message.seq for subject, message in newest.items()} == {f"{fresh}.b": 4, f"{fresh}.a": 5}
        assert (await mirror.get_last(f"{fresh}.b", min_last_seq=last)).seq == 4
        with pytest.raises(MessageNotFoundError):
            await mirror.get(1, min_last_seq=last)
