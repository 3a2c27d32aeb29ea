"""WebSocket framing and layers without sockets, by a server written for the test; and refusals over real ones."""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client.address import learned_addresses, parse_address
from slipstream.client.layers.stack import LayerStack, layers_for
from slipstream.client.layers.websocket import MAX_RESPONSE, WebSocket
from slipstream.client.options import ClientOptions
from slipstream.errors import ConnectionLostError, Error, RemoteProtocolError, UsageError
from slipstream.wire import ServerInfo
from slipstream.wire.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, encode_frame, masked
from tests.client.support import INFO, Driver, FakeServer, Peer

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def seeded() -> Callable[[int], bytes]:
    return random.Random(7).randbytes


def answer_to(request: bytes, **changes: str | None) -> bytes:
    """What a server says to an upgrade; a field can be changed or left out."""
    key = next(line for line in request.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: ")).split(b" ")[1]
    fields: dict[str, str | None] = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": base64.b64encode(hashlib.sha1(key + GUID).digest()).decode(),
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join(["HTTP/1.1 101 Switching Protocols", *lines, "", ""]).encode()


def opened() -> WebSocket:
    socket = WebSocket("h:1", random=seeded())
    socket.begin()
    assert socket.received(answer_to(socket.take())) == b""
    assert socket.is_ready
    return socket


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """A frame as a server sends it."""
    size = len(payload)
    first = opcode | 0x80 * fin
    if size < 126:
        return bytes((first, size)) + payload
    if size < 1 << 16:
        return bytes((first, 126)) + size.to_bytes(2, "big") + payload
    return bytes((first, 127)) + size.to_bytes(8, "big") + payload


def read(data: bytes) -> list[tuple[int, bytes]]:
    """The frames of a client."""
    found = []
    while data:
        assert data[0] & 0x80
        assert data[1] & 0x80, "a client masks"
        size, pos = data[1] & 0x7F, 2
        if size > 125:
            width = 2 if size == 126 else 8
            size, pos = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
        mask, data_at = data[pos : pos + 4], pos + 4
        found.append((data[0] & 0x0F, masked(data[data_at : data_at + size], mask)))
        data = data[data_at + size :]
    return found


def feed_bytes(socket: WebSocket, data: bytes) -> None:
    for byte in data:
        socket.received(bytes((byte,)))


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


# Framing


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_a_mask_is_taken_off_by_itself(payload: bytes, mask: bytes) -> None:
    assert masked(payload, mask) == bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    assert masked(masked(payload, mask), mask) == payload


@given(st.lists(st.sampled_from([0, 1, 125, 126, 65535, 65536]), max_size=4), st.binary(min_size=4, max_size=4))
def test_what_is_sent_can_be_read(sizes: list[int], mask: bytes) -> None:
    socket = opened()
    for size in sizes:
        socket.send(bytes(size))
    assert [(opcode, len(payload)) for opcode, payload in read(socket.take())] == [(BINARY, size) for size in sizes]
    assert read(encode_frame(PING, b"x", mask)) == [(PING, b"x")]


MESSAGES = st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=3), max_size=4)


@given(MESSAGES, st.lists(st.integers(0, 5000), max_size=12), st.booleans())
def test_any_cut_and_any_fragments_give_the_same_bytes(
    messages: list[list[bytes]], cuts: list[int], is_early: bool
) -> None:
    socket = WebSocket("h:1", random=seeded())
    socket.begin()
    data = answer_to(socket.take())
    if not is_early:
        socket.received(data)
        data = b""
    pings = []
    for parts in messages:
        for index, part in enumerate(parts):
            opcode = CONTINUATION if index else BINARY
            data += frame(opcode, part, fin=index == len(parts) - 1)
            data += frame(PING, part[:125]) + frame(PONG, b"unasked")
            pings.append((PONG, part[:125]))
    out = b"".join(socket.received(piece) for piece in cut(data, cuts))
    assert out == b"".join(itertools.chain.from_iterable(messages))
    assert read(socket.take()) == pings
    assert len(socket._held) == 0


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (frame(TEXT, b"x"), "opcode 1"),
        (frame(CONTINUATION, b"x"), "opcode 0"),
        (frame(BINARY, b"x", fin=False) + frame(BINARY, b"y"), "opcode 2"),
        (b"\xc2\x01x", "reserved bits"),
        (b"\x82\x81abcdx", "masked by the server"),
        (frame(PING, b"", fin=False), "control frame"),
        (b"\x89\x7e\x00\x80" + b"x" * 128, "control frame"),
        (b"\x8b\x00", "control frame"),
        (b"\x83\x00", "opcode 3"),
        (b"\x82\x7e\x00\x05hello", "a size of 5 in 2 bytes"),
        (b"\x82\x7f" + (65535).to_bytes(8, "big"), "a size of 65535 in 8 bytes"),
        (b"\x82\x7f\x80" + bytes(7), "in 8 bytes"),
        (frame(CLOSE, b"\x03\xe9going"), "closed the WebSocket: 1001, going"),
        (frame(CLOSE, b"\x03\xe9"), "closed the WebSocket: 1001$"),
        (frame(CLOSE), "closed the WebSocket: no code"),
    ],
)
def test_frames_that_cannot_be_are_errors(data: bytes, text: str) -> None:
    with pytest.raises(Error, match=text):
        opened().received(data)
    socket = opened()
    with pytest.raises(Error, match=text):
        feed_bytes(socket, data)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_any_bytes_are_read_or_refused_and_little_is_held(data: bytes, cuts: list[int]) -> None:
    socket = opened()
    try:
        for piece in cut(data, cuts):
            socket.received(piece)
            assert len(socket._held) < 2 + 125
    except (RemoteProtocolError, ConnectionLostError):
        pass


