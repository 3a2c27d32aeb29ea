"""Which marks leave a marker when they expire: a delete does, a purge does not, as on nats-server."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from slipstream import BucketConfig, connect
from slipstream.errors import KeyNotFoundError
from slipstream.kv import Operation
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.sqlite_storage import open_sqlite
from slipstream.server import Server

CONFIG = BucketConfig(bucket="marks", ttl=timedelta(seconds=4), limit_marker_ttl=timedelta(seconds=3))


def test_expired_purge_leaves_no_marker_on_our_server() -> None:
    async def run() -> None:
        async with Server(virtual_time=True, faults=True) as server, connect(server.url) as nc:
            kv = await nc.jetstream().create_key_value(CONFIG)
            await kv.purge("a")
            await server.fault_command("advance", {"seconds": 5})
            with pytest.raises(KeyNotFoundError):
                await kv.history("a")

    asyncio.run(asyncio.wait_for(run(), 30))


def test_expired_delete_leaves_a_marker_in_a_local_bucket() -> None:
    async def run() -> None:
        now = [10**18]
        kv = KeyValue(await open_sqlite(config=CONFIG, now=lambda: now[0]))
        await kv.delete("a")
        now[0] += 5 * 10**9
        assert [entry.operation for entry in await kv.history("a")] == [Operation.EXPIRED]
        await kv.close()

    asyncio.run(asyncio.wait_for(run(), 30))
