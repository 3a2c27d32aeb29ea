"""Consumers of a real cluster: placed on any copy, believed only where the copy has the wanted sequence."""

from __future__ import annotations

import pytest

from slipstream import ConsumerConfig, MinLastSequenceUnsupportedError, StreamConfig, connect
from tests.cluster import Cluster

KEYS = 10
TRIES = 25  # a third of the consumers is placed on the held copy: one that is not proven passes once in 25,000 runs


async def make_stream(cluster: Cluster, name: str) -> str:
    """A stream that is not led by the server that places consumers, which would not reach a copy held by its leader."""
    config = StreamConfig(name=name, subjects=(f"{name}.*",), max_msgs_per_subject=1, num_replicas=3)
    async with connect(cluster.urls) as nc:
        for _ in range(20):
            stream = await nc.jetstream().create_stream(config)
            leader = cluster.leader(name)
            if leader != cluster.meta_leader():
                return leader
            await stream.delete()
    pytest.fail("twenty streams were led by the server that places them")


@pytest.mark.spec("RW-50", "RW-51", on="C N")
async def test_ordered_consumer_never_reads_a_copy_that_is_behind(cluster: Cluster, fresh: str) -> None:
    """One message per subject, so that a copy that is behind has other messages and not only fewer."""
    leader = await make_stream(cluster, fresh)
    behind = cluster.expendable(leader)
    async with connect(cluster.url(cluster.meta_leader())) as nc:  # whose routes are not held
        js = nc.jetstream()
        stream = js.stream(fresh)
        for key in range(KEYS):
            await js.publish(f"{fresh}.{key}", b"old")
        cluster.wait_until_level(fresh, KEYS)
        cluster.hold_replica(leader, behind)
        try:
            last = [(await js.publish(f"{fresh}.{key}", b"new")).seq for key in range(KEYS + 1)][-1]
            for attempt in range(TRIES):
                policy = ("last_per_subject", "all")[attempt % 2]
                async with stream.ordered_consumer(deliver_policy=policy, min_last_seq=last) as ordered:
                    assert ordered.initial_pending == KEYS + 1
                    assert {(await ordered.next()).data for _ in range(KEYS + 1)} == {b"new"}
        finally:
            cluster.release_replica(leader, behind)
        with pytest.raises(MinLastSequenceUnsupportedError, match="has 3 replicas"):
            await stream.create_consumer(ConsumerConfig(durable_name="dur", min_last_seq=last))
        assert [name async for name in stream.consumer_names()] == []
