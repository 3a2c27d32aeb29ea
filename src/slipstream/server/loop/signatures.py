"""Nonces for clients to sign, and the check of secrets that are kept as bcrypt hashes."""

from __future__ import annotations

import base64
import secrets

from slipstream.extras import needed_by


def make_nonce() -> str:
    """A nonce for a client to sign; never repeated."""
    return base64.urlsafe_b64encode(secrets.token_bytes(12)).decode()


def fits_hash(secret: str, hashed: str) -> bool:
    """Whether a bcrypt hash is of this secret. Slow by design of bcrypt."""
    with needed_by("a bcrypt hash", "server"):
        import bcrypt  # lazily: most servers need none of it

    data = secret.encode()[:72]  # all that bcrypt reads; the hash was made of the same prefix
    try:
        # The letter names revisions of other implementations; the algorithm is the same.
        return bcrypt.checkpw(data, b"$2b$" + hashed[4:].encode())
    except ValueError:
        return False
