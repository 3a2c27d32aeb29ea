"""The keys of nats-server's configuration, as options of a server and its process.

Options that are declared with keys (`slipstream.server.options`) are read by their declarations; this module reads the
others (`BY_HAND`), and rejects every key that it does not carry out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT, SYSTEM_ACCOUNT, AccountOptions, User
from slipstream.server.options import COMMAND_DEFAULTS, Option, ServerOptions, WebSocketOptions, options_of
from slipstream.server.process.conf.access import Access, accounts, at, authorization
from slipstream.server.process.conf.section import Section, listen, port, text, texts, wrong
from slipstream.server.process.conf.tree import ConfigError, Value
from slipstream.server.process.options import ProcessOptions


def _rejected(reasons: dict[str, str]) -> dict[str, str]:
    """The reason for each key, from a table of reasons and the keys that they are for."""
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}


# Keys of nats-server that are rejected, by the reason.
_SINGLE = "this server is a single process and joins no cluster"
UNSUPPORTED = _rejected({
    _SINGLE: "cluster gateway leaf leafnodes client_advertise connect_error_reports reconnect_error_reports "
             "default_js_domain server_tags server_metadata",
    "MQTT is not implemented": "mqtt",
    "monitoring is plain HTTP only": "https https_port",
    "log to stderr or to a file": "syslog remote_syslog",
    "there is no profiler": "prof_port prof_block_rate",
    "OCSP is not implemented": "ocsp ocsp_cache",
    "with TLS, every client must use it": "allow_non_tls",
    "accounts are read from resolver_preload (resolver: MEMORY)": "resolver_tls resolver_pinned_accounts",
    "use 'operator' with its JWT": "trusted_keys",
    "auth callout is not implemented": "default_sentinel",
    "subject mappings are not implemented": "mappings maps",
    "proxies are not supported": "proxies proxy_protocol",
    "headers cannot be turned off": "no_header_support",
    "the number of tokens is limited by max_control_line only": "max_sub_tokens max_subscription_tokens",
    "the subject cache cannot be turned off": "disable_sublist_cache no_sublist_cache",
})  # fmt: skip
_JETSTREAM = _rejected({
    "the store is not encrypted": "key ek encryption_key prev_key prev_ek prev_encryption_key cipher tpm",
    _SINGLE: "extension_hint unique_tag max_outstanding_catchup meta_compact meta_compact_size",
    "limits are per account: set them in 'accounts'": "limits",
})  # fmt: skip
_TLS = _rejected({
    "the ciphers are those of the system's OpenSSL": "cipher_suites",
    "the curves are those of the system's OpenSSL": "curve_preferences",
    "use your own certificate authority": "pinned_certs",
    "a single certificate is supported": "certs",
    "it is an option of clients": "insecure",
    "rate limits are not implemented": "connection_rate_limit",
    "OCSP is not implemented": "ocsp_peer",
    _SINGLE: "verify_cert_and_check_known_urls",
})  # fmt: skip
_WEBSOCKET = _rejected({
    _SINGLE: "advertise",
    "it is shared by all listeners": "authorization authentication no_auth_user ping_interval",
    "clients authenticate by CONNECT": "jwt_cookie user_cookie pass_cookie token_cookie",
})  # fmt: skip
ANYONE = "\0anyone"  # no client can send that name

# Options that are read by the functions below: their values depend on each other, or have a form of their own.
BY_HAND = frozenset((
    "host", "port", "http_host", "http_port", "websocket", "headers", "trace", "jetstream", "data_dir", "users",
    "accounts", "no_auth_user", "operators", "account_tokens", "system_account", "auth_timeout",
))  # fmt: skip


def _declared(declaring: type, block: str = "") -> list[Option]:
    """The options of a class that are read by their declarations from a block."""
    found = [option for option in options_of(declaring) if option.keys and option.block == block]
    return [option for option in found if option.name not in BY_HAND]


SERVER, PROCESS, WEBSOCKET = _declared(ServerOptions), _declared(ProcessOptions), _declared(WebSocketOptions)
TLS, JETSTREAM = _declared(ServerOptions, "tls"), _declared(ServerOptions, "jetstream")


def load(value: Value, read: Callable[[str], str]) -> ProcessOptions:
    """The options in a configuration; `read` gives the text of a file that it names."""
    top = Section(value, "the configuration", UNSUPPORTED)
    host, number = _address(top, COMMAND_DEFAULTS.host, COMMAND_DEFAULTS.port)
    http_host, http_port = _http(top, host)
    tls, websocket = top.take("tls"), top.take("websocket", "ws")
    simple = top.options(SERVER)
    if simple.get("max_subscriptions") == 0:  # the default, as in nats-server
        del simple["max_subscriptions"]
    with at(value.position):
        server = replace(
            COMMAND_DEFAULTS,
            host=host,
            port=number,
            http_host=http_host,
            http_port=http_port,
            websocket=_websocket(websocket, host) if websocket is not None else None,
            trace=top.flag("trace") | top.flag("trace_verbose"),
            **simple,
            **(_tls(tls) if tls is not None else {}),
        )
        server = _access(top, _operators(top, _jetstream(top, server), read))
    found = ProcessOptions(server=server, **top.options(PROCESS))
    top.done()
    return found


def _address(block: Section, default_host: str, default_port: int) -> tuple[str, int]:
    """`listen`, or `host` and `port`."""
    both = block.take("listen")
    host, number = listen(both, "listen", default_host) if both is not None else (default_host, default_port)
    host = block.text("host", "net", default=host) or default_host
    number = port(block.integer("port", default=number), block.position, "port")
    return host, number


def _http(top: Section, host: str) -> tuple[str, int | None]:
    both = top.take("http")
    name, number = listen(both, "http", host) if both is not None else ("", 0)
    number = port(top.integer("http_port", "monitor_port", default=number), top.position, "http_port")
    return name, number or None  # 0 turns it off, as in nats-server


def _tls(value: Value) -> dict[str, Any]:
    """The fields `tls_*` of a listener."""
    block = Section(value, "tls", _TLS)
    found = block.options(TLS)
    block.done()
    if found.get("tls_map"):
        found["tls_verify"] = True
    if not found.get("tls_cert") or not found.get("tls_key"):
        raise ConfigError(block.position, "TLS needs 'cert_file' and 'key_file'")
    if found.get("tls_verify") and not found.get("tls_ca"):
        raise ConfigError(block.position, "'verify' needs 'ca_file', the authorities that sign client certificates")
    return found


def _websocket(value: Value, host: str) -> WebSocketOptions:
    block = Section(value, "websocket", _WEBSOCKET)
    name, number = _address(block, host, 0)
    no_tls, tls = block.flag("no_tls"), block.take("tls")
    block.flag("compression", "compress")  # clients may offer it; the server does not agree to it
    extra = block.take("headers")
    headers = {e.key: text(e.value, e.key) for e in Section(extra, "headers").entries()} if extra is not None else {}
    options = WebSocketOptions(
        host=name,
        port=number,
        headers=headers,
        **block.options(WEBSOCKET),
        **(_tls(tls) if tls is not None and not no_tls else {}),
    )
    block.done()
    if not no_tls and tls is None:
        raise ConfigError(block.position, "'websocket' needs 'tls', or 'no_tls: true'")
    return options


def _jetstream(top: Section, server: ServerOptions) -> ServerOptions:
    folder, value = top.text("store_dir", "storedir"), top.take("jetstream")
    server = replace(server, data_dir=folder or None)
    if value is None:
        return server
    if isinstance(value.data, bool):
        return replace(server, jetstream=value.data)
    if isinstance(value.data, str):
        if value.data.lower() not in ("enabled", "enable", "disabled", "disable"):
            raise wrong(value, "jetstream", "enabled, disabled or a map")
        return replace(server, jetstream=value.data.lower().startswith("enable"))
    block = Section(value, "jetstream", _JETSTREAM)
    server = replace(
        server,
        jetstream=block.flag("enabled", "enable", default=True),
        data_dir=block.text("store_dir", "storedir", "store") or folder or None,
        **block.options(JETSTREAM),
    )
    interval = block.take("sync_interval", "sync")  # no effect: every group is synced before it is acknowledged
    if interval is not None and not isinstance(interval.data, str | int):
        raise wrong(interval, "sync_interval", "always or a duration")
    block.flag("strict")  # no effect: requests are always read strictly
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
            raise ConfigError(resolver.position, "'resolver' must be MEMORY, with resolver_preload")
    if value is None:
        if preload is not None or resolver is not None:
            raise ConfigError(top.position, "'resolver' and 'resolver_preload' need an 'operator'")
        return server
    tokens = []
    for name in texts(value, "operator"):
        try:
            tokens.append(bare_token(name if _is_token(name) else read(name)))
        except (OSError, ValueError) as exc:
            raise ConfigError(value.position, f"cannot read the operator JWT: {exc}") from exc
    entries = Section(preload, "resolver_preload").entries() if preload is not None else []
    accounts = []
    for entry in entries:
        try:
            accounts.append(bare_token(text(entry.value, entry.key)))
        except ValueError as exc:
            raise ConfigError(entry.position, f"account {entry.key!r}: {exc}") from exc
    return replace(server, operators=tuple(tokens), account_tokens=tuple(accounts))


def _is_token(name: str) -> bool:
    return name.strip().startswith("eyJ") and name.count(".") == 2


def bare_token(content: str) -> str:
    """A JWT without the lines around it that tools write into files."""
    lines = [line.strip() for line in content.splitlines()]
    found = [line for line in lines if line and not line.startswith(("---", "**"))]
    if not found or not _is_token(found[0]):
        raise ValueError("it contains no JWT")
    return found[0]


def _access(top: Section, server: ServerOptions) -> ServerOptions:
    no_auth_user = top.text("no_auth_user")
    found = Access(no_auth_user=no_auth_user)
    for name, load_block in (("authorization", authorization), ("accounts", accounts)):
        value = top.take(name)
        if value is not None:
            load_block(value, found, tls_map=server.tls_map)
    system = top.text("system_account", "system", default=SYSTEM_ACCOUNT)
    top.flag("no_system_account", "no_system", "no_sys_acc")
    others = [account for account in found.accounts if account.name not in (system, DEFAULT_ACCOUNT)]
    if others and all(account.name != DEFAULT_ACCOUNT for account in found.accounts):
        found.accounts.append(AccountOptions(name=DEFAULT_ACCOUNT, jetstream=None))
    only_system = bool(found.users) and all(user.account == system for user in found.users)
    if only_system and not others and found.is_open and not no_auth_user:
        found.users.append(
            User(name=ANYONE, certificate=True)
        )  # any other client is accepted as if there were no users
        no_auth_user = ANYONE
    return replace(
        server,
        users=tuple(found.users),
        accounts=tuple(found.accounts),
        auth_timeout=found.timeout,
        no_auth_user=no_auth_user,
        system_account=system,
    )
