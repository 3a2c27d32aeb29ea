"""TLS on real servers: after INFO, first of all, with client certificates; and what is said when it cannot be."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slipstream.client.address import Address
from slipstream.client.layers.tls import Tls, TlsLayer
from slipstream.client.options import ClientOptions
from slipstream.errors import AuthorizationError, ConnectionLostError, CredentialsError, NoRespondersError, TlsError
from tests.client.certificates import Pki
from tests.client.conftest import RealServer
from tests.client.logins import Operator
from tests.client.support import INFO, Driver, FakeServer, Peer, eventually
from tests.ports import free_port

MakeServer = Callable[..., RealServer]


def tls_block(pki: Pki, more: str = "", cert: tuple[Path, Path] | None = None) -> str:
    cert_file, key_file = cert or pki.server
    return f'tls {{ cert_file: "{cert_file}", key_file: "{key_file}", ca_file: "{pki.ca}", {more} }}\n'


class Transport:
    """A server's configuration, and how a client gets there."""

    def __init__(self, make_server: MakeServer, tmp_path: Path, pki: Pki, kind: str) -> None:
        config = tmp_path / f"{kind}.conf"
        self.port = free_port()
        self.options: dict[str, Any] = {"tls_ca": pki.ca}
        scheme = "nats"
        text = ""
        if kind in ("ws", "wss"):
            scheme = kind
            inner = "no_tls: true" if kind == "ws" else tls_block(pki)
            text = f'websocket {{ host: "127.0.0.1", port: {self.port}, {inner} }}\n'
            self.options = {} if kind == "ws" else self.options
        else:
            text = tls_block(pki, {"first": "handshake_first: true", "mutual": "verify: true"}.get(kind, ""))
            self.options["tls_first"] = kind == "first"
            if kind == "mutual":
                self.options |= {"tls_cert": pki.client[0], "tls_key": pki.client[1]}
        config.write_text(text)
        self.server = make_server("-c", str(config))
        port = self.port if scheme != "nats" else self.server.port
        self.url = f"{scheme}://127.0.0.1:{port}"


KINDS = ["required", "first", "mutual", "ws", "wss"]


@pytest.mark.parametrize("kind", KINDS)
def test_everything_works_through_every_transport_and_after_a_restart(
    driver: Driver, make_server: MakeServer, tmp_path: Path, pki: Pki, kind: str
) -> None:
    transport = Transport(make_server, tmp_path, pki, kind)
    options = {**transport.options, "reconnect_wait": 0.02, "on_event": lambda _: None}
    with driver.connect(transport.url, **options) as nc:
        sub = nc.subscribe("a")
        large = bytes(range(256)) * 3000
        for payload in (b"", b"small", large):
            nc.publish("a", payload)
        for payload in (b"", b"small", large):
            assert sub.next().data == payload
        for i in range(5000):
            nc.publish("a", b"%d" % i)
        seen: list[bytes] = []
        while len(seen) < 5000:
            seen += [message.data for message in sub.next_chunk()]
        assert seen == [b"%d" % i for i in range(5000)]
        with pytest.raises(NoRespondersError):
            nc.request("nobody.here")
        transport.server.stop()
        eventually(lambda: not nc.is_connected)
        nc.publish("a", b"kept")
        transport.server.start()
        assert sub.next(timeout=8).data == b"kept"
        assert nc.stats.reconnects == 1
        nc.publish("a", b"last")
        nc.flush()
        assert sub.next().data == b"last"


@pytest.mark.parametrize("kind", ["required", "ws", "wss"])
def test_what_was_published_before_close_arrives_through_every_transport(
    driver: Driver, make_server: MakeServer, tmp_path: Path, pki: Pki, kind: str
) -> None:
    transport = Transport(make_server, tmp_path, pki, kind)
    with driver.connect(transport.url, **transport.options) as nc:
        sub = nc.subscribe("last.words")
        nc.flush()
        with driver.connect(transport.url, **transport.options) as other:
            for _ in range(500):
                other.publish("last.words", b"x" * 100)
        for _ in range(500):
            sub.next()


def test_tls_can_be_asked_for_in_several_ways(
    driver: Driver, make_server: MakeServer, tmp_path: Path, pki: Pki
) -> None:
    server = Transport(make_server, tmp_path, pki, "required").server
    context = ssl.create_default_context(cafile=pki.ca)
    tls_url = server.url.replace("nats://", "tls://")
    named = server.url.replace("127.0.0.1", "localhost")
    for url, options in (
        (tls_url, {"tls_ca": str(pki.ca)}),
        (server.url, {"tls": context}),
        (named, {"tls": True, "tls_ca": pki.ca}),
        (server.url, {"tls_ca": pki.ca, "tls_hostname": "localhost"}),
    ):
        with driver.connect(url, **options) as nc:
            nc.flush()
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    with driver.connect(server.url, tls=unchecked) as nc:
        nc.flush()