def test_a_large_frame_passes_through_as_it_arrives() -> None:
    socket = opened()
    data = frame(BINARY, b"x" * 1_000_000)
    assert len(socket.received(data[:500_000])) == 499_990
    assert len(socket._held) == 0
    assert len(socket.received(data[500_000:])) == 500_010


def test_a_close_is_answered_once_and_what_came_before_it_is_read() -> None:
    socket = opened()
    assert socket.received(frame(BINARY, b"last") + frame(CLOSE, b"\x03\xe8bye")) == b"last"
    assert read(socket.take()) == [(CLOSE, b"\x03\xe8")]
    socket.finish()
    socket.received(frame(PING, b"x"))
    assert socket.take() == b""
    closing = opened()
    closing.finish()
    assert read(closing.take()) == [(CLOSE, b"\x03\xe8")]
    unready = WebSocket("h", random=seeded())
    unready.finish()
    assert unready.take() == b""


# The handshake


def test_the_upgrade_is_asked_for_with_a_fresh_key() -> None:
    socket = WebSocket("[::1]:80", "/nats?x=1", random=seeded())
    socket.begin()
    lines = socket.take().split(b"\r\n")
    assert lines[0] == b"GET /nats?x=1 HTTP/1.1"
    assert b"Host: [::1]:80" in lines
    assert b"Sec-WebSocket-Version: 13" in lines
    key = next(line for line in lines if b"Key" in line).split(b" ")[1]
    assert len(base64.b64decode(key)) == 16


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"Sec_WebSocket_Accept": "wrong"}, "wrong Sec-WebSocket-Accept"),
        ({"Sec_WebSocket_Accept": None}, "wrong Sec-WebSocket-Accept"),
        ({"Upgrade": "h2c"}, "must upgrade to a WebSocket"),
        ({"Upgrade": None}, "must upgrade to a WebSocket"),
        ({"Connection": "close"}, "must upgrade to a WebSocket"),
        ({"Sec_WebSocket_Extensions": "permessage-deflate"}, "not requested"),
        ({"Sec_WebSocket_Protocol": "mqtt"}, "not requested"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(change: dict[str, str | None], text: str) -> None:
    socket = WebSocket("h", random=seeded())
    socket.begin()
    with pytest.raises(RemoteProtocolError, match=text):
        socket.received(answer_to(socket.take(), **change))
    assert not socket.is_ready


@pytest.mark.parametrize("first", ["HTTP/1.1 400 Bad Request", "HTTP/1.0 101 Switching", "INFO {}", "HTTP/1.1"])
def test_another_status_is_refused(first: str) -> None:
    socket = WebSocket("h", random=seeded())
    socket.begin()
    with pytest.raises(RemoteProtocolError, match=r"must be HTTP/1\.1 101"):
        socket.received(f"{first}\r\n\r\n".encode())


def test_an_answer_without_end_is_refused_and_case_does_not_matter() -> None:
    socket = WebSocket("h", random=seeded())
    socket.begin()
    answer = answer_to(socket.take(), Connection="keep-alive, upgrade", Upgrade="WebSocket")
    assert socket.received(answer + frame(BINARY, b"INFO")) == b"INFO"
    endless = WebSocket("h", random=seeded())
    endless.begin()
    with pytest.raises(RemoteProtocolError, match="exceeds 16384 bytes"):
        feed_bytes(endless, b"HTTP/1.1 101 OK\r\n" + b"x" * MAX_RESPONSE)


# Layers


class Reverser:
    """A layer that greets, then turns every chunk round."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self.is_ready = False
        self._out = b""

    def begin(self) -> None:
        self._out += b"<%b>" % self._name

    def received(self, data: bytes) -> bytes:
        if self.is_ready:
            return data[::-1]
        self.is_ready = data.startswith(b"ok")
        return data[2:][::-1]

    def send(self, data: bytes) -> None:
        self._out += data[::-1]

    def finish(self) -> None:
        self._out += b"</%b>" % self._name

    def take(self) -> bytes:
        out, self._out = self._out, b""
        return out


def test_an_upper_layer_begins_when_the_lower_one_is_ready() -> None:
    channel = LayerStack([Reverser(b"low"), Reverser(b"top")])
    assert channel.take() == b"<low>"
    assert channel.received(b"no") == b""
    assert not channel.is_ready
    assert channel.received(b"ok") == b""
    assert channel.take() == b"<top>"[::-1]
    assert channel.received(b"ba" + b"ko") == b"ba"[::-1][::-1]
    assert channel.is_ready
    channel.send(b"hello")
    assert channel.take() == b"hello"
    channel.finish()
    assert channel.take() == b"</top>"[::-1] + b"</low>"


def test_a_channel_that_never_got_ready_finishes_what_had_begun() -> None:
    channel = LayerStack([Reverser(b"low"), Reverser(b"top")])
    channel.take()
    channel.finish()
    assert channel.take() == b"</low>"


def test_the_scheme_decides_what_a_connection_begins_with() -> None:
    class Maker:
        def layer(self, _: object) -> Reverser:
            return Reverser(b"tls")

    def count(url: str, *, tls_first: bool = False) -> int:
        layers = layers_for(parse_address(url), tls=Maker(), tls_first=tls_first, random=seeded())
        return 0 if layers is None else len(layers._layers)

    assert [count(url) for url in ("nats://h", "tls://h", "ws://h", "wss://h")] == [0, 0, 1, 2]
    assert count("nats://h", tls_first=True) == 1
    assert count("wss://h", tls_first=True) == 2
    with pytest.raises(UsageError, match="must be wss://"):
        ClientOptions("ws://h", tls=True)


# Addresses


def test_urls_of_every_scheme() -> None:
    assert str(parse_address("WS://h")) == "ws://h:80"
    assert str(parse_address("wss://u:p@h/nats")) == "wss://h:443/nats"
    assert str(parse_address("tls://h")) == "tls://h:4222"
    assert str(parse_address("ws://[::1]:8080/")) == "ws://[::1]:8080"
    for bad in ("http://h", "ws://h/a b", "nats://h/path", "ws://h/x?y=1", "ws://h/#x"):
        with pytest.raises(UsageError, match="server URL must"):
            parse_address(bad)


def test_servers_that_are_learned_are_spoken_to_in_the_same_way() -> None:

    info = ServerInfo(connect_urls=("10.0.0.2:4222", "b.example:4222", "[bad"), ws_connect_urls=("10.0.0.2:8080",))
    tls = learned_addresses(info, like=parse_address("tls://me:pw@a.example"))
    assert [(str(server), server.tls_name, server.user) for server in tls] == [
        ("tls://10.0.0.2:4222", "a.example", "me"),
        ("tls://b.example:4222", "", "me"),
    ]
    again = learned_addresses(info, like=tls[0])
    assert again[0].tls_name == "a.example"
    assert [str(server) for server in learned_addresses(info, like=parse_address("ws://a"))] == ["ws://10.0.0.2:8080"]
    assert learned_addresses(info, like=parse_address("10.0.0.1"))[0].tls_name == ""
    own = parse_address("nats://t0ken@h", like=parse_address("nats://me:pw@h"))
    assert (own.user, own.token) == ("", "t0ken")


# The drivers


def upgraded(peer: Peer) -> None:
    peer.send(answer_to(peer.expect(b"\r\n\r\n")))


def test_a_server_that_is_no_websocket_says_so(driver: Driver, nats_url: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"WebSocket upgrade must be HTTP/1\.1 101, got 'INFO"):
        driver.connect(nats_url.replace("nats://", "ws://"))


def test_a_refused_login_is_read_before_the_close_that_follows(driver: Driver) -> None:
    def script(peer: Peer) -> None:
        upgraded(peer)
        peer.send(frame(BINARY, INFO[:10], fin=False) + frame(CONTINUATION, INFO[10:]))
        peer.expect(b"\x82")
        peer.send(frame(BINARY, b"-ERR 'Authorization Violation'\r\n") + frame(CLOSE, b"\x03\xf0"))
        peer.until_closed()

    with FakeServer(script) as server, pytest.raises(Error, match="Authorization Violation"):
        driver.connect(server.url.replace("nats://", "ws://"))


def test_a_close_of_the_server_is_a_loss_that_says_why(driver: Driver) -> None:
    def script(peer: Peer) -> None:
        upgraded(peer)
        peer.send(frame(BINARY, INFO))
        peer.expect(b"\x82")
        peer.send(frame(BINARY, b"PONG\r\n"))
        peer.send(frame(CLOSE, b"\x03\xe9maintenance"))
        peer.until_closed()

    with FakeServer(script) as server:
        nc = driver.connect(server.url.replace("nats://", "ws://"), reconnect=False, on_event=lambda _: None)
        sub_error: object = None
        try:
            nc.subscribe("a").next()
        except ConnectionLostError as exc:
            sub_error = exc
        assert "1001, maintenance" in str(sub_error)
        nc.close()
