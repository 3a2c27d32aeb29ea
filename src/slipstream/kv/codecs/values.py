"""Codecs of values: JSON, MessagePack, zlib compression and base64."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any, TypeVar, cast

import msgspec

from slipstream.errors import CodecError, UsageError
from slipstream.kv.codecs.base import Codec

V = TypeVar("V")

MAX_SIZE = 64 * 1024 * 1024


class Json(Codec[V]):
    """Values as JSON; `kind` is the type to decode to (a dataclass, a Struct, `dict[str, int]`, ...)."""

    def __init__(self, kind: type[V] = cast("type[V]", Any)) -> None:  # noqa: B008
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(kind).decode

    def encode_value(self, key: str, value: V) -> bytes:
        """The value as JSON."""
        return _msgspec_encoded(self._encode, key, value)

    def decode_value(self, key: str, data: bytes) -> V:
        """The decoded value, its type checked."""
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CodecError(f"the value of key {key!r} is not the JSON expected: {error}") from error


class MessagePack(Codec[V]):
    """Values as MessagePack, smaller and faster than JSON; `kind` is the type to decode to."""

    def __init__(self, kind: type[V] = cast("type[V]", Any)) -> None:  # noqa: B008
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def encode_value(self, key: str, value: V) -> bytes:
        """The value as MessagePack."""
        return _msgspec_encoded(self._encode, key, value)

    def decode_value(self, key: str, data: bytes) -> V:
        """The decoded value, its type checked."""
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CodecError(f"the value of key {key!r} is not the MessagePack expected: {error}") from error


def _msgspec_encoded(encode: Any, key: str, value: Any) -> bytes:
    try:
        return cast("bytes", encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError(f"value of key {key!r} cannot be encoded: {error}") from error


class Base64Values(Codec[bytes]):
    """Values in URL-safe base64 without padding, for readers that need text."""

    def encode_value(self, key: str, value: bytes) -> bytes:
        """The value in base64."""
        return base64.urlsafe_b64encode(super().encode_value(key, value)).rstrip(b"=")

    def decode_value(self, key: str, data: bytes) -> bytes:
        """The decoded value."""
        try:
            return base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise CodecError(f"the value of key {key!r} is not base64") from error


class Compressed(Codec[bytes]):
    """Values compressed with zlib if that makes them smaller: a byte 1 and the zlib stream, or a byte 0 and the value.

    Values of more than `max_size` bytes are rejected in both directions, so a small entry cannot expand to gigabytes.
    """

    def __init__(self, *, level: int = 6, max_size: int = MAX_SIZE) -> None:
        if not 0 <= level <= 9:
            raise UsageError(f"level must be 0 to 9, got {level}")
        self._level = level
        self._max_size = max_size

    def encode_value(self, key: str, value: bytes) -> bytes:
        """The value, compressed if that makes it smaller."""
        plain = super().encode_value(key, value)
        if len(plain) > self._max_size:
            raise UsageError(f"value of key {key!r} must be at most {self._max_size} bytes, got {len(plain)}")
        packed = zlib.compress(plain, self._level)
        return b"\x01" + packed if len(packed) < len(plain) else b"\x00" + plain

    def decode_value(self, key: str, data: bytes) -> bytes:
        """The decompressed value."""
        if data[:1] == b"\x00":
            return data[1:]
        if data[:1] != b"\x01":
            raise CodecError(f"the value of key {key!r} is not compressed: it begins with {data[:1]!r}")
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(data[1:], self._max_size + 1)
        except zlib.error as error:
            raise CodecError(f"the value of key {key!r} cannot be decompressed: {error}") from error
        if len(plain) > self._max_size:
            raise CodecError(f"the value of key {key!r} has more than {self._max_size} bytes")
        if not unpacker.eof or unpacker.unused_data:
            raise CodecError(f"the value of key {key!r} is truncated or has trailing data")
        return plain