def test_a_certificate_that_is_not_accepted_says_why(
    driver: Driver, make_server: MakeServer, tmp_path: Path, pki: Pki
) -> None:
    server = Transport(make_server, tmp_path, pki, "required").server
    for options in ({}, {"tls_ca": pki.other_ca}):  # a server may ask for TLS, it cannot say which authority counts
        with pytest.raises(TlsError, match=r"server's certificate was rejected: .*see tls_ca"):
            driver.connect(server.url, **options)
    with pytest.raises(TlsError, match=r"Hostname mismatch.*'nats\.example'; see tls_hostname"):
        driver.connect(server.url, tls_ca=pki.ca, tls_hostname="nats.example")


@pytest.mark.parametrize(("cert", "text"), [("elsewhere", "IP address mismatch"), ("expired", "expired")])
def test_a_certificate_for_another_name_or_another_time_is_refused(
    driver: Driver, make_server: MakeServer, tmp_path: Path, pki: Pki, cert: str, text: str
) -> None:
    config = tmp_path / "server.conf"
    config.write_text(tls_block(pki, cert=getattr(pki, cert)))
    server = make_server("-c", str(config))
    with pytest.raises(TlsError, match=text):
        driver.connect(server.url, tls_ca=pki.ca)
    if cert == "elsewhere":
        with driver.connect(server.url, tls_ca=pki.ca, tls_hostname="nats.example") as nc:
            nc.flush()


def test_a_server_that_wants_our_certificate_gets_it_or_says_so(
    driver: Driver, make_server: MakeServer, tmp_path: Path, pki: Pki
) -> None:
    server = Transport(make_server, tmp_path, pki, "mutual").server
    with pytest.raises(ConnectionLostError, match=r"tls_cert|closed the connection|reset"):
        driver.connect(server.url, tls_ca=pki.ca)
    with pytest.raises(ConnectionLostError, match=r"tls_cert|closed the connection|reset"):
        driver.connect(server.url, tls_ca=pki.ca, tls_cert=pki.stranger[0], tls_key=pki.stranger[1])


def test_no_plain_connection_is_made_when_tls_was_asked_for(driver: Driver, nats_url: str, pki: Pki) -> None:
    for url, options in ((nats_url, {"tls": True}), (nats_url.replace("nats:", "tls:"), {"token": "hunter2"})):
        with pytest.raises(TlsError, match="does not offer TLS"):
            driver.connect(url, **options)
    with pytest.raises(TlsError, match=r"does not use TLS at this point: check tls_first"):
        driver.connect(nats_url, tls_first=True, tls_ca=pki.ca)


