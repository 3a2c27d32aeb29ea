"""Codecs of keys and values: JSON, MessagePack, compression, base64, path-style keys, encryption."""

from typing import TYPE_CHECKING

from slipstream.kv.codecs.base import Codec, TokenCodec
from slipstream.kv.codecs.keys import Base64Keys, EscapedPathKeys, PathKeys
from slipstream.kv.codecs.values import Base64Values, Compressed, Json, MessagePack

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
    "TokenCodec",
]


def __getattr__(name: str) -> object:
    """Import the encryption codec on first use: other programs need not load a cipher."""
    if name not in ("Encrypted", "Keyring"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slipstream.kv.codecs import encryption

    return getattr(encryption, name)
