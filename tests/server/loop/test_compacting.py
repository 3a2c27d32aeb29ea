"""Compaction of a running server: clients are served meanwhile, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest

from slipstream import JetStream, Stream, connect
from slipstream.errors import CorruptRecordError, StoreError, UsageError
from slipstream.server import Server
from slipstream.server.loop import compacting
from slipstream.server.store.lmdb import compact
from tests.server.loop.test_scrubbing import overwrite

COUNT = 3_000


@pytest.fixture(autouse=True)
def many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "BYTES", 50_000)


async def filled(js: JetStream) -> Stream:
    """A stream whose older messages are gone."""
    stream = await js.create_stream("S", subjects=["s.>"])
    for at in range(0, COUNT, 500):
        await asyncio.gather(*(js.publish(f"s.{n % 50}", b"%d" % n + b"x" * 300) for n in range(at, at + 500)))
    await stream.purge(below=COUNT - 100)
    return stream


async def settled(server: Server) -> None:
    """Wait until the purged messages are removed."""
    async with asyncio.timeout(60):
        while server._stores[1].backlog:
            await asyncio.sleep(0.01)


async def test_messages_are_published_and_read_while_the_file_is_compacted(tmp_path: Path) -> None:
    async with Server(data_dir=tmp_path) as server, await connect(server.url) as client:
        js = client.jetstream()
        stream = await filled(js)
        await settled(server)
        work = asyncio.create_task(server.compact())
        again = asyncio.create_task(server.compact())  # the same one
        sent = 0
        while not work.done():
            ack = await js.publish(f"s.{sent % 50}", b"new %d" % sent)
            assert ack.seq == COUNT + sent + 1
            message = await stream.get(COUNT + sent + 1)
            assert message.data == b"new %d" % sent
            sent += 1
        done = await work
        assert await again is done
        assert sent > 1
        assert done.after < done.before / 2
        assert (tmp_path / "data.mdb").stat().st_size <= done.after + 4096 * 200
        ack = await js.publish("s.1", b"last")
        info = await stream.info()
        assert info.state.messages == 101 + sent + 1
        assert server.health().ok
    async with Server(data_dir=tmp_path) as server, await connect(server.url) as client:
        stream = client.jetstream().stream("S")
        for n in range(sent):
            assert (await stream.get(COUNT + n + 1)).data == b"new %d" % n
        assert (await stream.get(ack.seq)).data == b"last"


async def test_a_file_that_is_mostly_free_is_compacted_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slipstream.server")
    monkeypatch.setattr(compacting, "CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(compacting, "SMALLEST", 100_000)
    async with Server(data_dir=tmp_path) as server, await connect(server.url) as client:
        await filled(client.jetstream())
        # It may have been compacted before the purge, too: a file of these tests is soon half free.
        async with asyncio.timeout(60):
            while not any("Compacted the file of streams" in each for each in caplog.messages) or is_due(server):
                await asyncio.sleep(0.01)


def is_due(server: Server) -> bool:
    """Whether purged messages are still to be removed, or half of the file is free."""
    size, used = server._stores[1].file_usage
    return server._stores[1].backlog or used <= size / 2


async def test_a_server_that_stops_drops_the_copy(tmp_path: Path) -> None:
    async with Server(data_dir=tmp_path) as server:
        async with await connect(server.url) as client:
            await filled(client.jetstream())
        work = asyncio.create_task(server.compact())
        await asyncio.sleep(0)
    with pytest.raises(StoreError, match="the server is stopping"):
        await work
    assert not (tmp_path / "compact").exists()


async def test_damage_refuses_the_copy_and_the_server_goes_on(tmp_path: Path) -> None:
    async with Server(data_dir=tmp_path, scrub_rate=0) as server, await connect(server.url) as client:
        js = client.jetstream()
        stream = await filled(js)
        await settled(server)
        overwrite(tmp_path / "data.mdb", b"2950" + b"x" * 20, b"2950X")
        with pytest.raises(CorruptRecordError, match="the store is damaged"):
            await server.compact()
        assert not (tmp_path / "compact").exists()
        ack = await js.publish("s.1", b"after")
        assert (await stream.get(ack.seq)).data == b"after"


async def test_a_server_without_a_directory_has_nothing_to_compact() -> None:
    async with Server() as server:
        with pytest.raises(UsageError, match="data_dir"):
            await server.compact()
    with pytest.raises(UsageError, match="not running"):
        await server.compact()


@pytest.mark.parametrize("call", ["os.statvfs", "pathlib.Path.mkdir", "os.replace"])
async def test_error_of_the_file_system_ends_the_copy_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async with Server(data_dir=tmp_path) as server, await connect(server.url) as client:
        js = client.jetstream()
        stream = await filled(js)
        await settled(server)
        with monkeypatch.context() as patch:
            patch.setattr(call, refuse)
            with pytest.raises(StoreError, match=r"compacting.*Read-only file system"):
                await server.compact()
        assert not (tmp_path / "compact").exists()
        ack = await js.publish("s.1", b"after")
        assert (await stream.get(ack.seq)).data == b"after"


async def test_server_stops_after_a_compaction_that_failed_by_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(compact.Compaction, "work", fail)
    async with Server(data_dir=tmp_path) as server:
        with pytest.raises(ZeroDivisionError):
            await server.compact()
    with pytest.raises(UsageError, match="not running"):
        await server.compact()
    async with Server(data_dir=tmp_path) as server:  # the first one has released the store
        assert server.health().ok
