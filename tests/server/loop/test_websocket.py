"""WebSockets on real sockets: our client and raw frames, on our server and on the real one, also done wrong."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator

import pytest

import slipstream
from slipstream.errors import Error
from slipstream.server import Server, User, WebSocketOptions
from slipstream.server.loop.websocket import MAX_REQUEST, Origins, RefusalError, answer_upgrade
from slipstream.wire.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, accept_key, encode_frame
from tests.client.certificates import Pki
from tests.ports import free_port
from tests.servers import real_server

KEY = base64.b64encode(bytes(range(16))).decode()


def request(**changes: str | None) -> bytes:
    fields: dict[str, str | None] = {
        "Host": "x", "Upgrade": "websocket", "Connection": "keep-alive, Upgrade", "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13", **{name.replace("_", "-"): value for name, value in changes.items()},
    }  # fmt: skip
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join(["GET / HTTP/1.1", *lines, "", ""]).encode()


class Raw:
    """A WebSocket by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(10)
        self._held = b""

    def _more(self) -> None:
        data = self.sock.recv(1 << 16)
        if not data:
            raise EOFError(self._held)
        self._held += data

    def upgrade(self, data: bytes = b"") -> bytes:
        self.sock.sendall(data or request())
        while b"\r\n\r\n" not in self._held:
            self._more()
        head, _, self._held = self._held.partition(b"\r\n\r\n")
        return head

    def frame(self) -> tuple[int, bytes]:
        """The next frame of the server."""
        while True:
            held = self._held
            if len(held) >= 2:
                size, pos = held[1], 2
                assert size < 128, "a server does not mask"
                width = {126: 2, 127: 8}.get(size, 0)
                if len(held) >= pos + width:
                    if width:
                        size, pos = int.from_bytes(held[2 : 2 + width], "big"), 2 + width
                    if len(held) >= pos + size:
                        self._held = held[pos + size :]
                        return held[0] & 0x0F, held[pos : pos + size]
            self._more()

    def until(self, mark: bytes) -> bytes:
        seen = b""
        while mark not in seen:
            opcode, payload = self.frame()
            seen += payload if opcode == BINARY else b""
        return seen

    def send(self, opcode: int, payload: bytes, *, fin: bool = True, mask: bytes = b"\x01\x02\x03\x04") -> None:
        frame = bytearray(encode_frame(opcode, payload, mask))
        if not fin:
            frame[0] &= 0x7F
        self.sock.sendall(frame)


