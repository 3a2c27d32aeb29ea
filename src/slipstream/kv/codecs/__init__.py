"""Codecs of keys and values: JSON, MessagePack, compression, path keys, base64, encryption."""

from slipstream.kv.codecs.base import (
    Base64Keys,
    Base64Values,
    Codec,
    Compressed,
    Json,
    MessagePack,
    PathKeys,
    TokenCodec,
)

__all__ = ["Base64Keys", "Base64Values", "Codec", "Compressed", "Json", "MessagePack", "PathKeys", "TokenCodec"]
