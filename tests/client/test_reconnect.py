"""A server that goes and comes back: subscriptions return, publishes are kept, requests in flight fail at once."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream import connect_blocking
from slipstream.client._sync import connection
from slipstream.client.events import ClientEvent
from slipstream.errors import AuthorizationError, ConnectionLostError, NoRespondersError, RequestTimeoutError
from tests.client.conftest import RealServer
from tests.client.support import INFO, Driver, FakeServer, Peer, eventually

MakeServer = Callable[..., RealServer]


def test_subscriptions_and_kept_publishes_come_back_after_a_restart(driver: Driver, make_server: MakeServer) -> None:
    events: list[str] = []
    server = make_server()
    with driver.connect(server.url, reconnect_wait=0.02, on_event=lambda event: events.append(event.kind)) as nc:
        plain, limited, seen = nc.subscribe("a.*"), nc.subscribe("b"), []
        nc.subscribe("c", callback=lambda message: seen.append(message.data))
        limited.unsubscribe(3)
        nc.publish("b", b"1")
        nc.publish("b", b"2")
        nc.flush()
        server.stop()
        eventually(lambda: not nc.is_connected)
        nc.publish("a.b", b"kept")
        nc.publish("b", b"3")
        nc.publish("b", b"4")
        nc.publish("c", b"called")
        server.start()
        assert plain.next().data == b"kept"
        assert [message.data for message in limited] == [b"1", b"2", b"3"]
        eventually(lambda: seen == [b"called"])
        with pytest.raises(NoRespondersError):
            nc.request("nobody.here")
        assert nc.stats.reconnects == 1
    eventually(lambda: events[-1] == "closed")
    assert [kind for kind in events if kind != "reconnect_failed"] == ["disconnected", "reconnected", "closed"]


def test_requests_in_flight_fail_at_once_and_new_ones_wait_for_the_next_server(driver: Driver) -> None:
    restart = threading.Event()

    def first(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"PUB slow")

    def second(peer: Peer) -> None:
        restart.wait(10)
        peer.greet()
        sub = peer.expect(b"\r\n").split()
        assert sub[0] == b"SUB"
        assert sub[1].startswith(b"_INBOX.")
        line = peer.expect(b"\r\n").split()
        assert line[:2] == [b"PUB", b"new"]
        peer.send(b"MSG %b 1 2\r\nok\r\n" % line[2])
        peer.until_closed()

    server = FakeServer(first, second)
    with server, driver.connect(server.url, reconnect_wait=0.01, on_event=lambda _: None) as nc:
        with pytest.raises(ConnectionLostError, match="was lost: the server closed the connection"):
            nc.request("slow", timeout=10)
        restart.set()
        assert nc.request("new").data == b"ok"


def test_a_frozen_server_does_not_keep_a_client_that_leaves_a_silent_one(
    driver: Driver, make_server: MakeServer
) -> None:
    """The kernel accepts the connection for it; all the time that a connection may take would be lost there."""
    failures: list[str] = []

    def note(event: ClientEvent) -> None:
        if event.kind == "reconnect_failed":
            failures.append(str(event.error))

    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        servers = [make_server().url, f"nats://127.0.0.1:{port}", make_server().url]
        with driver.connect(",".join(servers), timeout=60, reconnect_wait=0.01, on_event=note) as nc:
            assert nc.leave_server(RequestTimeoutError("no answer"))
            eventually(lambda: nc.stats.reconnects == 1)
            assert nc.server_info.port == int(servers[2].rpartition(":")[2])
    assert [text.partition(": no ")[2] for text in failures] == ["INFO within 1 s"]


def test_kept_publishes_are_bounded(driver: Driver, make_server: MakeServer) -> None:
    server = make_server()
    with driver.connect(server.url, reconnect_buffer_bytes=1000, on_event=lambda _: None) as nc:
        server.stop()
        eventually(lambda: not nc.is_connected)
        for _ in range(8):
            nc.publish("a", b"x" * 100)
        with pytest.raises(ConnectionLostError, match="of 1000 bytes"):
            nc.publish("a", b"x" * 100)
        assert nc.stats.out_msgs == 8
        nc.ready()


def test_servers_learned_from_info_are_tried(driver: Driver) -> None:
    def other(peer: Peer) -> None:
        said = peer.greet()
        assert b'"user":"me"' in said
        peer.until_closed()

    def first(peer: Peer) -> None:
        peer.greet(info)

    with FakeServer(other) as learned:
        info = INFO.replace(b'"proto":1', b'"proto":1,"connect_urls":["127.0.0.1:%d","[bad"]' % learned.port)
        with FakeServer(first) as server:
            url = server.url.replace("//", "//me:secret@")
            with driver.connect(url, reconnect_wait=0.01, on_event=lambda _: None) as nc:
                eventually(lambda: nc.is_connected and nc.stats.reconnects == 1)
                assert str(nc._session.server).endswith(str(learned.port))


def test_credentials_refused_twice_end_the_client(driver: Driver) -> None:
    def good(peer: Peer) -> None:
        peer.greet()

    def refuse(peer: Peer) -> None:
        peer.send(INFO)
        peer.expect(b"PING\r\n")
        peer.send(b"-ERR 'Authorization Violation'\r\n")

    events: list[Any] = []
    with FakeServer(good, refuse, refuse) as server:
        nc = driver.connect(server.url, reconnect_wait=0.01, on_event=events.append)
        sub = nc.subscribe("a")
        with pytest.raises(AuthorizationError):
            sub.next()
        eventually(lambda: len(events) == 4)
        assert [event.kind for event in events] == ["disconnected", "reconnect_failed", "reconnect_failed", "closed"]
        nc.close()


def test_tries_to_reconnect_can_be_bounded(driver: Driver, make_server: MakeServer) -> None:
    server = make_server()
    nc = driver.connect(server.url, reconnect_wait=0.01, max_reconnects=2, on_event=lambda _: None)
    sub = nc.subscribe("a")
    server.stop()
    with pytest.raises(ConnectionLostError, match="no server could be reached in 3 attempts"):
        sub.next()
    nc.close()


def test_close_ends_a_reconnect(driver: Driver, make_server: MakeServer) -> None:
    server = make_server()
    nc = driver.connect(server.url, reconnect_wait=60, reconnect_max_wait=60, on_event=lambda _: None)
    sub = nc.subscribe("a")
    server.stop()
    eventually(lambda: not nc.is_connected)
    nc.close()
    assert list(sub) == []


def test_a_server_that_is_about_to_go_says_so(driver: Driver, make_server: MakeServer) -> None:
    events: list[str] = []
    server = make_server()
    with driver.connect(server.url, on_event=lambda event: events.append(event.kind)) as nc:
        server.send(signal.SIGUSR2)
        eventually(lambda: events == ["lame_duck"])
        assert nc.is_connected


def test_a_real_server_takes_the_right_credentials_and_no_others(driver: Driver, make_server: MakeServer) -> None:
    server = make_server("--user", "me", "--pass", "s3cr3t")
    with driver.connect(server.url, user="me", password="s3cr3t") as nc:
        nc.flush()
    with driver.connect(server.url.replace("//", "//me:s3cr3t@")) as nc:
        nc.flush()
    for wrong in ({}, {"user": "me", "password": "wrong"}, {"token": "s3cr3t"}):
        with pytest.raises(AuthorizationError, match="Authorization Violation"):
            driver.connect(server.url, **wrong)


def test_a_real_server_denies_a_subscription_and_its_reader_hears_of_it(
    driver: Driver, make_server: MakeServer, tmp_path: Path
) -> None:
    config = tmp_path / "server.conf"
    config.write_text(
        "authorization { users = [{ user: me, password: p, permissions: { subscribe: { deny: [secret, q] } } }] }"
    )
    server = make_server("-c", str(config))
    events: list[Any] = []
    with driver.connect(server.url, user="me", password="p", on_event=events.append) as nc:
        for sub in (nc.subscribe("secret"), nc.subscribe("q", queue="group")):
            with pytest.raises(AuthorizationError, match="Permissions Violation"):
                sub.next()
        nc.flush()
        assert nc.is_connected
    assert [event.kind for event in events] == ["error", "error", "closed"]


def test_a_request_to_a_subject_that_is_denied_fails_at_once(
    driver: Driver, make_server: MakeServer, tmp_path: Path
) -> None:
    config = tmp_path / "server.conf"
    config.write_text(
        "authorization { users = [{ user: me, password: p, permissions: { publish: { deny: secret } } }] }"
    )
    server = make_server("-c", str(config))
    with driver.connect(server.url, user="me", password="p", on_event=lambda _: None) as nc:
        with pytest.raises(AuthorizationError, match='Publish to "secret"'):
            nc.request("secret", timeout=8)
        with pytest.raises(NoRespondersError):
            nc.request("open")


def test_a_machine_that_has_been_up_for_weeks_waits_no_longer(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a connection a wait ended in a loop without end once the clock had passed a million seconds."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 5_000_000, sleep=time.sleep)
    monkeypatch.setattr(connection, "time", clock)
    server = make_server()
    with connect_blocking(server.url) as client:
        server.stop()
        eventually(lambda: not client.is_connected)
        with pytest.raises(RequestTimeoutError):
            client.request("nobody", timeout=0.3)


@pytest.mark.parametrize("name", ["nats..internal:4222", "x" * 70 + ":4222", "host:99999"])
def test_a_server_whose_name_cannot_be_does_not_end_the_search(driver: Driver, name: str) -> None:
    info = INFO.replace(b"{", b'{"connect_urls":["%b"],' % name.encode(), 1)

    def first(peer: Peer) -> None:
        peer.greet(info)

    def second(peer: Peer) -> None:
        peer.greet()
        peer.until_closed()

    with FakeServer(first, second) as server:
        nc = driver.connect(server.url, reconnect_wait=0.01, on_event=lambda _: None)
        eventually(lambda: nc.stats.reconnects == 1)
        assert nc.is_connected
        nc.close()
