"""Codec of the archive in a snapshot: entries of name, time, sequence, header and payload, to bytes and back.

It is nats-server's format `NATSARC1`: the state of the stream as `state.json`, its consumers as `consumers/<name>`,
its messages with their subjects as names, and an empty entry at the end, so that a cut is noticed.
"""

from __future__ import annotations

from typing import NamedTuple

MAGIC = b"NATSARC1"
STATE = "state.json"
CONSUMERS = "consumers/"
MAX_NAME = 1 << 20
MAX_SIZE = 64 * 1024 * 1024  # of one entry


class Entry(NamedTuple):
    """One entry; `seq` is 0 for all but messages."""

    name: str
    time: int = 0
    seq: int = 0
    header: bytes = b""
    payload: bytes = b""


END = Entry("")


def encode_entry(entry: Entry) -> bytes:
    name, time, seq, header, payload = entry
    title = name.encode()
    zigzag = (time << 1) ^ (time >> 63)
    head = b"".join(_uvarint(n) for n in (len(title), zigzag & (2**64 - 1), seq, len(header), len(payload)))
    return b"".join((head, title, header, payload))


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class ArchiveReader:
    """The decoder: bytes in, entries out; raises ValueError for bytes that are no archive."""

    def __init__(self) -> None:
        self._buffer = b""
        self._begun = False

    def feed(self, data: bytes) -> list[Entry]:
        """The entries that `data` completes."""
        buffer = self._buffer + data if self._buffer else data
        at = 0
        if not self._begun:
            if len(buffer) < len(MAGIC):
                self._buffer = buffer
                return []
            if not buffer.startswith(MAGIC):
                raise ValueError(
                    f"the snapshot begins with {buffer[:8]!r}; only archives of the kind NATSARC1 are read"
                )
            self._begun, at = True, len(MAGIC)
        entries = []
        while True:
            found = _entry(buffer, at)
            if found is None:
                break
            entry, at = found
            entries.append(entry)
        self._buffer = buffer[at:]
        return entries


def _entry(buffer: bytes, at: int) -> tuple[Entry, int] | None:
    """The entry that begins at `at`, and where the next one does; None if it is not all there."""
    numbers = []
    for _ in range(5):
        value = shift = 0
        while True:
            if at >= len(buffer):
                return None
            byte = buffer[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise ValueError("a number in the snapshot is too long")
        numbers.append(value)
    size, zigzag, seq, header, payload = numbers
    if size > MAX_NAME or header + payload > MAX_SIZE:
        raise ValueError(f"an entry of a snapshot must have at most {MAX_SIZE} bytes, got {header + payload}")
    end = at + size + header + payload
    if end > len(buffer):
        return None
    begin = at + size
    try:
        name = buffer[at:begin].decode()
    except UnicodeDecodeError as exc:
        raise ValueError("a name in the snapshot is not UTF-8") from exc
    middle = begin + header
    return Entry(name, (zigzag >> 1) ^ -(zigzag & 1), seq, buffer[begin:middle], buffer[middle:end]), end
