"""The base classes of codecs: keys and values as a program has them become those that a bucket stores, and back.

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
from collections.abc import Sequence
from typing import Generic, TypeVar, cast

from slipstream.errors import CodecError, UsageError

V = TypeVar("V")

WILDCARDS = ("*", ">")
MAX_FOREIGN = 1000  # foreign keys that a handle remembers, so that each is reported once

log = logging.getLogger("slipstream.kv")


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


class Codec(Generic[V]):
    """The base class, which leaves keys and values unchanged.

    `key` in the value methods is the program's key, not the stored one.
    """

    def encode_key(self, key: str) -> str:
        """The stored form of a key."""
        return key

    def decode_key(self, key: str) -> str:
        """The program's form of a stored key."""
        return key

    def check_stored(self, key: str) -> None:
        """Raise CodecError if this codec cannot have written a stored key. May be quicker than to decode it."""
        self.decode_key(key)

    def canonical_key(self, key: str) -> str:
        """The form of a key in which it is listed, for codecs that store several keys under one name."""
        return key

    checks_names = True  # of a codec that hides keys: whether a bucket's names are looked at before they are relied on

    @property
    def hides_keys(self) -> bool:
        """Whether a stored key cannot be found, nor told from an absent one, without the secret it was made with."""
        return False

    def other_keys(self, key: str) -> Sequence[str]:
        """Other names under which a key may still be stored, while names are changed; none at any other time."""
        del key
        return ()

    def other_filters(self, pattern: str) -> Sequence[str]:
        """A filter over the program's keys as filters over such names."""
        del pattern
        return ()

    def encode_filter(self, pattern: str) -> str:
        """A filter over the program's keys as one over stored keys. Raises UsageError if the codec has no such form."""
        return self.encode_key(pattern)

    def encode_value(self, key: str, value: V) -> bytes:
        """The stored form of a value."""
        del key
        if not isinstance(value, bytes | bytearray | memoryview):
            raise UsageError(f"value must be bytes unless a codec encodes it, got {type(value).__name__}")
        return bytes(value)

    def decode_value(self, key: str, data: bytes) -> V:
        """The program's form of a stored value."""
        del key
        return cast("V", data)


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
            raise UsageError(f"key must be non-empty tokens joined by dots, got {key!r}")
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
