"""Codec of the LMDB store: messages, subject rows, index entries and control records to bytes and back.

Every value ends with a CRC-32 over its key and itself, so a value that is damaged, or stored under the wrong key, is
detected. Numbers in keys are big-endian (LMDB sorts bytes), numbers in values little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from struct import Struct, pack, unpack_from
from struct import error as StructError  # noqa: N812 - the module calls it `error`
from typing import Final, NamedTuple
from zlib import crc32

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.ports import LogState, Record
from slipstream.server.store.lmdb.segments import ROW, UNSOUND, PackedRow, Row, Segment

HEAD = Struct("<qII")  # time, length of the subject, length of the header
MESSAGE_KEY = Struct(">IQ")  # stream id, sequence
STATE = Struct("<QQQQqqQQ")  # the fields of LogState, then `swept`
SEGMENT = Struct("<QQ")  # messages, bytes; the sums of the blocks follow
INDEXED = Struct("<QQ")  # messages that the index of a segment names, the sum of its entries' checksums
STAMP = Struct("<QQQQ")  # transaction, sums of the tables of control records, subjects and expiries
RESIDUE: Final = 0x2144DF1C  # CRC-32 of anything that is followed by its own CRC-32

# LMDB allows keys of 511 bytes. A longer subject is cut and followed by a byte that UTF-8 never has and a digest; the
# value then begins with the subject in full. Subjects with the same beginning stay neighbours.
LONG = 400
_LONG_MARK = b"\xff"
_LONG_SIZE = LONG + 1 + 20

_ONE: Final = 1 << 32
_new = tuple.__new__
_head = HEAD.unpack_from
_NONE: Final = bytes(8)  # the count of a row without messages


class CorruptMessageError(CorruptRecordError):
    """The message `seq` of `stream` does not match its checksum, or (`what`) is missing."""

    def __init__(self, stream: str, seq: int, what: str = UNSOUND) -> None:
        super().__init__(f"message {seq} of stream {stream!r} {what}")
        self.stream = stream
        self.seq = seq


class Stored(NamedTuple):
    """What is read of a message that is going to be removed."""

    time: int
    subject: str
    size: int  # by `record_size`
    sound: bool


def seal(key: bytes, body: bytes) -> bytes:
    """The value to store under `key`: the body and its checksum."""
    return body + crc32(body, crc32(key)).to_bytes(4, "little")


def crc32_table() -> list[int]:
    """What one byte more does to a CRC-32: for code that knows all of a key but its last byte already."""
    table = []
    for byte in range(256):
        step = byte
        for _ in range(8):
            step = step >> 1 ^ (0xEDB88320 if step & 1 else 0)
        table.append(step)
    return table


def is_sound(key: bytes | memoryview, value: bytes | memoryview) -> bool:
    return crc32(value, crc32(key)) == RESIDUE


def weight(key: bytes, value: bytes) -> int:
    """What an entry adds to the sum of its table: its checksum mixed with its key, and that it is there."""
    return crc32(key) ^ int.from_bytes(value[-4:], "little") | _ONE


def body_of(key: bytes, value: bytes, what: str) -> bytes:
    """The body of a value; raises if it is damaged."""
    if not is_sound(key, value):
        raise CorruptRecordError(f"{what} does not match its checksum")
    return value[:-4]


# Messages.


def decode(stream: str, seq: int, key: bytes, value: bytes) -> Record:
    """The message in a value. Raises CorruptMessageError."""
    if crc32(value, crc32(key)) != RESIDUE:
        raise CorruptMessageError(stream, seq)
    time, subject, header = _head(value)
    subject += 16
    header += subject
    return _new(Record, (seq, time, value[16:subject].decode(), value[subject:header], value[header:-4]))


def inspect(key: bytes, value: bytes) -> Stored:
    """Time, subject and size of a message; of a damaged one the best that can be guessed, with an empty subject if even
    its lengths are impossible."""
    sound = is_sound(key, value)
    try:
        time, subject, header = _head(value)
        payload = len(value) - 20 - subject - header
        if payload < 0:
            raise ValueError
        name = value[16 : 16 + subject].decode()
    except (ValueError, StructError):
        return Stored(0, "", 30 + max(0, len(value) - 20), False)
    return Stored(time, name, 30 + subject + payload + (4 + header if header else 0), sound)


def subject_of(value: bytes) -> str:
    """The subject of a message whose checksum does not matter here: a hint. Empty if it cannot be read."""
    try:
        return value[16 : 16 + _head(value)[1]].decode()
    except (ValueError, StructError):
        return ""


# Subjects in keys.


def subject_key(subject: str) -> bytes:
    """The form of a subject in keys."""
    name = subject.encode()
    if len(name) <= LONG:
        return name
    return name[:LONG] + _LONG_MARK + blake2b(name, digest_size=20).digest()


def literal_prefix(pattern: str) -> str:
    """What every subject begins with that matches the filter."""
    if pattern in ("", ">"):
        return ""
    tokens = pattern.split(".")
    for i, token in enumerate(tokens):
        if token in ("*", ">"):
            return "".join(f"{t}." for t in tokens[:i])
    return pattern


def _full_name(name: bytes, body: bytes) -> tuple[str, bytes]:
    """Subject and rest of a body, from the subject's form in the key."""
    if len(name) != _LONG_SIZE or name[LONG : LONG + 1] != _LONG_MARK:
        return name.decode(), body
    size = int.from_bytes(body[:4], "little")
    return body[4 : 4 + size].decode(), body[4 + size :]


