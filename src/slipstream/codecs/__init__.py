"""Codecs of values and messages: JSON, MessagePack, text, compression, base64, and the base class of your own.

Buckets, streams and requests share them. Those that change keys, and encryption, are for buckets (`slipstream.kv`).
"""

from slipstream.codecs.base import Codec
from slipstream.codecs.values import Base64Values, Compressed, Json, MessagePack, Text

__all__ = ["Base64Values", "Codec", "Compressed", "Json", "MessagePack", "Text"]
