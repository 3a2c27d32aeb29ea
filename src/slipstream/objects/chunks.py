"""Chunking and verification of objects.

Pieces of any size become chunks of one size with a running digest; chunks that were read are checked against the record
of their object. Both hold less than one chunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from slipstream.errors import ObjectDamagedError, UsageError
from slipstream.objects.info import ObjectInfo, digest_text, same_digest

Piece = bytes | bytearray | memoryview


class Chunker:
    """Cuts pieces into chunks of `size` bytes and computes their digest."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._rest = bytearray()
        self._hash = hashlib.sha256()
        self.total: int = 0
        self.count: int = 0

    @property
    def digest(self) -> str:
        """The digest of all chunks so far."""
        return digest_text(self._hash.digest())

    def feed(self, piece: Piece) -> Iterator[bytes]:
        """The chunks that `piece` completes."""
        view, at = memoryview(piece).cast("B"), 0
        if self._rest:
            at = min(self.size - len(self._rest), len(view))
            self._rest += view[:at]
            if len(self._rest) < self.size:
                return
            yield self._made(bytes(self._rest))
            self._rest.clear()
        while len(view) - at >= self.size:
            yield self._made(bytes(view[at : at + self.size]))
            at += self.size
        self._rest += view[at:]

    def finish(self) -> Iterator[bytes]:
        """The rest, as the last and shorter chunk."""
        if self._rest:
            yield self._made(bytes(self._rest))
            self._rest.clear()

    def _made(self, chunk: bytes) -> bytes:
        self._hash.update(chunk)
        self.total += len(chunk)
        self.count += 1
        return chunk


class Checker:
    """Verifies the chunks of an object as they are read; `finish` raises if they are not the object."""

    def __init__(self, info: ObjectInfo) -> None:
        self._info = info
        self._hash = hashlib.sha256()
        self.total: int = 0
        self.count: int = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk, in order."""
        self._hash.update(chunk)
        self.total += len(chunk)
        self.count += 1

    def finish(self) -> None:
        """Call it after the last chunk. Raises ObjectDamagedError if the chunks do not match the record."""
        info = self._info
        if self.count != info.chunks or self.total != info.size:
            raise ObjectDamagedError(
                f"object {info.name!r} of bucket {info.bucket!r}: {self.count} chunks with {self.total} bytes found,"
                f" its record says {info.chunks} with {info.size}; it may have been replaced or deleted during the read"
            )
        if info.digest and not same_digest(info.digest, self._hash.digest()):
            raise ObjectDamagedError(
                f"object {info.name!r} of bucket {info.bucket!r}: the digest of its data is"
                f" {digest_text(self._hash.digest())}, its record says {info.digest}"
            )


def pieces(data: Any, size: int) -> Iterator[Piece]:
    """The data of an object piece by piece; a file is read in pieces of `size`."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        yield data
    elif hasattr(data, "read"):
        while piece := data.read(size):
            yield check_piece(piece)
    elif isinstance(data, Iterable) and not isinstance(data, str):
        for piece in data:
            yield check_piece(piece)
    else:
        raise UsageError(f"data must be bytes, a binary file or an iterable of bytes, got {type(data).__name__}")


def check_piece(piece: Any) -> Piece:
    """Return `piece`, or raise a UsageError if it is not bytes."""
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise UsageError(f"data must consist of bytes (open files in binary mode), got {type(piece).__name__}")
    return piece
