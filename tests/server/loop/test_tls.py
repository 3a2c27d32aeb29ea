"""TLS on real sockets: upgrade after INFO, TLS first, client certificates, and clients that do it wrong."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from slipstream.errors import UsageError
from slipstream.server import Server, User
from slipstream.server import server as net
from tests.servers import real_server

HELLO = b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n'
Start = Callable[..., AbstractContextManager[int]]


class Files:
    """A CA, a certificate for the server, one for a client, and one of another CA."""

    def __init__(self, folder: Path) -> None:
        self.ca, ca_key = self._make(folder, "ca", None)
        self.server, _ = self._make(folder, "server", ca_key)
        self.client, _ = self._make(folder, "client", ca_key)
        self.stranger, _ = self._make(folder, "stranger", None)

    def _make(
        self, folder: Path, name: str, issuer: ec.EllipticCurvePrivateKey | None
    ) -> tuple[tuple[str, str], ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)]) for who in (name, "ca" if issuer else name)]
        now = datetime.datetime.now(datetime.UTC)
        cert = (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign(issuer or key, hashes.SHA256())
        )
        paths = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
        Path(paths[0]).write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        Path(paths[1]).write_bytes(private)
        return paths, key

    def context(self, own: tuple[str, str] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca[0])
        if own is not None:
            context.load_cert_chain(*own)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["uvloop", "asyncio", "real"])
def start(request: pytest.FixtureRequest, files: Files, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a server with TLS: ours on either loop, or the real one; gives its port."""

    @contextmanager
    def ours(*, verify: bool = False, first: bool = False) -> Iterator[int]:
        if request.param == "asyncio":
            monkeypatch.setattr(net, "new_loop", asyncio.new_event_loop)
        with Server(
            tls_cert=files.server[0],
            tls_key=files.server[1],
            tls_ca=files.ca[0] if verify else None,
            tls_verify=verify,
            tls_first=first,
            tls_timeout=3,
        ) as server:
            yield server.port

    @contextmanager
    def real(*, verify: bool = False, first: bool = False) -> Iterator[int]:
        extra = f'ca_file: "{files.ca[0]}", verify: true, ' if verify else ""
        extra += "handshake_first: true, " if first else ""
        config = f'tls {{ cert_file: "{files.server[0]}", key_file: "{files.server[1]}", {extra}timeout: 3 }}'
        with real_server(config=config, jetstream=False) as url:
            yield int(url.rpartition(":")[2])

    return real if request.param == "real" else ours


def greeting(sock: socket.socket) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\r\n"):
        data = sock.recv(1)
        assert data, f"closed after {line!r}"
        line += data
    info: dict[str, Any] = json.loads(line[5:])
    return info


def until_pong(sock: socket.socket) -> bytes:
    seen = b""
    while not seen.endswith(b"PONG\r\n"):
        data = sock.recv(65536)
        assert data, f"closed after {seen[-100:]!r}"
        seen += data
    return seen


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def test_info_is_sent_in_plain_text_and_everything_else_through_tls(start: Start, files: Files) -> None:
    with start() as port, dial(port) as plain:
        info = greeting(plain)
        assert info["tls_required"] is True
        assert "tls_verify" not in info
        with files.context().wrap_socket(plain, server_hostname="127.0.0.1") as sock:
            sock.sendall(HELLO)
            assert until_pong(sock) == b"PONG\r\n"
            body = b"x" * 200_000
            sock.sendall(b"SUB a 1\r\n" + b"PUB a 200000\r\n%b\r\n" % body * 20 + b"PING\r\n")
            assert until_pong(sock) == b"MSG a 1 200000\r\n%b\r\n" % body * 20 + b"PONG\r\n"


def test_tls_may_start_before_info(start: Start, files: Files) -> None:
    with (
        start(first=True) as port,
        dial(port) as plain,
        files.context().wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        assert greeting(sock)["tls_required"] is True
        sock.sendall(HELLO)
        assert until_pong(sock) == b"PONG\r\n"


@pytest.mark.parametrize("who", ["client", "stranger", "nobody"])
def test_a_client_certificate_must_be_signed_by_the_authority(start: Start, files: Files, who: str) -> None:
    own = {"client": files.client, "stranger": files.stranger, "nobody": None}[who]
    with start(verify=True) as port, dial(port) as plain:
        assert greeting(plain)["tls_verify"] is True

        def talk() -> None:
            with files.context(own).wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                sock.sendall(HELLO)
                assert until_pong(sock) == b"PONG\r\n"

        if who == "client":
            talk()
        else:
            with pytest.raises((OSError, AssertionError)):
                talk()


def test_a_client_without_tls_and_one_that_says_nothing_are_cut_off_and_others_are_not(
    start: Start, files: Files
) -> None:
    with start() as port, dial(port) as talker, dial(port) as silent, dial(port) as gone:
        for sock in (talker, silent, gone):
            greeting(sock)
        gone.close()
        talker.sendall(HELLO * 10)
        seen = b""
        with suppress(ConnectionError):
            while data := talker.recv(65536):
                seen += data
        assert b"PONG" not in seen
        with suppress(ConnectionError):
            assert b"PONG" not in silent.recv(65536)
        with dial(port) as plain:
            greeting(plain)
            with files.context().wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                sock.sendall(HELLO)
                assert until_pong(sock) == b"PONG\r\n"


async def test_nats_py_connects_by_tls_and_a_server_stops_during_a_handshake(files: Files) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files.server)
    async with Server(tls=context, users=[User(name="joe", password="pw")], tls_timeout=30) as server:
        assert server.url.startswith("tls://127.0.0.1:")
        client = await nats.connect(server.url, user="joe", password="pw", tls=files.context())
        sub = await client.subscribe("a")
        await client.publish("a", b"x")
        assert (await sub.next_msg(timeout=5)).data == b"x"
        await client.close()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.steady
def test_an_authentication_timeout_is_reported_through_tls(files: Files) -> None:
    users = [User(name="joe", password="pw")]
    files_of: dict[str, Any] = {"tls_cert": files.server[0], "tls_key": files.server[1]}
    with Server(users=users, auth_timeout=0.2, tls_timeout=3, **files_of) as server, dial(server.port) as plain:
        greeting(plain)
        with files.context().wrap_socket(plain, server_hostname="127.0.0.1") as sock:
            assert sock.recv(100) == b"-ERR 'Authentication Timeout'\r\n"


def test_contradicting_tls_options_are_rejected(files: Files, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    bad: tuple[dict[str, Any], ...] = (
        {"tls_key": files.server[1]},
        {"tls_verify": True},
        {"tls_first": True},
        {"tls": context, "tls_cert": files.server[0]},
        {"tls_cert": files.server[0], "tls_key": files.server[1], "tls_verify": True},
        {"tls_cert": tmp_path / "missing"},
        {"tls_cert": files.server[0], "tls_key": files.client[1]},
    )
    for settings in bad:
        with pytest.raises(UsageError):
            Server(**settings)
