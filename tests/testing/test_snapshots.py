"""Snapshots, restores and resets of a test server, with everything that a test may have done in between."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta
from pathlib import Path

import nats
import pytest

from slipstream import StreamConfig, StreamSource, connect, connect_blocking
from slipstream.errors import (
    KeyNotFoundError,
    StaleReadError,
    StreamNotFoundError,
    StreamStoreFailedError,
    UsageError,
)
from slipstream.testing import ServerSnapshot, TestServer


def subjects(server: TestServer) -> list[tuple[int, str]]:
    return [(message.seq, message.subject) for message in server.stored()]


def test_a_restore_brings_back_messages_streams_and_buckets(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>", "GONE": "gone.>"}, {"s.1": [b"a", b"b"], "s.2": b"c", "gone.1": b""}, {"kv": {"k": "v"}})
    before = subjects(server)
    snapshot = server.snapshot()
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        for _ in range(2):
            stream = js.stream("S")
            stream.delete_message(1)
            js.publish("s.3", b"new")
            js.update_stream("S", subjects=["s.>", "t.>"])
            js.publish("t.1", b"")
            stream.purge(subject="s.2")
            js.stream("GONE").delete()
            js.create_stream("GONE", subjects=["other.>"])
            js.create_stream("NEW", subjects=["new.>"])
            js.key_value("kv").put("k", b"w")
            js.key_value("kv").put("l", b"w")
            server.restore(snapshot)
            assert subjects(server) == before
            assert stream.info().config.subjects == ("s.>",)
            assert js.stream("GONE").info().config.subjects == ("gone.>",)
            with pytest.raises(StreamNotFoundError):
                js.stream("NEW").info()
        # The same sequences are given out again, to clients that were connected all the time.
        assert js.publish("s.3", b"new").seq == 4
    with connect_blocking(server.url) as client:
        kv = client.jetstream().key_value("kv")
        assert kv.get("k").value == b"v"
        with pytest.raises(KeyNotFoundError):
            kv.get("l")


def test_a_restore_brings_back_delivery_state_and_unacknowledged_messages(
    slipstream_server_virtual: TestServer,
) -> None:
    server = slipstream_server_virtual
    server.seed({"S": "s.>"}, {"s.1": [b"1", b"2", b"3"]})
    with connect_blocking(server.url) as client:
        consumer = client.jetstream().stream("S").create_consumer("w", ack_wait=30)
        first, _ = consumer.fetch(2)
        first.ack_sync()
        server.advance(10)
        snapshot, then = server.snapshot(), server.now_at
        before = server.consumer("S", "w")
        assert (before.pending, before.ack_pending, before.acked) == (1, 1, 1)
        server.advance(timedelta(days=3))
        for message in consumer.fetch(2):
            message.ack_sync()
        assert server.wait_until_done("S", "w").acked == 3
        server.restore(snapshot)
        after = server.consumer("S", "w")
        assert after[:5] == before[:5]
        assert after.acked == 0  # acks are counted from here
        assert server.now_at == then
        # The second message is redelivered at the moment it would have been, not earlier.
        assert [message.seq for message in consumer.fetch(5, timeout=0.1)] == [3]
        server.advance(19.999)
        assert consumer.fetch(1, timeout=0.1) == []
        server.advance(0.001)
        assert [(message.seq, message.num_delivered) for message in consumer.fetch(1)] == [(2, 2)]


def test_expired_messages_and_ids_return_with_the_time(slipstream_server_virtual: TestServer) -> None:
    server = slipstream_server_virtual
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig("S", subjects=["s.>"], max_age=3600, allow_msg_ttl=True))
        js.publish("s.1", b"", msg_id="a")
        js.publish("s.2", b"", ttl=60)
        snapshot = server.snapshot()
        for _ in range(2):
            server.advance(timedelta(days=30))
            assert server.stored() == []
            assert not js.publish("s.1", b"", msg_id="a").duplicate
            server.restore(snapshot)
            assert js.publish("s.1", b"", msg_id="a").duplicate
            server.advance(59)
            assert len(server.stored()) == 2
            server.advance(1)
            assert [message.subject for message in server.stored()] == ["s.1"]
            server.restore(snapshot)


def test_holds_faults_and_delayed_messages_end_with_a_restore(slipstream_server_virtual: TestServer) -> None:
    server = slipstream_server_virtual
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig("S", subjects=["s.>"], num_replicas=3))
        snapshot = server.snapshot()
        server.hold()
        js.publish("s.1", b"")
        assert [replica.held for replica in server.replicas("S")] == [False, True, True]
        server.delay("s.9", 10, direction="to_server")
        client.publish("s.9", b"late")
        client.flush()
        server.drop("s.2", direction="to_server", count=10)
        server.refuse_writes()
        server.restore(snapshot)
        assert not any(replica.held for replica in server.replicas("S"))
        assert js.publish("s.2", b"").seq == 1
        server.advance(20)
        assert [message.subject for message in server.stored()] == ["s.2"]


def test_snapshots_nest_as_savepoints_do(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"}, {"s.1": b""})
    outer = server.snapshot()
    server.seed(messages={"s.2": b""})
    inner = server.snapshot()
    server.seed(messages={"s.3": b""})
    server.restore(inner)
    assert len(server.stored()) == 2
    server.restore(outer)
    assert len(server.stored()) == 1
    with pytest.raises(UsageError, match="no later restore has undone"):
        server.restore(inner)
    again = server.snapshot()  # must not be taken for the one that is gone
    assert again.number != inner.number
    with server.restored():
        server.reset()
        assert server.stored() == []
    assert len(server.stored()) == 1


def test_a_snapshot_of_another_server_or_run_is_rejected(slipstream_server: TestServer, tmp_path: Path) -> None:
    snapshot = slipstream_server.snapshot()
    slipstream_server.restart()
    slipstream_server.snapshot()
    with pytest.raises(UsageError, match="belongs to another server, or to this one before a restart"):
        slipstream_server.restore(snapshot)
    with pytest.raises(UsageError, match="snapshot must be a value returned by snapshot"):
        slipstream_server.restore(1)  # type: ignore[arg-type]
    with TestServer(data_dir=tmp_path / "data") as disk:
        with pytest.raises(UsageError, match="or to this one before a restart"):
            disk.restore(snapshot)
        with pytest.raises(UsageError, match="this server is in memory"):
            slipstream_server.restore(disk.snapshot())
    with pytest.raises(UsageError, match="the server is not running"):
        disk.snapshot()


def test_a_server_on_disk_is_restored_by_a_restart(slipstream_server_disk: TestServer) -> None:
    server = slipstream_server_disk
    server.seed({"S": "s.>"}, {"s.1": b"old"})
    url, snapshot = server.url, server.snapshot()
    assert server.url == url
    copy = snapshot.directory
    assert copy is not None
    for _ in range(2):
        server.seed(messages={"s.2": b"new"})
        server.restore(snapshot)
        assert [message.data for message in server.stored()] == [b"old"]
    del snapshot
    assert not copy.exists()


def test_a_bucket_is_opened_again_after_a_restore(slipstream_server: TestServer) -> None:
    with connect_blocking(slipstream_server.url) as client:
        js = client.jetstream()
        kv = js.create_key_value("settings")
        kv.put("theme", b"dark")
        snapshot = slipstream_server.snapshot()
        kv.put("theme", b"light")
        slipstream_server.restore(snapshot)
        with pytest.raises(StaleReadError):  # it has written revision 2
            kv.keys(timeout=1)
        again = js.key_value("settings")
        assert [entry.value for entry in again.history("theme")] == [b"dark"]
        assert again.keys() == ["theme"]


def test_snapshots_on_disk_nest_and_belong_to_one_server(slipstream_server_disk: TestServer, tmp_path: Path) -> None:
    server = slipstream_server_disk
    server.seed({"S": "s.>"}, {"s.1": b"one"})
    first = server.snapshot()
    server.seed(messages={"s.1": b"two"})
    second = server.snapshot()
    server.restore(second)
    server.restore(first)
    with pytest.raises(UsageError, match=r"snapshot must be one that no later restore has undone \(1\), got 2"):
        server.restore(second)
    server.seed(messages={"s.1": b"three"})
    with server.restored():
        server.seed(messages={"s.1": b"four"})
    assert [message.data for message in server.stored()] == [b"one", b"three"]
    with TestServer(data_dir=tmp_path / "other") as other:
        other.seed({"O": "o.>"}, {"o.1": b"mine"})
        with pytest.raises(UsageError, match="the snapshot belongs to another server"):
            other.restore(first)
        assert [message.data for message in other.stored()] == [b"mine"]


async def test_workers_go_on_across_restores(slipstream_server: TestServer) -> None:
    """An application that runs all the time: its pull requests are sent again, and it does each job of each test."""
    server = slipstream_server
    server.seed({"JOBS": "jobs.>"})
    done: list[bytes] = []
    async with connect(server.url) as client:
        js = client.jetstream()
        consumer = await js.stream("JOBS").create_consumer("w")

        async def work() -> None:
            async for message in consumer.messages():
                done.append(message.data)
                await message.ack()

        worker = asyncio.create_task(work())
        snapshot = server.snapshot()
        for number in range(5):
            await js.publish("jobs.1", b"%d" % number)
            counts = await server.wait_until_done_async("JOBS", "w")
            assert (counts.acked, counts.delivered) == (1, 1)
            server.restore(snapshot)
        worker.cancel()
    assert done == [b"0", b"1", b"2", b"3", b"4"]


async def test_other_clients_stay_connected_through_a_restore(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"})
    snapshot = server.snapshot()
    client = await nats.connect(server.url, allow_reconnect=False)
    js = client.jetstream()
    heard = await client.subscribe("core")
    for _ in range(3):
        assert (await js.publish("s.1", b"")).seq == 1
        server.restore(snapshot)
    await client.publish("core", b"still there")
    assert (await heard.next_msg(timeout=5)).data == b"still there"
    await client.close()


def test_a_restore_under_load_loses_no_reply(slipstream_server: TestServer) -> None:
    """Publishers in threads, while the server is restored again and again: each publish is acknowledged or refused."""
    server = slipstream_server
    server.seed({"S": "s.>"})
    snapshot = server.snapshot()
    ended = threading.Event()
    counts = [0, 0]
    errors: list[BaseException] = []

    def publish(number: int) -> None:
        try:
            with connect_blocking(server.url) as client:
                js = client.jetstream()
                while not ended.is_set():
                    with contextlib.suppress(StreamStoreFailedError):  # "the server was restored to a snapshot"
                        js.publish("s.1", b"x", timeout=10)
                    counts[number] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    restores = 0
    while restores < 30 and not errors:
        before = list(counts)
        server.restore(snapshot)
        restores += 1
        while any(now == then for now, then in zip(counts, before, strict=True)) and not errors:
            ended.wait(0.001)
    ended.set()
    for thread in threads:
        thread.join(30)
    assert not errors


def test_a_reset_leaves_nothing_but_the_connections(slipstream_server: TestServer) -> None:
    server = slipstream_server
    server.seed({"S": "s.>"}, {"s.1": b""}, {"kv": {"k": "v"}})
    with connect_blocking(server.url, reconnect=False) as client:
        client.jetstream().stream("S").create_consumer("w")
        heard = client.subscribe("core")
        server.drop("core", count=100)
        server.refuse_writes()
        server.reset()
        assert list(client.jetstream().stream_names()) == []
        client.publish("core", b"x")
        assert heard.next(timeout=5).data == b"x"
        server.seed({"S": "s.>"}, {"s.1": b""})
        assert server.stored()[0].seq == 1


def test_mirrors_and_work_queues_are_as_they_were(slipstream_server: TestServer) -> None:
    server = slipstream_server
    queue = StreamConfig("Q", subjects=["q.>"], retention="workqueue")
    mirror = StreamConfig("M", mirror=StreamSource(name="S"))
    server.seed([StreamConfig("S", subjects=["s.>"]), mirror, queue], [("s.1", b"old"), ("q.1", b"job")])
    server.wait_for("s.1", 2)
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        consumer = js.stream("Q").create_consumer("w")
        snapshot = server.snapshot()
        for _ in range(2):
            (job,) = consumer.fetch(1)
            job.ack_sync()
            js.publish("s.2", b"new")
            assert [message.stream for message in server.wait_for("s.2", 2)] == ["S", "M"]
            assert server.stored("q.>") == []
            server.restore(snapshot)
            assert [message.stream for message in server.stored("s.>")] == ["S", "M"]
            assert server.consumer("Q", "w").pending == 1


def test_a_snapshot_says_what_it_is() -> None:
    assert repr(ServerSnapshot(1, 2)) == "<ServerSnapshot 2>"
