"""Keys and values as a program has them become keys and values as a bucket may hold them, and back.

A codec is a pair of such ways; a program's own is a subclass of `Codec`. `kv.with_codec(codec)` is a bucket again, so
codecs are stacked by calling it again: the last one added is nearest to the program. What a codec cannot have written
is a CodecError, never a wrong key or value.

Base64 and path-style keys are written as the codecs of other NATS clients write them.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from typing import Any, Generic, TypeVar, cast

import msgspec

from slipstream.errors import CodecError, UsageError

V = TypeVar("V")

MAX_SIZE = 64 * 1024 * 1024
WILDCARDS = ("*", ">")


class Codec(Generic[V]):
    """How keys and values are written; this one leaves both as they are.

    `key` of the value methods is the key as the program has it.
    """

    def encode_key(self, key: str) -> str:
        """The key as it is stored."""
        return key

    def decode_key(self, key: str) -> str:
        """The key as the program has it."""
        return key

    def encode_filter(self, pattern: str) -> str:
        """A filter over the program's keys as one over stored keys; an error where the codec cannot do that."""
        return self.encode_key(pattern)

    def encode_value(self, key: str, value: V) -> bytes:
        """The value as it is stored."""
        del key
        if not isinstance(value, bytes | bytearray | memoryview):
            raise UsageError(f"bad value of type {type(value).__name__}: bytes are allowed here, or use a codec")
        return bytes(value)

    def decode_value(self, key: str, data: bytes) -> V:
        """The value as the program has it."""
        del key
        return cast("V", data)


def check_wildcards(pattern: str, tokens: list[str]) -> None:
    """Refuse a wildcard inside a token: it would match nothing, silently."""
    if any(token not in WILDCARDS and ("*" in token or ">" in token) for token in tokens):
        raise UsageError(f"bad key filter {pattern!r}: a whole token may be '*', the last one '>'")


class TokenCodec(Codec[bytes]):
    """Keys token by token, so that filters work: wildcards stay what they are."""

    def encode_token(self, token: str, place: int) -> str:
        """One token of a key; `place` counts from 0."""
        raise NotImplementedError

    def decode_token(self, token: str, place: int) -> str:
        """The token again."""
        raise NotImplementedError

    def encode_key(self, key: str) -> str:
        """The key as it is stored."""
        return ".".join(self._checked(token, place, key) for place, token in enumerate(key.split(".")))

    def decode_key(self, key: str) -> str:
        """The key as the program has it."""
        return ".".join(self.decode_token(token, place) for place, token in enumerate(key.split(".")))

    def encode_filter(self, pattern: str) -> str:
        """The same with wildcards for whole tokens."""
        tokens = pattern.split(".")
        check_wildcards(pattern, tokens)
        return ".".join(
            token if token in WILDCARDS else self._checked(token, place, pattern) for place, token in enumerate(tokens)
        )

    def _checked(self, token: str, place: int, key: str) -> str:
        if not token:
            raise UsageError(f"bad key {key!r}: tokens joined by dots are allowed, none of them empty")
        return self.encode_token(token, place)


class Base64Keys(TokenCodec):
    """Keys of any characters, each token in URL-safe base64 without padding."""

    def encode_token(self, token: str, place: int) -> str:
        """One token."""
        del place
        return base64.urlsafe_b64encode(token.encode()).rstrip(b"=").decode()

    def decode_token(self, token: str, place: int) -> str:
        """The token again."""
        del place
        try:
            return from_base64(token).decode()
        except UnicodeDecodeError as error:
            raise CodecError(f"{token!r} is not base64 of text") from error


