"""WebSocket frames (RFC 6455) for both ends: a reader of payload and control frames, and an encoder.

Invariants: whatever the peer sends, its payload is returned or a RemoteProtocolError is raised; nothing but a
frame header or a control frame is ever held back, both bounded: payload passes through as it arrives.
"""

from __future__ import annotations

import base64
import hashlib

from slipstream.errors import RemoteProtocolError

MAX_CONTROL = 125  # RFC 6455, 5.5
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN = 0x80
MASKED = 0x80
NORMAL = 1000  # the code of a close without an error
PROTOCOL_ERROR = 1002


class FrameReader:
    """The frames of one peer: a client masks them, a server does not."""

    def __init__(self, *, masked: bool, text: bool = False) -> None:
        """With `text`, messages may be text as well as binary: the bytes are the same."""
        self._masked = masked
        self._first = (BINARY, TEXT) if text else (BINARY,)
        self._held = bytearray()
        self._left = 0  # bytes of the current data frame that have not arrived
        self._mask = b""
        self._is_fragmented = False  # a message goes on in the next data frame

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Pieces in order: (BINARY, some payload), or (PING, PONG or CLOSE, the whole payload)."""
        self._held += data
        held, pos = bytes(self._held), 0
        pieces: list[tuple[int, bytes]] = []
        while pos < len(held):
            if self._left:
                part = held[pos : pos + self._left]
                pos += len(part)
                self._left -= len(part)
                pieces.append((BINARY, self._unmask(part)))
                continue
            header = self._header(held, pos)
            if header is None:
                break
            opcode, begin, size = header
            if opcode < CLOSE:
                pos, self._left = begin, size
                continue
            if len(held) < begin + size:
                break
            pos = begin + size
            pieces.append((opcode, self._unmask(held[begin:pos])))
        del self._held[:pos]
        return pieces

    def _unmask(self, part: bytes) -> bytes:
        if not self._masked:
            return part
        shift = len(part) % 4
        mask, self._mask = self._mask, self._mask[shift:] + self._mask[:shift]  # the frame may go on
        return masked(part, mask)

    def _header(self, held: bytes, pos: int) -> tuple[int, int, int] | None:
        """Opcode, where the payload begins and its size; None while the header is incomplete."""
        if len(held) < pos + 2:
            return None
        first, second = held[pos], held[pos + 1]
        self._check(first, second)
        opcode, size, pos = first & 0x0F, second & 0x7F, pos + 2
        if size > MAX_CONTROL:
            width = 2 if size == 126 else 8
            if len(held) < pos + width:
                return None
            size, pos = int.from_bytes(held[pos : pos + width], "big"), pos + width
            if size >> 63 or size < (126 if width == 2 else 1 << 16):
                raise RemoteProtocolError(f"a WebSocket frame with a size of {size} in {width} bytes")
        if self._masked:
            if len(held) < pos + 4:
                return None
            self._mask, pos = held[pos : pos + 4], pos + 4
        if opcode < CLOSE:
            self._is_fragmented = not first & FIN
        return opcode, pos, size

    def _check(self, first: int, second: int) -> None:
        opcode = first & 0x0F
        if first & 0x70 or bool(second & MASKED) != self._masked:
            wrong = "not masked by the client" if self._masked else "masked by the server"
            raise RemoteProtocolError(f"a WebSocket frame with reserved bits, or {wrong}")
        if opcode >= CLOSE:
            if opcode > PONG or not first & FIN or second & 0x7F > MAX_CONTROL:
                raise RemoteProtocolError(
                    f"WebSocket control frames must be short, whole and known, got opcode {opcode}"
                )
        elif opcode not in ((CONTINUATION,) if self._is_fragmented else self._first):
            raise RemoteProtocolError(f"WebSocket frames must be binary, got opcode {opcode}")


def encode_frame(opcode: int, payload: bytes, mask: bytes = b"") -> bytes:
    """One whole frame; with a mask of four bytes it is a client's."""
    size, flag = len(payload), MASKED if mask else 0
    if size <= MAX_CONTROL:
        head = bytes((FIN | opcode, flag | size))
    elif size < 1 << 16:
        head = bytes((FIN | opcode, flag | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((FIN | opcode, flag | 127)) + size.to_bytes(8, "big")
    return b"".join((head, mask, masked(payload, mask) if mask else payload))


def masked(payload: bytes, mask: bytes) -> bytes:
    """The payload under a mask of four bytes, and back; as one large number, since a loop over bytes is far slower."""
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")


def accept_key(key: bytes) -> str:
    """The `Sec-WebSocket-Accept` that answers a `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