def _with_name(name: bytes, subject: str, body: bytes) -> bytes:
    if len(name) != _LONG_SIZE:
        return body
    full = subject.encode()
    return len(full).to_bytes(4, "little") + full + body


def pack_rows(
    prefix: bytes, subjects: Iterable[str], rows: Mapping[str, PackedRow]
) -> tuple[list[tuple[bytes, bytes]], list[bytes], int]:
    """Keys and values of the rows of subjects, the keys of those that are empty, and what the others add to the sum."""
    puts: list[tuple[bytes, bytes]] = []
    gone: list[bytes] = []
    total, prefix_crc = 0, crc32(prefix)
    for subject in subjects:
        body = rows[subject]
        name = subject.encode()
        if len(name) > LONG:
            name = subject_key(subject)
        if not body[0] and body[:8] == _NONE:
            gone.append(prefix + name)
            continue
        if len(name) > LONG:
            body = _with_name(name, subject, body)
        key_crc = crc32(name, prefix_crc)
        crc = crc32(body, key_crc)
        puts.append((prefix + name, body + crc.to_bytes(4, "little")))
        total += key_crc ^ crc
    return puts, gone, total + len(puts) * _ONE


def unpack_row(key: bytes, value: bytes) -> tuple[str, Row] | None:
    """Subject and content of a row; None if it is damaged, or no row: a sound record of a page of another table."""
    if crc32(value, crc32(key)) != RESIDUE:
        return None
    try:
        if len(value) == 28:
            return key[4:].decode(), ROW.unpack_from(value)
        subject, body = _full_name(key[4:], value[:-4])
        return subject, ROW.unpack(body)
    except (ValueError, StructError):
        return None


