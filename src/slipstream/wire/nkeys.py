"""Codec of nkeys: Ed25519 keys in NATS's text form (base32 of a prefix that names the kind, the key, and a CRC-16).

Client and server share it. The codec itself needs no cryptography; `KeyPair` and `verify` import it when they are first
used, as that takes as long as importing all of the client, and most programs use no nkey.

Invariants: a text is accepted only if encoding it again gives the same text; a seed is in no message or `repr`.
"""

from __future__ import annotations

import base64
import binascii
import enum
from typing import TYPE_CHECKING, Final, Self

from slipstream.errors import CredentialsError
from slipstream.extras import needed_by

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
    """The key of a seed, which can sign. `public_key` is the text by which the server knows it."""

    __slots__ = ("_key", "_raw", "kind", "public_key")

    def __init__(self, kind: Kind, raw: bytes) -> None:
        with needed_by("an nkey", "nkeys"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if len(raw) != KEY_SIZE:
            raise CredentialsError(f"a key must have {KEY_SIZE} bytes, got {len(raw)}")
        self.kind: Kind = kind
        self._raw = raw
        self._key: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(raw)
        self.public_key: str = encode_public(kind, self._key.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: str) -> Self:
        """The key of a seed (`SU…` for a user). Raises CredentialsError, which does not repeat the seed."""
        data = _decode(seed, "seed")
        # Two letters share these bits: three bits of the kind follow the five of the S, the other five come next.
        if len(data) != KEY_SIZE + 2 or data[0] & 0xF8 != _SEED or data[1] & 7:
            raise CredentialsError(f"an nkey seed must begin with S and hold {KEY_SIZE} bytes")
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
    """The kind of a public key, and its 32 bytes. Raises CredentialsError."""
    data = _decode(text, "public key")
    if len(data) != KEY_SIZE + 1:
        raise CredentialsError(f"an nkey public key must hold {KEY_SIZE} bytes, got {len(data) - 1}")
    return _kind(data[0], "public key"), data[1:]


def public_key(text: str, kind: Kind = Kind.USER) -> bytes:
    """The 32 bytes of a public key of that kind. Raises CredentialsError for any other text."""
    found, raw = decode_public(text)
    if found is not kind:
        raise CredentialsError(f"nkey {text[:4]!r}… must be a public key of {kind.name}, got one of {found.name}")
    return raw


def decode_signature(text: str) -> bytes:
    """The bytes of a signature in CONNECT, in either base64 alphabet, with or without padding; empty if it is none."""
    plain = text.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def verify(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of the public key `key` (32 bytes) signed the message."""
    with needed_by("an nkey", "nkeys"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _kind(value: int, what: str) -> Kind:
    try:
        return Kind(value)
    except ValueError:
        kinds = ", ".join(kind.name for kind in Kind)
        raise CredentialsError(f"an nkey {what} must be one of {kinds}, got another prefix") from None


def _encode(data: bytes) -> str:
    crc = binascii.crc_hqx(data, 0).to_bytes(_CRC_SIZE, "little")
    return base64.b32encode(data + crc).decode().rstrip("=")


def _decode(text: str, what: str) -> bytes:
    """The bytes of a text without their checksum."""
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:  # also for what is not ASCII
        raise CredentialsError(f"an nkey {what} must contain only letters A to Z and digits 2 to 7") from None
    body, crc = data[:-_CRC_SIZE], data[-_CRC_SIZE:]
    if not body or _encode(body) != text:
        short = "" if len(crc) == _CRC_SIZE else ", it is too short"
        raise CredentialsError(f"an nkey {what} must have a matching checksum{short}; was it copied completely?")
    return body
