"""Read replicas at the edge: mirrors of buckets of another server."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from slipstream import BucketConfig, ExternalStream, Server, connect
from slipstream.errors import NoStreamError, OriginUnreachableError
from slipstream.kv import BucketSource
from tests._async.concurrency import until


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
