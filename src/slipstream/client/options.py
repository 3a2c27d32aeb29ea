"""The options of a client, declared once: parameters of `connect`, fields of a context and flags of the command line.

`ClientOptions` has the names, types and defaults. Both drivers' `connect` take its parameters through `takes`, so that
editors and type checkers see them; the `Setting` of a field says how a context and the command line name it.

Invariant: no secret is part of any text made here; `repr` and error messages leave them out.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from slipstream.client.address import Address, Servers, parse_servers
from slipstream.client.auth import Login, Path, Secret
from slipstream.client.events import EventHandler
from slipstream.codecs import Codec
from slipstream.codecs.payloads import check_codec
from slipstream.errors import CredentialsError, UsageError
from slipstream.version import VERSION
from slipstream.wire import ConnectOptions, ServerInfo, check_subject
from slipstream.wire.arguments import DURATION, Duration, check_seconds
from slipstream.wire.inbox import DEFAULT_PREFIX

if TYPE_CHECKING:
    import ssl

LANG = "python-slipstream"
DEFAULT_SERVER = "nats://127.0.0.1:4222"
# Unsent bytes at which a publisher waits: 1 ms of work, so that readers get their turn. What is joined to be sent stays
# below the size (128 KiB) from which malloc may give the memory back each time: its page faults cost a tenth.
MAX_PENDING_OUT = 120 * 1024
RECONNECT_BUFFER = 8 * 1024 * 1024
MAX_PENDING_MSGS = 512 * 1024
MAX_PENDING_BYTES = 128 * 1024 * 1024
PING_INTERVAL = 20.0
LOGIN = frozenset(("user", "password", "token", "nkey", "credentials"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How an option is named outside of `connect`; an empty name: it cannot be set there."""

    help: str
    context: str = ""  # the field of a context of the `nats` tool
    flag: str = ""  # of the command line
    variable: str = ""  # of the environment, for the command line
    metavar: str = ""  # the value in the help; empty: as the flag
    is_file: bool = False  # the value is a path
    is_boolean: bool = False  # the flag has no value


def _setting(
    text: str, *, context: str = "", flag: str = "", variable: str = "", metavar: str = "", is_boolean: bool = False
) -> dict[str, Setting]:
    """The metadata of a field."""
    setting = Setting(
        help=text,
        context=context,
        flag=flag,
        variable=variable,
        metavar=metavar,
        is_file=metavar == "FILE",
        is_boolean=is_boolean,
    )
    return {"setting": setting}


