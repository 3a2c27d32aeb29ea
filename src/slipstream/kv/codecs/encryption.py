"""Encryption codec: encrypts and authenticates values and key tokens.

The server, its disks and other readers of the bucket see neither values nor the tokens of keys. The format is specified
in `docs/design/kv-encryption.md`, for other programs, and uses standard primitives only: AES-256-GCM with a key derived
by HKDF-SHA256 for each value, AES-256-SIV for key tokens, both authenticated together with their context. A value that
was moved to another key or bucket, or changed in one bit, raises a DecryptionError.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from slipstream.errors import CodecError, DecryptionError, UsageError
from slipstream.extras import needed_by
from slipstream.kv.codecs.base import Codec, TokenCodec, from_base64

with needed_by("an encrypted bucket", "encryption"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = 1
MASTER_SIZE = 32
SALT_SIZE = 16
NONCE_SIZE = 12
_REMEMBERED = 1024  # decrypted tokens
TAG_SIZE = 16
_VALUE_INFO = b"slipstream kv 1 value"
_TOKEN_INFO = b"slipstream kv 1 token"
_TOKEN_MARK = "k1"  # version of key tokens; it begins with a letter, so that no token looks like a reserved key


class _Tokens(TokenCodec):
    """Key tokens encrypted with one master key."""

    def __init__(self, master: bytes, context: bytes) -> None:
        self._siv = AESSIV(_derived(master, b"", _TOKEN_INFO, 64))
        self._context = context
        self._opened = lru_cache(_REMEMBERED)(self._open)  # keys of a listing share their first tokens

    def encode_token(self, token: str, index: int) -> str:
        """One token encrypted, bound to the context and its index."""
        sealed = self._siv.encrypt(token.encode(), [self._context, b"%d" % index])
        return _TOKEN_MARK + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def decode_key(self, key: str) -> str:
        """The key decrypted. That each token looks like an encrypted one is checked first: else the key is foreign."""
        sealed = [_sealed(token) for token in key.split(".")]
        try:
            return ".".join([self._opened(data, index) for index, data in enumerate(sealed)])
        except (InvalidTag, ValueError) as error:
            raise DecryptionError(f"stored key {key!r} cannot be decrypted") from error

    def _open(self, sealed: bytes, index: int) -> str:
        return self._siv.decrypt(sealed, [self._context, b"%d" % index]).decode()


def _sealed(token: str) -> bytes:
    """The ciphertext of a stored token. Raises CodecError if it is none: too short, not base64, without the mark."""
    sealed = from_base64(token[len(_TOKEN_MARK) :]) if token.startswith(_TOKEN_MARK) else b""
    if len(sealed) <= TAG_SIZE:
        raise CodecError(f"{token!r} is not an encrypted key token")
    return sealed


def _derived(master: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=size, salt=salt, info=info).derive(master)


class Keyring:
    """Master keys of 32 bytes by name. Values are encrypted with `primary`, key tokens with `tokens`.

    A ring of several keys must say which is which. `tokens` names one key, or, while the names in a bucket are moved
    from one key to another, several: names are written with the first, and looked for under all of them. How to rotate
    keys is described in `docs/design/kv-encryption.md`.
    """

    def __init__(self, keys: Mapping[str, bytes], *, primary: str = "", tokens: str | Sequence[str] = ()) -> None:
        if not keys:
            raise UsageError("keyring must have at least one key, got none")
        for name, key in keys.items():
            if not 1 <= len(name.encode()) <= 255:
                raise UsageError(f"name of an encryption key must be 1 to 255 bytes, got {name!r}")
            if not isinstance(key, bytes) or len(key) != MASTER_SIZE:
                raise UsageError(f"encryption key {name!r} must be {MASTER_SIZE} bytes, got {len(key)}")
        self._keys = dict(keys)
        only = next(iter(keys)) if len(keys) == 1 else ""
        if not (primary or only):  # by its place in the ring, a new key in front would change the meaning of the others
            raise UsageError(f"primary must be set in a keyring of several keys, to one of {sorted(keys)}")
        self.primary: str = primary or only
        self.tokens: tuple[str, ...] = (
            (tokens,) if isinstance(tokens, str) and tokens else tuple(tokens) or (only,) * bool(only)
        )
        for name in (self.primary, *self.tokens):
            self.key(name)

    def key(self, name: str) -> bytes:
        """A master key by name. Raises DecryptionError if the ring does not have it."""
        try:
            return self._keys[name]
        except KeyError:
            raise DecryptionError(f"the keyring has no key {name!r}, it has {sorted(self._keys)}") from None

    def token_keys(self) -> tuple[str, ...]:
        """The names of the keys of key tokens. Raises UsageError if the ring does not say."""
        if not self.tokens:
            raise UsageError(
                f"tokens must be set in a keyring of several keys, to the one of {sorted(self._keys)} that the key "
                "tokens of the bucket are encrypted with"
            )
        return self.tokens

    def __repr__(self) -> str:
        return f"<Keyring {sorted(self._keys)}>"


class Encrypted(Codec[bytes]):
    """Values and key tokens encrypted with a keyring.

    `context` is bound into every ciphertext, usually the bucket's name (of the origin, for a mirror): ciphertext of one
    context cannot be decrypted in another. With `keys=False` only values are encrypted.

    A handle looks once at the names in its bucket, so a wrong keyring is an error. With `check_names=False` it does
    not, for programs that may not list keys: with a wrong keyring keys are then "not found", and written a second time.
    """

    def __init__(self, keyring: Keyring, *, context: str, keys: bool = True, check_names: bool = True) -> None:
        if not context:
            raise UsageError("context must name what the ciphertext belongs to, usually the bucket, got ''")
        self.checks_names = check_names
        self._ring = keyring
        self._context = context.encode()
        self._names: list[Codec[bytes]] = [Codec()]
        if keys:
            self._names = [_Tokens(keyring.key(name), self._context) for name in dict.fromkeys(keyring.token_keys())]

    # Keys: with the first of the token keys, while names are moved to it with others as well

    @property
    def hides_keys(self) -> bool:
        """Whether key tokens are encrypted."""
        return isinstance(self._names[0], _Tokens)

    def encode_key(self, key: str) -> str:
        """The key with its tokens encrypted."""
        return self._names[0].encode_key(key)

    def encode_filter(self, pattern: str) -> str:
        """A filter over encrypted tokens: the same token at the same index always encrypts to the same text."""
        return self._names[0].encode_filter(pattern)

    def other_keys(self, key: str) -> Sequence[str]:
        """The key encrypted with the other token keys."""
        return [names.encode_key(key) for names in self._names[1:]]

    def other_filters(self, pattern: str) -> Sequence[str]:
        """A filter over the same."""
        return [names.encode_filter(pattern) for names in self._names[1:]]

    def check_stored(self, key: str) -> None:
        """Decrypt the first token alone: all tokens of a key have one token key."""
        try:
            self.decode_key(key.partition(".")[0])
        except DecryptionError:
            self.decode_key(key)  # raises, with the whole key

    def decode_key(self, key: str) -> str:
        """The key with its tokens decrypted. Raises CodecError for a key whose tokens are not encrypted at all."""
        for names in self._names:
            try:
                return names.decode_key(key)
            except DecryptionError:
                continue
        raise DecryptionError(
            f"stored key {key!r} cannot be decrypted with token keys {list(self._ring.tokens)}: the keyring lacks its "
            "key, or it was written for another context"
        )

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
            raise DecryptionError(f"the value of key {key!r} is not encrypted in version {VERSION}, or is truncated")
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
