"""The server on real sockets: raw bytes, nats-py as a client, hostile and slow clients, starting and stopping."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import nats
import nats.errors
import nats.js.api
import nats.js.errors
import pytest

from slipstream import StreamConfig, connect_blocking
from slipstream.errors import StoreError, UsageError
from slipstream.server import Server
from slipstream.server.engine.engine import Engine
from slipstream.server.loop import connection, driver
from slipstream.server.store.lmdb.store import LmdbStore
from tests.servers import OurProcess

HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n'


class Raw:
    """A socket that speaks bytes."""

    opened: ClassVar[list[Raw]] = []

    def __init__(self, server: Server, hello: bytes = HELLO) -> None:
        self.sock = socket.create_connection((server.host, server.port), timeout=10)
        self.opened.append(self)
        self.seen = b""
        self.until(b"INFO ", b"\r\n")
        if hello:
            self.send(hello)
            self.until(b"PONG\r\n")

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def until(self, *marks: bytes) -> bytes:
        """Everything up to and including the marks, one after the other."""
        at = 0
        for mark in marks:
            while (found := self.seen.find(mark, at)) < 0:
                data = self.sock.recv(1 << 16)
                assert data, f"closed after {self.seen[-200:]!r}, before {mark!r}"
                self.seen += data
            at = found + len(mark)
        taken, self.seen = self.seen[:at], self.seen[at:]
        return taken

    def rest(self) -> bytes:
        """Everything until the server closes."""
        while data := self.sock.recv(1 << 16):
            self.seen += data
        return self.seen

    def close(self) -> None:
        self.sock.close()


@pytest.fixture(autouse=True)
def _close_all() -> Iterator[None]:
    """Whatever a test leaves open."""
    yield
    for raw in Raw.opened:
        raw.close()
    Raw.opened.clear()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(data_dir=tmp_path_factory.mktemp("server")) as server:
        yield server


def test_bytes_of_publish_subscribe_queue_and_no_responders(server: Server) -> None:
    one, two = Raw(server), Raw(server)
    one.send(b"SUB net.a 1\r\nSUB net.q group 2\r\nPING\r\n")
    one.until(b"PONG\r\n")
    two.send(b"PUB net.a reply.to 5\r\nhello\r\nPUB net.q 2\r\nhi\r\n")
    assert one.until(b"hi\r\n") == b"MSG net.a 1 reply.to 5\r\nhello\r\nMSG net.q 2 2\r\nhi\r\n"
    two.send(b"SUB my.inbox 9\r\nPUB net.nobody my.inbox 0\r\n\r\n")
    expected = b"HMSG my.inbox 9 42 42\r\nNATS/1.0 503\r\nNats-Subject: net.nobody\r\n\r\n\r\n"
    assert two.until(b"\r\n\r\n\r\n") == expected
    one.close()
    two.close()


def test_frames_in_any_pieces_are_understood(server: Server) -> None:
    one = Raw(server)
    for byte in b"SUB slow.a 1\r\nPUB slow.a 4\r\nslow\r\n":
        one.send(bytes([byte]))
    assert one.until(b"slow\r\n") == b"MSG slow.a 1 4\r\nslow\r\n"
    one.close()


def test_a_large_burst_is_handled_in_slices_and_in_order(server: Server) -> None:
    one = Raw(server)
    count = 20_000
    one.send(b"SUB burst 1\r\nPING\r\n")
    one.until(b"PONG\r\n")
    frames = b"".join(b"PUB burst 8\r\n%08d\r\n" % n for n in range(count))
    sender = threading.Thread(target=one.send, args=(frames + b"PING\r\n",))
    sender.start()
    seen = one.until(b"PONG\r\n")
    sender.join()
    assert seen == b"".join(b"MSG burst 1 8\r\n%08d\r\n" % n for n in range(count)) + b"PONG\r\n"
    one.close()


async def test_nats_py_does_core_work(server: Server) -> None:
    nc = await nats.connect(server.url)
    try:

        async def echo(message: object) -> None:
            await message.respond(message.data + b"!")  # type: ignore[attr-defined]

        await nc.subscribe("py.echo", queue="workers", cb=echo)
        assert (await nc.request("py.echo", b"hi", timeout=5)).data == b"hi!"
        sub = await nc.subscribe("py.*")
        await nc.publish("py.news", b"one", headers={"A": "b"})
        message = await sub.next_msg(timeout=5)
        assert (message.data, message.headers) == (b"one", {"A": "b"})
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request("py-nobody", b"", timeout=5)
    finally:
        await nc.close()


async def test_nats_py_does_streams(server: Server) -> None:
    nc = await nats.connect(server.url)
    try:
        js = nc.jetstream()
        info = await js.add_stream(name="PYS", subjects=["pys.*"], allow_direct=True)
        assert info.config.name == "PYS"
        acks = [await js.publish(f"pys.{n}", b"%d" % n, headers={"N": str(n)}) for n in range(5)]
        assert [ack.seq for ack in acks] == [1, 2, 3, 4, 5]
        direct = await js.get_msg("PYS", 2, direct=True)
        assert (direct.data, direct.subject, direct.seq) == (b"1", "pys.1", 2)
        last = await js.get_last_msg("PYS", "pys.3")
        assert (last.data, last.headers) == (b"3", {"N": "3"})
        assert (await js.stream_info("PYS")).state.messages == 5
        assert await js.purge_stream("PYS", keep=2)
        assert await js.delete_msg("PYS", 5)
        assert [stream.config.name for stream in await js.streams_info() if stream.config.name == "PYS"] == ["PYS"]
        updated = await js.update_stream(name="PYS", subjects=["pys.*", "more"], allow_direct=True)
        assert updated.config.subjects == ["pys.*", "more"]
        assert await js.find_stream_name_by_subject("more") == "PYS"
        assert (await js.account_info()).streams >= 1
        with pytest.raises(nats.js.errors.BadRequestError):
            await js.publish("pys.1", b"", headers={"Nats-Expected-Last-Sequence": "1"})
        assert await js.delete_stream("PYS")
        with pytest.raises(nats.js.errors.NotFoundError):
            await js.stream_info("PYS")
    finally:
        await nc.close()


async def test_nats_py_does_key_value_where_it_needs_no_consumer(server: Server) -> None:
    nc = await nats.connect(server.url)
    try:
        kv = await nc.jetstream().create_key_value(bucket="PYKV", history=3)
        assert await kv.put("a", b"one") == 1
        assert (await kv.get("a")).value == b"one"
        assert await kv.update("a", b"two", last=1) == 2
        with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
            await kv.update("a", b"three", last=1)
        assert await kv.create("b", b"fresh") == 3
        await kv.delete("a")
        with pytest.raises(nats.js.errors.KeyNotFoundError):
            await kv.get("a")
        assert (await kv.get("a", revision=2)).value == b"two"
        await kv.purge("b")
        assert (await kv.status()).values == 4
    finally:
        await nc.close()


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"PUB a 99999999\r\n", b"-ERR 'Maximum Payload Violation'\r\n"),
        (b"PUB a 99999999999999999999999\r\n", b"-ERR 'Parser Error'\r\n"),
        (b"PUB a -1\r\n", b"-ERR 'Parser Error'\r\n"),
        (b"SUB " + b"x" * 10_000, b"-ERR 'maximum control line exceeded'\r\n"),
        (b"HPUB a 20 10\r\n", b"-ERR 'Parser Error'\r\n"),
        (b"CONNECT {\r\n", b"-ERR 'Parser Error'\r\n"),
    ],
)
def test_hostile_input_closes_its_own_connection_only(server: Server, data: bytes, answer: bytes) -> None:
    hostile, good = Raw(server), Raw(server)
    hostile.send(data)
    assert hostile.rest() == answer
    good.send(b"PING\r\n")
    good.until(b"PONG\r\n")
    hostile.close()
    good.close()


def test_an_error_in_handling_one_client_closes_that_one_only(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = Raw(server), Raw(server)
    real = Engine._subscribe

    def broken(self: Engine, session: object, router: object, event: object) -> None:
        if event.subject == "boom":  # type: ignore[attr-defined]
            raise RuntimeError("boom")
        real(self, session, router, event)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "_subscribe", broken)
    with caplog.at_level(logging.ERROR, logger="slipstream.server"):
        bad.send(b"SUB boom 1\r\n")
        assert bad.rest() == b"-ERR 'Internal Server Error'\r\n"
    assert "boom" in caplog.text
    good.send(b"PING\r\n")
    good.until(b"PONG\r\n")
    good.close()
    bad.close()


def test_a_subscriber_that_stops_reading_is_cut_off_and_others_are_not() -> None:
    with Server(max_pending_bytes=1 << 20) as server:
        slow, good = Raw(server), Raw(server)
        slow.send(b"SUB flood 1\r\nPING\r\n")
        slow.until(b"PONG\r\n")
        payload = b"x" * 8192
        for _ in range(40):  # far more than the socket buffers and the bound together
            good.send(b"PUB flood 8192\r\n%b\r\n" % payload * 100 + b"PING\r\n")
            good.until(b"PONG\r\n")
        deadline = time.monotonic() + 10
        while server._running._connections.get(1) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(server._running._connections) == [2]
        good.send(b"SUB x 1\r\nPUB x 2\r\nok\r\n")
        good.until(b"ok\r\n")
        slow.close()
        good.close()


def test_a_batch_reader_that_stops_reading_delays_no_other_and_gets_everything_later(tmp_path: Path) -> None:
    with Server(data_dir=tmp_path) as server:
        writer = stream_of(server)
        count, payload = 4000, b"x" * 4096
        for _ in range(count // 100):
            writer.send(b"PUB b in.2 4096\r\n%b\r\n" % payload * 100)
        seen = 0
        while seen < count:
            writer.until(b'"seq":', b"}\r\n")
            seen += 1
        lazy, quick = Raw(server), Raw(server)
        request = b'{"seq":1,"batch":%d}' % count
        lazy.send(b"SUB lazy 1\r\nPUB $JS.API.DIRECT.GET.B lazy %d\r\n%b\r\n" % (len(request), request))
        request = b'{"seq":1,"batch":100}'
        quick.send(b"SUB quick 1\r\nPUB $JS.API.DIRECT.GET.B quick %d\r\n%b\r\n" % (len(request), request))
        assert quick.until(b"NATS/1.0 204 EOB").count(b"Nats-Sequence: ") == 100
        session = server._running.engine._sessions[lazy_cid(server)]
        deadline = time.monotonic() + 20
        while not session.congested:  # the server is still filling the socket of the one that does not read
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert lazy.until(b"NATS/1.0 204 EOB").count(b"Nats-Sequence: ") == count
        for raw in (writer, lazy, quick):
            raw.close()


def lazy_cid(server: Server) -> int:
    return max(server._running._connections) - 1


def test_a_group_that_cannot_be_stored_is_answered_with_errors_and_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(data_dir=tmp_path) as server:
        raw = stream_of(server)
        assert ack(raw) == b'{"stream":"B","seq":1}\r\n'
        store = store_of(server)
        for step in ("begin", "write_some", "commit"):
            real = getattr(store, step)

            def broken(group: Any, step: str = step, real: Any = real) -> object:
                if not group.size:  # work left from the group that was lost before
                    return real(group)
                monkeypatch.setattr(store, step, real)
                raise OSError(f"{step} failed")

            monkeypatch.setattr(store, step, broken)
            with caplog.at_level(logging.ERROR, logger="slipstream.server"):
                answer = ack(raw)
            assert b'"err_code":10077' in answer
            assert f"{step} failed".encode() in answer
            assert f"{step} failed" in caplog.text
        assert ack(raw) == b'{"stream":"B","seq":2}\r\n'
        raw.close()


def test_a_disk_that_stays_full_does_not_keep_the_server_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer's delivery state without waiting clients is stored again after a pause, and logged now and then."""
    lost: list[float] = []
    with Server(data_dir=tmp_path) as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream(StreamConfig(name="S", subjects=("s.>",)))
        js.publish("s.1", b"x")
        consumer = stream.create_consumer("c")
        (message,) = consumer.fetch(1)
        store = store_of(server)
        plain = store.commit

        def full(*_: object) -> None:
            lost.append(time.monotonic())
            raise StoreError("the disk failed or is full while committing a group: No space left on device")

        with caplog.at_level(logging.ERROR, logger="slipstream.server"):
            monkeypatch.setattr(store, "commit", full)
            message.ack()
            client.flush()
            deadline = time.monotonic() + 20
            while not lost:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(1.5)
            assert len([at for at in lost if at < lost[0] + 1.5]) <= 8
            assert stream.info().state.messages == 1
        assert caplog.text.count("could not be stored") == 1
        assert "Traceback" not in caplog.text  # the error says it all
        monkeypatch.setattr(store, "commit", plain)
        assert js.publish("s.1", b"y", timeout=10).seq == 2


