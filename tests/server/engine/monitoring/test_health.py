"""Bytes that were flipped in the file, a store that is full, a disk that is: what is served, said and kept."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient

from slipstream.server.server import Server
from slipstream.server.store.groups import write_group
from slipstream.server.store.lmdb.store import LmdbStore
from tests.server.support import Client, Rig, sequences, status

MARK = b"the message that is going to be damaged"


def flip(folder: Path, needle: bytes) -> None:
    """Damage a record in the file, wherever it is."""
    path = folder / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.find(needle)
    assert at > 0
    while at >= 0:
        data[at] ^= 0xFF
        at = data.find(needle, at + 1)
    path.write_bytes(data)


async def test_flipped_bytes_are_reported_and_the_rest_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(data_dir=tmp_path) as server, await nats.connect(server.url) as nc:
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"], allow_direct=True)
        for n in range(20):
            await js.publish("s", MARK if n == 7 else b"%d" % n)
        assert server.health().ok
    flip(tmp_path, MARK)
    caplog.set_level(logging.ERROR, logger="slipstream.server")
    async with Server(data_dir=tmp_path) as server, await nats.connect(server.url) as nc:
        answer = await nc.request("$JS.API.DIRECT.GET.S", b'{"seq":8}')
        assert answer.headers is not None
        assert answer.headers["Status"] == "500"
        assert answer.data == b""
        for seq in (7, 9, 20):
            answer = await nc.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq)
            assert answer.data == b"%d" % (seq - 1)
        health = server.health()
        assert not health.ok
        assert health.damaged == (("S", 8),)
        assert health.problems == ("damaged messages: 8 of 'S'",)
        assert "message 8 of stream 'S' is damaged" in caplog.text
        assert caplog.text.count("message 8 of stream") == 1
        assert (await js_ack(nc, "s"))["seq"] == 21
    assert not server.health().ok  # it does not run


async def js_ack(nc: NatsClient, subject: str) -> dict[str, int]:
    decoded: dict[str, int] = json.loads((await nc.request(subject, b"x")).data)
    return decoded


def test_a_batch_ends_at_a_damaged_message_and_can_be_resumed_after_it(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=1 << 26)
    client = Rig(store=store).client()
    client.create("S", storage="file")
    for n in range(10):
        client.publish("s.1", MARK if n == 4 else b"x")
    store.close()
    flip(tmp_path, MARK)
    store = LmdbStore(tmp_path, map_size=1 << 26)
    client = Rig(store=store).client()
    answers = client.direct("S", {"seq": 1, "batch": 100})
    assert sequences(answers) == [1, 2, 3, 4]
    assert status(answers[-1]) == (500, "Message Corrupt")
    assert sequences(client.direct("S", {"seq": 6, "batch": 100})) == [6, 7, 8, 9, 10]
    assert client.rig.engine.health().damaged == (("S", 5),)
    client.api("STREAM.MSG.DELETE.S", {"seq": 5})
    assert sequences(client.direct("S", {"seq": 1, "batch": 100})) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    store.close()


def test_a_full_store_rejects_publishes_until_there_is_space(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=1 << 20)
    rig = Rig(store=store)
    client = rig.client()
    client.create("S", storage="file")
    kept: list[int] = []
    while True:
        answer = publish(client, b"x" * 50_000)
        if "error" in answer:
            break
        kept.append(answer["seq"])
    assert answer["error"]["err_code"] == 10077
    assert "full" in answer["error"]["description"]
    assert len(kept) > 3
    assert not rig.engine.health().ok
    assert sequences(client.direct("S", {"seq": 1, "batch": 100})) == kept
    assert "error" in publish(client, b"x" * 50_000)
    client.api("STREAM.PURGE.S")
    for _ in range(20):  # the space comes back in the background
        carry(rig)
    again = publish(client, b"x" * 50_000)
    assert again["seq"] == kept[-1] + 1
    assert rig.engine.health().ok
    store.close()


def publish(client: Client, payload: bytes) -> dict[str, Any]:
    client.take()
    client.send(b"PUB s.1 %b9 %d\r\n%b\r\n" % (client.inbox.encode(), len(payload), payload), settle=False)
    carry(client.rig)
    client.rig.flush()
    (answer,) = client.messages()
    decoded: dict[str, Any] = json.loads(answer.payload)
    return decoded


def carry(rig: Rig) -> None:
    """Carry a group through as the driver does: what fails is told to the engine."""
    for journal in rig.engine.journals:
        if not journal.ready:
            continue
        batch = journal.seal()
        try:
            if batch.group is not None:
                write_group(journal.store, batch.group)
        except Exception as exc:
            rig.engine.failed(journal, exc, rig.now)
        else:
            rig.engine.committed(batch, rig.now)


SERVER = """
import asyncio, resource, signal, sys
from slipstream import Server
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    async with Server(data_dir=sys.argv[1]) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_full_disk_rejects_publishes_until_there_is_space(tmp_path: Path) -> None:
    """The limit on the size of a file stands for a disk: raised from outside while the server runs."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        async with await nats.connect(url) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s"], allow_direct=True)
            size = (tmp_path / "data.mdb").stat().st_size
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 2_000_000, resource.RLIM_INFINITY))
            kept = await fill_up(nc)
            assert kept > 3
            info = await js.stream_info("S")
            assert info.state.messages == kept
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            ack = await js_ack(nc, "s")
            assert ack["seq"] == kept + 1
            for seq in (1, kept):
                answer = await nc.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq)
                assert len(answer.data) == 100_000
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        assert process.stdout is not None
        process.stdout.close()
    async with Server(data_dir=tmp_path) as server, await nats.connect(server.url) as nc:
        assert (await nc.jetstream().stream_info("S")).state.messages == kept + 1


async def fill_up(nc: NatsClient) -> int:
    """Publish until it is refused; how many were not."""
    for kept in range(1000):
        answer = json.loads((await asyncio.wait_for(nc.request("s", b"x" * 100_000), 10)).data)
        if "error" in answer:
            assert answer["error"]["err_code"] == 10077
            return kept
    raise AssertionError("the disk never became full")


def test_deleted_details_do_not_include_damaged_messages(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=1 << 26)
    client = Rig(store=store).client()
    client.create("S", storage="file")
    for n in range(10):
        client.publish("s.1", MARK if n == 4 else b"x")
    client.api("STREAM.MSG.DELETE.S", {"seq": 4})
    client.api("STREAM.MSG.DELETE.S", {"seq": 8})
    store.close()
    flip(tmp_path, MARK)
    store = LmdbStore(tmp_path, map_size=1 << 26)
    client = Rig(store=store).client()
    assert client.api("STREAM.INFO.S", {"deleted_details": True})["state"]["deleted"] == [4, 8]
    store.close()
