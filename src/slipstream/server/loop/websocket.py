"""Client connections over WebSocket: the HTTP upgrade, then frames around the NATS protocol.

Only the upgrade request and a frame's header are ever buffered, and both are bounded. Compression is never negotiated:
payloads are mostly small or compressed already.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from slipstream.errors import RemoteProtocolError
from slipstream.server.engine.core.session import Listener
from slipstream.server.engine.engine import Engine
from slipstream.server.loop.connection import WRITE_HIGH, Connection, ConnectionHandler, ConnectionLimits
from slipstream.wire.websocket import (
    BINARY,
    CLOSE,
    NORMAL,
    PING,
    PONG,
    PROTOCOL_ERROR,
    FrameReader,
    accept_key,
    encode_frame,
)

log: logging.Logger = logging.getLogger("slipstream.server")

MAX_REQUEST = 16 * 1024


class Origins(NamedTuple):
    """Which web pages may connect: any, those of the server's own host, or those of a list (`https://host:port`)."""

    same: bool = False
    allowed: frozenset[str] = frozenset()
    is_tls: bool = False

    def permit(self, origin: str, host: str) -> bool:
        if not origin or not (self.same or self.allowed):  # only browsers send an origin
            return True
        own = f"{'https' if self.is_tls else 'http'}://{host}"
        return (not self.same or _address(origin) == _address(own)) and (
            not self.allowed or _address(origin) in {_address(one) for one in self.allowed}
        )


def _address(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url.lower())
        return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return "", url, 0


class RefusalError(Exception):
    """The upgrade is rejected, with this HTTP status."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status

    def answer(self) -> bytes:
        body = f"{self}\n".encode()
        extra = b"Sec-WebSocket-Version: 13\r\n" if self.status.startswith("426") else b""
        return b"HTTP/1.1 %b\r\n%bContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
            self.status.encode(), extra, len(body), body,
        )  # fmt: skip


def answer_upgrade(head: str, origins: Origins, headers: Mapping[str, str]) -> bytes:
    """The response to an upgrade request; raises RefusalError if it is rejected."""
    request, *lines = head.split("\r\n")
    method, _, rest = request.partition(" ")
    path, _, version = rest.partition(" ")
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise RefusalError("400 Bad Request", "malformed header line")
        name = name.lower()
        fields[name] = f"{fields[name]}, {value.strip()}" if name in fields else value.strip()
    if method != "GET":
        raise RefusalError("405 Method Not Allowed", "request method must be GET")
    if version != "HTTP/1.1" or not path.startswith("/") or not fields.get("host"):
        raise RefusalError("400 Bad Request", "the request must be HTTP/1.1 with a Host header")
    tokens = [token.strip().lower() for token in fields.get("connection", "").split(",")]
    if fields.get("upgrade", "").lower() != "websocket" or "upgrade" not in tokens:
        raise RefusalError("400 Bad Request", "the request must be an upgrade to websocket")
    if fields.get("sec-websocket-version") != "13":
        raise RefusalError("426 Upgrade Required", "Sec-WebSocket-Version must be 13")
    key = fields.get("sec-websocket-key", "")
    try:
        if len(base64.b64decode(key, validate=True)) != 16:
            raise ValueError("length")
    except (binascii.Error, ValueError):
        raise RefusalError("400 Bad Request", "Sec-WebSocket-Key must be 16 bytes in base64") from None
    if not origins.permit(fields.get("origin", ""), fields["host"]):
        raise RefusalError("403 Forbidden", "origin not allowed")
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept_key(key.encode())}\r\n{more}\r\n"
    ).encode()


class WebSocketConnection(Connection):
    """One client's WebSocket."""

    def __init__(
        self,
        handler: ConnectionHandler,
        engine: Engine,
        listener: Listener,
        limits: ConnectionLimits,
        *,
        origins: Origins,
        headers: Mapping[str, str],
        timeout: float,
    ) -> None:
        super().__init__(handler, engine, listener, limits)  # the listener's TLS begins before the upgrade
        self._origins = origins
        self._headers = headers
        self._timeout = timeout
        self._request = b""
        self._frames: FrameReader | None = None  # once the upgrade is done
        self._sent_close = False
        self._upgrade_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(cast(asyncio.Transport, transport))
        self._upgrade_deadline = asyncio.get_running_loop().call_later(self._timeout, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upgrade_deadline is not None:
            self._upgrade_deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._frames is None:
            self._request += data
            data = self._answer()
        if self._frames is not None and data:
            self._unwrap(data)

    def _answer(self) -> bytes:
        """Answer the upgrade request once it is complete; returns the bytes behind it."""
        assert self.transport is not None
        end = self._request.find(b"\r\n\r\n", 0, MAX_REQUEST)
        if end < 0 and len(self._request) < MAX_REQUEST:
            return b""
        try:
            if end < 0:
                raise RefusalError(
                    "431 Request Header Fields Too Large", f"the request must be at most {MAX_REQUEST} bytes"
                )
            answer = answer_upgrade(self._request[:end].decode("latin-1"), self._origins, self._headers)
        except RefusalError as refusal:
            log.error("%s - websocket handshake error: %s", self.label, refusal)
            self.transport.write(refusal.answer())
            self.transport.close()
            self._request = b""
            return b""
        rest, self._request = self._request[end + 4 :], b""
        if self._upgrade_deadline is not None:
            self._upgrade_deadline.cancel()
        self.transport.write(answer)
        self._frames = FrameReader(masked=True, text=True)
        self.accept()
        return rest

    def _unwrap(self, data: bytes) -> None:
        assert self._frames is not None
        payload: list[bytes] = []
        ping: bytes | None = None
        try:
            pieces = self._frames.feed(data)
        except RemoteProtocolError as exc:
            log.error("%s - websocket: %s", self.label, exc)
            self._send_close(PROTOCOL_ERROR.to_bytes(2, "big"))
            self._engine.close(self.cid, "Parser Error")
            self._handler.wake()
            return
        for opcode, part in pieces:
            if opcode == BINARY:
                payload.append(part)
            elif opcode == PING:
                ping = part  # one PONG answers all PINGs before it
            elif opcode == CLOSE:
                self._send_close(part[:2])
        if ping is not None and self.transport is not None and self.transport.get_write_buffer_size() < WRITE_HIGH:
            self._send(PONG, ping)  # a client that does not read gets no more
        if payload:
            self.receive(b"".join(payload))
        if self._sent_close:
            self.close()

    def write(self, data: bytes) -> int:
        transport = self.transport
        assert transport is not None
        self._send(BINARY, data)
        return transport.get_write_buffer_size()

    def write_parts(self, parts: Sequence[bytes]) -> int:
        return self.write(b"".join(parts))  # one frame

    def close(self) -> None:
        if self._frames is not None:
            self._send_close(NORMAL.to_bytes(2, "big"))
        super().close()

    def _send_close(self, payload: bytes) -> None:
        self._send(CLOSE, payload)
        self._sent_close = True

    def _send(self, opcode: int, payload: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing() and not self._sent_close:
            self.transport.write(encode_frame(opcode, payload))
