"""Codecs of keys and values: JSON, MessagePack, compression, base64, path-style keys, encryption."""

from typing import TYPE_CHECKING

from slipstream.codecs import Base64Values, Codec, Compressed, Json, MessagePack, Text
from slipstream.kv.codecs.base import TokenCodec
from slipstream.kv.codecs.keys import Base64Keys, EscapedPathKeys, PathKeys

if TYPE_CHECKING:
    from slipstream.kv.codecs.encryption import Encrypted, Keyring

__all__ = [
    "Base64Keys",
    "Base64Values",
    "Codec",
    "Compressed",
    "Encrypted",
    "EscapedPathKeys",
    "Json",
    "Keyring",
    "MessagePack",
    "PathKeys",
    "Text",
    "TokenCodec",
]


def __getattr__(name: str) -> object:
    """Import the encryption codec on first use: other programs need not load a cipher."""
    if name not in ("Encrypted", "Keyring"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slipstream.kv.codecs import encryption

    return getattr(encryption, name)
