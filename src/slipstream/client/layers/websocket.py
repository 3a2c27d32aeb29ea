"""The client's end of a WebSocket (RFC 6455): bytes in and out, no socket. NATS uses it as a stream of binary frames.

Invariants: whatever the peer sends, its payload is returned or an Error is raised; nothing but a handshake, a
frame header or a control frame is ever held back, all of them bounded: payload passes through as it arrives. The frames
themselves are read and written by `wire.websocket`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

from slipstream.errors import ConnectionLostError, RemoteProtocolError
from slipstream.wire.websocket import BINARY, CLOSE, NORMAL, PING, PONG, FrameReader, accept_key, encode_frame

MAX_RESPONSE = 16 * 1024  # bytes of the answer to the upgrade
_VERSION = b"HTTP/1.1 "


class WebSocket:
    """The client's end of a WebSocket, as a layer.

    `random` gives unpredictable bytes: for the key of the handshake and the mask of every frame.
    """

    def __init__(self, host: str, path: str = "/", *, random: Callable[[int], bytes]) -> None:
        self._host = host
        self._path = path or "/"
        self._random = random
        self._key = b""
        self._is_ready = False
        self._is_closing = False  # our close frame is out
        self._held = bytearray()  # of the answer to the upgrade
        self._frames = FrameReader(masked=False)
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
        if not self._is_ready:
            self._held += data
            if not self._upgrade():
                return b""
            data = bytes(self._held)
            self._held.clear()
        payload: list[bytes] = []
        for opcode, part in self._frames.feed(data):
            if opcode == BINARY:
                payload.append(part)
            elif self._control(opcode, part) and not payload:
                raise _closed(part)
        return b"".join(payload)

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
                raise RemoteProtocolError(f"the response to the WebSocket upgrade exceeds {MAX_RESPONSE} bytes")
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
        tokens = [token.strip().lower() for token in fields.get("connection", "").split(",")]
        if fields.get("upgrade", "").lower() != "websocket" or "upgrade" not in tokens:
            raise RemoteProtocolError("the response to the WebSocket upgrade must upgrade to a WebSocket")
        if fields.get("sec-websocket-accept") != accept_key(self._key):
            raise RemoteProtocolError("the response to the WebSocket upgrade has the wrong Sec-WebSocket-Accept")
        if "sec-websocket-extensions" in fields or "sec-websocket-protocol" in fields:
            raise RemoteProtocolError(
                "the response to the WebSocket upgrade has an extension or protocol that was not requested"
            )

    # Frames

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


def _not_upgraded(seen: bytes | bytearray) -> RemoteProtocolError:
    text = bytes(seen[:80]).decode("latin-1")
    return RemoteProtocolError(f"the response to the WebSocket upgrade must be HTTP/1.1 101, got {text!r}")


def _closed(payload: bytes) -> ConnectionLostError:
    code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 0
    reason = payload[2:].decode(errors="replace")
    return ConnectionLostError(
        f"the server closed the WebSocket: {code or 'no code'}" + (f", {reason}" if reason else "")
    )
