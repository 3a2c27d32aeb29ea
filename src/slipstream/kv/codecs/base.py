"""Codecs of buckets: the base class of those that change keys, and the keys that a codec cannot decode.

A program's own codec is a subclass of `Codec`. `kv.with_codec(codec)` returns a bucket again, so codecs are stacked by
calling it again: the last one added is nearest to the program. Decoding is strict: stored data that a codec cannot have
written raises a CodecError, never yields a wrong key or value. A stored key that raises one is *foreign* to the codec:
listings, ranges, snapshots and watches leave it out and report it (`ForeignKeys`). A DecryptionError is raised instead:
the key may well be one of ours.
"""

from __future__ import annotations

import base64
import binascii
import logging

from slipstream.codecs import Codec
from slipstream.errors import CodecError, UsageError

__all__ = ["Codec", "ForeignKeys", "TokenCodec", "check_wildcards", "from_base64"]

WILDCARDS = ("*", ">")
MAX_FOREIGN = 1000  # foreign keys that a handle remembers, so that each is reported once

log: logging.Logger = logging.getLogger("slipstream.kv")


class ForeignKeys:
    """Keys of a bucket that a reader left out because it could not decode them; each is logged once, as a warning."""

    def __init__(self, bucket: str) -> None:
        self.keys: dict[str, None] = {}
        self._bucket = bucket

    def report(self, key: str, error: CodecError) -> None:
        """Remember a key and log it, unless it was reported before or there are too many."""
        if key not in self.keys and len(self.keys) < MAX_FOREIGN:
            self.keys[key] = None
            log.warning("bucket %r: key %r is left out of listings: %s", self._bucket, key, error)


def check_wildcards(pattern: str, tokens: list[str]) -> None:
    """Reject a wildcard inside a token: servers take it literally, so it would match nothing, silently."""
    if any(token not in WILDCARDS and ("*" in token or ">" in token) for token in tokens):
        raise UsageError(f"wildcards of a key filter must be whole tokens ('*', or '>' at the end), got {pattern!r}")


class TokenCodec(Codec[bytes]):
    """A codec of keys token by token, so that filters work: wildcards stay as they are."""

    def encode_token(self, token: str, index: int) -> str:
        """The stored form of one token of a key; `index` counts from 0."""
        raise NotImplementedError

    def decode_token(self, token: str, index: int) -> str:
        """The program's form of a stored token."""
        raise NotImplementedError

    def encode_key(self, key: str) -> str:
        """The stored form of a key."""
        return ".".join(self._encode_checked(token, index, key) for index, token in enumerate(key.split(".")))

    def decode_key(self, key: str) -> str:
        """The program's form of a stored key."""
        return ".".join(self.decode_token(token, index) for index, token in enumerate(key.split(".")))

    def encode_filter(self, pattern: str) -> str:
        """The same for a filter, whose wildcards must be whole tokens."""
        tokens = pattern.split(".")
        check_wildcards(pattern, tokens)
        return ".".join(
            token if token in WILDCARDS else self._encode_checked(token, index, pattern)
            for index, token in enumerate(tokens)
        )

    def _encode_checked(self, token: str, index: int, key: str) -> str:
        if not token:
            raise UsageError(f"key must be non-empty tokens separated by dots, got {key!r}")
        return self.encode_token(token, index)


def from_base64(text: str) -> bytes:
    """Bytes from URL-safe base64 without padding. Raises CodecError for anything but its canonical form."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecError(f"{text!r} is not base64") from error
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise CodecError(f"{text!r} is not canonical base64")
    return data
