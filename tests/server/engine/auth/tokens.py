"""Keys and JWTs for tests: operators, accounts and users, signed as the `nsc` tool signs them."""

from __future__ import annotations

import base64
import binascii
import json
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KINDS = {"O": 14 << 3, "A": 0, "U": 20 << 3}


class Key:
    """An nkey: `O`, `A` or `U`."""

    def __init__(self, kind: str) -> None:
        self._private = Ed25519PrivateKey.generate()
        raw = bytes([_KINDS[kind]]) + self._private.public_key().public_bytes_raw()
        self.public = base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode()

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(issuer: Key, subject: str, nats: dict[str, Any], **claims: Any) -> str:
    """Any JWT, of version 2."""
    body = {"jti": "x", "iat": int(time.time()), "iss": issuer.public, "sub": subject, "nats": {**nats, "version": 2}}
    body |= claims
    head = _part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    signed = f"{head}.{_part(json.dumps(body).encode())}"
    return f"{signed}.{_part(issuer.sign(signed.encode()))}"


def old_token(issuer: Key, subject: str, kind: str, nats: dict[str, Any] | None = None) -> str:
    """Any JWT, of version 1: the type is beside the claims, and the signature is of the body alone."""
    body: dict[str, Any] = {"jti": "x", "iat": 1553840337, "iss": issuer.public, "sub": subject, "type": kind}
    if nats is not None:
        body["nats"] = nats
    head, middle = (_part(json.dumps(part).encode()) for part in ({"typ": "jwt", "alg": "ed25519"}, body))
    return f"{head}.{middle}.{_part(issuer.sign(middle.encode()))}"


def operator_token(operator: Key, **nats: Any) -> str:
    return token(operator, operator.public, {"type": "operator", **nats}, name="O")


LIMITS = {
    "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1,
}  # fmt: skip


def account_token(
    operator: Key, account: Key, *, name: str = "", limits: dict[str, Any] | None = None, **nats: Any
) -> str:
    claims = {name: nats.pop(name) for name in ("exp", "nbf", "iat") if name in nats}
    default: dict[str, Any] = {"pub": {}, "sub": {}}
    body = {"type": "account", "default_permissions": default, "limits": LIMITS | (limits or {}), **nats}
    return token(operator, account.public, body, name=name, **claims)


def user_token(issuer: Key, user: Key, *, name: str = "user", **nats: Any) -> str:
    claims = {name: nats.pop(name) for name in ("exp", "nbf", "iat") if name in nats}
    body = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, **nats}
    return token(issuer, user.public, body, name=name, **claims)
