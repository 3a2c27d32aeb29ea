"""Public nkeys: `U…` (a user), `A…` (an account), `O…` (an operator) become the 32 bytes of an Ed25519 key, and a
signature in CONNECT becomes its 64.

A key is base32 of one byte that says what it is for, the key, and a CRC-16 (low byte first).
"""

from __future__ import annotations

import base64
import binascii

from slipstream.errors import UsageError

USER, ACCOUNT, OPERATOR = 20 << 3, 0, 14 << 3
_LENGTH = 56
_NAMES = {USER: "a user", ACCOUNT: "an account", OPERATOR: "an operator"}


def public_key(text: str, kind: int = USER) -> bytes:
    """The key of a user (or of another kind); a UsageError if `text` is none."""
    try:
        raw = base64.b32decode(text) if len(text) == _LENGTH else b""
    except (binascii.Error, ValueError):
        raw = b""
    if not raw or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise UsageError(f"bad nkey {text[:4]!r}…: the {_LENGTH} characters of {_NAMES[kind]}'s public key are allowed")
    if raw[0] != kind:
        raise UsageError(
            f"nkey {text[:4]!r}… is not {_NAMES[kind]}'s: those begin with {_NAMES[kind].split()[1][0].upper()}"
        )
    return raw[1:-2]


def signature(text: str) -> bytes:
    """The bytes of a signature, in either alphabet and with or without padding; empty if it is none."""
    plain = text.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""
