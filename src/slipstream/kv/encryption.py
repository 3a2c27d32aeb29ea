"""The documented import path of the encryption codec; the code is in `slipstream.kv.codecs.encryption`."""

from slipstream.kv.codecs.encryption import Encrypted, Keyring

__all__ = ["Encrypted", "Keyring"]