class Waits(NamedTuple):
    """The durations among the options, in seconds: see `ClientOptions`."""

    timeout: float
    ping_interval: float
    reconnect_wait: float
    reconnect_max_wait: float


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The parameters of `connect`.

    One way to log in: `user` and `password`, a `token`, the seed of an `nkey`, or a `credentials` file with a JWT and a
    seed. Each may be a path that is read, or a function that is called (`from_env("NAME")` is one), before each
    connection; a `str` is the secret itself, except for `credentials`, where it is the path. User, password and token
    may be part of the URL as well, and take precedence there.

    URLs begin with `nats://`, `tls://`, `ws://` or `wss://` (WebSocket). TLS is used if the server requires it; `tls`,
    any of the other TLS parameters and the schemes `tls` and `wss` make the client require it. The server's certificate
    must be signed by `tls_ca` (a file; without it: by an authority that the system trusts) and be for the host or
    `tls_hostname`; `tls_cert` and `tls_key` are the client's. `tls` may be an `ssl.SSLContext` instead, which then
    replaces these settings. `tls_first` is for servers that start with TLS instead of INFO.

    `timeout` is for each server tried (a second, while a trusted read moves the connection). If the first connection
    fails on every server, `connect` raises at once; with `wait_for_server` it keeps trying all of them, with the pauses
    of a reconnect, for that many seconds (True: without limit) before it raises. A server that rejects the credentials
    or cannot be trusted raises at once in any case.

    A PING is sent every `ping_interval` seconds; after `max_pings_out` of them without a sign of life the connection
    counts as lost. With `reconnect`, the client reconnects after a lost connection, with pauses from `reconnect_wait`
    up to `reconnect_max_wait` seconds, at most `max_reconnects` times in a row (None: without limit); publishes in
    between are buffered, up to `reconnect_buffer_bytes`. `on_event` gets events and errors that no call can raise.

    `codec` encodes payloads that are not bytes, and decodes them: Json (as does the default, which rejects a `str`),
    MessagePack, Text, or a `Codec` of your own that has a content type.
    """

    servers: Servers = field(
        default=DEFAULT_SERVER,
        repr=False,  # a URL may hold a password; `addresses` show none
        metadata=_setting(
            "servers, separated by commas", context="url", flag="--server", variable="NATS_URL", metavar="URL"
        ),
    )
    _: KW_ONLY
    name: str = field(
        default="", metadata=_setting("client name shown by the server", flag="--connection-name", metavar="NAME")
    )
    user: Secret = field(
        default="",
        repr=False,
        metadata=_setting(
            "user, or a token if there is no password", context="user", flag="--user", variable="NATS_USER"
        ),
    )
    password: Secret = field(
        default="",
        repr=False,
        metadata=_setting(
            "password; the variable is safer, as command lines are visible to others",
            context="password",
            flag="--password",
            variable="NATS_PASSWORD",
        ),
    )
    token: Secret = field(
        default="",
        repr=False,
        metadata=_setting("token; the variable is safer", context="token", flag="--token", variable="NATS_TOKEN"),
    )
    nkey: Secret = field(
        default="",
        repr=False,
        metadata=_setting(
            "file with the seed of an nkey", context="nkey", flag="--nkey", variable="NATS_NKEY", metavar="FILE"
        ),
    )
    credentials: Secret | None = field(
        default=None,
        repr=False,
        metadata=_setting("credentials file", context="creds", flag="--creds", variable="NATS_CREDS", metavar="FILE"),
    )
    tls: bool | ssl.SSLContext = field(default=False, repr=False)
    tls_ca: str | Path | None = field(
        default=None,
        metadata=_setting(
            "CA certificates to trust",
            context="ca",
            flag="--tlsca",
            variable="NATS_CA",
            metavar="FILE",
        ),
    )
    tls_cert: str | Path | None = field(
        default=None,
        metadata=_setting(
            "the client's certificate", context="cert", flag="--tlscert", variable="NATS_CERT", metavar="FILE"
        ),
    )
    tls_key: str | Path | None = field(
        default=None,
        metadata=_setting(
            "the private key of the certificate",
            context="key",
            flag="--tlskey",
            variable="NATS_KEY",
            metavar="FILE",
        ),
    )
    tls_hostname: str = ""
    tls_first: bool = field(
        default=False,
        metadata=_setting("start with TLS instead of INFO", context="tls_first", flag="--tlsfirst", is_boolean=True),
    )
    echo: bool = True
    timeout: Duration = field(
        default=5.0,
        metadata=_setting(
            "timeout of each request, such as 5s", flag="--timeout", variable="NATS_TIMEOUT", metavar="DURATION"
        ),
    )
    wait_for_server: bool | Duration = field(
        default=False,
        metadata=_setting(
            "keep trying the first connection for this long, such as 30s",
            flag="--wait-for-server",
            variable="NATS_WAIT_FOR_SERVER",
            metavar="DURATION",
        ),
    )
    inbox_prefix: str = field(
        default=DEFAULT_PREFIX,
        metadata=_setting("prefix of reply subjects", context="inbox_prefix", flag="--inbox-prefix", metavar="PREFIX"),
    )
    max_pending_bytes: int = MAX_PENDING_OUT
    ping_interval: Duration = PING_INTERVAL
    max_pings_out: int = 2
    reconnect: bool = True
    reconnect_wait: Duration = 0.1
    reconnect_max_wait: Duration = 5.0
    max_reconnects: int | None = None
    reconnect_buffer_bytes: int = RECONNECT_BUFFER
    on_event: EventHandler | None = field(default=None, repr=False)
    codec: Codec[Any] | None = None
    # Made of the others
    addresses: tuple[Address, ...] = field(init=False)
    tls_required: bool = field(init=False, repr=False)
    waits: Waits = field(init=False, repr=False)
    first_wait: float = field(init=False, repr=False)  # `wait_for_server` in seconds; 0: every server is tried once

    def __post_init__(self) -> None:
        addresses = parse_servers(self.servers)
        files = self.tls_ca or self.tls_cert or self.tls_hostname
        object.__setattr__(self, "addresses", addresses)
        object.__setattr__(self, "tls_required", bool(self.tls or files or self.tls_first))
        object.__setattr__(self, "first_wait", _first_wait(self.wait_for_server))
        object.__setattr__(self, "waits", self._waits())
        if not addresses:
            raise UsageError("servers must have at least one address")
        check_subject(self.inbox_prefix)
        for name in ("max_pings_out", "max_pending_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise UsageError(f"{name} must be more than 0, got {value!r}")
        most = self.max_reconnects
        if most is not None and (not isinstance(most, int) or most < 0):  # -1 is for ever in other clients
            raise UsageError(f"max_reconnects must be 0 or more, or None for no limit, got {most!r}")
        if self.on_event is not None and not callable(self.on_event):
            raise UsageError(f"on_event must be a function of an event, got {self.on_event!r}")
        check_codec(self.codec)
        self._check_tls()
        self._check_login()

    def _waits(self) -> Waits:
        return Waits(
            timeout=check_seconds(self.timeout, "timeout", is_zero_allowed=False),
            ping_interval=check_seconds(self.ping_interval, "ping_interval", is_zero_allowed=False),
            reconnect_wait=check_seconds(self.reconnect_wait, "reconnect_wait", is_zero_allowed=False),
            reconnect_max_wait=check_seconds(self.reconnect_max_wait, "reconnect_max_wait"),
        )

    def _check_tls(self) -> None:
        if not isinstance(self.tls, bool):
            if not (self.tls_ca is None and self.tls_cert is None and self.tls_key is None):
                raise CredentialsError("tls is an ssl.SSLContext: load tls_ca, tls_cert and tls_key into it")
        elif self.tls_key is not None and self.tls_cert is None:
            raise CredentialsError("tls_key requires tls_cert")
        if self.tls_required and any(address.scheme == "ws" for address in self.addresses):
            raise UsageError("TLS is required and a server URL begins with ws://, which must be wss://")

    def _check_login(self) -> None:
        ways = {
            "user and password": bool(self.user or self.password),
            "token": bool(self.token),
            "nkey": bool(self.nkey),
            "credentials": self.credentials is not None,
        }
        if sum(ways.values()) > 1:
            used = ", ".join(name for name, is_used in ways.items() if is_used)
            raise UsageError(f"expected one way to log in, got {used}")

    @classmethod
    def settings(cls) -> Mapping[str, Setting]:
        """The options that contexts or the command line can set."""
        return {each.name: each.metadata["setting"] for each in fields(cls) if "setting" in each.metadata}

    @staticmethod
    def merge(arguments: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of two sources; a way to log in of the `stronger` one replaces the other's."""
        kept = {name: value for name, value in arguments.items() if not (name in LOGIN and LOGIN & stronger.keys())}
        return {**kept, **stronger}

    @staticmethod
    def with_one_login(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Leave one way to log in, as the `nats` tool does: a user without a password is a token for it."""
        found = dict(arguments)
        if "user" in found and "password" not in found:
            found.setdefault("token", found["user"])
        for way in ({"credentials"}, {"nkey"}, {"token"}, {"user", "password"}):
            if way <= found.keys():
                return {name: value for name, value in found.items() if name in way or name not in LOGIN}
        return {name: value for name, value in found.items() if name not in LOGIN}


def _first_wait(wait: bool | Duration) -> float:
    if isinstance(wait, bool):
        return math.inf if wait else 0.0
    try:
        return float(check_seconds(wait, is_zero_allowed=False))
    except UsageError:
        raise UsageError(f"wait_for_server must be a bool, or {DURATION} of more than 0, got {wait!r}") from None


P = ParamSpec("P")
Made = TypeVar("Made")
K = TypeVar("K")
R = TypeVar("R")


def takes(options: Callable[P, Made]) -> Callable[[Callable[[K, Made], R]], Callable[Concatenate[K, P], R]]:
    """Let a class method of one argument, made by `options`, take the parameters of `options` instead."""

    def decorate(method: Callable[[K, Made], R]) -> Callable[Concatenate[K, P], R]:
        @wraps(method)
        def call(kind: K, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(kind, options(*args, **kwargs))

        # For `help`, documentation and tests; type checkers see the same by the annotations.
        signature = inspect.signature(method)
        first, *_ = signature.parameters.values()
        parameters = inspect.signature(options).parameters.values()
        vars(call)["__signature__"] = signature.replace(parameters=[first, *parameters])
        call.__doc__ = f"{inspect.getdoc(method)}\n\n{inspect.getdoc(options)}"
        return call

    return decorate


def connect_options(
    options: ClientOptions, address: Address, info: ServerInfo, login: Login, *, is_secure: bool
) -> ConnectOptions:
    """The contents of CONNECT. Credentials in the URL take precedence over the options: they are for that server."""
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