def test_no_ack_leaves_before_the_sync_has_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    with Server(data_dir=tmp_path) as server:
        raw = stream_of(server)
        store, engine = store_of(server), server._running.engine
        real_commit, real_committed = store.commit, engine.committed

        def commit(group: Any) -> None:
            real_commit(group)
            time.sleep(0.05)
            order.append("synced")

        def committed(batch: Any, now: int) -> None:
            order.append("told")
            real_committed(batch, now)

        monkeypatch.setattr(store, "commit", commit)
        monkeypatch.setattr(engine, "committed", committed)
        for seq in range(1, 6):
            assert ack(raw) == b'{"stream":"B","seq":%d}\r\n' % seq
        assert order == ["synced", "told"] * 5
        raw.close()


def test_a_flood_fills_bounded_groups_and_every_message_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "GROUP_CHANGES", 100)
    monkeypatch.setattr(connection, "SLICE", 1000)
    sizes: list[int] = []
    with Server(data_dir=tmp_path) as server:
        store = store_of(server)
        real = store.seal

        def seal() -> Any:
            sizes.append(store.pending)
            return real()

        monkeypatch.setattr(store, "seal", seal)
        raw = stream_of(server)
        count = 5000
        sender = threading.Thread(target=raw.send, args=(b"PUB b in.2 4\r\nxxxx\r\n" * count,))
        sender.start()
        for _ in range(count):
            raw.until(b'"seq":', b"}\r\n")
        sender.join()
        raw.close()
    assert max(sizes) < 100 + 1000 // 20 + 1
    assert sum(sizes) >= count


