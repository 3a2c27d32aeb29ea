"""The problem, shown on a real cluster: what plain Direct Gets return while replicas are behind."""

from __future__ import annotations

import pytest

from slipstream import StreamConfig, connect, connect_blocking
from slipstream.errors import RequestTimeoutError
from slipstream.facade._async.client import JetStream
from slipstream.jetstream._async.stream import Stream
from tests.cluster import NODES, Cluster


async def replicated(js: JetStream, name: str, cluster: Cluster, **changes: object) -> Stream:
    """A stream with three replicas, each of which answers Direct Gets."""
    config = StreamConfig(name=name, subjects=(f"{name}.>",), num_replicas=3, allow_direct=True).replace(**changes)
    stream = await js.create_stream(config)
    cluster.wait_for_direct(name)
    return stream


async def test_a_held_replica_keeps_answering_with_the_old_value(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        js = nc.jetstream()
        stream = await replicated(js, fresh, cluster)
        cluster.wait_until_level(fresh, (await js.publish(f"{fresh}.a", b"old")).seq)
        with cluster.stale(fresh) as behind:
            ack = await js.publish(f"{fresh}.a", b"new")
            seen = [(await stream.get_last(f"{fresh}.a")).data for _ in range(100)]
            assert [cluster.last_seq(name, fresh) for name in behind] == [ack.seq - 1]
        assert {*seen} == {b"old", b"new"}
        assert seen.count(b"old") > 5
        cluster.wait_until_level(fresh, ack.seq)
        assert {(await stream.get_last(f"{fresh}.a")).data for _ in range(50)} == {b"new"}


@pytest.mark.spec("DG-08", on="C N")
async def test_message_get_is_answered_by_the_leader_only(cluster: Cluster, fresh: str) -> None:
    """With one replica held, a Direct Get of this many messages would miss some."""
    async with connect(cluster.urls) as nc:
        await replicated(nc.jetstream(), fresh, cluster)
    async with connect(cluster.url(cluster.leader(fresh))) as nc:  # whose answers no held route delays
        js = nc.jetstream()
        stream = js.stream(fresh)
        with cluster.stale(fresh):
            for _ in range(60):
                ack = await js.publish(f"{fresh}.a")
                assert (await stream.get_last_from_leader(f"{fresh}.a")).seq == ack.seq


@pytest.mark.spec("PS-06", on="C N")
async def test_consumer_info_names_the_leader_of_the_consumer(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        stream = await replicated(nc.jetstream(), fresh, cluster)
        consumer = await stream.create_consumer("dur")
        assert (await consumer.info()).cluster["leader"] in NODES


async def test_a_dropped_route_is_reestablished_and_the_replica_catches_up(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        js = nc.jetstream()
        await replicated(js, fresh, cluster)
        leader = cluster.leader(fresh)
        follower = cluster.others(leader)[0]
        cluster.hold_replica(leader, follower)
        last = [(await js.publish(f"{fresh}.{n % 3}", b"x")).seq for n in range(20)][-1]
        assert cluster.last_seq(follower, fresh) < last
        cluster.proxy.drop(leader, follower)
        cluster.release_replica(leader, follower)
        cluster.wait_until_level(fresh, last)


def test_a_client_of_an_isolated_server_stays_connected_and_is_not_answered(cluster: Cluster, fresh: str) -> None:
    with connect_blocking(cluster.urls) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), num_replicas=3, allow_direct=True))
        cluster.wait_for_direct(fresh)
    lonely = cluster.expendable(cluster.leader(fresh))
    with cluster.isolated(lonely), connect_blocking(cluster.url(lonely)) as nc:
        nc.flush()
        with pytest.raises(RequestTimeoutError):
            nc.jetstream().publish(f"{fresh}.a", b"x", timeout=0.5)
        assert nc.is_connected