def from_base64(text: str) -> bytes:
    """Bytes from URL-safe base64 without padding, in its one canonical form; a CodecError otherwise."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecError(f"{text!r} is not base64") from error
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise CodecError(f"{text!r} is not base64 as it is written")
    return data


class Base64Values(Codec[bytes]):
    """Values in URL-safe base64 without padding, for readers that need text."""

    def encode_value(self, key: str, value: bytes) -> bytes:
        """The value as text."""
        return base64.urlsafe_b64encode(super().encode_value(key, value)).rstrip(b"=")

    def decode_value(self, key: str, data: bytes) -> bytes:
        """The value again."""
        try:
            return base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise CodecError(f"the value of key {key!r} is not base64") from error


_ROOT = "_root_"
_PLAIN = re.compile(r"[-_a-zA-Z0-9]")
_ESCAPED = re.compile(r"(?:=[0-9A-F]{2})+")


class PathKeys(Codec[bytes]):
    """Keys like paths: `/a/b` is stored as `_root_.a.b`, `a/b` as `a.b`.

    Other characters than letters, digits, `-` and `_` (also a dot) are written as `=XX`, so that any path comes back as
    it was. A path does not end with `/` and has no empty parts.
    """

    def encode_key(self, key: str) -> str:
        """The key as it is stored."""
        return self._encode(key, wildcards=())

    def encode_filter(self, pattern: str) -> str:
        """A filter like `/a/*/c` or `/a/>`."""
        check_wildcards(pattern, pattern.split("/"))
        return self._encode(pattern, wildcards=WILDCARDS)

    def _encode(self, key: str, wildcards: tuple[str, ...]) -> str:
        is_absolute = key.startswith("/")
        parts = key[is_absolute:].split("/")
        if not all(parts):
            raise UsageError(f"bad key {key!r}: a path is allowed, without '/' at its end or twice in a row")
        tokens = [part if part in wildcards else self._escape(part) for part in parts]
        if is_absolute:
            tokens.insert(0, _ROOT)
        elif tokens[0] == _ROOT:
            tokens[0] = "=5F" + _ROOT[1:]
        return ".".join(tokens)

    @staticmethod
    def _escape(part: str) -> str:
        if part[:3] == "_kv":  # reserved
            return "=5F" + PathKeys._escape(part[1:])
        return "".join(
            char if _PLAIN.match(char) else "".join(f"={byte:02X}" for byte in char.encode()) for char in part
        )

    def decode_key(self, key: str) -> str:
        """The path again."""
        tokens = key.split(".")
        is_absolute = tokens[0] == _ROOT
        parts = [self._unescape(token) for token in tokens[is_absolute:]]
        path = "/" * is_absolute + "/".join(parts)
        if not parts or self._encode(path, ()) != key:
            raise CodecError(f"{key!r} is no path-style key")
        return path

    @staticmethod
    def _unescape(token: str) -> str:
        try:
            return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("=", "")).decode(), token)
        except ValueError as error:
            raise CodecError(f"{token!r} is no part of a path-style key") from error


class Json(Codec[V]):
    """Values as JSON; `kind` is the type they must have (a dataclass, a Struct, `dict[str, int]`, ...)."""

    def __init__(self, kind: type[V] = cast("type[V]", Any)) -> None:  # noqa: B008
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(kind).decode

    def encode_value(self, key: str, value: V) -> bytes:
        """The value as JSON."""
        return _msgspec_encoded(self._encode, key, value)

    def decode_value(self, key: str, data: bytes) -> V:
        """The value again, with its type checked."""
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CodecError(f"the value of key {key!r} is not the JSON expected: {error}") from error


class MessagePack(Codec[V]):
    """Values as MessagePack, smaller and quicker than JSON; `kind` is the type they must have."""

    def __init__(self, kind: type[V] = cast("type[V]", Any)) -> None:  # noqa: B008
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def encode_value(self, key: str, value: V) -> bytes:
        """The value as MessagePack."""
        return _msgspec_encoded(self._encode, key, value)

    def decode_value(self, key: str, data: bytes) -> V:
        """The value again, with its type checked."""
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CodecError(f"the value of key {key!r} is not the MessagePack expected: {error}") from error


def _msgspec_encoded(encode: Any, key: str, value: Any) -> bytes:
    try:
        return cast("bytes", encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UsageError(f"the value for key {key!r} cannot be written: {error}") from error


class Compressed(Codec[bytes]):
    """Values through zlib where that makes them smaller: a byte 1 and the zlib stream, or a byte 0 and the value.

    A value of more than `max_size` bytes is refused both ways: a few bytes must not become gigabytes.
    """

    def __init__(self, *, level: int = 6, max_size: int = MAX_SIZE) -> None:
        if not 0 <= level <= 9:
            raise UsageError(f"bad level {level}: 0 to 9 is allowed")
        self._level = level
        self._max_size = max_size

    def encode_value(self, key: str, value: bytes) -> bytes:
        """The value, smaller."""
        plain = super().encode_value(key, value)
        if len(plain) > self._max_size:
            raise UsageError(f"the value for key {key!r} has {len(plain)} bytes: up to {self._max_size} are allowed")
        packed = zlib.compress(plain, self._level)
        return b"\x01" + packed if len(packed) < len(plain) else b"\x00" + plain

    def decode_value(self, key: str, data: bytes) -> bytes:
        """The value again."""
        if data[:1] == b"\x00":
            return data[1:]
        if data[:1] != b"\x01":
            raise CodecError(f"the value of key {key!r} is not a compressed one: it begins with {data[:1]!r}")
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(data[1:], self._max_size + 1)
        except zlib.error as error:
            raise CodecError(f"the value of key {key!r} cannot be decompressed: {error}") from error
        if len(plain) > self._max_size:
            raise CodecError(f"the value of key {key!r} has more than {self._max_size} bytes")
        if not unpacker.eof or unpacker.unused_data:
            raise CodecError(f"the value of key {key!r} is cut off, or has something behind it")
        return plain
