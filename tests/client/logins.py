"""What an operator's tools make: JWTs of operators, accounts and users, and credentials files; with our own nkeys."""

from __future__ import annotations

import base64
import json
import secrets
import time
from typing import Any

from slipstream.wire.nkeys import KeyPair, Kind


def new_key(kind: Kind) -> KeyPair:
    return KeyPair(kind, secrets.token_bytes(32))


def jwt(issuer: KeyPair, subject: KeyPair, kind: str, **claims: Any) -> str:
    """A token as NATS has them: `iss` signs that `sub` is a `kind`."""
    lasting = {"exp": claims.pop("exp")} if "exp" in claims else {}
    body = {
        "jti": secrets.token_hex(8),
        "iat": int(time.time()),
        "iss": issuer.public_key,
        "name": kind,
        "sub": subject.public_key,
        "nats": {"type": kind, "version": 2, **claims},
        **lasting,
    }
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = ".".join(_base64(json.dumps(part).encode()) for part in (head, body))
    return f"{text}.{_base64(issuer.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def credentials(token: str, seed: str) -> str:
    """The content of a credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\nKeep this file to yourself.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


class Operator:
    """An operator with one account, whose users a server trusts without knowing them."""

    def __init__(self) -> None:
        self.key, self.account = new_key(Kind.OPERATOR), new_key(Kind.ACCOUNT)
        limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}
        account = jwt(self.key, self.account, "account", limits={**limits, "wildcards": True})
        operator = jwt(self.key, self.key, "operator")
        self.config = (
            f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {self.account.public_key}: {account} }}\n"
        )

    def user(self, **claims: Any) -> str:
        """The content of the credentials file of a new user."""
        key = new_key(Kind.USER)
        token = jwt(self.account, key, "user", subs=-1, data=-1, payload=-1, **claims)
        return credentials(token, key.seed)
