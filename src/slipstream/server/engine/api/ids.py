"""The short hashes of names by which nats-server identifies servers and upstreams."""

from __future__ import annotations

from hashlib import sha256
from string import ascii_lowercase, ascii_uppercase, digits

_DIGITS = digits + ascii_uppercase + ascii_lowercase


def short_hash(name: str) -> str:
    """Eight letters and digits."""
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in sha256(name.encode()).digest()[:8])