def test_a_server_that_only_offers_tls_is_secured_when_asked(driver: Driver) -> None:
    said = threading.Event()

    def script(peer: Peer) -> None:
        peer.send(INFO.replace(b'"proto":1', b'"proto":1,"tls_available":true'))
        assert peer.expect(b"\x16\x03")  # a handshake of TLS, and no CONNECT
        said.set()

    with FakeServer(script) as server, pytest.raises(ConnectionLostError):
        driver.connect(server.url, tls=True)
    assert said.is_set()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tls_ca": "/nowhere/ca.pem"}, "tls_ca /nowhere/ca.pem: No such file"),
        ({"tls_ca": "KEY"}, "must contain certificates in PEM format"),
        ({"tls_cert": "/nowhere/c.pem"}, "tls_cert /nowhere/c.pem: No such file"),
        ({"tls_cert": "CERT", "tls_key": "/nowhere/k.pem"}, "tls_key /nowhere/k.pem: No such file"),
        ({"tls_cert": "CERT"}, "not usable"),
        ({"tls_cert": "CERT", "tls_key": "OTHER"}, "not usable: KEY_VALUES_MISMATCH"),
        ({"tls_cert": "LOCKED", "tls_key": "LOCKED_KEY"}, "tls_key must not have a password"),
        ({"tls_key": "KEY"}, "requires tls_cert"),
        (
            {"tls": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "tls_ca": "KEY"},
            "load tls_ca, tls_cert and tls_key into it",
        ),
        ({"tls_ca": "CA", "tls_hostname": ".bad"}, "cannot be a certificate's name"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    driver: Driver, nats_url: str, pki: Pki, options: dict[str, Any], text: str
) -> None:
    files = {"CA": pki.ca, "KEY": pki.client[1], "CERT": pki.client[0], "OTHER": pki.server[1]}
    files |= {"LOCKED": pki.locked[0], "LOCKED_KEY": pki.locked[1]}
    given = {name: files.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(CredentialsError, match=text):
        driver.connect(nats_url, tls_first=True, **given)


def test_a_file_that_is_found_missing_after_info_is_named_too(driver: Driver) -> None:
    def script(peer: Peer) -> None:
        peer.send(b'INFO {"tls_required":true}\r\n')
        assert peer.until_closed() == b""

    with FakeServer(script) as server, pytest.raises(CredentialsError, match=r"tls_ca /nowhere/ca\.pem"):
        driver.connect(server.url, tls_ca="/nowhere/ca.pem")


def test_credentials_and_permissions_work_under_tls(
    driver: Driver, make_server: MakeServer, tmp_path: Path, pki: Pki
) -> None:
    operator = Operator()
    config, file = tmp_path / "server.conf", tmp_path / "user.creds"
    config.write_text(operator.config + tls_block(pki))
    server = make_server("-c", str(config))
    file.write_text(operator.user(sub={"deny": ["secret"]}))
    events: list[Any] = []
    options = {"credentials": file, "tls_ca": pki.ca, "reconnect_wait": 0.02, "on_event": events.append}
    with driver.connect(server.url, **options) as nc:
        with pytest.raises(AuthorizationError, match="secret"):
            nc.subscribe("secret").next()
        sub = nc.subscribe("open")
        server.stop()
        eventually(lambda: not nc.is_connected)
        server.start()
        eventually(lambda: nc.is_connected)
        nc.publish("open", b"again")
        assert sub.next().data == b"again"


# Without sockets


@pytest.mark.parametrize(
    ("arguments", "is_required"),
    [
        ({}, False),
        ({"tls": True}, True),
        ({"tls_ca": "ca.pem"}, True),
        ({"tls_hostname": "h"}, True),
        ({"tls_first": True}, True),
        ({"tls": ssl.create_default_context()}, True),
    ],
)
def test_any_tls_option_requires_tls(arguments: dict[str, Any], is_required: bool) -> None:
    options = ClientOptions(**arguments)
    tls = Tls.from_options(options)
    assert options.tls_required is is_required
    assert (tls.ca, tls.hostname) == (arguments.get("tls_ca"), arguments.get("tls_hostname", ""))
    assert (tls.context is None) == isinstance(options.tls, bool)


class Server:
    """The other end, in memory."""

    def __init__(self, pki: Pki) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pki.server)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def shake(self, client: TlsLayer) -> None:
        client.begin()
        for _ in range(4):
            self.incoming.write(client.take())
            with suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            client.received(self.outgoing.read())


def test_data_before_the_end_is_read_and_the_end_is_an_error(pki: Pki) -> None:
    client, server = Tls(ca=pki.ca).layer(Address("127.0.0.1")), Server(pki)
    client.finish()
    assert client.take() == b""
    server.shake(client)
    assert client.is_ready
    client.send(b"x" * 100_000)
    server.incoming.write(client.take())
    assert b"".join(iter(lambda: server.tls.read(65536) if server.incoming.pending else b"", b"")) == b"x" * 100_000
    server.tls.write(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        server.tls.unwrap()
    data = server.outgoing.read()
    assert client.received(data[:20]) == b""
    assert client.received(data[20:]) == b"last words"
    with pytest.raises(ConnectionLostError, match="the server closed the connection"):
        client.received(b"")
    client.finish()
    assert client.take()


def test_garbage_in_the_middle_is_an_error_after_what_came_before_it(pki: Pki) -> None:
    client, server = Tls(ca=pki.ca).layer(Address("127.0.0.1")), Server(pki)
    server.shake(client)
    server.tls.write(b"good")
    assert client.received(server.outgoing.read() + b"\x17\x03\x03\x00\x20" + b"?" * 32) == b"good"
    with pytest.raises(TlsError, match="TLS failed"):
        client.received(b"")
    with pytest.raises(TlsError, match="TLS failed"):
        client.send(b"x")


def test_the_name_that_is_checked_is_the_one_we_know_the_server_by(pki: Pki) -> None:
    server = Server(pki)
    client = Tls(ca=pki.ca).layer(Address("10.0.0.1", tls_name="localhost"))
    server.shake(client)
    assert client.is_ready
