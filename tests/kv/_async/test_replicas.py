"""Read replicas at the edge: mirrors of buckets of another server."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from slipstream import BucketConfig, ExternalStream, JetStream, Server, connect
from slipstream.errors import Error, NoStreamError, OriginUnreachableError
from slipstream.kv import BucketSource
from tests._async.concurrency import until
from tests.ports import free_port
from tests.servers import real_server

READS = 60
HUB = ExternalStream(api="$JS.hub.API")


async def check_in_domain(there: str, here: str, members: set[str], log: pytest.LogCaptureFixture) -> None:
    async with connect(there) as hub, connect(here) as nc, connect(there) as other:
        js = nc.jetstream()
        origin = await hub.jetstream().create_key_value(BucketConfig(bucket="eu", history=3, ttl=timedelta(hours=1)))
        source = BucketSource(bucket="eu", external=HUB)
        same = await js.create_key_value(BucketConfig(bucket="same", mirror=source))
        status = await same.status()
        assert (status.history, status.ttl, status.stream_info.config.mirror_direct) == (3, timedelta(hours=1), True)
        assert not [record for record in log.records if record.name == "slipstream.kv"]
        less = await js.create_key_value(BucketConfig(bucket="less", history=1, mirror=source))
        assert "'less' does not answer reads of its origin, stream 'KV_eu': history must be 3, got 1" in log.text
        assert not (await less.status()).stream_info.config.mirror_direct
        for n in range(4):
            last = await less.put("k", b"%d" % n)  # arrives at the origin

        async def have_all() -> bool:
            return (await same.status()).last_revision == (await less.status()).last_revision == last

        await until(have_all)
        reader = await other.jetstream().key_value("eu")
        found = [await reader.history("k") for _ in range(READS)]
        assert {tuple(entry.value for entry in entries) for entries in found} == {(b"1", b"2", b"3")}
        assert {entry.stream for entries in found for entry in entries} == members
        assert [entry.value for entry in await less.history("k")] == [b"3"]
        assert await less.keys() == await origin.keys() == ["k"]
        sources = (BucketSource(bucket="eu", external=HUB, prefix="from.hub"),)
        both = await js.create_key_value(BucketConfig(bucket="all", subject_prefix="my.all", sources=sources))

        async def is_collected() -> bool:
            return await both.keys() == ["from.hub.k"]

        await until(is_collected)


@pytest.mark.spec("KV-36", "KV-37", on="C N")
async def test_a_replica_of_another_domain_that_keeps_less_stays_out_of_reads(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    config = f'jetstream {{ domain: "hub" }}\nleafnodes {{ host: "127.0.0.1", port: {port} }}'
    leaf = f'jetstream {{ domain: "leaf" }}\nleafnodes {{ remotes: [{{ url: "nats://127.0.0.1:{port}" }}] }}'
    with real_server(config=config) as there, real_server(config=leaf) as here:
        async with connect(here) as nc:
            await until(lambda: is_linked(nc.jetstream(domain="hub")))
        await check_in_domain(there, here, {"KV_eu"}, caplog)


async def is_linked(hub: JetStream) -> bool:
    try:
        await hub.account_info(timeout=1.0)
    except Error:  # not yet, in whichever way that shows
        return False
    return True


@pytest.mark.spec("KV-36", on="E")
async def test_the_same_on_our_server(caplog: pytest.LogCaptureFixture) -> None:
    async with Server(domain="hub") as server:
        await check_in_domain(server.url, server.url, {"KV_eu", "KV_same"}, caplog)


@pytest.mark.spec("KV-36", on="E C")
async def test_writes_through_a_replica_without_its_origin_say_why(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        Server() as hub,
        Server(upstreams={"hub": hub.url}) as edge,
        connect(hub.url) as there,
        connect(edge.url) as here,
    ):
        origin = await there.jetstream().create_key_value(BucketConfig(bucket="eu", history=2))
        await origin.put("k", b"1")
        source = BucketSource(bucket="eu", external=ExternalStream(api="$JS.hub.API"))
        with caplog.at_level(logging.WARNING, "slipstream.kv"):
            replica = await here.jetstream().create_key_value(BucketConfig(bucket="c", history=2, mirror=source))
        assert "replica 'c' does not answer reads of its origin, stream 'KV_eu'" in caplog.text
        assert not (await replica.status()).stream_info.config.mirror_direct

        async def has_it() -> bool:
            return await replica.keys() == ["k"]

        await until(has_it)

        async def write() -> None:
            async with replica.writer() as writer:
                await writer.put("k", b"2")

        text = r"'c' is a read replica.*'KV_eu' below '\$JS.hub.API'"
        writes: list[Any] = [lambda: replica.put("k", b"2"), lambda: replica.delete("k"), write]
        for call in writes:
            with pytest.raises(OriginUnreachableError, match=text) as e:
                await call()
            assert isinstance(e.value, NoStreamError)
        assert (await replica.get("k")).value == b"1"
        await here.jetstream().create_key_value(BucketConfig(bucket="c", mirror=source))  # history is not asked for
