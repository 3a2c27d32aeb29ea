"""Any pieces give the same chunks, the same digest, and the same object back."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ObjectDamagedError, UsageError
from slipstream.objects.chunks import Checker, Chunker, pieces
from slipstream.objects.info import ObjectInfo, digest_text, read_record, same_digest


def chunked(given_pieces: list[bytes], size: int) -> tuple[list[bytes], Chunker]:
    chunker = Chunker(size)
    made = [chunk for piece in given_pieces for chunk in chunker.feed(piece)]
    return [*made, *chunker.finish()], chunker


@given(st.lists(st.binary(max_size=50)), st.integers(1, 40))
def test_however_it_is_cut_the_chunks_are_the_same(parts: list[bytes], size: int) -> None:
    whole = b"".join(parts)
    chunks, chunker = chunked(parts, size)
    assert chunks == [whole[at : at + size] for at in range(0, len(whole), size)]
    assert (chunker.total, chunker.count) == (len(whole), len(chunks))
    assert chunker.digest == digest_text(hashlib.sha256(whole).digest())


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1), st.data())
def test_a_checker_takes_the_object_and_nothing_else(parts: list[bytes], data: st.DataObject) -> None:
    chunks, chunker = chunked(parts, 7)
    info = ObjectInfo(name="a", bucket="b", size=chunker.total, chunks=chunker.count, digest=chunker.digest)
    right = Checker(info)
    for chunk in chunks:
        right.feed(chunk)
    right.finish()
    place = data.draw(st.integers(0, len(chunks) - 1))
    damaged = [*chunks]
    damaged[place] = bytes([damaged[place][0] ^ 1]) + damaged[place][1:]
    for wrong in (damaged, chunks[:-1], [*chunks, b""]):
        checker = Checker(info)
        for chunk in wrong:
            checker.feed(chunk)
        with pytest.raises(ObjectDamagedError, match="object 'a' of bucket 'b'"):
            checker.finish()


def test_a_digest_is_known_in_the_forms_that_clients_write() -> None:
    digest = hashlib.sha256(b"x").digest()
    text = digest_text(digest)
    assert text.startswith("SHA-256=")
    for form in (text, text.rstrip("="), text.replace("SHA", "sha")):
        assert same_digest(form, digest)
    for form in (digest_text(hashlib.sha256(b"y").digest()), "", text.removeprefix("SHA-256="), "MD5" + text[7:]):
        assert not same_digest(form, digest)


def test_a_record_goes_there_and_back_without_its_sequence_and_time() -> None:
    info = ObjectInfo(name="a", bucket="b", nuid="n", size=3, chunks=1, digest="SHA-256=x", sequence=9, mtime=5)
    assert b"sequence" not in info.record()
    assert b'"mtime":"0001-01-01T00:00:00Z"' in info.record()
    assert read_record(info.record(), seq=9, time=5) == info
    assert read_record(b'{"name":"a","mtime":"whatever"}', seq=1, time=2) == replace(
        ObjectInfo(name="a"), sequence=1, mtime=2
    )


@pytest.mark.parametrize("data", ["text", 5, None])
def test_what_is_no_data_is_refused(data: object) -> None:
    with pytest.raises(UsageError, match="data must be bytes, a binary file or an iterable of bytes"):
        list(pieces(data, 10))
