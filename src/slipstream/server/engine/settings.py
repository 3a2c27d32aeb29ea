"""What an engine is told when it starts, what it hands to its driver to do, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slipstream.server.engine.auth.account_limits import UNLIMITED, AccountLimits
from slipstream.server.engine.auth.users import SYSTEM_ACCOUNT, AccountOptions, User, at_most
from slipstream.server.engine.core.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the server is told when it starts. Times in nanoseconds, sizes in bytes."""

    server_id: str = "SLIPSTREAM"
    server_name: str = "slipstream"
    # Clients switch features on by this: it names the nats-server release whose behaviour is implemented. Our own
    # version is in a field of its own, `slipstream`.
    version: str = "2.15.1"
    slipstream: str = ""
    host: str = "127.0.0.1"
    port: int = 4222
    jetstream: bool = True
    domain: str = ""  # of JetStream
    limits: Mapping[str, AccountLimits] = field(default_factory=dict)  # by account; others have none
    max_memory: int = -1  # of each account's streams together; -1 is no limit
    max_storage: int = -1
    max_payload: int = 1024 * 1024
    max_pending: int = 64 * 1024 * 1024
    max_subscriptions: int = 100_000  # of one client
    users: tuple[User, ...] = ()  # none: everyone may come in
    accounts: tuple[AccountOptions, ...] = ()  # what those of the users may have; one that is not named may have all
    no_auth_user: str = ""  # who a client is that shows nothing
    operators: tuple[str, ...] = ()  # JWTs
    account_tokens: tuple[str, ...] = ()
    system_account: str = SYSTEM_ACCOUNT
    tls_required: bool = False
    tls_verify: bool = False  # clients show certificates
    auth_timeout: int = 2_000_000_000
    ping_interval: int = 120_000_000_000
    max_pings_out: int = 2

    def limits_of(self, account: str, own: AccountLimits | None) -> AccountLimits:
        """What an account may use: its own limits, or those set for it here, within those of the server."""
        limits = self.limits.get(account, UNLIMITED) if own is None or own == UNLIMITED else own
        if self.max_memory < 0 and self.max_storage < 0:
            return limits
        return replace(
            limits,
            max_memory=at_most(limits.max_memory, self.max_memory),
            max_storage=at_most(limits.max_storage, self.max_storage),
        )


class Totals:
    """Figures of the server since it started; those of connected clients come on top."""

    __slots__ = ("connections", "in_bytes", "in_msgs", "out_bytes", "out_msgs", "slow", "stale")

    def __init__(self) -> None:
        self.connections = self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.slow = self.stale = 0

    def add(self, session: Session) -> None:
        """A client is gone."""
        self.in_msgs += session.in_msgs
        self.in_bytes += session.in_bytes
        self.out_msgs += session.out_msgs
        self.out_bytes += session.out_bytes
        self.slow += session.reason == "Slow Consumer"
        self.stale += session.reason == "Stale Connection"


class Check(NamedTuple):
    """A secret of a client, to be compared with a hash away from the loop."""

    cid: int
    secret: str
    hash: str