def test_the_rest_of_a_purge_is_done_while_the_server_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = threading.Event()
    with Server(data_dir=tmp_path) as server:
        real = server._running.engine.committed

        def committed(batch: Any, now: int) -> None:
            real(batch, now)
            if not batch.journal.store.backlog:
                cleared.set()

        raw = stream_of(server)
        raw.send(b"PUB b 4\r\nxxxx\r\n" * 20_000)
        assert ack(raw) == b'{"stream":"B","seq":20001}\r\n'
        monkeypatch.setattr(server._running.engine, "committed", committed)
        raw.send(b"PUB $JS.API.STREAM.PURGE.B in.2 0\r\n\r\n")
        raw.until(b'"purged":20001', b"}\r\n")
        assert cleared.wait(10)
        raw.close()


def store_of(server: Server) -> LmdbStore:
    """Its own: other servers of this process go on as they are."""
    stores = [committer.journal.store for committer in server._running.committers]
    return next(store for store in stores if isinstance(store, LmdbStore))


def stream_of(server: Server) -> Raw:
    """A client with a stream B on the subject b."""
    raw = Raw(server)
    config = b'{"name":"B","subjects":["b"],"allow_direct":true}'
    raw.send(b"SUB in.* 1\r\nPUB $JS.API.STREAM.CREATE.B in.1 %d\r\n%b\r\n" % (len(config), config))
    raw.until(b"did_create", b"\r\n")
    return raw