@pytest.fixture(scope="module", params=["ours", "real"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server with a listener for WebSockets, without TLS."""
    if request.param == "ours":
        with Server(websocket=WebSocketOptions()) as server:
            yield server.websocket_port
    else:
        free = free_port()
        with real_server(config=f'websocket {{ listen: "127.0.0.1:{free}", no_tls: true }}', jetstream=False):
            yield free


@pytest.fixture
def raw(port: int) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        yield Raw(sock)


HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'


def test_the_upgrade_is_answered_and_info_is_sent_in_a_frame(raw: Raw) -> None:
    head = raw.upgrade()
    assert head.startswith(b"HTTP/1.1 101 ")
    assert f"Sec-WebSocket-Accept: {accept_key(KEY.encode())}".encode() in head
    assert b"tls_required" not in raw.until(b"\r\n")


@pytest.mark.parametrize("opcode", [BINARY, TEXT])
def test_bytes_in_any_frames_are_one_stream(raw: Raw, opcode: int) -> None:
    raw.upgrade()
    raw.until(b"\r\n")
    raw.send(opcode, HELLO + b"SUB a 1\r\nPUB a 5\r\nhe", fin=False)
    raw.send(PING, b"still there?")
    raw.send(CONTINUATION, b"l", fin=False, mask=b"\xff\x00\xff\x00")
    raw.send(CONTINUATION, b"lo\r\nPI")
    assert raw.frame() == (PONG, b"still there?")
    for byte in encode_frame(BINARY, b"NG\r\n", b"abcd"):
        raw.sock.sendall(bytes([byte]))
    assert raw.until(b"PONG\r\n") == b"MSG a 1 5\r\nhello\r\nPONG\r\n"


def test_a_close_is_answered_and_is_the_end(raw: Raw) -> None:
    raw.upgrade()
    raw.until(b"\r\n")
    raw.send(CLOSE, (1000).to_bytes(2, "big"))
    assert raw.frame() == (CLOSE, (1000).to_bytes(2, "big"))
    with pytest.raises((EOFError, ConnectionError)):
        raw.frame()


@pytest.mark.parametrize(
    "data",
    [
        bytes((0x82, 0x02)) + b"hi",  # not masked
        encode_frame(0x3, b"x", b"mask"),  # an opcode that is none
        bytes((0x09, 0x80)) + b"mask",  # a control frame in pieces
        bytes((0xF2, 0x80)) + b"mask",  # reserved bits
        bytes((0x89, 0xFE, 0xFF, 0xFF)) + b"mask",  # a large control frame
        encode_frame(CONTINUATION, b"x", b"mask"),  # of nothing
        encode_frame(BINARY, b"NONSENSE\r\n", b"mask"),
    ],
)
def test_a_client_that_breaks_the_rules_is_cut_off(raw: Raw, data: bytes) -> None:
    raw.upgrade()
    raw.until(b"\r\n")
    raw.sock.sendall(data)
    with pytest.raises((EOFError, ConnectionError)):
        raw.until(b"never")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(Upgrade="h2c"), b"400"),
        (request(Connection="close"), b"400"),
        (request(Sec_WebSocket_Key=None), b"400"),
        (request(Sec_WebSocket_Version="8"), b"400"),
        (b"POST" + request()[3:], b"405"),
    ],
)
def test_a_wrong_upgrade_is_refused(raw: Raw, data: bytes, status: bytes) -> None:
    seen = raw.upgrade(data).split()[1]
    assert seen == status or (status == b"400" and seen in (b"426", b"405"))


def test_our_client_works_through_it(port: int) -> None:
    with slipstream.connect_blocking(f"ws://127.0.0.1:{port}") as client:
        sub = client.subscribe("w.*")
        client.publish("w.small", b"x")
        client.publish("w.large", b"y" * 500_000)
        assert [len(sub.next(timeout=10).data) for _ in range(2)] == [1, 500_000]
        echo = client.subscribe("w-echo", callback=lambda message: message.respond(message.data[::-1]))
        assert client.request("w-echo", b"abc", timeout=10).data == b"cba"
        echo.unsubscribe()


# Ours only.


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_tls_and_users_hold_for_websockets_too(pki: Pki, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if loop == "asyncio":
        import asyncio

        from slipstream.server import server as net

        monkeypatch.setattr(net, "new_loop", asyncio.new_event_loop)
    websocket = WebSocketOptions(tls_cert=pki.server[0], tls_key=pki.server[1])
    users = [
        User(name="web", password="pw", connection_types=("WEBSOCKET",)),
        User(name="plain", password="pw", connection_types=("STANDARD",)),
    ]
    with Server(users=users, websocket=websocket) as server:
        assert server.websocket_url.startswith("wss://127.0.0.1:")
        with slipstream.connect_blocking(server.websocket_url, user="web", password="pw", tls_ca=pki.ca) as client:
            assert client.server_info.tls_required
            assert client.server_info.port == server.websocket_port
        with slipstream.connect_blocking(server.url, user="plain", password="pw") as client:
            assert client.server_info.port == server.port
        for url, user in ((server.websocket_url, "plain"), (server.url, "web"), (server.websocket_url, "nobody")):
            with pytest.raises(Error):
                slipstream.connect_blocking(url, user=user, password="pw", tls_ca=pki.ca, timeout=5)


def test_streams_are_served_through_a_websocket() -> None:
    with Server(websocket=WebSocketOptions()) as server, slipstream.connect_blocking(server.websocket_url) as client:
        js = client.jetstream()
        js.create_stream(slipstream.StreamConfig(name="W", subjects=("w.>",)))
        assert [js.publish(f"w.{n}", b"x").seq for n in range(3)] == [1, 2, 3]


def test_an_upgrade_request_that_is_missing_or_too_long_is_rejected() -> None:
    with Server(websocket=WebSocketOptions(handshake_timeout=0.2)) as server:
        with socket.create_connection(("127.0.0.1", server.websocket_port), timeout=10) as silent:
            assert silent.recv(100) == b""
        assert server._running.engine.totals.connections == 0
    with Server(websocket=WebSocketOptions()) as server:
        with socket.create_connection(("127.0.0.1", server.websocket_port), timeout=10) as chatty:
            chatty.sendall(b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * MAX_REQUEST)
            assert b" 431 " in chatty.recv(1000)
        assert server._running.engine.totals.connections == 0


def test_origins_are_checked_against_the_list() -> None:
    options = WebSocketOptions(allowed_origins=("https://good.example", "http://also.example:8080"))
    with Server(websocket=options) as server:
        for origin, status in (
            (None, b"101"), ("https://good.example", b"101"), ("https://good.example:443", b"101"),
            ("http://also.example:8080", b"101"), ("http://good.example", b"403"), ("https://evil.example", b"403"),
            ("null", b"403"),
        ):  # fmt: skip
            with socket.create_connection(("127.0.0.1", server.websocket_port), timeout=10) as sock:
                assert Raw(sock).upgrade(request(Origin=origin)).split()[1] == status, origin
    same = Origins(same=True)
    assert same.permit("http://here:80", "here")
    assert not same.permit("http://there", "here")
    assert answer_upgrade(request()[:-4].decode(), same, {"X-Y": "z"}).endswith(b"X-Y: z\r\n\r\n")
    with pytest.raises(RefusalError):
        answer_upgrade("GET / HTTP/1.0", same, {})


def test_a_websocket_client_that_stops_reading_is_cut_off() -> None:
    with Server(websocket=WebSocketOptions(), max_pending_bytes=2 * 1024 * 1024) as server:
        with socket.create_connection(("127.0.0.1", server.websocket_port), timeout=10) as sock:
            raw = Raw(sock)
            raw.upgrade()
            raw.send(BINARY, HELLO + b"SUB flood 1\r\nPING\r\n")
            raw.until(b"PONG\r\n")
            with slipstream.connect_blocking(server.url) as client:
                deadline = time.monotonic() + 20
                while len(server._running.engine.sessions) > 1 and time.monotonic() < deadline:
                    client.publish("flood", b"x" * 100_000)
                    client.flush()
                assert len(server._running.engine.sessions) == 1
        assert server._running.engine.totals.slow == 1


def test_pings_of_a_client_that_reads_no_answers_do_not_fill_the_memory() -> None:
    with (
        Server(websocket=WebSocketOptions()) as server,
        socket.create_connection(("127.0.0.1", server.websocket_port), timeout=10) as sock,
    ):
        raw = Raw(sock)
        raw.upgrade()
        raw.send(BINARY, HELLO + b"PING\r\n")
        raw.until(b"PONG\r\n")
        flood = encode_frame(PING, b"x" * 125, b"\x01\x02\x03\x04") * 8000
        for _ in range(24):
            sock.sendall(flood)
        (connection,) = server._running.connections
        transport = connection.transport
        assert transport is None or transport.get_write_buffer_size() < 1024 * 1024
