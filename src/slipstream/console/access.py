"""Access control of the console: the token, the origin and the headers of every response.

The token is in the address that is opened, as notebooks do it; the first request exchanges it for a cookie that scripts
cannot read and other sites cannot send, and the address is replaced by one without it. Every other request and event
stream must have the cookie. The `Host` must be ours (a name that another site resolves to this machine is not), and
a request that another origin started is refused even with the cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access:
    """The token of one console, and what it admits."""

    def __init__(self, hosts: frozenset[str], token: str = "") -> None:
        """`hosts` are the values of `Host` that are ours."""
        self.token: str = token or secrets.token_urlsafe(32)
        self._hosts = hosts
        # Cookies are shared by all ports of a host: each console has its own name and value.
        digest = hmac.new(self.token.encode(), b"cookie", hashlib.sha256).hexdigest()
        self.cookie_name: str = f"slipstream-console-{digest[:8]}"
        self.cookie: str = digest

    def is_token(self, text: str) -> bool:
        """Whether a token is ours, in constant time."""
        return hmac.compare_digest(text.encode(), self.token.encode())

    def is_bearer(self, headers: Mapping[str, str]) -> bool:
        """Whether a program authenticates itself by the token, as a Prometheus server does; a page cannot send this
        header to another origin without being asked for it first, which is never allowed here."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(token.strip()) and self.foreign(headers) is None

    def problem(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> tuple[int, str] | None:
        """Why a request is refused: a status, and what to say; None if it is not."""
        if foreign := self.foreign(headers):
            return foreign
        if not hmac.compare_digest(cookies.get(self.cookie_name, "").encode(), self.cookie.encode()):
            return 401, "open the console by the address that it printed: it has a token"
        return None

    def foreign(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """The same for where a request comes from alone."""
        host = headers.get("host", "")
        if host not in self._hosts:
            return 421, "the console has another address"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "requests from other sites are rejected"
        if (origin := headers.get("origin")) is not None and origin != f"http://{host}":
            return 403, "requests from other origins are rejected"
        return None
