"""The base class of codecs: encodes a program's keys and values for storage, and decodes them.

A program's own codec is a subclass of `Codec`. Decoding is strict: stored data that a codec cannot have written raises
a CodecError, never yields a wrong key or value. Buckets use all of it (`kv.with_codec`); messages have no keys, and
take codecs that have a content type (`connect(codec=…)`, `nc.jetstream(codec=…)`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar, cast

from slipstream.codecs.kinds import convert
from slipstream.errors import UsageError

V = TypeVar("V")
T = TypeVar("T")


class Codec(Generic[V]):
    """The base class, which leaves keys and values unchanged.

    `key` in the value methods is the program's key, not the stored one; of a message it is the subject.
    """

    content_type = ""  # what messages encoded with it carry as `Content-Type`; empty: it is not for messages

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def reads(self, content_type: str) -> bool:
        """Whether messages of a content type (in lower case, without parameters) are those that it decodes."""
        return content_type == media_type(self.content_type)

    # Values

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

    def decode_as(self, key: str, data: bytes, kind: type[T]) -> T:
        """The value as a `kind`, its type checked: of a message the reader names it."""
        return convert(self.decode_value(key, data), kind)

    # Keys

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
        """Whether a stored key cannot be found, nor distinguished from an absent one, without the secret it was written
        with."""
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


def media_type(content_type: str) -> str:
    """A content type in lower case, without its parameters."""
    return content_type.partition(";")[0].strip().lower()
