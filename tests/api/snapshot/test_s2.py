"""S2 frames: checksums by a model, what was written is read, and blocks that nats-server or nobody would write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.api.snapshot.s2 import MAGIC, MAX_FRAME, S2Reader, S2Writer, crc32c, decompress, masked


def plain_crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_the_checksum_is_that_of_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(b"\0" * 32) == 0x8A9136AA  # RFC 3720, B.4


@given(st.binary(max_size=700))
def test_the_checksum_is_the_same_as_bit_by_bit(data: bytes) -> None:
    assert crc32c(data) == plain_crc32c(data)


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 50))
def test_what_was_written_is_read_however_it_is_cut(pieces: list[bytes], size: int) -> None:
    writer, reader = S2Writer(), S2Reader()
    stream = b"".join(writer.frames(piece) for piece in pieces)
    out = b"".join(reader.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    assert out == b"".join(pieces)
    assert reader.between_frames


def test_large_pieces_become_many_frames() -> None:
    data = bytes(range(256)) * 1000
    stream = S2Writer().frames(data)
    assert stream.startswith(MAGIC)
    assert len(stream) == len(MAGIC) + len(data) + 8 * -(-len(data) // MAX_FRAME)
    assert S2Reader().feed(stream) == data


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (b"\x05\x10hello", b"hello"),
        (b"\x3d\xf0\x3c" + b"x" * 61, b"x" * 61),  # a literal with a byte for its length
        (b"\x0a\x04ab\x11\x02", b"ab" * 5),  # a copy that runs into itself
        (b"\x08\x0cabcd\x0e\x04\x00", b"abcdabcd"),  # an offset of two bytes
        (b"\x08\x0cabcd\x0f\x04\x00\x00\x00", b"abcdabcd"),  # of four
        (b"\x0c\x0cabcd\x01\x04\x01\x00", b"abcd" * 3),  # the last offset again
        (b"\x15\x0cabcd\x01\x04\x15\x00\x05", b"abcd" * 5 + b"a"),  # with a longer length
        (b"\xb0\x02\x00a\x01\x01\x19\x00\x27\x00", b"a" * 304),  # of two bytes
        (b"\x89\x80\x04\x00a\x01\x01\x1d\x00\x00\x00\x00", b"a" * 65545),  # of three
    ],
)
def test_compressed_blocks(block: bytes, content: bytes) -> None:
    assert decompress(block) == content


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xff\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f\x00",
        b"\x05\x10hel",
        b"\x05\xf0",
        b"\x05\x01\x01",
        b"\x05\x00a\x02\x01",
        b"\x05\x00a\x15\x00",
        b"\x05\x00a",
        b"\x01\x00a\x11\x01",
        b"\x05\x00a\x01\x00",
    ],
)
def test_a_damaged_block_is_refused(block: bytes) -> None:
    with pytest.raises(ValueError, match=r"block|snapshot"):
        decompress(block)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_block_or_refused(block: bytes) -> None:
    try:
        decompress(block)
    except ValueError:
        return


@pytest.mark.parametrize(
    "stream",
    [
        b"\x01\x05\x00\x00abcde",
        b"\xff\x06\x00\x00hello!",
        MAGIC + b"\x02\x04\x00\x00abcd",
        MAGIC + b"\x01\x02\x00\x00ab",
        MAGIC + b"\x01\x05\x00\x00\x00\x00\x00\x00a",
    ],
)
def test_a_stream_that_is_none_is_refused(stream: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        S2Reader().feed(stream)


def test_padding_and_compressed_frames_are_read() -> None:
    block = b"\x05\x10hello"
    checksum = masked(crc32c(b"hello")).to_bytes(4, "little")
    frame = b"\x00" + (len(block) + 4).to_bytes(3, "little") + checksum + block
    padding = b"\xfe\x03\x00\x00\x00\x00\x00"
    assert S2Reader().feed(b"\xff\x06\x00\x00sNaPpY" + padding + frame) == b"hello"
