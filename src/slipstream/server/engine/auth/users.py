"""Configured users, their permissions, and their accounts.

Values are validated on construction, so that a server with an invalid rule does not start; no `repr` shows a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from slipstream.api.times import Duration, duration
from slipstream.errors import UsageError
from slipstream.server.engine.auth.account_limits import UNLIMITED, AccountLimits
from slipstream.wire import check_filter, is_valid_filter
from slipstream.wire.nkeys import public_key

DEFAULT_ACCOUNT = "$G"
SYSTEM_ACCOUNT = "$SYS"
CONNECTION_TYPES = ("STANDARD", "WEBSOCKET")
NO_LIMIT = -1
_ACCOUNT = re.compile(r"[^\s/\x00-\x1f\x7f]+")
_HASH = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_LIKE_HASH = re.compile(r"\$2[abxy]\$\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """A user may respond to requests, on reply subjects that it may not publish to otherwise."""

    max_msgs: int | None = 1  # to one reply subject; None: any number
    expires: Duration | None = timedelta(minutes=2)  # None: as long as the connection lives

    def __post_init__(self) -> None:
        if self.max_msgs is not None and self.max_msgs < 1:
            raise UsageError(f"max_msgs of responses must be at least 1 (or None), got {self.max_msgs}")
        if self.expires is None:
            return
        expires = duration(self.expires, "expires of responses")
        if expires <= timedelta(0):
            raise UsageError(f"expires of responses must be positive (or None), got {self.expires}")
        object.__setattr__(self, "expires", expires)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The subjects that a user may publish and subscribe to: `None` permits all; denied subjects are excluded.

    Entries are subject filters; those for subscriptions may name a queue group after a space (`"work.* group"`).
    With `responses` and no `publish` list, publishing is limited to responses.
    """

    publish: tuple[str, ...] | None = None
    publish_deny: tuple[str, ...] = ()
    subscribe: tuple[str, ...] | None = None
    subscribe_deny: tuple[str, ...] = ()
    responses: Responses | None = None

    def __post_init__(self) -> None:
        for name in ("publish", "publish_deny", "subscribe", "subscribe_deny"):
            entries = getattr(self, name)
            if entries is None and not name.endswith("_deny"):
                continue
            if isinstance(entries, str) or not isinstance(entries, Iterable):
                raise UsageError(f"{name} must be a sequence of subject filters, got {entries!r}")
            object.__setattr__(self, name, tuple(entries))
            for entry in getattr(self, name):
                if name.startswith("subscribe"):
                    split_queue(entry)
                else:
                    check_filter(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user, identified by name and password, by a token, by an nkey (`nkey="U…"`), or by a client certificate that
    contains its name. Password and token may be bcrypt hashes."""

    name: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = ""  # public
    permissions: Permissions | None = None  # None: everything
    account: str = DEFAULT_ACCOUNT
    certificate: bool = False  # identified by its certificate: it needs no password
    anyone: bool = False  # needs no password: it is the user of clients without credentials
    connection_types: tuple[str, ...] = ()  # of CONNECTION_TYPES; none: any

    def __post_init__(self) -> None:
        ways = [bool(self.name or self.password), bool(self.token), bool(self.nkey)]
        if sum(ways) != 1:
            raise UsageError(f"a user must have exactly one of name, token and nkey, got {sum(ways)} of them")
        if self.nkey:
            public_key(self.nkey)
        if self.password and not self.name:
            raise UsageError("a user with a password must have a name")
        if self.name and not self.password and not self.certificate and not self.anyone:
            raise UsageError(f"user {self.name!r} has no password")
        check_account(self.account)
        for secret in (self.password, self.token):
            if _LIKE_HASH.match(secret) and not is_hash(secret):
                raise UsageError(
                    "a secret looks like a bcrypt hash and is none: $2a$, two digits and 53 characters are"
                )
        for kind in self.connection_types:
            if kind not in CONNECTION_TYPES:
                raise UsageError(f"connection type must be {' or '.join(CONNECTION_TYPES)}, got {kind!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOptions:
    """The limits of an account; -1 is no limit. Those of payload and subscriptions apply to each connection."""

    name: str
    jetstream: AccountLimits | None = UNLIMITED  # None: no JetStream for it
    max_connections: int = NO_LIMIT
    max_subscriptions: int = NO_LIMIT
    max_payload: int = NO_LIMIT

    def __post_init__(self) -> None:
        check_account(self.name)


def check_account(name: str) -> None:
    if not _ACCOUNT.fullmatch(name):
        raise UsageError(f"account name must be printable, without white space or slashes, got {name!r}")


def is_hash(secret: str) -> bool:
    """Whether a configured secret is a bcrypt hash."""
    return _HASH.fullmatch(secret) is not None


def at_most(one: int, other: int) -> int:
    """The smaller of two limits, of which -1 is none."""
    return max(one, other) if NO_LIMIT in (one, other) else min(one, other)


def split_queue(entry: str) -> tuple[str, str]:
    """`"subject queue"` as both; the queue is empty where there is none."""
    parts = entry.split() if isinstance(entry, str) else []
    if not 1 <= len(parts) <= 2 or not all(is_valid_filter(part) for part in parts):
        raise UsageError(f"permission must be a subject filter, optionally followed by a queue group, got {entry!r}")
    return parts[0], parts[1] if len(parts) == 2 else ""


def check_users(users: Iterable[User]) -> tuple[User, ...]:
    """The users of a server; an error if two of them have the same credentials."""
    found = tuple(users)
    for what in ("name", "token", "nkey"):
        shown = [getattr(user, what) for user in found if getattr(user, what)]
        if len(set(shown)) != len(shown):
            twice = next(one for one in shown if shown.count(one) > 1)
            raise UsageError(f"two users have the same {what}" + ("" if what == "token" else f" {twice!r}"))
    return found
