"""Server addresses: parsed from URLs of the caller, and from those that servers list in INFO.

Invariant: no secret is part of any text made here; `repr`, `str` and error messages leave credentials out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from slipstream.errors import UsageError
from slipstream.wire import ServerInfo

DEFAULT_PORT = 4222
PORTS = {"nats": DEFAULT_PORT, "tls": DEFAULT_PORT, "ws": 80, "wss": 443}
_PATH = re.compile(r"/[!-~]*")  # of a WebSocket: what may be in the request line of HTTP

Servers = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class Address:
    """The host, port and scheme of a server, and the credentials of its URL."""

    host: str
    port: int = DEFAULT_PORT
    scheme: str = "nats"
    path: str = ""  # of a WebSocket
    tls_name: str = field(default="", repr=False, compare=False)  # its certificate is for this name, if not empty
    user: str = field(default="", repr=False, compare=False)
    password: str = field(default="", repr=False, compare=False)
    token: str = field(default="", repr=False, compare=False)

    @property
    def netloc(self) -> str:
        """Host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_websocket(self) -> bool:
        """Whether the connection is a WebSocket."""
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path}"


def parse_servers(servers: Servers) -> tuple[Address, ...]:
    """Every address of a list, or of one string with commas."""
    if isinstance(servers, str):
        servers = servers.split(",")
    if not isinstance(servers, Iterable) or not all(isinstance(one, str) for one in servers):
        raise UsageError(f"servers must be a URL, or a sequence of URLs, got {type(servers).__name__}")  # no passwords
    return tuple(parse_address(one.strip()) for one in servers)


def parse_address(url: str, *, like: Address | None = None) -> Address:
    """`host`, `host:port` or `scheme://user:password@host:port`; a URL without them gets scheme and credentials of
    `like`."""
    scheme, mark, _ = url.partition("://")
    scheme = scheme.lower() if mark else like.scheme if like is not None else "nats"
    # The URL may hold a password, also one that broke the parsing: no message repeats it.
    if scheme not in PORTS:
        seen = scheme if scheme.isalpha() else "..."
        raise UsageError(f"server URL must begin with nats://, tls://, ws:// or wss://, got {seen}://...")
    try:
        parts = urlsplit(url if mark else f"nats://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError("server URL must have a port number 0..65535 after its host") from None
    path = parts.path if scheme in ("ws", "wss") else parts.path.strip("/")
    if not host or parts.query or parts.fragment or (path and not _PATH.fullmatch(path)):
        raise UsageError("server URL must be scheme://[user:password@]host[:port], with a path for ws and wss only")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    token, tls_name = "", ""
    if user and parts.password is None:
        user, token = "", user
    if like is not None:
        if not user and not token:
            user, password, token = like.user, like.password, like.token
        if _is_ip(host):
            tls_name = like.tls_name or ("" if _is_ip(like.host) else like.host)
    return Address(
        host,
        PORTS[scheme] if port is None else port,
        scheme,
        "" if path == "/" else path,
        tls_name,
        user,
        password,
        token,
    )


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def learned_addresses(info: ServerInfo, *, like: Address) -> list[Address]:
    """The addresses that a server listed; those that cannot be parsed are left out, the caller did not write them.

    They are mostly IP addresses, which certificates seldom hold: the name we know the cluster by is checked instead.
    """
    found = []
    for url in info.ws_connect_urls if like.is_websocket else info.connect_urls:
        try:
            found.append(parse_address(url, like=like))
        except UsageError:
            continue
    return found
