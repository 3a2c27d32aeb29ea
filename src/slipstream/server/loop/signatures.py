"""Nonces for clients to sign, and the check of secrets that are kept as bcrypt hashes."""

from __future__ import annotations

import base64
import secrets


def make_nonce() -> str:
    """Something to sign that was never signed before."""
    return base64.urlsafe_b64encode(secrets.token_bytes(12)).decode()


def fits_hash(secret: str, hashed: str) -> bool:
    """Whether a secret is the one that a bcrypt hash was made of. Takes long on purpose."""
    import bcrypt  # when the first hash is met

    data = secret.encode()[:72]  # all that bcrypt looks at; whoever made the hash cut it there as well
    try:
        # The letter names revisions of other implementations; the algorithm is the same.
        return bcrypt.checkpw(data, b"$2b$" + hashed[4:].encode())
    except ValueError:
        return False
