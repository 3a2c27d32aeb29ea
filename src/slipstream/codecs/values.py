"""Codecs of values: JSON, MessagePack, text, zlib compression and base64."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from slipstream.codecs.base import Codec
from slipstream.codecs.kinds import encode_hook, json_decoder, msgpack_decoder
from slipstream.errors import CodecError, UsageError

V = TypeVar("V")
T = TypeVar("T")

MAX_SIZE = 64 * 1024 * 1024
_NOT_ENCODED = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_NOT_DECODED = (msgspec.MsgspecError, ValueError, RecursionError)


class Json(Codec[V]):
    """Values as JSON; `kind` is the type to decode to (a Struct, a dataclass, a pydantic model, `dict[str, int]`)."""

    content_type = "application/json"

    def __init__(self, kind: type[V] = cast("type[V]", Any)) -> None:  # noqa: B008
        self._encode = msgspec.json.Encoder(enc_hook=encode_hook).encode
        self._decode = json_decoder(kind)

    def reads(self, content_type: str) -> bool:
        """JSON by its content type, `application/vnd.example+json` as well."""
        return content_type in (self.content_type, "text/json") or content_type.endswith("+json")

    def encode_value(self, key: str, value: V) -> bytes:
        """The value as JSON."""
        return _msgspec_encoded(self._encode, key, value)

    def decode_value(self, key: str, data: bytes) -> V:
        """The decoded value, its type checked."""
        return _decoded(self._decode, key, data, "JSON")

    def decode_as(self, key: str, data: bytes, kind: type[T]) -> T:
        """The decoded value as a `kind`, its type checked."""
        return _decoded(json_decoder(kind), key, data, "JSON")


class MessagePack(Codec[V]):
    """Values as MessagePack, smaller and faster than JSON; `kind` is the type to decode to."""

    content_type = "application/msgpack"

    def __init__(self, kind: type[V] = cast("type[V]", Any)) -> None:  # noqa: B008
        self._encode = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode
        self._decode = msgpack_decoder(kind)

    def reads(self, content_type: str) -> bool:
        """MessagePack by the names in use for it."""
        return content_type in (self.content_type, "application/vnd.msgpack", "application/x-msgpack")

    def encode_value(self, key: str, value: V) -> bytes:
        """The value as MessagePack."""
        return _msgspec_encoded(self._encode, key, value)

    def decode_value(self, key: str, data: bytes) -> V:
        """The decoded value, its type checked."""
        return _decoded(self._decode, key, data, "MessagePack")

    def decode_as(self, key: str, data: bytes, kind: type[T]) -> T:
        """The decoded value as a `kind`, its type checked."""
        return _decoded(msgpack_decoder(kind), key, data, "MessagePack")


def _msgspec_encoded(encode: Any, key: str, value: Any) -> bytes:
    try:
        return cast("bytes", encode(value))
    except _NOT_ENCODED as error:
        raise UsageError(f"value of key {key!r} cannot be encoded: {error}") from error


def _decoded(decode: Callable[[bytes], T], key: str, data: bytes, what: str) -> T:
    try:
        return decode(data)
    except _NOT_DECODED as error:
        raise CodecError(f"the value of key {key!r} is not the {what} expected: {error}") from error


class Text(Codec[str]):
    """Texts in UTF-8."""

    content_type = "text/plain; charset=utf-8"

    def reads(self, content_type: str) -> bool:
        """Any kind of text."""
        return content_type.startswith("text/")

    def encode_value(self, key: str, value: str) -> bytes:
        """The text in UTF-8."""
        if not isinstance(value, str):
            raise UsageError(f"value of key {key!r} must be a str, got {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:  # a lone surrogate
            raise UsageError(f"value of key {key!r} cannot be encoded: {error}") from error

    def decode_value(self, key: str, data: bytes) -> str:
        """The decoded text."""
        return _decoded(bytes.decode, key, data, "UTF-8")


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
