"""The framing of S2 (an extension of Snappy), in which nats-server wraps its snapshots: bytes to frames and back.

Written frames are not compressed: the format allows that, every reader takes it, and it costs a checksum only. Read
frames may be. Checksums are CRC-32C, for which the standard library has no function: `crc32c` computes it for many
stripes of the data at once, with operations on whole strings: some five times as fast as byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_FRAME = 64 * 1024  # of what is written
MAX_BLOCK = 4 * 1024 * 1024  # of what is read, after decompression
MAGIC = b"\xff\x06\x00\x00S2sTwO"
_SNAPPY = b"sNaPpY"
_COMPRESSED, _PLAIN, _SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF

_POLYNOMIAL = 0x82F63B78
_STRIPE = 64


def _make_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _make_table()
_PLANES = tuple(bytes((value >> shift) & 0xFF for value in _TABLE) for shift in (0, 8, 16, 24))


def _make_shift() -> tuple[list[int], ...]:
    """The checksum after a stripe of zeros, as a table for each of its four bytes."""
    tables = []
    for shift in (0, 8, 16, 24):
        table = []
        for byte in range(256):
            value = byte << shift
            for _ in range(_STRIPE):
                value = (value >> 8) ^ _TABLE[value & 0xFF]
            table.append(value)
        tables.append(table)
    return tuple(tables)


_SHIFT = _make_shift()


def crc32c(data: bytes) -> int:
    """The checksum of the Castagnoli polynomial."""
    count = len(data) // _STRIPE
    value = 0xFFFFFFFF
    if count > 1:
        a, b, c, d = _SHIFT
        for stripe in _stripes(data, count):
            value = a[value & 0xFF] ^ b[(value >> 8) & 0xFF] ^ c[(value >> 16) & 0xFF] ^ d[value >> 24] ^ stripe
    else:
        count = 0
    table = _TABLE
    for byte in data[count * _STRIPE :]:
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def _stripes(data: bytes, count: int) -> Iterator[int]:
    """The raw checksums of `count` stripes, all computed side by side: four strings hold their four bytes."""
    end = count * _STRIPE
    low, one, two, high = (b"\0" * count,) * 4
    first, second, third, fourth = _PLANES
    number, text = int.from_bytes, int.to_bytes
    for at in range(_STRIPE):
        index = text(number(low, "little") ^ number(data[at:end:_STRIPE], "little"), count, "little")
        low = text(number(one, "little") ^ number(index.translate(first), "little"), count, "little")
        one = text(number(two, "little") ^ number(index.translate(second), "little"), count, "little")
        two = text(number(high, "little") ^ number(index.translate(third), "little"), count, "little")
        high = index.translate(fourth)
    for a, b, c, d in zip(low, one, two, high, strict=True):
        yield a | b << 8 | c << 16 | d << 24


def masked(checksum: int) -> int:
    """A checksum as frames carry it."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class S2Writer:
    """Encoder: bytes to frames."""

    def __init__(self) -> None:
        self._begun = False

    def frames(self, data: bytes) -> bytes:
        """Frames that hold the data."""
        parts = [] if self._begun else [MAGIC]
        self._begun = True
        for at in range(0, len(data), MAX_FRAME):
            block = data[at : at + MAX_FRAME]
            checksum = masked(crc32c(block)).to_bytes(4, "little")
            parts += (bytes((_PLAIN,)), (len(block) + 4).to_bytes(3, "little"), checksum, block)
        return b"".join(parts)


class S2Reader:
    """The decoder: frames in, bytes out; raises ValueError for bytes that are no frames."""

    def __init__(self) -> None:
        self._buffer = b""
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        """What the frames hold that `data` completes."""
        buffer, at, out = self._buffer + data, 0, []
        while len(buffer) - at >= 4:
            size = int.from_bytes(buffer[at + 1 : at + 4], "little")
            if len(buffer) - at - 4 < size:
                break
            out.append(self._frame(buffer[at], buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        self._buffer = buffer[at:]
        return b"".join(out)

    @property
    def between_frames(self) -> bool:
        """Whether the bytes so far end with a whole frame."""
        return not self._buffer

    def _frame(self, kind: int, body: bytes) -> bytes:
        if kind == _IDENTIFIER:
            if body not in (MAGIC[4:], _SNAPPY):
                raise ValueError(f"the snapshot begins with {body[:16]!r}, which is neither S2 nor Snappy")
            self._begun = True
            return b""
        if not self._begun:
            raise ValueError("the snapshot does not begin with the identifier of S2")
        if kind >= _SKIPPABLE:
            return b""
        if kind not in (_COMPRESSED, _PLAIN) or len(body) < 4:
            raise ValueError(f"a frame of unknown kind {kind} in the snapshot")
        block = body[4:] if kind == _PLAIN else decompress(body[4:])
        if masked(crc32c(block)) != int.from_bytes(body[:4], "little"):
            raise ValueError("a frame of the snapshot does not match its checksum")
        return block


def decompress(block: bytes) -> bytes:
    """The content of a compressed block."""
    try:
        size, at = _uvarint(block)
        if size > MAX_BLOCK:
            raise ValueError(f"a block must have at most {MAX_BLOCK} bytes, got {size}")
        out = _expand(block, at, size)
    except IndexError:
        raise ValueError("a compressed block of the snapshot is cut off") from None
    if len(out) != size:
        raise ValueError(f"a compressed block of the snapshot has {len(out)} bytes, it says {size}")
    return bytes(out)


def _uvarint(data: bytes) -> tuple[int, int]:
    value = 0
    for at in range(5):
        byte = data[at]
        value |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return value, at + 1
    raise ValueError("a length in the snapshot is too long")


def _expand(block: bytes, at: int, size: int) -> bytearray:
    """Literals are taken over, copies repeat what came `offset` bytes before; one with offset 0 keeps the last."""
    out, end, offset = bytearray(), len(block), 0
    while at < end and len(out) <= size:
        tag = block[at]
        kind, at = tag & 3, at + 1
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                width = length - 59
                if at + width > end:
                    raise IndexError
                length, at = int.from_bytes(block[at : at + width], "little"), at + width
            length += 1
            if at + length > end:
                raise IndexError
            out += block[at : at + length]
            at += length
            continue
        if kind == 1:
            length, near = (tag >> 2) & 7, (tag & 0xE0) << 3 | block[at]
            at += 1
            if near:
                offset = near
            elif length >= 5:
                width = length - 4
                if at + width > end:
                    raise IndexError
                more = int.from_bytes(block[at : at + width], "little")
                length, at = more + (4, 1 << 8, 1 << 16)[width - 1], at + width
            length += 4
        else:
            width = 2 if kind == 2 else 4
            if at + width > end:
                raise IndexError
            length, offset, at = 1 + (tag >> 2), int.from_bytes(block[at : at + width], "little"), at + width
        _copy(out, offset, length)
    return out


def _copy(out: bytearray, offset: int, length: int) -> None:
    if not 0 < offset <= len(out) or length > MAX_BLOCK:
        raise ValueError("a compressed block of the snapshot points outside itself")
    start = len(out) - offset
    if offset >= length:
        out += out[start : start + length]
    else:
        piece = bytes(out[start:])
        out += (piece * (length // offset + 1))[:length]