def pack_entries(
    prefix: bytes, subjects: Iterable[str], start: int, found: Mapping[str, int | Sequence[int]]
) -> tuple[list[tuple[bytes, bytes]], int, int]:
    """Keys and values of the index entries of subjects in the segment that begins at `start`, how many messages they
    name, and what they add to the sum."""
    puts: list[tuple[bytes, bytes]] = []
    named, total, prefix_crc = 0, 0, crc32(prefix)
    for subject in subjects:
        seqs = found[subject]
        name = subject.encode()
        if isinstance(seqs, int) and len(name) <= LONG:  # most of them, where there are many
            offset = seqs - start
            key_crc = crc32(name, prefix_crc)
            crc = crc32(offset.to_bytes(2, "little"), key_crc)
            puts.append((prefix + name, (crc << 16 | offset).to_bytes(6, "little")))
            named += 1
        else:
            if isinstance(seqs, int):
                seqs = (seqs,)
            name = subject_key(subject)
            body = _with_name(name, subject, pack(f"<{len(seqs)}H", *[seq - start for seq in seqs]))
            key_crc = crc32(name, prefix_crc)
            crc = crc32(body, key_crc)
            puts.append((prefix + name, body + crc.to_bytes(4, "little")))
            named += len(seqs)
        total += key_crc ^ crc
    return puts, named, total + len(puts) * _ONE


def weigh(items: Iterable[tuple[bytes, bytes]]) -> int:
    """What entries add to the sum of their table: `weight` of many."""
    total = 0
    for key, value in items:
        total += _ONE + (crc32(key) ^ int.from_bytes(value[-4:], "little"))
    return total


def row_of(key: bytes, value: bytes) -> Row | None:
    """The content of a row whose subject is in its key; None if it is damaged, or the subject is not all there."""
    return ROW.unpack_from(value) if len(value) == 28 and crc32(value, crc32(key)) == RESIDUE else None


def unpack_entry(key: bytes, value: bytes) -> tuple[str, tuple[int, ...]] | None:
    """Subject and offsets of an index entry; None if it is damaged, or of another table."""
    if crc32(value, crc32(key)) != RESIDUE:
        return None
    try:
        subject, body = _full_name(key[12:], value[:-4])
    except ValueError:
        return None
    return subject, unpack_from(f"<{len(body) // 2}H", body)


# The journal: rows as they were at the end of a group, a page's worth at a time.

_JOURNAL_ROW = Struct("<QQQI")  # a row, and the length of its subject
_LENGTHS: Final = [size.to_bytes(4, "little") for size in range(LONG + 1)]
_JOURNAL_SIZE = 1800  # a larger value would need pages of its own, in one piece


def pack_journal(rows: Iterable[tuple[str, PackedRow]]) -> Iterator[bytes]:
    """Bodies of journal records that hold the rows, in order."""
    parts: list[bytes] = []
    size = 0
    for subject, row in rows:
        name = subject.encode()
        length = len(name)
        parts.append(row)
        parts.append(_LENGTHS[length] if length <= LONG else length.to_bytes(4, "little"))
        parts.append(name)
        size += 28 + length
        if size > _JOURNAL_SIZE:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def unpack_journal(body: bytes) -> Iterator[tuple[str, Row]]:
    at, end = 0, len(body)
    while at < end:
        count, first, last, size = _JOURNAL_ROW.unpack_from(body, at)
        at += 28
        yield body[at : at + size].decode(), (count, first, last)
        at += size


def pack_segment(segment: Segment) -> bytes:
    return SEGMENT.pack(segment.count, segment.bytes) + pack(f"<{len(segment.sums)}Q", *segment.sums)


def unpack_segment(body: bytes) -> Segment:
    count, size = SEGMENT.unpack_from(body)
    return Segment(count, size, unpack_from(f"<{len(body) // 8 - 2}Q", body, 16))


def pack_state(state: LogState, swept: int) -> bytes:
    return STATE.pack(*state, swept)


def unpack_state(body: bytes) -> tuple[LogState, int]:
    *fields, swept = STATE.unpack(body)
    return LogState(*fields), swept


def pack_stream(name: str, config: bytes) -> bytes:
    text = name.encode()
    return len(text).to_bytes(4, "little") + text + config


def unpack_stream(body: bytes) -> tuple[str, bytes]:
    size = int.from_bytes(body[:4], "little")
    return body[4 : 4 + size].decode(), body[4 + size :]
