"""Nonces for clients, the check of what they made of them (Ed25519, as nkeys have it), and secrets kept as hashes."""

from __future__ import annotations

import base64
import secrets


def make_nonce() -> str:
    """Something to sign that was never signed before."""
    return base64.urlsafe_b64encode(secrets.token_bytes(12)).decode()


def verify(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of the public key signed the message."""
    # Imported when the first nkey is shown: most servers need none of it.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def fits_hash(secret: str, hashed: str) -> bool:
    """Whether a secret is the one that a bcrypt hash was made of. Takes long on purpose."""
    import bcrypt  # when the first hash is met

    data = secret.encode()[:72]  # all that bcrypt looks at; whoever made the hash cut it there as well
    try:
        # The letter names revisions of other implementations; the algorithm is the same.
        return bcrypt.checkpw(data, b"$2b$" + hashed[4:].encode())
    except ValueError:
        return False
