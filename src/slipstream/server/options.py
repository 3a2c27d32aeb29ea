"""The options of a server, each declared once: name, default, meaning, configuration key and flag.

`Server(...)` takes the fields of `ServerOptions`; `process.conf.load` reads them from a configuration file by `keys`,
`process.flags` from a command line by `flags`, and `--help` and docs/reference/server.md are printed from the same
declarations. Names in Python are those of `connect()` where both sides have the option; keys and flags are
nats-server's.

Times are timedeltas or seconds, and kept in seconds; sizes are in bytes; -1 means no limit. Port 0 (or -1) takes a free
port.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from types import UnionType
from typing import Any, NamedTuple, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints, overload

from slipstream.errors import UsageError
from slipstream.extras import check_extra
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.authenticator import Authenticator
from slipstream.server.engine.auth.users import (
    DEFAULT_ACCOUNT,
    SYSTEM_ACCOUNT,
    AccountOptions,
    User,
    check_users,
    is_hash,
)
from slipstream.server.loop.tls import PathLike, Tls, make_tls
from slipstream.server.loop.upstream import UpstreamLike, named
from slipstream.wire import is_valid_subject
from slipstream.wire.arguments import Duration, check_seconds
from slipstream.wire.nkeys import verify

LOOPBACK = "127.0.0.1"
DEFAULT_BUDGET = 128 * 1024 * 1024  # bytes that wait in memory for all clients together

_T = TypeVar("_T")


# Declarations.


class Option(NamedTuple):
    """One declared option, as the configuration reader, the flags and the documentation see it."""

    name: str
    group: str
    doc: str
    kind: type  # of a value: bool, int, float, str or tuple (of strings); object if it has a form of its own
    default: Any
    block: str  # of the configuration file; empty: the top level
    keys: tuple[str, ...]  # in that block; all spellings
    flags: tuple[str, ...]  # without their dashes; all spellings
    value: str  # what the help calls the flag's value
    low: float | None
    choices: tuple[str, ...]


@overload
def option(
    doc: str, default: _T, *, group: str = "", block: str = "", keys: str = "", flags: str = "", value: str = "",
    low: float | None = None, choices: tuple[str, ...] = (), secret: bool = False,
) -> _T: ...  # fmt: skip
@overload
def option(
    doc: str, *, factory: Callable[[], _T], group: str = "", keys: str = "", flags: str = "", value: str = ""
) -> _T: ...
def option(
    doc: str, default: Any = None, *, factory: Callable[[], Any] | None = None, secret: bool = False, **more: Any
) -> Any:
    """Declare a field of an options class. `group` is the heading that begins with this option; `keys` and `flags` are
    spellings, separated by spaces; `low` is the least value that is accepted; a `secret` is left out of the `repr`."""
    metadata = {"doc": doc, **more}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata, repr=not secret)


def options_of(declaring: type) -> tuple[Option, ...]:
    """The options that a class declares, in order."""
    hints = get_type_hints(declaring)
    found: list[Option] = []
    group = ""
    for one in fields(declaring):
        if "doc" not in one.metadata:
            continue
        more = dict(one.metadata)
        group = more.get("group") or group
        default = one.default_factory() if callable(one.default_factory) else one.default
        found.append(
            Option(
                one.name,
                group,
                more["doc"],
                _kind(hints[one.name]),
                default,
                more.get("block", ""),
                tuple(more.get("keys", "").split()),
                tuple(more.get("flags", "").split()),
                more.get("value", ""),
                more.get("low"),
                more.get("choices", ()),
            )
        )
    return tuple(found)


def _kind(hint: Any) -> type:
    """What a value of an annotation is written as; `str | PathLike` and `int | None` are written as their first."""
    if hint == Duration:
        return float
    if get_origin(hint) in (Union, UnionType):
        hint = get_args(hint)[0]
    hint = get_origin(hint) or hint
    return cast(type, hint) if hint in (bool, int, float, str, tuple) else object


# The options.


@dataclass(frozen=True)
class ListenerOptions:
    """Where a listener listens, and its TLS."""

    host: str = option(
        "address to listen on; 0.0.0.0 for all", LOOPBACK,
        group="Server", keys="host net listen", flags="a addr net host", value="HOST",
    )  # fmt: skip
    port: int = option(
        "port for clients; 0 or -1 takes a free one", 0, keys="port listen", flags="p port", value="PORT"
    )
    _: KW_ONLY
    tls: ssl.SSLContext | None = option("an ssl.SSLContext, instead of the files", None, group="TLS")
    tls_cert: PathLike | None = option(
        "certificate chain (PEM)", None, block="tls", keys="cert_file", flags="tlscert", value="FILE"
    )
    tls_key: PathLike | None = option(
        "private key (PEM)", None, block="tls", keys="key_file", flags="tlskey", value="FILE"
    )
    tls_ca: PathLike | None = option(
        "certificate authorities that sign client certificates", None,
        block="tls", keys="ca_file", flags="tlscacert", value="FILE",
    )  # fmt: skip
    tls_verify: bool = option(
        "require a client certificate, signed by tls_ca", False, block="tls", keys="verify", flags="tlsverify"
    )
    tls_map: bool = option(
        "identify users by their client certificate; implies tls_verify", False, block="tls", keys="verify_and_map"
    )
    tls_first: bool = option(
        "TLS from the first byte, instead of after INFO", False,
        block="tls", keys="handshake_first first immediate",
    )  # fmt: skip
    tls_timeout: Duration = option("time for the TLS handshake", 2.0, block="tls", keys="timeout")
    tls_min_version: str = option("lowest TLS version", "1.2", block="tls", keys="min_version", choices=("1.2", "1.3"))

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.type == "Duration":
                object.__setattr__(self, one.name, check_seconds(getattr(self, one.name), one.name))

    @property
    def has_tls(self) -> bool:
        """Whether clients connect by TLS."""
        return self.tls is not None or self.tls_cert is not None

    def load_tls(self) -> Tls | None:
        """Read the certificate files; None if there is nothing to speak TLS with."""
        return make_tls(
            self.tls, cert=self.tls_cert, key=self.tls_key, ca=self.tls_ca, verify=self.tls_verify,
            map_users=self.tls_map, first=self.tls_first, timeout=check_seconds(self.tls_timeout),
            min_version=self.tls_min_version,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WebSocketOptions(ListenerOptions):
    """A listener for WebSockets, in addition to the one for plain sockets."""

    same_origin: bool = option(
        "accept browsers only from pages of this host", False, group="WebSocket", keys="same_origin"
    )
    allowed_origins: tuple[str, ...] = option(
        "accept browsers only from these origins", (),
        keys="allowed_origins allowed_origin allow_origins origins origin",
    )  # fmt: skip
    handshake_timeout: Duration = option("time for the HTTP upgrade", 2.0, keys="handshake_timeout")
    headers: Mapping[str, str] = option("headers of the upgrade response", factory=dict, keys="headers")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ListenerOptions):
    """Everything that can be set of one server. The defaults are those of `Server()`, in a program or a test;
    `COMMAND_DEFAULTS` are those of `slipstream server` and of configuration files."""

    name: str = option(
        "server name; default: its id", "",
        group="Server", keys="server_name", flags="n name server_name", value="NAME",
    )  # fmt: skip
    websocket: WebSocketOptions | None = option("a listener for WebSockets", None, keys="websocket ws")
    http_host: str = option("address of the monitoring endpoints; default: host", "", keys="http")
    http_port: int | None = option(
        "port of the monitoring endpoints; -1 takes a free one", None,
        keys="http http_port monitor_port", flags="m http_port", value="PORT",
    )  # fmt: skip
    http_base_path: str = option("path prefix of the endpoints", "", keys="http_base_path")
    trace: bool = option("log the protocol, without secrets", False, keys="trace trace_verbose", flags="V trace VV")

    jetstream: bool = option(
        "enable JetStream; -js=false disables it", True, group="JetStream", keys="jetstream", flags="js jetstream"
    )
    data_dir: PathLike | None = option(
        "directory of file streams; unset: Server() keeps them in memory, the command in ~/.local/state", None,
        keys="store_dir storedir jetstream.store_dir", flags="sd store_dir data-dir data_dir", value="DIR",
    )  # fmt: skip
    domain: str = option(
        "domain; the JetStream API is served on $JS.<domain>.API too", "", block="jetstream", keys="domain"
    )
    limits: AccountLimits | Mapping[str, AccountLimits] | None = option(
        "JetStream limits: of each account, or by account name", None
    )
    max_memory: int = option(
        "maximum bytes in memory streams, per account", -1,
        block="jetstream", keys="max_memory_store max_mem_store max_mem", low=-1,
    )  # fmt: skip
    max_storage: int = option(
        "maximum bytes in file streams, per account", -1, block="jetstream", keys="max_file_store max_file", low=-1
    )
    upstreams: Mapping[str, UpstreamLike] | None = option(
        "servers that mirrors and sources read from, by domain or API prefix",
        factory=dict, flags="upstream upstreams", value="NAME=URL,...",
    )  # fmt: skip

    scrub_rate: int = option(
        "bytes per second to read in the background, to find damage in file streams; 0: disabled", 1024 * 1024,
        block="jetstream", keys="scrub_rate", low=0,
    )  # fmt: skip
    scrub_interval: Duration = option(
        "interval of these scans of all file streams", 3600.0,
        block="jetstream", keys="scrub_interval", low=0,
    )  # fmt: skip
    compact_percent: int = option(
        "how much of the file of streams must be free, in percent, before it is compacted; 0 for never", 50,
        block="jetstream", keys="compact_percent", low=0,
    )  # fmt: skip

    user: str = option("a user with all permissions", "", group="Authentication", flags="user", value="NAME")
    password: str = option(
        "the user's password, or its bcrypt hash", "", flags="pass password", value="PASSWORD", secret=True
    )
    token: str = option("a token instead of user and password", "", flags="auth token", value="TOKEN", secret=True)
    users: Iterable[User] = option(
        "users with their permissions and accounts; without any user, all clients are accepted", (),
        keys="authorization accounts",
    )  # fmt: skip
    accounts: Iterable[AccountOptions] = option("limits of accounts", (), keys="accounts")
    no_auth_user: str = option("user for clients without credentials", "", keys="no_auth_user")
    operators: tuple[str, ...] = option("operator JWTs", (), keys="operator")
    account_tokens: tuple[str, ...] = option("account JWTs, signed by the operators", (), keys="resolver_preload")
    system_account: str = option("account of system users", SYSTEM_ACCOUNT, keys="system_account system")
    auth_timeout: Duration = option("time for a client to authenticate", 2.0, keys="authorization.timeout", low=0)

    max_payload: int = option(
        "maximum size of a message in bytes", 1024 * 1024, group="Limits", keys="max_payload", low=1
    )
    max_control_line: int = option("maximum length of a protocol line", 4096, keys="max_control_line", low=1)
    max_connections: int = option("maximum number of connected clients", 65536, keys="max_connections max_conn", low=-1)
    max_subscriptions: int = option(
        "maximum number of subscriptions per client", 100_000, keys="max_subscriptions max_subs", low=-1
    )
    max_pending_bytes: int = option(
        "maximum unsent bytes per client; beyond that it is disconnected", 64 * 1024 * 1024, keys="max_pending", low=1
    )
    max_pending_total: int = option(
        "maximum pending bytes of all clients together; beyond that, those with the most are disconnected; "
        "0: 128 MiB, or twice max_pending_bytes if that is more", 0,
        keys="max_pending_total", flags="max_pending_total", value="BYTES", low=-1,
    )  # fmt: skip
    write_deadline: Duration = option(
        "time after which a client that does not read is disconnected; 0: never", 10.0, keys="write_deadline", low=0
    )
    ping_interval: Duration = option("time between PINGs", 120.0, keys="ping_interval")
    max_pings_out: int = option("unanswered PINGs before a client is disconnected", 2, keys="ping_max", low=1)
    lame_duck_duration: Duration = option(
        "duration of lame duck mode, over which clients are disconnected", 120.0, keys="lame_duck_duration"
    )
    lame_duck_grace: Duration = option(
        "time before lame duck mode disconnects the first client", 10.0, keys="lame_duck_grace_period"
    )

    compat: str = option(
        "answer as this server does, even where the design documents say otherwise: nats-server", "",
        group="Testing", keys="compat", flags="compat", value="SERVER", choices=("", "nats-server"),
    )  # fmt: skip
    faults: bool = option("accept fault commands on $SLIPSTREAM.FAULTS.>", False, flags="faults")
    virtual_time: bool = option("use a clock that only fault commands move", False, flags="virtual-time virtual_time")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("users", "accounts"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "upstreams", named(self.upstreams or {}))
        self._check_users()
        for one in fields(self):
            low, value = one.metadata.get("low"), getattr(self, one.name)
            if low is not None and value < low:
                raise UsageError(f"{one.name} must be at least {low:g}, got {value:g}")
        if self.max_payload > self.max_pending_bytes:
            raise UsageError(
                f"max_payload must be at most max_pending_bytes ({self.max_pending_bytes}), got {self.max_payload}"
            )
        if 0 < self.max_pending_total < self.max_payload:
            raise UsageError(
                f"max_pending_total must be at least max_payload ({self.max_payload}), got {self.max_pending_total}"
            )
        if self.compat not in ("", "nats-server"):
            raise UsageError(f"compat must be 'nats-server' or empty, got {self.compat!r}")
        if not self.ping_interval:
            raise UsageError("ping_interval must be more than 0 s, got 0 s")
        if any(char.isspace() for char in self.name):
            raise UsageError(f"server name must not contain white space, got {self.name!r}")
        grace, duration = check_seconds(self.lame_duck_grace), check_seconds(self.lame_duck_duration)
        if grace > duration:
            raise UsageError(
                f"lame_duck_grace must be between 0 and lame_duck_duration ({duration:g} s), got {grace:g} s"
            )
        if self.domain and (not is_valid_subject(self.domain) or "." in self.domain or self.domain == "API"):
            raise UsageError(f"domain must be one subject token other than 'API', got {self.domain!r}")

    @property
    def pending_budget(self) -> int:
        """`max_pending_total`, or its default; -1 for none."""
        return self.max_pending_total or max(DEFAULT_BUDGET, 2 * self.max_pending_bytes)

    def _check_users(self) -> None:
        """Raise UsageError for users that cannot be, and MissingExtraError for a package that a login would need."""
        users = self.every_user()
        check_users(users)
        if any(is_hash(secret) for user in users for secret in (user.password, user.token)):
            check_extra("bcrypt", "a bcrypt hash of a secret", "server")
        if self.operators or any(user.nkey for user in users):
            check_extra("cryptography", "a user with an nkey or a token of an operator", "server")

    def every_user(self) -> tuple[User, ...]:
        """`user` and `password`, `token` and `users`, as users."""
        one = [User(name=self.user, password=self.password)] if self.user or self.password else []
        return (*one, *([User(token=self.token)] if self.token else []), *self.users)

    def account_limits(self) -> Mapping[str, AccountLimits]:
        """`limits` by account name."""
        if not isinstance(self.limits, AccountLimits):
            return dict(self.limits or {})
        return dict.fromkeys({DEFAULT_ACCOUNT, *(user.account for user in self.every_user())}, self.limits)

    def authenticator(self) -> Authenticator:
        """The authenticator that the engine will use."""
        return Authenticator(
            self.every_user(), verify, accounts=tuple(self.accounts), no_auth_user=self.no_auth_user,
            operators=self.operators, account_tokens=self.account_tokens,
        )  # fmt: skip

    def check(self) -> Self:
        """Raise the UsageError that `Server` would raise: read the certificate files, match users and accounts."""
        self.authenticator()
        self.load_tls()
        if self.websocket is not None:
            self.websocket.load_tls()
        return self


# The only defaults that differ: an embedded server must not collide with another one, a command is found by its port;
# and a configuration file enables JetStream where it says so, as with nats-server. (Without a file the command does.)
COMMAND_DEFAULTS = ServerOptions(port=4222, jetstream=False)


def bindable(port: int) -> int:
    """The port as sockets take it: 0 for a free one, which -1 means in configuration files."""
    return max(port, 0)
