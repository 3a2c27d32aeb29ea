"""Everything that a server can be told, as one value: what a call, a configuration file and a command line become.

Times in seconds, sizes in bytes; -1 is no limit. A port of 0 or -1 takes a free one.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from slipstream.errors import UsageError
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.authenticator import Authenticator
from slipstream.server.engine.auth.users import SYSTEM_ACCOUNT, AccountOptions, User, check_users
from slipstream.server.loop.signatures import verify
from slipstream.server.loop.tls import PathLike, Tls, settings
from slipstream.server.loop.upstream import Upstream

LOOPBACK = "127.0.0.1"
CLIENT_PORT = 4222


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How TLS is spoken: with files, or with a context that is ready."""

    cert: PathLike | None = None
    key: PathLike | None = None
    ca: PathLike | None = None
    verify: bool = False  # clients must show a certificate of `ca`
    by_certificate: bool = False  # and are the users that it names
    first: bool = False  # TLS from the first byte on; otherwise INFO comes before it, in plain text
    timeout: float = 2.0
    min_version: str = "1.2"
    context: ssl.SSLContext | None = None

    def load(self) -> Tls | None:
        """Read the files; None if there is nothing to speak TLS with."""
        return settings(
            self.context, cert=self.cert, key=self.key, ca=self.ca, verify=self.verify, first=self.first,
            timeout=self.timeout, by_certificate=self.by_certificate, min_version=self.min_version,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketOptions:
    """A listener for WebSockets beside the one for plain sockets."""

    host: str = LOOPBACK
    port: int = 0
    tls: TlsOptions | None = None
    same_origin: bool = False
    allowed_origins: tuple[str, ...] = ()
    handshake_timeout: float = 2.0
    headers: Mapping[str, str] = field(default_factory=dict)  # for the answer to the upgrade


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """One server."""

    host: str = LOOPBACK
    port: int = CLIENT_PORT
    name: str = ""
    # JetStream
    jetstream: bool = False
    store_dir: str | os.PathLike[str] | None = None  # without: streams are kept in memory, and end with the server
    domain: str = ""
    limits: Mapping[str, AccountLimits] = field(default_factory=dict)  # by account; `accounts` goes before
    max_memory: int = -1
    max_storage: int = -1
    # Who may come in
    users: tuple[User, ...] = ()
    accounts: tuple[AccountOptions, ...] = ()
    no_auth_user: str = ""
    operators: tuple[str, ...] = ()  # JWTs
    account_tokens: tuple[str, ...] = ()  # of the accounts, signed by the operators
    system_account: str = SYSTEM_ACCOUNT
    auth_timeout: float = 2.0
    # How
    tls: TlsOptions | None = None
    websocket: WebSocketOptions | None = None
    http_host: str = ""  # of the monitoring endpoints; empty: that of the clients' port
    http_port: int | None = None  # None: no monitoring
    http_base_path: str = ""
    # Limits
    max_payload: int = 1024 * 1024
    max_control_line: int = 4096
    max_connections: int = 65536
    max_subscriptions: int = 100_000
    max_pending: int = 64 * 1024 * 1024
    write_deadline: float = 10.0  # how long nothing at all may be taken by a client that has much to take; 0 is forever
    ping_interval: float = 120.0
    ping_max: int = 2
    lame_duck_duration: float = 120.0
    lame_duck_grace: float = 10.0
    trace: bool = False
    upstreams: Mapping[str, Upstream] = field(default_factory=dict)  # by API prefix: where mirrors are read from
    # For tests: orders on $SLIPSTREAM.FAULTS.>, and a clock that only they move.
    faults: bool = False
    virtual_time: bool = False

    def __post_init__(self) -> None:
        check_users(self.users)
        for name, low in (
            ("max_payload", 1), ("max_control_line", 1), ("max_connections", -1), ("max_subscriptions", -1),
            ("max_pending", 1), ("ping_max", 1), ("write_deadline", 0), ("auth_timeout", 0), ("max_memory", -1),
            ("max_storage", -1),
        ):  # fmt: skip
            if getattr(self, name) < low:
                raise UsageError(f"{name} is {getattr(self, name)}, at least {low} is allowed")
        if self.max_payload > self.max_pending:
            raise UsageError(f"max_payload {self.max_payload} is more than max_pending {self.max_pending} has room for")
        if self.ping_interval <= 0:
            raise UsageError(f"ping_interval is {self.ping_interval:g} s, more than 0 is allowed")
        if any(char.isspace() for char in self.name):
            raise UsageError(f"server name {self.name!r} has white space in it")
        if not 0 <= self.lame_duck_grace <= self.lame_duck_duration:
            raise UsageError(
                f"a lame duck's grace of {self.lame_duck_grace:g} s, 0 up to its duration of "
                f"{self.lame_duck_duration:g} s is allowed"
            )

    def gate(self) -> Authenticator:
        """Who may come in, as the engine will have it."""
        return Authenticator(
            self.users, verify, accounts=self.accounts, no_auth_user=self.no_auth_user, operators=self.operators,
            account_tokens=self.account_tokens,
        )  # fmt: skip

    def checked(self) -> Self:
        """The same options, once the files that they name were read and understood."""
        self.gate()
        for tls in (self.tls, self.websocket.tls if self.websocket is not None else None):
            if tls is not None:
                tls.load()
        return self


def free(port: int) -> int:
    """The port as sockets take it."""
    return max(port, 0)
