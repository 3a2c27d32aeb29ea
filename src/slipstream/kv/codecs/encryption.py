"""Encryption codec: values and key tokens become authenticated ciphertext, and back.

The server, its disks and other readers of the bucket see neither values nor the tokens of keys. The format is specified
in `docs/design/kv-encryption.md`, for other programs, and uses standard primitives only: AES-256-GCM with a key derived
by HKDF-SHA256 for each value, AES-256-SIV for key tokens, both authenticated together with their context. A value that
was moved to another key or bucket, or changed in one bit, raises a DecryptionError.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from slipstream.errors import CodecError, DecryptionError, UsageError
from slipstream.kv.codecs.base import TokenCodec, from_base64

VERSION = 1
MASTER_SIZE = 32
SALT_SIZE = 16
NONCE_SIZE = 12
TAG_SIZE = 16
_VALUE_INFO = b"slipstream kv 1 value"
_TOKEN_INFO = b"slipstream kv 1 token"
_TOKEN_MARK = "k1"  # version of key tokens; it begins with a letter, so that no token looks like a reserved key


def _derived(master: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=size, salt=salt, info=info).derive(master)


class Keyring:
    """Master keys of 32 bytes by name. Values are encrypted with `primary`, key tokens with `tokens`.

    To rotate: add a key, make it primary, and call `reencrypt` on the bucket; then the old key can be removed. Key
    tokens must always encrypt to the same text, so the `tokens` key (default: the first one) stays for the life of a
    bucket.
    """

    def __init__(self, keys: Mapping[str, bytes], *, primary: str = "", tokens: str = "") -> None:
        if not keys:
            raise UsageError("keyring must have at least one key, got none")
        for name, key in keys.items():
            if not 1 <= len(name.encode()) <= 255:
                raise UsageError(f"name of an encryption key must be 1 to 255 bytes, got {name!r}")
            if not isinstance(key, bytes) or len(key) != MASTER_SIZE:
                raise UsageError(f"encryption key {name!r} must be {MASTER_SIZE} bytes, got {len(key)}")
        self._keys = dict(keys)
        self.primary = primary or list(keys)[-1]
        self.tokens = tokens or next(iter(keys))
        for name in (self.primary, self.tokens):
            self.key(name)

    def key(self, name: str) -> bytes:
        """A master key by name. Raises DecryptionError if the ring does not have it."""
        try:
            return self._keys[name]
        except KeyError:
            raise DecryptionError(f"the keyring has no key {name!r}, it has {sorted(self._keys)}") from None

    def __repr__(self) -> str:
        return f"<Keyring {sorted(self._keys)}>"


class Encrypted(TokenCodec):
    """Values and key tokens encrypted with a keyring.

    `context` is bound into every ciphertext, usually the bucket's name (of the origin, for a mirror): ciphertext of one
    context cannot be decrypted in another. With `keys=False` only values are encrypted.
    """

    def __init__(self, keyring: Keyring, *, context: str, keys: bool = True) -> None:
        if not context:
            raise UsageError("context must name what the ciphertext belongs to, usually the bucket, got ''")
        self._ring = keyring
        self._context = context.encode()
        self._has_keys = keys
        self._siv = AESSIV(_derived(keyring.key(keyring.tokens), b"", _TOKEN_INFO, 64))

    # Keys

    def encode_key(self, key: str) -> str:
        """The key with its tokens encrypted."""
        return super().encode_key(key) if self._has_keys else key

    def decode_key(self, key: str) -> str:
        """The key with its tokens decrypted."""
        return super().decode_key(key) if self._has_keys else key

    def encode_filter(self, pattern: str) -> str:
        """A filter over encrypted tokens: the same token at the same index always encrypts to the same text."""
        return super().encode_filter(pattern) if self._has_keys else pattern

    def encode_token(self, token: str, index: int) -> str:
        """One token encrypted, bound to the context and its index."""
        sealed = self._siv.encrypt(token.encode(), [self._context, b"%d" % index])
        return _TOKEN_MARK + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def decode_token(self, token: str, index: int) -> str:
        """One token decrypted."""
        if not token.startswith(_TOKEN_MARK):
            raise CodecError(f"{token!r} is not an encrypted key token: those begin with {_TOKEN_MARK!r}")
        try:
            sealed = from_base64(token[len(_TOKEN_MARK) :])
            return self._siv.decrypt(sealed, [self._context, b"%d" % index]).decode()
        except (InvalidTag, ValueError) as error:
            raise DecryptionError(f"key token {token!r} cannot be decrypted with key {self._ring.tokens!r}") from error

    # The stored form of a value: version, length and name of the key, salt, nonce, ciphertext with tag

    def encode_value(self, key: str, value: bytes) -> bytes:
        """The value encrypted with the primary key, bound to the context and its key."""
        name = self._ring.primary.encode()
        salt, nonce = os.urandom(SALT_SIZE), os.urandom(NONCE_SIZE)
        head = bytes((VERSION, len(name))) + name + salt + nonce
        cipher = AESGCM(_derived(self._ring.key(self._ring.primary), salt, _VALUE_INFO, 32))
        return head + cipher.encrypt(nonce, super().encode_value(key, value), self._bound(head, key))

    def decode_value(self, key: str, data: bytes) -> bytes:
        """The value decrypted, authenticated as written for this key and context."""
        at = 2 + (data[1] if len(data) > 1 else 0)
        end = at + SALT_SIZE + NONCE_SIZE
        if len(data) < end + TAG_SIZE or data[0] != VERSION:
            raise CodecError(f"the value of key {key!r} is not encrypted in version {VERSION}")
        master = self._ring.key(self.key_name(data))
        cipher = AESGCM(_derived(master, data[at : at + SALT_SIZE], _VALUE_INFO, 32))
        try:
            return cipher.decrypt(data[at + SALT_SIZE : end], data[end:], self._bound(data[:end], key))
        except InvalidTag as error:
            raise DecryptionError(
                f"the value of key {key!r} was written for another key or context, or was changed"
            ) from error

    @staticmethod
    def key_name(data: bytes) -> str:
        """The name of the master key that a stored value was encrypted with."""
        return data[2 : 2 + data[1]].decode(errors="replace") if len(data) > 1 else ""

    def is_current(self, data: bytes) -> bool:
        """Whether a stored value was encrypted with the primary key."""
        return self.key_name(data) == self._ring.primary

    def _bound(self, head: bytes, key: str) -> bytes:
        """The associated data: head, context and key, each with its length so that no two triples encode alike."""
        parts = (head, self._context, key.encode())
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