def ack(raw: Raw) -> bytes:
    """Publish one message; its ack."""
    raw.send(b"PUB b in.2 1\r\nx\r\n")
    raw.until(b"MSG in.2 1", b"\r\n")
    return raw.until(b"\r\n")


def test_one_connection_too_many_is_turned_away() -> None:
    with Server(max_connections=1) as server:
        first = Raw(server)
        second = Raw(server, b"")  # greeted, as by nats-server, and then told
        assert second.rest() == b"-ERR 'maximum connections exceeded'\r\n"
        second.close()
        first.send(b"PING\r\n")
        first.until(b"PONG\r\n")
        first.close()


def test_a_client_must_authenticate() -> None:
    with Server(user="joe", password="secret") as server:
        right = Raw(server, b'CONNECT {"verbose":false,"user":"joe","pass":"secret"}\r\nPING\r\n')
        wrong = Raw(server, b"")
        wrong.send(b'CONNECT {"user":"joe","pass":"guess"}\r\n')
        assert wrong.rest() == b"-ERR 'Authorization Violation'\r\n"
        right.close()
        wrong.close()
    with Server(user="joe", password="secret", auth_timeout=0.2) as server:
        silent = Raw(server, b"")
        assert silent.rest() == b"-ERR 'Authentication Timeout'\r\n"
        silent.close()


