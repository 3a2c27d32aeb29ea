"""INFO and CONNECT: the two JSON bodies of the handshake, typed; unknown fields are ignored."""

from __future__ import annotations

import msgspec


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """INFO: a server's description of itself."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    proto: int = 0
    go: str = ""
    host: str = ""
    port: int = 0
    headers: bool = False
    max_payload: int = 1024 * 1024
    client_id: int = 0
    client_ip: str = ""
    cluster: str = ""
    domain: str = ""
    jetstream: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    nonce: str = ""
    connect_urls: tuple[str, ...] = ()
    ws_connect_urls: tuple[str, ...] = ()
    ldm: bool = False
    git_commit: str = ""
    xkey: str = ""


class ConnectOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """CONNECT: a client's description of itself. The defaults are what nats-server assumes for absent fields."""

    verbose: bool = True
    pedantic: bool = True
    tls_required: bool = False
    auth_token: str | None = None
    user: str | None = None
    password: str | None = msgspec.field(default=None, name="pass")
    name: str = ""
    lang: str = ""
    version: str = ""
    protocol: int = 0
    echo: bool = True
    sig: str | None = None
    jwt: str | None = None
    nkey: str | None = None
    headers: bool = False
    no_responders: bool = False

    def __repr__(self) -> str:
        """Without the secrets: events are logged."""
        shown = (
            f"{name}={'***' if name in _SECRETS and value else repr(value)}"
            for name, value in ((name, getattr(self, name)) for name in self.__struct_fields__)
        )
        return f"ConnectOptions({', '.join(shown)})"


_SECRETS = frozenset(("auth_token", "password", "sig", "jwt"))
