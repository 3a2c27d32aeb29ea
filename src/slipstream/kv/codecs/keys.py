"""Codecs of keys: base64 and path-style keys, compatible with the codecs of other NATS clients."""

from __future__ import annotations

import base64
import re

from slipstream.errors import CodecError, UsageError
from slipstream.kv.codecs.base import WILDCARDS, Codec, TokenCodec, check_wildcards, from_base64


class Base64Keys(TokenCodec):
    """Keys of any characters, each token in URL-safe base64 without padding."""

    def encode_token(self, token: str, index: int) -> str:
        """The token in base64."""
        del index
        return base64.urlsafe_b64encode(token.encode()).rstrip(b"=").decode()

    def decode_token(self, token: str, index: int) -> str:
        """The token as text."""
        del index
        try:
            return from_base64(token).decode()
        except UnicodeDecodeError as error:
            raise CodecError(f"{token!r} is not base64 of text") from error


_ROOT = "_root_"
_PLAIN = re.compile(r"[-_a-zA-Z0-9]")
_ESCAPED = re.compile(r"(?:=[0-9A-F]{2})+")


class PathKeys(Codec[bytes]):
    """Keys like paths: `/a/b` is stored as `_root_.a.b`, `a/b` as `a.b`, `/` as `_root_`.

    Stored keys are, byte for byte, those of the path codec of other NATS clients. It replaces each slash by a dot and
    leaves out one slash at the end, so a dot in a path is a slash too: `/etc/app.conf` and `/etc/app/conf` are one key,
    which is listed as `/etc/app/conf`. `EscapedPathKeys` tells them apart.
    """

    def encode_key(self, key: str) -> str:
        """The stored form of a path."""
        if key == "/":
            return _ROOT
        path = f"{_ROOT}.{key[1:]}" if key[:1] == "/" else key
        stored = path.removesuffix("/").replace("/", ".")
        if not all(stored.split(".")):
            raise UsageError(f"key must be a path without empty parts, got {key!r}")
        return stored

    def encode_filter(self, pattern: str) -> str:
        """The stored form of a filter such as `/a/*/c` or `/a/>`."""
        stored = self.encode_key(pattern)
        check_wildcards(pattern, stored.split("."))
        return stored

    def decode_key(self, key: str) -> str:
        """The path of a stored key. Raises CodecError for one with a slash: no path is stored so."""
        if "/" in key:
            raise CodecError(f"{key!r} is not a path-style key")
        if key == _ROOT:
            return "/"
        return key.removeprefix(_ROOT if key.startswith(_ROOT + ".") else "").replace(".", "/")

    def canonical_key(self, key: str) -> str:
        """The form in which a path is listed: without dots, nor a slash at its end."""
        return self.decode_key(self.encode_key(key))


class EscapedPathKeys(Codec[bytes]):
    """Keys like paths, in which every character is kept: a form of Slipstream's own, for any path.

    `/a/b` is stored as `_root_.a.b`, as `PathKeys` stores it. Characters other than letters, digits, `-` and `_` (dots
    too) are escaped as `=XX`, so any path round-trips. A path must not end with `/` or have empty parts. (`PathKeys` of
    version 0.1 and earlier was this codec.)
    """

    def encode_key(self, key: str) -> str:
        """The stored form of a path."""
        return self._encode(key, wildcards=())

    def encode_filter(self, pattern: str) -> str:
        """The stored form of a filter such as `/a/*/c` or `/a/>`."""
        check_wildcards(pattern, pattern.split("/"))
        return self._encode(pattern, wildcards=WILDCARDS)

    def _encode(self, key: str, wildcards: tuple[str, ...]) -> str:
        is_absolute = key.startswith("/")
        parts = key[is_absolute:].split("/")
        if not all(parts):
            raise UsageError(f"key must be a path without '/' at its end or twice in a row, got {key!r}")
        tokens = [part if part in wildcards else self._escape(part) for part in parts]
        if is_absolute:
            tokens.insert(0, _ROOT)
        elif tokens[0] == _ROOT:
            tokens[0] = "=5F" + _ROOT[1:]
        return ".".join(tokens)

    @staticmethod
    def _escape(part: str) -> str:
        if part[:3] == "_kv":  # a reserved prefix: escape its first character
            return "=5F" + EscapedPathKeys._escape(part[1:])
        return "".join(
            char if _PLAIN.match(char) else "".join(f"={byte:02X}" for byte in char.encode()) for char in part
        )

    def decode_key(self, key: str) -> str:
        """The path of a stored key."""
        tokens = key.split(".")
        is_absolute = tokens[0] == _ROOT
        parts = [self._unescape(token) for token in tokens[is_absolute:]]
        path = "/" * is_absolute + "/".join(parts)
        if not parts or self._encode(path, ()) != key:
            raise CodecError(f"{key!r} is not a path-style key")
        return path

    @staticmethod
    def _unescape(token: str) -> str:
        try:
            return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("=", "")).decode(), token)
        except ValueError as error:
            raise CodecError(f"{token!r} is not a token of a path-style key") from error