def test_file_streams_survive_a_restart_and_memory_streams_do_not(tmp_path: Path) -> None:
    def work(server: Server, *requests: tuple[str, bytes]) -> list[bytes]:
        raw = Raw(server)
        raw.send(b"SUB in 1\r\n")
        answers = []
        for subject, body in requests:
            raw.send(b"PUB %b in %d\r\n%b\r\n" % (subject.encode(), len(body), body))
            answers.append(raw.until(b"MSG in 1", b"\r\n", b"\r\n"))
        raw.close()
        return answers

    with Server(data_dir=tmp_path) as server:
        work(
            server,
            ("$JS.API.STREAM.CREATE.F", b'{"name":"F","subjects":["f"],"storage":"file"}'),
            ("$JS.API.STREAM.CREATE.M", b'{"name":"M","subjects":["m"],"storage":"memory"}'),
            ("f", b"kept"),
            ("m", b"gone"),
        )
    with Server(data_dir=tmp_path) as server:
        names, message = work(server, ("$JS.API.STREAM.NAMES", b""), ("$JS.API.STREAM.MSG.GET.F", b'{"seq":1}'))
        assert b'["F"]' in names
        assert b'"data":"a2VwdA=="' in message


async def test_a_server_runs_on_the_loop_of_its_user_and_stops() -> None:
    async with Server() as server:
        assert server.url == f"nats://127.0.0.1:{server.port}"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await reader.readline()).startswith(b"INFO ")
        with pytest.raises(UsageError):
            await server.start()
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await asyncio.open_connection("127.0.0.1", server.port)


def test_waiting_pulls_are_answered_when_the_server_stops() -> None:
    """An idle server as well: nothing but that is left to send."""
    with Server() as server:
        raw = Raw(server)
        raw.send(b"SUB inbox 1\r\n")
        for subject, body in (
            ("STREAM.CREATE.S", b'{"name":"S","subjects":["s"]}'),
            ("CONSUMER.CREATE.S.c", b'{"stream_name":"S","config":{"name":"c","ack_policy":"explicit"}}'),
        ):
            raw.send(b"PUB $JS.API.%b inbox %d\r\n%b\r\n" % (subject.encode(), len(body), body))
            raw.until(b"_response", b"\r\n")
        raw.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.S.c inbox 2\r\n{}\r\nPING\r\n")
        raw.until(b"PONG\r\n")
        time.sleep(0.05)  # everything is carried out, and the server sleeps
    assert b"NATS/1.0 409 Server Shutdown\r\n" in raw.rest()


def test_a_port_that_is_taken_is_an_error_for_the_caller() -> None:
    with Server() as server, pytest.raises(OSError, match="in use"), Server(port=server.port):
        pass


def test_the_process_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipstream.server", "--port", "0", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on nats://127.0.0.1:")
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert all("[INF]" in line for line in errors.splitlines()), errors
    assert "Server is ready" in errors
    assert errors.splitlines()[-1].endswith("Server Exiting..")


def test_a_second_process_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with OurProcess(tmp_path):
        command = [sys.executable, "-m", "slipstream.server", "--port", "0", "--data-dir", str(tmp_path)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode != 0
