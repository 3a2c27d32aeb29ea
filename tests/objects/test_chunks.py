"""Chunking and verification: any pieces give the same chunks and digest, and damage is detected."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ObjectDamagedError, UsageError
from slipstream.objects.chunks import Checker, Chunker, pieces
from slipstream.objects.info import ObjectInfo, digest_text


def chunked(parts: list[bytes], size: int) -> tuple[list[bytes], Chunker]:
    chunker = Chunker(size)
    made = [chunk for piece in parts for chunk in chunker.feed(piece)]
    return [*made, *chunker.finish()], chunker


@given(st.lists(st.binary(max_size=50)), st.integers(1, 40))
def test_chunks_do_not_depend_on_the_pieces(parts: list[bytes], size: int) -> None:
    whole = b"".join(parts)
    chunks, chunker = chunked(parts, size)
    assert chunks == [whole[at : at + size] for at in range(0, len(whole), size)]
    assert (chunker.total, chunker.count) == (len(whole), len(chunks))
    assert chunker.digest == digest_text(hashlib.sha256(whole).digest())


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1), st.data())
def test_a_checker_accepts_the_object_and_rejects_damage(parts: list[bytes], data: st.DataObject) -> None:
    chunks, chunker = chunked(parts, 7)
    info = ObjectInfo(name="a", bucket="b", size=chunker.total, chunks=chunker.count, digest=chunker.digest)
    right = Checker(info)
    for chunk in chunks:
        right.feed(chunk)
    right.finish()
    index = data.draw(st.integers(0, len(chunks) - 1))
    damaged = [*chunks]
    damaged[index] = bytes([damaged[index][0] ^ 1]) + damaged[index][1:]
    for wrong in (damaged, chunks[:-1], [*chunks, b""]):
        checker = Checker(info)
        for chunk in wrong:
            checker.feed(chunk)
        with pytest.raises(ObjectDamagedError, match="object 'a' of bucket 'b'"):
            checker.finish()


@pytest.mark.parametrize("data", ["text", 5, None])
def test_data_that_is_not_bytes_is_rejected(data: object) -> None:
    with pytest.raises(UsageError, match="data must be bytes, a binary file or an iterable of bytes"):
        list(pieces(data, 10))
