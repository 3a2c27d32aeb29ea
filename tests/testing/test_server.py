"""Fault commands on a running server, through real sockets, as the test of an application uses them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest

from slipstream import StreamConfig, connect, connect_blocking
from slipstream.errors import ApiError, MessageNotFoundError, RequestTimeoutError, StaleReadError, UsageError
from slipstream.facade._sync.client import Client as BlockingClient
from slipstream.server import Server
from slipstream.testing import TestServer

S = StreamConfig(name="S", subjects=("s.>",), allow_direct=True, num_replicas=3)


def last(client: BlockingClient, count: int = 60, **options: Any) -> Counter[bytes]:
    stream = client.jetstream().stream("S")
    return Counter(stream.get_last("s.1", **options).data for _ in range(count))


# Its life.


@pytest.mark.steady
def test_a_server_is_ready_in_milliseconds(slipstream_session_server: TestServer) -> None:
    times: list[float] = []
    while len(times) < 5 or (min(times) >= 0.25 and len(times) < 50):  # on a busy machine any single one may be slow
        begin = time.perf_counter()
        with TestServer() as server, connect_blocking(server.url) as client:
            client.jetstream().create_stream(S)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.25, times
    assert slipstream_session_server.url.startswith("nats://127.0.0.1:")


def test_each_test_has_a_server_of_its_own(
    slipstream_server: TestServer, slipstream_server_disk: TestServer, slipstream_server_virtual: TestServer
) -> None:
    servers = (slipstream_server, slipstream_server_disk, slipstream_server_virtual)
    assert len({server.url for server in servers}) == 3
    for server in servers:
        with connect_blocking(server.url) as client:
            client.jetstream().create_stream(S)
            assert client.jetstream().publish("s.1").seq == 1


def test_a_restart_keeps_the_port_and_what_is_on_disk(slipstream_server_disk: TestServer) -> None:
    server = slipstream_server_disk
    url = server.url
    with connect_blocking(url) as client:
        client.jetstream().create_stream(S)
        client.jetstream().publish("s.1", b"kept")
    server.restart()
    assert server.url == url
    with connect_blocking(url) as client:
        assert client.jetstream().stream("S").get_last("s.1").data == b"kept"


async def test_async_code_uses_the_same_server_and_the_same_calls(slipstream_server: TestServer) -> None:
    server = slipstream_server
    async with connect(server.url) as client:
        js = client.jetstream()
        stream = await js.create_stream(S)
        await js.publish("s.1", b"1")
        with server.held("S"):
            ack = await js.publish("s.1", b"2")
            seen = {(await stream.get_last("s.1")).data for _ in range(60)}
            assert seen == {b"1", b"2"}
            fresh = {(await stream.get_last("s.1", min_last_seq=ack.seq)).data for _ in range(60)}
            assert fresh == {b"2"}
        assert {(await stream.get_last("s.1")).data for _ in range(30)} == {b"2"}


async def test_a_server_on_the_tests_own_loop_runs_fault_commands_too() -> None:
    async with Server(faults=True) as server, connect(server.url) as client:
        await client.jetstream().create_stream(S)
        await server.fault_command("hold", {"stream": "S"})
        found = await server.fault_command("replicas", {"stream": "S"})
        assert [replica["held"] for replica in found["replicas"]] == [False, True, True]


async def test_any_client_will_do(slipstream_server: TestServer) -> None:
    client = await nats.connect(slipstream_server.url)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.>"], allow_direct=True, num_replicas=3)
    await js.publish("s.1", b"1")
    slipstream_server.hold("S")
    await js.publish("s.1", b"2")
    seen = {(await js.get_last_msg("S", "s.1", direct=True)).data for _ in range(60)}
    assert seen == {b"1", b"2"}
    await client.close()


# Replicas and mirrors.


@pytest.mark.steady
def test_the_documents_recipe_with_a_replica_that_is_really_behind(slipstream_server: TestServer) -> None:
    """Too high a sequence gets 412; publish; the same read succeeds, whichever replica is asked."""
    server = slipstream_server
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream(S)
        js.publish("s.1", b"1")
        server.hold("S")
        with pytest.raises(StaleReadError):
            stream.get_last("s.1", min_last_seq=2, timeout=2)
        assert js.publish("s.1", b"2").seq == 2
        assert set(last(client)) == {b"1", b"2"}
        assert last(client, min_last_seq=2) == {b"2": 60}


def test_replicas_can_be_looked_at_held_and_deposed(slipstream_server: TestServer) -> None:
    server = slipstream_server
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(S)
        js.publish("s.1", b"1")
        first, second, third = server.replicas("S")
        assert first.leads
        assert not any(replica.held or replica.deposed for replica in (first, second, third))
        server.hold("S", second.name)
        js.publish("s.1", b"2")
        assert [replica.last_seq for replica in server.replicas("S")] == [2, 1, 2]
        assert server.depose("S") == third.name
        assert js.publish("s.1", b"3").seq == 3
        server.release("S")
        assert [(replica.leads, replica.last_seq) for replica in server.replicas("S")] == [
            (False, 3), (False, 3), (True, 3),
        ]  # fmt: skip


def test_a_deposed_leader_that_does_not_know_is_a_race_no_more(slipstream_server: TestServer) -> None:
    server = slipstream_server
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream(S)
        js.publish("s.1", b"1")
        server.depose("S", unaware=True)
        ack = js.publish("s.1", b"2")
        for _ in range(20):
            assert stream.get_last("s.1", min_last_seq=ack.seq, timeout=5).data == b"2"


def test_a_mirror_is_held_cut_and_released(slipstream_server: TestServer) -> None:
    server = slipstream_server
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(S.replace(num_replicas=1))
        client.request("$JS.API.STREAM.CREATE.M", b'{"name":"M","mirror":{"name":"S"},"allow_direct":true}')
        mirror = js.stream("M")
        js.publish("s.1", b"1")
        assert mirror.get_last("s.1", min_last_seq=1).data == b"1"
        server.hold_mirror("M")
        js.publish("s.1", b"2")
        assert mirror.get_last("s.1").data == b"1"
        assert mirror.info().mirror["lag"] == 1
        assert "error" not in mirror.info().mirror
        server.cut_mirror("M")
        assert mirror.info().mirror["error"]["code"] == 503
        server.release_mirror("M")
        assert mirror.get_last("s.1").data == b"2"


# Time.


@pytest.mark.parametrize("seconds", [1e300, -1, float("nan"), float("inf"), "5", None, timedelta(days=-1), 10**400])
def test_times_that_cannot_be_advanced_are_usage_errors(slipstream_server_virtual: TestServer, seconds: Any) -> None:
    before = slipstream_server_virtual.now
    with pytest.raises(UsageError, match="seconds must be"):
        slipstream_server_virtual.advance(seconds)
    assert slipstream_server_virtual.now == before


@pytest.mark.parametrize(("subject", "count"), [(5, 1), (None, 1), ("a b", 1), ("", 1), ("a", "2"), ("a", -1)])
def test_waits_for_what_is_no_subject_are_usage_errors(slipstream_server: TestServer, subject: Any, count: Any) -> None:
    with pytest.raises(UsageError, match=r"(subject|count) must be"):
        slipstream_server.wait_for(subject, count)
    with pytest.raises(UsageError, match=r"(subject|count) must be"):
        asyncio.run(slipstream_server.wait_for_async(subject, count))


def test_virtual_time_stands_still_until_it_is_advanced(slipstream_server_virtual: TestServer) -> None:
    server = slipstream_server_virtual
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream(S.replace(max_age=timedelta(hours=1)))
        begin = server.now
        js.publish("s.1", b"1", msg_id="a")
        server.advance(60)
        assert js.publish("s.1", b"1", msg_id="a").duplicate
        server.advance(61)
        assert not js.publish("s.1", b"2", msg_id="a").duplicate
        assert server.now == begin + 121 * 1_000_000_000
        server.advance(3600 - 121.5)
        assert stream.get(1).data == b"1"
        server.advance(1)
        with pytest.raises(MessageNotFoundError):
            stream.get(1)
        assert stream.get(2).data == b"2"
        server.advance(86_400)  # no client is cut off for want of a PONG
        assert stream.info().state.messages == 0


def test_a_waiting_read_ends_when_the_clock_says_so(slipstream_server_virtual: TestServer) -> None:
    server = slipstream_server_virtual
    with connect_blocking(server.url) as client:
        client.jetstream().create_stream(S)
        body = b'{"seq":1,"min_last_seq":1}'
        box = client.subscribe("answer")
        client.publish("$JS.API.DIRECT.GET.S", body, reply="answer")
        client.flush()
        with pytest.raises(RequestTimeoutError):
            box.next(timeout=0.1)
        server.advance(0.499)
        with pytest.raises(RequestTimeoutError):
            box.next(timeout=0.05)
        server.advance(0.001)
        assert box.next(timeout=5).status == (412, "Min Last Sequence")


def test_a_message_without_ack_is_redelivered_when_the_virtual_clock_passes_ack_wait(
    slipstream_server_virtual: TestServer,
) -> None:
    server = slipstream_server_virtual
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream(S)
        js.publish("s.1", b"work")
        consumer = stream.create_consumer("worker")  # ack_wait is 30 seconds
        (message,) = consumer.fetch(1)
        assert message.num_delivered == 1
        server.advance(29)
        assert consumer.fetch(1, timeout=0.1) == []
        server.advance(1)
        (message,) = consumer.fetch(1)
        assert message.num_delivered == 2
        message.ack()


# Load.


async def test_replicas_come_and_go_under_load_and_every_read_is_fresh(slipstream_server_disk: TestServer) -> None:
    server = slipstream_server_disk
    async with connect(server.url) as writer, connect(server.url) as reader:
        js = writer.jetstream()
        await js.create_stream(S.replace(num_replicas=1))
        acked = 0
        running = True
        reads = [0, 0]

        async def write() -> None:
            nonlocal acked
            while running:
                acked = (await js.publish("s.1", b"%d" % (acked + 1))).seq

        async def read(number: int) -> None:
            stream = reader.jetstream().stream("S")
            while running:
                wanted = acked
                if wanted:
                    assert int((await stream.get_last("s.1", min_last_seq=wanted)).data) >= wanted
                    reads[number] += 1
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        reading = [asyncio.create_task(read(number)) for number in range(2)]
        for count in (3, 5, 2, 4, 1, 5, 3):
            await js.update_stream(S.replace(num_replicas=count))
            assert len(server.replicas("S")) == count
            before = list(reads)
            if count > 1:
                server.hold("S")
                await asyncio.sleep(0.05)
                server.release("S")
                server.depose("S")
            async with asyncio.timeout(30):  # each reader has read since the change
                while any(now < then + 2 for now, then in zip(reads, before, strict=True)):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
        running = False
        await writing
        await asyncio.gather(*reading)
        assert all(count > 10 for count in reads)
        assert (await reader.jetstream().stream("S").info()).state.messages == acked


# Faults.


def test_messages_are_dropped_doubled_and_delayed(slipstream_server_virtual: TestServer) -> None:
    server = slipstream_server_virtual
    with connect_blocking(server.url) as client:
        box = client.subscribe("a.>")

        def seen() -> list[bytes]:
            client.publish("a.end", b"end")
            found = [box.next(timeout=5).data]
            while found[-1] != b"end":
                found.append(box.next(timeout=5).data)
            return found[:-1]

        def send(count: int) -> None:
            for n in range(count):
                client.publish("a.x", b"%d" % n)
            client.flush()

        server.drop("a.x", count=2, skip=1)
        send(5)
        assert seen() == [b"0", b"3", b"4"]
        server.duplicate("a.x", direction="to_server")
        send(2)
        assert seen() == [b"0", b"0", b"1"]
        server.delay("a.*", 5.0)
        send(2)
        assert seen() == [b"1"]
        server.advance(4.9)
        assert seen() == []
        server.advance(0.1)
        assert seen() == [b"0"]
        server.delay("a.x", 1.0, direction="to_server")
        send(1)
        server.advance(1)
        assert seen() == [b"0"]
        server.drop("a.x", count=100)
        server.clear()
        send(1)
        assert seen() == [b"0"]


def test_a_lost_ack_and_the_retry_that_must_not_store_twice(slipstream_server: TestServer) -> None:
    server = slipstream_server
    with connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(S)
        server.drop("_INBOX.>")
        with pytest.raises(RequestTimeoutError):
            js.publish("s.1", b"once", msg_id="id", timeout=0.2, retries=0)
        again = js.publish("s.1", b"once", msg_id="id")
        assert (again.seq, again.duplicate) == (1, True)
        server.drop("_INBOX.>")
        again = js.publish("s.1", b"once", msg_id="id", timeout=6, retries=60)  # by itself
        assert (again.seq, again.duplicate) == (1, True)
        assert js.stream("S").info().state.messages == 1


@pytest.mark.parametrize("after", [1, 7, 100, 1000])
def test_a_connection_is_cut_at_a_byte(slipstream_server: TestServer, after: int) -> None:
    """The client gets exactly so many more bytes; it reconnects and loses nothing that was acknowledged."""
    server = slipstream_server
    with connect_blocking(server.url, name="writer") as client, connect_blocking(server.url, name="other") as other:
        js = client.jetstream()
        js.create_stream(S)
        assert server.cut("writer", after=after) == 1
        acked = []
        for n in range(50):
            try:
                acked.append(js.publish("s.1", b"%d" % n, msg_id=str(n), timeout=2).seq)
            except (RequestTimeoutError, ConnectionError, OSError):
                acked.append(js.publish("s.1", b"%d" % n, msg_id=str(n), timeout=5).seq)
        assert acked == list(range(1, 51))
        assert other.jetstream().stream("S").info().state.messages == 50


def test_a_raw_client_sees_exactly_the_bytes_before_the_cut(slipstream_server: TestServer) -> None:
    import socket

    server = slipstream_server
    with socket.create_connection((server.server.host, server.server.port), timeout=5) as sock:
        sock.recv(65536)
        sock.sendall(b'CONNECT {"verbose":false,"name":"raw"}\r\nSUB a 1\r\nPING\r\n')
        assert sock.recv(100) == b"PONG\r\n"
        server.cut("raw", after=10)
        with connect_blocking(server.url) as client:
            client.publish("a", b"payload")
            client.flush()
        received = b""
        while piece := sock.recv(100):
            received += piece
        assert received == b"MSG a 1 7\r\npayload\r\n"[:10]


def test_what_a_client_sends_is_cut_too(slipstream_server: TestServer) -> None:
    import socket

    server = slipstream_server
    with connect_blocking(server.url) as client:
        box = client.subscribe("a")
        client.flush()
        with socket.create_connection((server.server.host, server.server.port), timeout=5) as sock:
            sock.recv(65536)
            sock.sendall(b'CONNECT {"verbose":false,"name":"raw"}\r\nPING\r\n')
            assert sock.recv(100) == b"PONG\r\n"
            server.cut("raw", after=len(b"PUB a 1\r\n1\r\n") + 5, direction="to_server")
            sock.sendall(b"PUB a 1\r\n1\r\nPUB a 1\r\n2\r\n")
            with contextlib.suppress(ConnectionError):  # a reset, or a plain end
                assert sock.recv(100) == b""
        assert box.next(timeout=5).data == b"1"
        with pytest.raises(RequestTimeoutError):
            box.next(timeout=0.1)


@pytest.mark.parametrize("disk", [False, True])
def test_a_disk_that_refuses_writes_loses_nothing_that_was_acknowledged(tmp_path: Path, disk: bool) -> None:
    with TestServer(data_dir=tmp_path if disk else None) as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream(S)
        js.publish("s.1", b"1")
        server.refuse_writes("no space left on device")
        for _ in range(3):
            with pytest.raises(ApiError, match="no space left") as caught:
                js.publish("s.1", b"2")
            assert caught.value.err_code == 10077
        assert stream.get_last("s.1").data == b"1"
        server.allow_writes()
        assert js.publish("s.1", b"3").seq == 2
        assert stream.get_last("s.1").data == b"3"
