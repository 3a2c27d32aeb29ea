"""What our client puts nats-py gets, lists and deletes, and the other way round; on our server and on the real one."""

from __future__ import annotations

import os

import nats
import pytest
from nats.js.errors import ObjectNotFoundError as PeerNotFoundError

from slipstream import ObjectStoreConfig, connect
from slipstream.errors import ObjectNotFoundError

DATA = os.urandom(300_000)


async def test_what_we_put_nats_py_reads_and_deletes(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        ours = await nc.jetstream().create_object_store(ObjectStoreConfig(bucket=fresh))
        info = await ours.put("a/b", DATA, description="d", headers={"H": ["1"]})
        peer = await nats.connect(any_server)
        try:
            theirs = await peer.jetstream().object_store(fresh)
            read = await theirs.get_info("a/b")
            assert (read.size, read.chunks, read.digest, read.description) == (300_000, 3, info.digest, "d")
            await theirs.delete("a/b")
        finally:
            await peer.close()
        with pytest.raises(ObjectNotFoundError, match="deleted"):
            await ours.info("a/b")


async def test_what_nats_py_puts_we_read_and_delete(any_server: str, fresh: str) -> None:
    peer = await nats.connect(any_server)
    try:
        theirs = await peer.jetstream().create_object_store(fresh)
        await theirs.put("a/b", DATA)
        async with connect(any_server) as nc:
            ours = await nc.jetstream().object_store(fresh)
            assert await ours.get_bytes("a/b") == DATA
            assert [info.name async for info in ours.list()] == ["a/b"]
            await ours.delete("a/b")
        with pytest.raises(PeerNotFoundError):
            await theirs.get_info("a/b")
    finally:
        await peer.close()
