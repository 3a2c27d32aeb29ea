"""Logins: the credentials in CONNECT, parsed from the texts of users, files and the environment.

Invariant: no secret is part of any text made here, `repr` and error messages included.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.errors import ConnectionLostError, CredentialsError
from slipstream.wire import ServerInfo
from slipstream.wire.nkeys import KeyPair, Kind

_BLOCK = re.compile(r"-{3,} *BEGIN ([A-Z ]+?) *-{3,}\s+(.*?)\s+-{3,} *END \1 *-{3,}", re.S)
_SEED_LINE = re.compile(r"^\s*(S[A-Z2-7]{57})\s*$", re.M)
_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.A)


class Path(Protocol):
    """Anything that names a file, as `pathlib.Path` does."""

    def __fspath__(self) -> str: ...


# The text itself, a file that holds it, or a function that returns it; both are read before each connection.
Secret = str | Path | Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The credentials of one connection."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    jwt: str = field(default="", repr=False)
    key: KeyPair | None = field(default=None, repr=False)

    def signature(self, info: ServerInfo, server: object) -> str | None:
        """The server's nonce, signed; None where nothing is to be signed."""
        if self.key is None:
            return None
        if not info.nonce:
            if self.jwt:
                return None  # a server without authentication
            raise ConnectionLostError(f"{server} sent no nonce to sign: nkeys are not enabled there")
        return base64.urlsafe_b64encode(self.key.sign(info.nonce.encode())).decode().rstrip("=")


def key_login(text: str, source: str) -> Login:
    """The login of a seed: the text is the seed, or a file's content with the seed in it."""
    return Login(key=_key(_find_seed(text), source))


def credentials_login(text: str, source: str) -> Login:
    """The login of a credentials file: a JWT and the seed of the key it was issued for."""
    blocks: list[tuple[str, str]] = _BLOCK.findall(text)
    jwts = [body for label, body in blocks if label.endswith("JWT")]
    if len(jwts) != 1 or not _JWT.fullmatch(jwts[0]):
        raise CredentialsError(
            f"{source}: there must be one block 'BEGIN NATS USER JWT', got {len(jwts)}"
            if len(jwts) != 1
            else f"{source}: the block 'BEGIN NATS USER JWT' must hold a JWT (three parts with dots between)"
        )
    seeds = [body for label, body in blocks if label.endswith("SEED")]
    if len(seeds) != 1:
        raise CredentialsError(f"{source}: expected one block 'BEGIN USER NKEY SEED', got {len(seeds)}")
    return Login(jwt=jwts[0], key=_key(seeds[0], source))


def _find_seed(text: str) -> str:
    """The seed in a decorated file, on a separate line among comments, or the text itself."""
    for label, body in _BLOCK.findall(text):
        if label.endswith("SEED"):
            return str(body)
    line = _SEED_LINE.search(text)
    return line[1] if line else text.strip()


def _key(seed: str, source: str) -> KeyPair:
    try:
        pair = KeyPair.from_seed(seed)
    except CredentialsError as exc:
        raise CredentialsError(f"{source}: {exc}") from None
    if pair.kind is not Kind.USER:
        raise CredentialsError(f"{source}: the seed must be for USER (SU...), got one for {pair.kind.name}")
    return pair
