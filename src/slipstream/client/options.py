"""What the caller of `connect` asked for becomes checked values: server addresses and one frozen set of options.

Invariant: no secret is part of any text made here; `repr` and `str` of an address and of the options leave them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from slipstream.client.address import Address
from slipstream.client.auth import Login, Secret
from slipstream.client.layers.layer import Layer
from slipstream.errors import UsageError
from slipstream.version import VERSION
from slipstream.wire import ConnectOptions, ServerInfo, check_subject
from slipstream.wire.inbox import DEFAULT_PREFIX

LANG = "python-slipstream"
DEFAULT_SERVER = "nats://127.0.0.1:4222"
# Unsent bytes at which a publisher waits: 1 ms of work, so that readers get their turn. What is joined to be sent stays
# below the size (128 KiB) from which malloc may give the memory back each time: its page faults cost a tenth.
MAX_PENDING_OUT = 120 * 1024
RECONNECT_BUFFER = 8 * 1024 * 1024
MAX_PENDING_MSGS = 512 * 1024
MAX_PENDING_BYTES = 128 * 1024 * 1024
PING_INTERVAL = 20.0


class TlsMaker(Protocol):
    """Where the TLS of a connection comes from."""

    def layer(self, server: Address) -> Layer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a client behaves; the meaning of each field is in the documentation of `connect`."""

    servers: tuple[Address, ...]
    name: str = ""
    user: Secret = field(default="", repr=False)
    password: Secret = field(default="", repr=False)
    token: Secret = field(default="", repr=False)
    nkey: Secret = field(default="", repr=False)
    credentials: Secret | None = field(default=None, repr=False)
    tls: TlsMaker | None = field(default=None, repr=False)  # None: a session without a driver
    tls_required: bool = False
    tls_first: bool = False
    echo: bool = True
    timeout: float = 5.0
    inbox_prefix: str = DEFAULT_PREFIX
    max_pending_bytes: int = MAX_PENDING_OUT
    ping_interval: float = PING_INTERVAL
    max_pings_out: int = 2
    reconnect: bool = True
    reconnect_wait: float = 0.1
    reconnect_max_wait: float = 5.0
    max_reconnects: int | None = None
    reconnect_buffer_bytes: int = RECONNECT_BUFFER

    def __post_init__(self) -> None:
        if not self.servers:
            raise UsageError("no server given, at least one address is needed")
        check_subject(self.inbox_prefix)
        for name in ("timeout", "ping_interval", "max_pings_out", "max_pending_bytes", "reconnect_wait"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)!r}, more than 0 is allowed")
        if self.max_reconnects is not None and self.max_reconnects < 0:  # -1 is for ever in other clients
            raise UsageError(f"max_reconnects is {self.max_reconnects}, 0 or more is allowed, or None for any number")
        ways = {
            "user and password": bool(self.user or self.password),
            "token": bool(self.token),
            "nkey": bool(self.nkey),
            "credentials": self.credentials is not None,
        }
        if self.tls_required and any(server.scheme == "ws" for server in self.servers):
            raise UsageError("TLS was asked for and a server URL begins with ws://: wss:// is allowed")
        if sum(ways.values()) > 1:
            given = ", ".join(name for name, is_given in ways.items() if is_given)
            raise UsageError(f"more than one way to log in was given ({given}), one is allowed")


def connect_options(
    options: Options, address: Address, info: ServerInfo, login: Login, *, is_secure: bool
) -> ConnectOptions:
    """What we say in CONNECT. Credentials in the URL go before those of the options: they are the closer ones."""
    if address.user or address.token:
        login = Login(user=address.user, password=address.password, token=address.token)
    return ConnectOptions(
        verbose=False,
        pedantic=False,
        user=login.user or None,
        password=login.password or None,
        auth_token=login.token or None,
        jwt=login.jwt or None,
        nkey=login.key.public_key if login.key is not None and not login.jwt else None,
        sig=login.signature(info, address),
        tls_required=is_secure,
        name=options.name,
        lang=LANG,
        version=VERSION,
        protocol=1,
        echo=options.echo,
        headers=info.headers,
        no_responders=info.headers,
    )
