"""A configuration as a tree becomes the options of a server and of its process. Every key is carried out or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT, SYSTEM_ACCOUNT, AccountOptions, User
from slipstream.server.options import CLIENT_PORT, LOOPBACK, ServerOptions, TlsOptions, WebSocketOptions
from slipstream.server.process.conf.access import Access, accounts, at, authorization
from slipstream.server.process.conf.section import Section, listen, port, text, texts, wrong
from slipstream.server.process.conf.tree import ConfigError, Value

_ONE = "this server is one process and joins no other"
_NO_RESOLVER = "accounts come from resolver MEMORY and resolver_preload"
UNSUPPORTED = {
    "cluster": _ONE, "gateway": _ONE, "leaf": _ONE, "leafnodes": _ONE, "client_advertise": _ONE,
    "connect_error_reports": _ONE, "reconnect_error_reports": _ONE,
    "mqtt": "there is no MQTT", "https": "monitoring is by HTTP only", "https_port": "monitoring is by HTTP only",
    "syslog": "log to stderr or to a file", "remote_syslog": "log to stderr or to a file",
    "prof_port": "there is no profiler", "prof_block_rate": "there is no profiler",
    "ocsp": "certificates are not stapled", "ocsp_cache": "certificates are not stapled",
    "allow_non_tls": "with TLS every client speaks it", "resolver_tls": _NO_RESOLVER,
    "resolver_pinned_accounts": _NO_RESOLVER, "trusted_keys": "name the operator's JWT",
    "default_sentinel": "there is no authorization by another service", "mappings": "subjects are not mapped",
    "maps": "subjects are not mapped", "proxies": "there are no proxies", "proxy_protocol": "there are no proxies",
    "no_header_support": "headers cannot be turned off", "default_js_domain": _ONE, "server_tags": _ONE,
    "server_metadata": _ONE, "max_sub_tokens": "the number of tokens is bounded by max_control_line only",
    "max_subscription_tokens": "the number of tokens is bounded by max_control_line only",
    "disable_sublist_cache": "the cache of subjects cannot be turned off",
    "no_sublist_cache": "the cache of subjects cannot be turned off",
}  # fmt: skip
_JETSTREAM = {
    **dict.fromkeys(
        ("key", "ek", "encryption_key", "prev_key", "prev_ek", "prev_encryption_key", "cipher", "tpm"),
        "the store is not encrypted",
    ),
    **dict.fromkeys(
        ("extension_hint", "unique_tag", "max_outstanding_catchup", "meta_compact", "meta_compact_size"), _ONE
    ),
    "limits": "what an account may have is said in `accounts`",
}
_TLS = {
    "cipher_suites": "the ciphers are those of the system's OpenSSL",
    "curve_preferences": "the curves are those of the system's OpenSSL",
    "pinned_certs": "name a CA of your own", "certs": "one certificate is supported", "insecure": "it is for clients",
    "verify_cert_and_check_known_urls": _ONE, "connection_rate_limit": "handshakes are not counted",
    "ocsp_peer": "certificates are not stapled",
}  # fmt: skip
_COOKIES = "clients log in by CONNECT"
_WEBSOCKET = {
    "advertise": _ONE, "authorization": "users are those of all listeners", "no_auth_user": "it is for all listeners",
    "authentication": "users are those of all listeners", "jwt_cookie": _COOKIES, "user_cookie": _COOKIES,
    "pass_cookie": _COOKIES, "token_cookie": _COOKIES, "ping_interval": "it is that of all listeners",
}  # fmt: skip
ANYONE = "\0anyone"  # no client can send that name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """A server as a process: what is around it."""

    server: ServerOptions = field(default_factory=ServerOptions)
    debug: bool = False
    trace: bool = False
    log_time: bool = True
    log_utc: bool = False
    log_file: str = ""
    log_size_limit: int = 0
    log_max_num: int = 0
    pid_file: str = ""
    ports_file_dir: str = ""


def load(value: Value, read: Callable[[str], str]) -> ProcessOptions:
    """The options in a configuration; `read` gives the text of a file that it names."""
    top = Section(value, "the configuration", UNSUPPORTED)
    trace = top.flag("trace") | top.flag("trace_verbose")
    host, number = _place(top, LOOPBACK, CLIENT_PORT)
    tls_value = top.take("tls")
    tls = _tls(tls_value) if tls_value is not None else None
    http_host, http_port = _http(top, host)
    web_value = top.take("websocket", "ws")
    with at(value.place):
        server = ServerOptions(
            host=host,
            port=number,
            name=top.text("server_name"),
            tls=tls,
            websocket=_websocket(web_value, host) if web_value is not None else None,
            http_host=http_host,
            http_port=http_port,
            http_base_path=top.text("http_base_path"),
            max_payload=top.integer("max_payload", default=1024 * 1024, low=1),
            max_control_line=top.integer("max_control_line", default=4096, low=1),
            max_connections=top.integer("max_connections", "max_conn", default=65536, low=-1),
            max_subscriptions=top.integer("max_subscriptions", "max_subs", default=0, low=-1) or 100_000,
            max_pending=top.integer("max_pending", default=64 * 1024 * 1024, low=1),
            write_deadline=top.seconds("write_deadline", default=10.0),
            ping_interval=top.seconds("ping_interval", default=120.0),
            ping_max=top.integer("ping_max", default=2, low=1),
            lame_duck_duration=top.seconds("lame_duck_duration", default=120.0),
            lame_duck_grace=top.seconds("lame_duck_grace_period", default=10.0),
            trace=trace,
        )
        server = _access(top, _operators(top, _jetstream(top, server), read))
    found = ProcessOptions(
        server=server,
        debug=top.flag("debug"),
        trace=trace,
        log_time=top.flag("logtime", default=True),
        log_utc=top.flag("logtime_utc"),
        log_file=top.text("log_file", "logfile"),
        log_size_limit=top.integer("logfile_size_limit", "log_size_limit", low=0),
        log_max_num=top.integer("logfile_max_num", "log_max_num", low=0),
        pid_file=top.text("pid_file", "pidfile"),
        ports_file_dir=top.text("ports_file_dir"),
    )
    top.done()
    return found


def _place(block: Section, default_host: str, default_port: int) -> tuple[str, int]:
    """`listen`, or `host` and `port`."""
    both = block.take("listen")
    host, number = listen(both, "listen", default_host) if both is not None else (default_host, default_port)
    host = block.text("host", "net", default=host) or default_host
    number = port(block.integer("port", default=number), block.place, "port")
    return host, number


def _http(top: Section, host: str) -> tuple[str, int | None]:
    both = top.take("http")
    name, number = listen(both, "http", host) if both is not None else ("", 0)
    number = port(top.integer("http_port", "monitor_port", default=number), top.place, "http_port")
    return name, number or None  # 0 turns it off, as in nats-server


def _tls(value: Value) -> TlsOptions:
    block = Section(value, "tls", _TLS)
    first = block.take("handshake_first", "first", "immediate")
    if first is not None and not isinstance(first.data, bool):
        raise wrong(first, "handshake_first", "true or false")
    cert, key, ca = (block.text(name) for name in ("cert_file", "key_file", "ca_file"))
    version = block.text("min_version", default="1.2")
    if version not in ("1.2", "1.3"):
        raise ConfigError(block.place, f"'min_version' is {version!r}, '1.2' and '1.3' are allowed")
    by_certificate = block.flag("verify_and_map")
    options = TlsOptions(
        cert=cert or None,
        key=key or None,
        ca=ca or None,
        verify=block.flag("verify") or by_certificate,
        by_certificate=by_certificate,
        first=bool(first.data) if first is not None else False,
        timeout=block.seconds("timeout", default=2.0),
        min_version=version,
    )
    block.done()
    if not cert or not key:
        raise ConfigError(block.place, "TLS needs 'cert_file' and 'key_file'")
    if options.verify and not ca:
        raise ConfigError(block.place, "'verify' needs 'ca_file': whose certificates are clients to show?")
    return options


def _websocket(value: Value, host: str) -> WebSocketOptions:
    block = Section(value, "websocket", _WEBSOCKET)
    name, number = _place(block, host, 0)
    no_tls, tls_value = block.flag("no_tls"), block.take("tls")
    block.flag("compression", "compress")  # it may be offered to us; we do not agree to it
    extra = block.take("headers")
    headers = {e.key: text(e.value, e.key) for e in Section(extra, "headers").entries()} if extra is not None else {}
    options = WebSocketOptions(
        host=name,
        port=number,
        tls=_tls(tls_value) if tls_value is not None and not no_tls else None,
        same_origin=block.flag("same_origin"),
        allowed_origins=block.texts("allowed_origins", "allowed_origin", "allow_origins", "origins", "origin"),
        handshake_timeout=block.seconds("handshake_timeout", default=2.0),
        headers=headers,
    )
    block.done()
    if not no_tls and tls_value is None:
        raise ConfigError(block.place, "'websocket' needs 'tls', or 'no_tls: true'")
    return options


def _jetstream(top: Section, server: ServerOptions) -> ServerOptions:
    folder, value = top.text("store_dir", "storedir"), top.take("jetstream")
    server = replace(server, store_dir=folder or None)
    if value is None:
        return server
    if isinstance(value.data, bool):
        return replace(server, jetstream=value.data)
    if isinstance(value.data, str):
        if value.data.lower() not in ("enabled", "enable", "disabled", "disable"):
            raise wrong(value, "jetstream", "enabled, disabled or a map")
        return replace(server, jetstream=value.data.lower().startswith("enable"))
    block = Section(value, "jetstream", _JETSTREAM)
    inner = block.text("store_dir", "storedir", "store")
    server = replace(
        server,
        jetstream=block.flag("enabled", "enable", default=True),
        store_dir=inner or folder or None,
        max_memory=block.integer("max_memory_store", "max_mem_store", "max_mem", default=-1, low=-1),
        max_storage=block.integer("max_file_store", "max_file", default=-1, low=-1),
        domain=block.text("domain"),
    )
    interval = block.take("sync_interval", "sync")  # every group is synced before it is acknowledged: never later
    if interval is not None and not isinstance(interval.data, str | int):
        raise wrong(interval, "sync_interval", "always or a duration")
    block.flag("strict")  # requests are always read strictly
    block.done()
    return server


def _operators(top: Section, server: ServerOptions, read: Callable[[str], str]) -> ServerOptions:
    value = top.take("operator", "operators", "roots", "root", "root_operators", "root_operator")
    resolver = top.take("resolver", "account_resolver", "accounts_resolver")
    preload = top.take("resolver_preload")
    if resolver is not None:
        kind = resolver.data
        if isinstance(kind, dict):
            block = Section(resolver, "resolver")
            kind = block.text("type")
        if not isinstance(kind, str) or kind.upper() not in ("MEMORY", "MEM"):
            raise ConfigError(resolver.place, "this 'resolver' is not supported: MEMORY is, with resolver_preload")
    if value is None:
        if preload is not None or resolver is not None:
            raise ConfigError(top.place, "'resolver' and 'resolver_preload' need an 'operator'")
        return server
    tokens = []
    for name in texts(value, "operator"):
        try:
            tokens.append(bare_token(name if _is_token(name) else read(name)))
        except (OSError, ValueError) as exc:
            raise ConfigError(value.place, f"the operator's JWT cannot be read: {exc}") from exc
    entries = Section(preload, "resolver_preload").entries() if preload is not None else []
    accounts = []
    for entry in entries:
        try:
            accounts.append(bare_token(text(entry.value, entry.key)))
        except ValueError as exc:
            raise ConfigError(entry.place, f"account {entry.key!r}: {exc}") from exc
    return replace(server, operators=tuple(tokens), account_tokens=tuple(accounts))


def _is_token(name: str) -> bool:
    return name.strip().startswith("eyJ") and name.count(".") == 2


def bare_token(content: str) -> str:
    """A JWT without the lines around it that tools write into files."""
    lines = [line.strip() for line in content.splitlines()]
    found = [line for line in lines if line and not line.startswith(("---", "**"))]
    if not found or not _is_token(found[0]):
        raise ValueError("no JWT in it")
    return found[0]


def _access(top: Section, server: ServerOptions) -> ServerOptions:
    no_auth_user = top.text("no_auth_user")
    found = Access(no_auth_user=no_auth_user)
    by_certificate = server.tls is not None and server.tls.by_certificate
    for name, load_block in (("authorization", authorization), ("accounts", accounts)):
        value = top.take(name)
        if value is not None:
            load_block(value, found, by_certificate=by_certificate)
    system = top.text("system_account", "system", default=SYSTEM_ACCOUNT)
    top.flag("no_system_account", "no_system", "no_sys_acc")
    others = [account for account in found.accounts if account.name not in (system, DEFAULT_ACCOUNT)]
    if others and all(account.name != DEFAULT_ACCOUNT for account in found.accounts):
        found.accounts.append(AccountOptions(name=DEFAULT_ACCOUNT, jetstream=None))
    only_system = bool(found.users) and all(user.account == system for user in found.users)
    if only_system and not others and found.is_open and not no_auth_user:
        found.users.append(User(name=ANYONE, certificate=True))  # everybody else comes in as if there were no users
        no_auth_user = ANYONE
    return replace(
        server,
        users=tuple(found.users),
        accounts=tuple(found.accounts),
        auth_timeout=found.timeout,
        no_auth_user=no_auth_user,
        system_account=system,
    )
