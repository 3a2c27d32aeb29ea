"""Readers of the blocks `authorization` and `accounts`: users, permissions and account limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

from slipstream.errors import UsageError
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.users import (
    CONNECTION_TYPES,
    DEFAULT_ACCOUNT,
    NO_LIMIT,
    AccountOptions,
    Permissions,
    Responses,
    User,
)
from slipstream.server.process.conf.section import Section, seconds, text, texts, wrong
from slipstream.server.process.conf.tree import ConfigError, Position, Value

_NO_CALLOUT = {
    "auth_callout": "auth callout is not implemented",
    "auth_hook": "auth callout is not implemented",
    "proxy_required": "proxies are not supported",
}
_NOT_IN_ACCOUNTS = {
    "imports": "imports between accounts are not implemented",
    "mappings": "subject mappings are not implemented",
    "maps": "subject mappings are not implemented",
    "msg_trace": "message tracing is not implemented",
    "trace_dest": "message tracing is not implemented",
    "nkey": "accounts are identified by name, or by the JWTs of an operator",
}


@dataclass
class Access:
    """Users and accounts, as they are collected from both blocks."""

    users: list[User] = field(default_factory=list)
    accounts: list[AccountOptions] = field(default_factory=list)
    no_auth_user: str = ""
    timeout: float = 2.0
    is_open: bool = True  # there is no `authorization`


@contextmanager
def at(position: Position) -> Iterator[None]:
    """Add a position to errors about values."""
    try:
        yield
    except ConfigError:
        raise
    except UsageError as exc:
        raise ConfigError(position, str(exc)) from exc


def authorization(value: Value, access: Access, *, tls_map: bool) -> None:
    """The block `authorization`: one user, one token, or several users."""
    access.is_open = False
    block = Section(value, "authorization", _NO_CALLOUT)
    name, password = block.text("user", "username"), block.text("pass", "password")
    token = block.text("token")
    access.timeout = block.seconds("timeout", default=2.0)
    if access.timeout <= 0:
        raise ConfigError(block.position, f"'timeout' must be more than 0 s, got {access.timeout:g} s")
    granted = block.take("default_permissions", "default_permission", "permissions")
    default = permissions(granted) if granted is not None else None
    several = block.take("users")
    block.done()
    if bool(name or password) + bool(token) + (several is not None) > 1:
        raise ConfigError(block.position, "'user', 'token' and 'users' are mutually exclusive")
    with at(block.position):
        if name or password:
            access.users.append(User(name=name, password=password, permissions=default))
        elif token:
            access.users.append(User(token=token, permissions=default))
    if several is not None:
        access.users += users(several, access, DEFAULT_ACCOUNT, default, tls_map=tls_map)


def accounts(value: Value, access: Access, *, tls_map: bool) -> None:
    """The block `accounts`: an array of names, or a map from names to users and limits."""
    if isinstance(value.data, list):
        for item in value.data:
            with at(item.position):
                access.accounts.append(AccountOptions(name=text(item, "accounts"), jetstream=None))
        return
    for entry in Section(value, "accounts").entries():
        if entry.is_variable:
            continue
        block = Section(entry.value, f"account {entry.key!r}", _NOT_IN_ACCOUNTS)
        block.take("exports")  # accepted without effect: there are no imports
        granted = block.take("default_permissions")
        default = permissions(granted) if granted is not None else None
        limited = block.take("jetstream")
        bounds = block.section("limits", unsupported={"max_leafnodes": "there are none", "max_leafs": "there are none"})
        its_users = block.take("users")
        block.done()
        with at(entry.position):
            account = AccountOptions(name=entry.key, jetstream=jetstream(limited) if limited is not None else None)
            if bounds is not None:
                account = replace(
                    account,
                    max_connections=bounds.integer("max_connections", "max_conn", default=NO_LIMIT, low=-1),
                    max_subscriptions=bounds.integer("max_subscriptions", "max_subs", default=NO_LIMIT, low=-1),
                    max_payload=bounds.integer("max_payload", "max_pay", default=NO_LIMIT, low=-1),
                )
                bounds.done()
        access.accounts.append(account)
        if its_users is not None:
            access.users += users(its_users, access, entry.key, default, tls_map=tls_map)


def jetstream(value: Value) -> AccountLimits | None:
    """An account's `jetstream`: on, off, or limits."""
    if isinstance(value.data, bool):
        return AccountLimits() if value.data else None
    if isinstance(value.data, str):
        if value.data.lower() in ("enabled", "enable"):
            return AccountLimits()
        if value.data.lower() in ("disabled", "disable"):
            return None
        raise wrong(value, "jetstream", "enabled, disabled or a map of limits")
    block = Section(value, "jetstream", {"cluster_traffic": "there is no cluster"})
    limits = AccountLimits(
        max_memory=block.integer("max_memory", "max_mem", "mem", "memory", default=NO_LIMIT, low=-1),
        max_storage=block.integer("max_store", "max_file", "max_disk", "store", "disk", default=NO_LIMIT, low=-1),
        max_streams=block.integer("max_streams", "streams", default=NO_LIMIT, low=-1),
        max_consumers=block.integer("max_consumers", "consumers", default=NO_LIMIT, low=-1),
        max_ack_pending=block.integer("max_ack_pending", default=NO_LIMIT, low=-1),
        memory_max_stream_bytes=block.integer("mem_max_stream_bytes", "memory_max_stream_bytes", default=NO_LIMIT),
        storage_max_stream_bytes=block.integer("disk_max_stream_bytes", "store_max_stream_bytes", default=NO_LIMIT),
        max_bytes_required=block.flag("max_bytes_required", "max_stream_bytes", "max_bytes"),
    )
    block.done()
    return limits


