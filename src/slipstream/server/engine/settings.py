"""Settings of an engine, the secrets it hands to its driver to check, and its totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from slipstream.server.engine.auth.account_limits import UNLIMITED, AccountLimits
from slipstream.server.engine.auth.users import AccountOptions, User, at_most
from slipstream.server.engine.core.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options that the engine reads (`slipstream.server.options` declares them, with their defaults), and what the
    server knows about itself. Times in nanoseconds, sizes in bytes."""

    server_id: str
    server_name: str
    slipstream: str  # our own version
    host: str
    port: int
    tls_required: bool
    tls_verify: bool  # clients present certificates
    jetstream: bool
    domain: str
    limits: Mapping[str, AccountLimits]  # by account; others have none
    max_memory: int
    max_storage: int
    max_payload: int
    max_pending_bytes: int
    max_pending_total: int  # of all clients; -1 is none
    max_subscriptions: int
    users: tuple[User, ...]
    accounts: tuple[AccountOptions, ...]  # an account that is not among them has no limits
    no_auth_user: str
    operators: tuple[str, ...]
    account_tokens: tuple[str, ...]
    system_account: str
    auth_timeout: int
    ping_interval: int
    max_pings_out: int
    # The nats-server release whose behaviour is implemented: clients enable features by it.
    version: str = "2.15.1"
    compat: bool = False  # answer as nats-server does, also where the design documents say otherwise

    def limits_of(self, account: str, own: AccountLimits | None) -> AccountLimits:
        """JetStream limits of an account: its own, or those set for it here, within those of the server."""
        limits = self.limits.get(account, UNLIMITED) if own is None or own == UNLIMITED else own
        if self.max_memory < 0 and self.max_storage < 0:
            return limits
        return replace(
            limits,
            max_memory=at_most(limits.max_memory, self.max_memory),
            max_storage=at_most(limits.max_storage, self.max_storage),
        )


class Totals:
    """Statistics of the clients that have left since the server started; those of connected clients come on top."""

    __slots__ = ("connections", "in_bytes", "in_msgs", "out_bytes", "out_msgs", "slow", "stale")

    def __init__(self) -> None:
        self.connections: int = 0
        self.in_msgs: int = 0
        self.in_bytes: int = 0
        self.out_msgs: int = 0
        self.out_bytes: int = 0
        self.slow: int = 0
        self.stale: int = 0

    def add(self, session: Session) -> None:
        """Count a client that has left."""
        self.in_msgs += session.in_msgs
        self.in_bytes += session.in_bytes
        self.out_msgs += session.out_msgs
        self.out_bytes += session.out_bytes
        self.slow += session.reason == "Slow Consumer"
        self.stale += session.reason == "Stale Connection"


class Check(NamedTuple):
    """A client's secret, to be compared with a bcrypt hash outside of the loop: that takes long."""

    cid: int
    secret: str
    hash: str
