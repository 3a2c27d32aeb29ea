"""CONNECT becomes yes or no: user and password, or a token, compared in constant time."""

from __future__ import annotations

from dataclasses import dataclass
from hmac import compare_digest

from slipstream.wire import ConnectOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client must show; nothing set lets everyone in."""

    user: str = ""
    password: str = ""
    token: str = ""

    @property
    def required(self) -> bool:
        return bool(self.user or self.password or self.token)

    def allow(self, options: ConnectOptions) -> bool:
        """Whether the client may come in. How long the answer takes says nothing about what was wrong."""
        if not self.required:
            return True
        if self.token:
            return _same(options.auth_token, self.token)
        user, password = _same(options.user, self.user), _same(options.password, self.password)
        return user and password


def _same(seen: str | None, wanted: str) -> bool:
    return compare_digest((seen or "").encode(), wanted.encode())
