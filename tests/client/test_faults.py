"""Servers that misbehave, by script: nothing hangs, and every error says what was seen."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from slipstream.client._sync import client as blocking
from slipstream.client._sync import connection
from slipstream.errors import (
    AuthorizationError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    RemoteProtocolError,
    RequestTimeoutError,
    ServerError,
    UsageError,
)
from slipstream.wire import Msg
from tests.client.support import INFO, LIMIT, Driver, FakeServer, Peer, eventually
from tests.ports import free_port


class Sink:
    def __init__(self) -> None:
        self.error: Exception | None = None

    def deliver(self, msg: Msg) -> bool:
        raise AssertionError(f"unexpected {msg}")

    def fail(self, error: Exception) -> None:
        self.error = error


def silent(peer: Peer) -> None:
    peer.until_closed()


def no_pong(peer: Peer) -> None:
    peer.send(INFO)
    peer.until_closed()


def says(data: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.send(data)
        peer.until_closed()

    return script


def refuses(text: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.send(INFO)
        peer.expect(b"PING\r\n")
        peer.send(b"-ERR '%b'\r\n" % text)

    return script


def good(peer: Peer) -> None:
    peer.greet()
    peer.until_closed()


@pytest.mark.parametrize(
    ("script", "kind", "text"),
    [
        (silent, RequestTimeoutError, "no INFO within 1 s"),
        (no_pong, RequestTimeoutError, "no PONG within 1 s"),
        (lambda _: None, ConnectionLostError, "closed the connection|lost"),
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), RemoteProtocolError, "broke the protocol: unknown operation"),
        (says(b"INFO {not json}\r\n"), RemoteProtocolError, "broke the protocol"),
        (says(b"INFO " + b"x" * 2_000_000), RemoteProtocolError, "control line"),
        (says(b'INFO {"tls_required":true}\r\n'), RequestTimeoutError, "no end of the TLS handshake within"),
        (
            says(b'INFO {"tls_required":true}\r\nMSG a 2 0\r\n\r\n'),
            RemoteProtocolError,
            "before the handshake was done",
        ),
        (says(b"MSG a 2 0\r\n\r\n"), RemoteProtocolError, "Msg before the handshake was done"),
        (refuses(b"Authorization Violation"), AuthorizationError, "Authorization Violation"),
        (refuses(b"maximum connections exceeded"), ServerError, "maximum connections exceeded"),
    ],
)
def test_a_server_that_cannot_be_used_is_an_error_that_says_why(
    driver: Driver, script: Callable[[Peer], None], kind: type[Error], text: str
) -> None:
    timeout = 1 if kind is RequestTimeoutError else LIMIT
    with FakeServer(script) as server, pytest.raises(kind, match=text) as caught:
        driver.connect(server.url, user="someone", password="hunter2", timeout=timeout)
    assert "hunter2" not in f"{caught.value!r} {caught.value}"


def test_no_server_at_all_is_an_error_that_names_them(driver: Driver) -> None:
    port = free_port()
    with pytest.raises(ConnectionLostError, match=f"127.0.0.1:{port}"):
        driver.connect(f"nats://me:hunter2@127.0.0.1:{port}")


def test_the_next_server_of_the_list_is_tried(driver: Driver) -> None:
    bad, server = FakeServer(refuses(b"maximum connections exceeded")), FakeServer(good)
    with bad, server, driver.connect([bad.url, server.url]) as nc:
        assert str(server.port) in str(nc._session.server)


def test_credentials_are_sent_and_shown_nowhere(driver: Driver) -> None:
    said: list[bytes] = []

    def script(peer: Peer) -> None:
        said.append(peer.greet())
        peer.until_closed()

    with FakeServer(script, script) as server:
        url = server.url.replace("//", "//me:hunter%402@")
        with driver.connect(url, name="n") as nc:
            assert "hunter" not in f"{nc!r} {nc._session.options!r} {nc._session.server!r} {nc._session.server}"
        with driver.connect(server.url, token="s3cr3t") as nc:
            assert "s3cr3t" not in f"{nc!r} {nc._session.options!r}"
    for part in (b'"user":"me"', b'"pass":"hunter@2"', b'"name":"n"', b'"lang":"python-slipstream"', b'"protocol":1'):
        assert part in said[0]
    assert b'"auth_token":"s3cr3t"' in said[1]


def test_a_cut_in_the_middle_of_a_frame_loses_nothing_before_it(driver: Driver) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"SUB a 2\r\n")
        peer.send(b"MSG a 2 5\r\nhello\r\nMSG a 2 5\r\nhe")

    with FakeServer(script) as server:
        nc = driver.connect(server.url, reconnect=False)
        sub = nc.subscribe("a")
        assert sub.next().data == b"hello"
        with pytest.raises(ConnectionLostError, match="the server closed the connection"):
            sub.next()
        with pytest.raises(ConnectionClosedError, match="the server closed the connection"):
            nc.publish("a")
        nc.close()


def test_without_reconnect_a_loss_closes_the_client(driver: Driver) -> None:
    events: list[Any] = []

    def script(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"PUB x")
        peer.send(b"-ERR 'Slow Consumer'\r\n")

    with FakeServer(script) as server:
        nc = driver.connect(server.url, reconnect=False, on_event=events.append)
        sink = Sink()
        nc.start("x", b"", sink)
        with pytest.raises(ConnectionLostError, match="Slow Consumer"):
            nc.request("y")
        assert isinstance(sink.error, ConnectionLostError)
        with pytest.raises(ConnectionClosedError):
            nc.wait(lambda: False, timeout=5, what="anything")
        eventually(lambda: len(events) == 3)
        assert [event.kind for event in events] == ["error", "disconnected", "closed"]
        nc.close()


def test_a_half_open_connection_is_noticed_by_its_silence(driver: Driver) -> None:
    events: list[Any] = []

    def script(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        peer.until_closed()

    # The keeper of the blocking driver looks once a second.
    with FakeServer(script) as server:
        options = {"reconnect": False, "ping_interval": 0.05, "max_pings_out": 1, "on_event": events.append}
        nc = driver.connect(server.url, **options)
        sub = nc.subscribe("a")
        with pytest.raises(ConnectionLostError, match="is silent, 1 PINGs"):
            sub.next(timeout=8)
        nc.close()


def test_a_ping_of_the_server_is_answered_without_a_waiter(driver: Driver) -> None:
    answered = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        peer.send(b"PING\r\n")
        peer.expect(b"PONG\r\n")
        answered.set()
        peer.until_closed()

    with FakeServer(script) as server, driver.connect(server.url):
        assert answered.wait(5)


def test_a_denied_subscription_says_so_to_its_reader(driver: Driver) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"SUB secret 2\r\n")
        peer.send(b"-ERR 'Permissions Violation for Subscription to \"secret\"'\r\n")
        peer.expect(b"SUB _INBOX.")
        peer.expect(b"PUB a")
        inbox = peer.expect(b" ")  # the rest does not matter: the subject of the SUB is what is denied
        assert inbox
        peer.until_closed()

    with FakeServer(script) as server, driver.connect(server.url, on_event=lambda _: None) as nc:
        sub = nc.subscribe("secret")
        with pytest.raises(AuthorizationError, match="secret"):
            sub.next()
        assert nc.is_connected
        with pytest.raises(RequestTimeoutError):
            nc.request("a", timeout=0.05)


def test_a_server_that_stops_reading_holds_publishers_back(driver: Driver) -> None:
    read_on = threading.Event()
    count = 2000

    def script(peer: Peer) -> None:
        peer.greet()
        read_on.wait(10)
        received = peer.expect(b"PING\r\n")
        assert received.count(b"PUB big ") == count
        peer.send(b"PONG\r\n")
        peer.until_closed()

    with FakeServer(script) as server, driver.connect(server.url) as nc:
        done = threading.Event()

        def publish() -> None:
            for _ in range(count):
                nc.publish("big", b"x" * 10_000)
            nc.flush()
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        assert not done.wait(0.2)
        assert nc._session.outgoing.size < 1_000_000
        read_on.set()
        thread.join(10)
        assert done.is_set()


def test_a_sink_that_raises_does_no_harm(driver: Driver, nats_url: str) -> None:
    events: list[Any] = []
    with driver.connect(nats_url, on_event=events.append) as nc:
        sink = Sink()  # takes no message
        nc.start("nobody.here", b"", sink)
        nc.flush()
        assert "unexpected" in str(sink.error)
        assert nc.is_connected
    assert [event.kind for event in events] == ["error", "closed"]


def test_a_handler_that_raises_does_no_harm(driver: Driver, nats_url: str) -> None:
    def handler(_: object) -> None:
        raise RuntimeError("handler")

    with driver.connect(nats_url, on_event=handler) as nc:
        sub = nc.subscribe("a", max_pending_msgs=1)
        nc.publish("a")
        nc.publish("a")
        nc.flush()
        assert sub.next().data == b""


@pytest.mark.parametrize(
    "options",
    [
        {"servers": []},
        {"servers": "http://127.0.0.1"},
        {"servers": "nats://127.0.0.1:notaport"},
        {"servers": "nats://127.0.0.1:4222/path"},
        {"servers": "nats://:4222"},
        {"timeout": 0},
        {"ping_interval": -1},
        {"max_reconnects": -1},
        {"inbox_prefix": "a.*"},
        {"token": "t", "user": "u"},
    ],
)
def test_options_that_make_no_sense_are_refused(driver: Driver, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        driver.connect(**options)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_use_the_connection_of_its_parent(nats_url: str) -> None:
    with blocking.connect(nats_url) as nc:
        sub = nc.subscribe("fork")
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                nc.publish("fork", b"child")
            except UsageError as exc:
                os.write(writer, str(exc).encode())
            nc.close()
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        assert b"connect again" in os.read(reader, 4096)
        os.close(reader)
        nc.publish("fork", b"parent")
        assert sub.next().data == b"parent"


def test_many_threads_may_use_one_blocking_client(nats_url: str) -> None:
    with blocking.connect(nats_url) as nc:
        nc.subscribe("threads", callback=lambda message: message.respond(message.data))
        wrong: list[object] = []

        def work(number: int) -> None:
            for i in range(50):
                payload = b"%d.%d" % (number, i)
                if nc.request("threads", payload).data != payload:
                    wrong.append(payload)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert wrong == []
        assert nc.stats.out_msgs == 800


@pytest.mark.steady
def test_a_lonely_publish_leaves_soon_and_so_does_the_end_of_a_burst(nats_url: str) -> None:
    with blocking.connect(nats_url) as nc, blocking.connect(nats_url) as other:
        sub = other.subscribe("soon")
        other.flush()
        times: list[float] = []
        for _ in range(21):
            began = time.monotonic()
            for _ in range(3):
                nc.publish("soon")
            for _ in range(3):
                sub.next(timeout=LIMIT)
            times.append(time.monotonic() - began)
        assert median(times) < 0.5  # any one of them may meet a busy machine


def test_a_garbage_collected_blocking_client_ends_its_thread(nats_url: str) -> None:
    nc = blocking.connect(nats_url)
    keeper = nc._connection._threads[0]
    nc._connection.transport.discard()  # a socket left to the collector would be a warning
    nc._connection._kick.set()
    connection._connections.discard(nc._connection)
    del nc
    keeper.join(5)
    assert not keeper.is_alive()
