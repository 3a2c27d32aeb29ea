"""Nkeys: Ed25519 keys as the text that NATS writes them in (base32, a prefix that says what the key is for, CRC-16).

Pure. Invariants: a text is accepted only if encoding it again gives the same text; a seed is in no message or `repr`.
"""

from __future__ import annotations

import base64
import binascii
import enum
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from slipstream.errors import CredentialsError

KEY_SIZE: Final = 32
_CRC_SIZE = 2
_SEED = 18 << 3  # base32 writes the upper five bits of the first byte as one letter: S


class Kind(enum.IntEnum):
    """What a key is for: the first byte of the public key, and its first letter in base32."""

    ACCOUNT = 0 << 3  # A
    CLUSTER = 2 << 3  # C
    SERVER = 13 << 3  # N
    OPERATOR = 14 << 3  # O
    USER = 20 << 3  # U


class KeyPair:
    """A seed: it signs. `public_key` is what the server knows of it."""

    __slots__ = ("_key", "_raw", "kind", "public_key")

    def __init__(self, kind: Kind, raw: bytes) -> None:
        if len(raw) != KEY_SIZE:
            raise CredentialsError(f"a key of {len(raw)} bytes, {KEY_SIZE} are needed")
        self.kind = kind
        self._raw = raw
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.public_key = encode_public(kind, self._key.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: str) -> Self:
        """The key of a seed (`SU…` for a user). Raises CredentialsError, which does not repeat the seed."""
        data = _decode(seed, "seed")
        # Two letters share these bits: three bits of the kind follow the five of the S, the other five come next.
        if len(data) != KEY_SIZE + 2 or data[0] & 0xF8 != _SEED or data[1] & 7:
            raise CredentialsError("bad nkey seed: it must begin with S and hold 32 bytes")
        return cls(_kind((data[0] & 7) << 5 | data[1] >> 3, "seed"), data[2:])

    @property
    def seed(self) -> str:
        """The seed as text: the secret itself."""
        return _encode(bytes((_SEED | self.kind >> 5, (self.kind & 31) << 3)) + self._raw)

    def sign(self, data: bytes) -> bytes:
        """The signature, 64 bytes."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"<KeyPair {self.public_key}>"


def encode_public(kind: Kind, raw: bytes) -> str:
    """A public key as text."""
    return _encode(bytes((kind,)) + raw)


def decode_public(text: str) -> tuple[Kind, bytes]:
    """What a public key is for, and its 32 bytes. Raises CredentialsError."""
    data = _decode(text, "public key")
    if len(data) != KEY_SIZE + 1:
        raise CredentialsError(f"bad nkey public key: {len(data) - 1} bytes, {KEY_SIZE} are needed")
    return _kind(data[0], "public key"), data[1:]


def verify(public_key: str, data: bytes, signature: bytes) -> bool:
    """Whether the owner of `public_key` signed `data`."""
    _, raw = decode_public(public_key)
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _kind(value: int, what: str) -> Kind:
    try:
        return Kind(value)
    except ValueError:
        raise CredentialsError(f"bad nkey {what}: it is for none of {', '.join(kind.name for kind in Kind)}") from None


def _encode(data: bytes) -> str:
    crc = binascii.crc_hqx(data, 0).to_bytes(_CRC_SIZE, "little")
    return base64.b32encode(data + crc).decode().rstrip("=")


def _decode(text: str, what: str) -> bytes:
    """The bytes of a text without their checksum."""
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:  # also for what is not ASCII
        raise CredentialsError(f"bad nkey {what}: {len(text)} characters, not all of A to Z and 2 to 7") from None
    body, crc = data[:-_CRC_SIZE], data[-_CRC_SIZE:]
    if not body or _encode(body) != text:
        short = "" if len(crc) == _CRC_SIZE else ", it is too short"
        raise CredentialsError(f"bad nkey {what}: the checksum does not fit{short}; was it copied as a whole?")
    return body
