"""The client's end of a WebSocket (RFC 6455): bytes in and out, no socket. NATS uses it as a stream of binary frames.

Invariants: whatever the peer sends, either its payload comes out or an Error is raised; nothing but a handshake, a
frame header or a control frame is ever held back, all of them bounded: payload passes through as it arrives.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable

from slipstream.errors import ConnectionLostError, RemoteProtocolError

MAX_RESPONSE = 16 * 1024  # bytes of the answer to the upgrade
MAX_CONTROL = 125  # RFC 6455, 5.5
_VERSION = b"HTTP/1.1 "
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN = 0x80
MASKED = 0x80
NORMAL = 1000  # the code of a close that nothing led to


class WebSocket:
    """A layer of a channel. `random` gives unpredictable bytes: for the key of the handshake and every frame's mask."""

    def __init__(self, host: str, path: str = "/", *, random: Callable[[int], bytes]) -> None:
        self._host = host
        self._path = path or "/"
        self._random = random
        self._key = b""
        self._is_ready = False
        self._is_closing = False  # our close frame is out
        self._held = bytearray()
        self._left = 0  # bytes of the current data frame that have not arrived
        self._is_fragmented = False  # a message goes on in the next data frame
        self._out: list[bytes] = []

    @property
    def is_ready(self) -> bool:
        """Whether the server agreed to the upgrade."""
        return self._is_ready

    def begin(self) -> None:
        """Ask for the upgrade."""
        self._key = base64.b64encode(self._random(16))
        self._out.append(
            b"GET %b HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: %b\r\nSec-WebSocket-Version: 13\r\n\r\n"
            % (self._path.encode(), self._host.encode(), self._key)
        )

    def received(self, data: bytes) -> bytes:
        """The payload of the data frames in what arrived."""
        self._held += data
        if not self._is_ready and not self._upgrade():
            return b""
        return self._frames()

    def send(self, data: bytes) -> None:
        """One binary frame."""
        self._out.append(encode_frame(BINARY, data, self._random(4)))

    def finish(self) -> None:
        """The closing handshake, once."""
        if self._is_ready:
            self._close(NORMAL.to_bytes(2, "big"))

    def take(self) -> bytes:
        """The frames to be sent."""
        out, self._out = self._out, []
        return b"".join(out)

    # The handshake

    def _upgrade(self) -> bool:
        if not self._held.startswith(_VERSION[: len(self._held)]):  # a plain NATS server does not wait for our lines
            raise _not_upgraded(self._held)
        end = self._held.find(b"\r\n\r\n", 0, MAX_RESPONSE)
        if end < 0:
            if len(self._held) >= MAX_RESPONSE:
                raise RemoteProtocolError(f"the answer to the WebSocket upgrade is longer than {MAX_RESPONSE} bytes")
            return False
        lines = bytes(self._held[:end]).decode("latin-1").split("\r\n")
        del self._held[: end + 4]
        self._check(lines)
        self._is_ready = True
        return True

    def _check(self, lines: list[str]) -> None:
        if lines[0].split(" ")[1] != "101":
            raise _not_upgraded(lines[0].encode())
        fields: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        accept = base64.b64encode(hashlib.sha1(self._key + _GUID, usedforsecurity=False).digest()).decode()
        tokens = [token.strip().lower() for token in fields.get("connection", "").split(",")]
        if fields.get("upgrade", "").lower() != "websocket" or "upgrade" not in tokens:
            raise RemoteProtocolError("the answer to the WebSocket upgrade is for no WebSocket")
        if fields.get("sec-websocket-accept") != accept:
            raise RemoteProtocolError("the answer to the WebSocket upgrade has the wrong Sec-WebSocket-Accept")
        if "sec-websocket-extensions" in fields or "sec-websocket-protocol" in fields:
            raise RemoteProtocolError("the answer to the WebSocket upgrade has an extension or protocol not asked for")

    # Frames

    def _frames(self) -> bytes:
        held, pos, payload = bytes(self._held), 0, list[bytes]()
        while pos < len(held):
            if self._left:
                part = held[pos : pos + self._left]
                payload.append(part)
                pos += len(part)
                self._left -= len(part)
                continue
            header = self._header(held, pos)
            if header is None:
                break
            opcode, pos_after, size = header
            if opcode < CLOSE:
                pos, self._left = pos_after, size
                continue
            if len(held) < pos_after + size:
                break
            pos = pos_after + size
            if self._control(opcode, held[pos_after:pos]) and not payload:
                raise _closed(held[pos_after:pos])
        del self._held[:pos]
        return b"".join(payload)

    def _header(self, held: bytes, pos: int) -> tuple[int, int, int] | None:
        """Opcode, where the payload begins and its size; None while the header is incomplete."""
        if len(held) < pos + 2:
            return None
        first, second = held[pos], held[pos + 1]
        self._check_header(first, second)
        opcode, size, pos = first & 0x0F, second & 0x7F, pos + 2
        if size > MAX_CONTROL:
            width = 2 if size == 126 else 8
            if len(held) < pos + width:
                return None
            size, pos = int.from_bytes(held[pos : pos + width], "big"), pos + width
            if size >> 63 or size < (126 if width == 2 else 1 << 16):
                raise RemoteProtocolError(f"a WebSocket frame with a size of {size} in {width} bytes")
        if opcode < CLOSE:
            self._is_fragmented = not first & FIN
        return opcode, pos, size

    def _check_header(self, first: int, second: int) -> None:
        opcode = first & 0x0F
        if first & 0x70 or second & MASKED:
            raise RemoteProtocolError("a WebSocket frame with reserved bits, or masked by the server")
        if opcode >= CLOSE:
            if opcode > PONG or not first & FIN or second > MAX_CONTROL:
                raise RemoteProtocolError(f"a bad WebSocket control frame (opcode {opcode})")
        elif opcode != (CONTINUATION if self._is_fragmented else BINARY):
            raise RemoteProtocolError(f"a WebSocket frame with opcode {opcode}, binary frames are allowed")

    def _control(self, opcode: int, payload: bytes) -> bool:
        """Answer a control frame; whether it was the end."""
        if opcode == PING and not self._is_closing:
            self._out.append(encode_frame(PONG, payload, self._random(4)))
        elif opcode == CLOSE:
            self._close(payload[:2])
        return opcode == CLOSE

    def _close(self, payload: bytes) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._out.append(encode_frame(CLOSE, payload, self._random(4)))


def encode_frame(opcode: int, payload: bytes, mask: bytes) -> bytes:
    """One whole frame of a client."""
    size = len(payload)
    if size <= MAX_CONTROL:
        head = bytes((FIN | opcode, MASKED | size))
    elif size < 1 << 16:
        head = bytes((FIN | opcode, MASKED | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((FIN | opcode, MASKED | 127)) + size.to_bytes(8, "big")
    return b"".join((head, mask, masked(payload, mask)))


def masked(payload: bytes, mask: bytes) -> bytes:
    """The payload under a mask of four bytes, and back; as one large number, since a loop over bytes is far slower."""
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")


def _not_upgraded(seen: bytes | bytearray) -> RemoteProtocolError:
    text = bytes(seen[:80]).decode("latin-1")
    return RemoteProtocolError(f"the server answers {text!r} to the WebSocket upgrade, HTTP/1.1 101 is needed")


def _closed(payload: bytes) -> ConnectionLostError:
    code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 0
    reason = payload[2:].decode(errors="replace")
    return ConnectionLostError(
        f"the server closed the WebSocket: {code or 'no code'}" + (f", {reason}" if reason else "")
    )