def users(value: Value, access: Access, account: str, default: Permissions | None, *, tls_map: bool) -> list[User]:
    """An array of users."""
    if not isinstance(value.data, list):
        raise wrong(value, "users", "an array of maps")
    found = []
    for item in value.data:
        block = Section(item, "user", {"proxy_required": "proxies are not supported"})
        granted = block.take("permissions", "permission", "authorization")
        kinds = tuple(kind.upper() for kind in block.texts("allowed_connection_types", "connection_types", "clients"))
        name, password = block.text("user", "username"), block.text("pass", "password")
        nkey = block.text("nkey")
        block.done()
        if kinds and not any(kind in CONNECTION_TYPES for kind in kinds):
            wanted = " or ".join(CONNECTION_TYPES)
            raise ConfigError(block.position, f"connection types must include {wanted}, got {', '.join(kinds)}")
        with at(block.position):
            found.append(
                User(
                    name=name,
                    password=password,
                    nkey=nkey,
                    account=account,
                    permissions=permissions(granted) if granted is not None else default,
                    certificate=tls_map and bool(name) and not password,
                    anyone=bool(name) and not password and name == access.no_auth_user,
                    connection_types=tuple(kind for kind in kinds if kind in CONNECTION_TYPES),
                )
            )
    return found


def permissions(value: Value) -> Permissions:
    """`publish` and `subscribe`, each a list or `allow` and `deny`; and `allow_responses`."""
    block = Section(value, "permissions")
    sides = [_side(block.take(*names)) for names in (("publish", "pub", "import"), ("subscribe", "sub", "export"))]
    answers = block.take("allow_responses", "publish_allow_responses")
    block.done()
    with at(block.position):
        return Permissions(
            publish=sides[0][0],
            publish_deny=sides[0][1],
            subscribe=sides[1][0],
            subscribe_deny=sides[1][1],
            responses=_responses(answers) if answers is not None else None,
        )


def _side(value: Value | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    if value is None:
        return None, ()
    if not isinstance(value.data, dict):
        return texts(value, "permissions"), ()
    block = Section(value, "permissions")
    allow = block.take("allow")
    deny = block.texts("deny")
    block.done()
    return texts(allow, "allow") if allow is not None else None, deny


def _responses(value: Value) -> Responses | None:
    if isinstance(value.data, bool):
        return Responses() if value.data else None
    block = Section(value, "allow_responses")
    most = block.integer("max", "max_msgs", "max_messages", "max_responses", default=1)
    duration = block.take("expires", "expiration", "ttl")
    block.done()
    expires = seconds(duration, "expires") if duration is not None else 120.0
    return Responses(  # 0 is the default, less is without limit
        max_msgs=None if most < 0 else most or 1,
        expires=None if expires < 0 else timedelta(seconds=expires or 120.0),
    )
