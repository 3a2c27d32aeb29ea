"""Services of an account for its parts: streams, consumers, reads, mirrors, snapshots.

`Services` is the account as its parts see it; `account.Account` implements it. `SharedServices` are the server-wide
parts of it, made once by the engine: timers, jobs, and the reads and mirrors that wait for commits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.server.engine.api.advisories import Advisories
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.core.routing import AccountRouter
from slipstream.server.engine.jobs import AccountJobs, Jobs, Load
from slipstream.server.engine.journal import Journal
from slipstream.server.engine.streams.atomic_batches import BatchUsage
from slipstream.server.engine.timers import Timers

MAX_WAITING = 10_000  # requests


class Waiter(Hashable, Protocol):
    """A part of the server that waits for commits."""

    def release(self) -> None:
        """A group was committed: look again at what can be done."""


class CommitWaiters:
    """Those that look again after every commit of any store: replicas with waiting reads, mirrors and sources."""

    def __init__(self) -> None:
        self._requests = 0
        self._waiting: dict[Waiter, int] = {}  # with the number of its requests
        self._followers: dict[Waiter, None] = {}

    def wait(self, waiter: Waiter, count: int) -> bool:
        """Count `count` more (or fewer, if negative) waiting requests; False if there would be too many."""
        if self._requests + count > MAX_WAITING:
            return False
        self._requests += count
        left = self._waiting.get(waiter, 0) + count
        if left > 0:
            self._waiting[waiter] = left
        else:
            self._waiting.pop(waiter, None)
        return True

    def follow(self, waiter: Waiter) -> None:
        """Release the waiter after every commit, until `unfollow`."""
        self._followers[waiter] = None

    def unfollow(self, waiter: Waiter) -> None:
        self._followers.pop(waiter, None)

    def release(self) -> None:
        for waiter in (*self._followers, *self._waiting):  # mirrors first: reads wait for what they have
            waiter.release()


class AckTarget(Protocol):
    """A consumer, as acks and flow control responses reach it."""

    def ack(self, tokens: list[str], at: int, reply: str, payload: bytes, now: int) -> bool:
        """Take an ack. From `at` on `tokens` are delivery count, stream sequence, consumer sequence, time, pending."""

    def flow(self, subject: str, now: int) -> None:
        """Take the response to a flow control request."""


class AckTargets(Protocol):
    """The consumers that acks are routed to."""

    @property
    def consumers(self) -> dict[tuple[str, str], AckTarget]:
        """By stream and name."""


class UpstreamState(Protocol):
    """How far the messages of an upstream have been taken in, as streams see it; an `Ingest`."""

    def info(self, now: int) -> dict[str, Any]:
        """For the stream's info."""

    def covers(self, subject: str) -> bool:
        """Whether its filters match a subject."""

    def lacks(self, seq: int) -> bool:
        """Whether it has not durably taken in that sequence yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedServices:
    """The parts of `Services` that all accounts of a server share."""

    server_name: str
    version: str
    domain: str  # of JetStream; empty: none
    max_pending: int
    max_payload: int
    advisories: Advisories
    compat: bool  # answer as nats-server does, where the documents say otherwise
    journals: Mapping[str, Journal]  # by storage; both may be the same
    batch_usage: BatchUsage
    load: Load
    jobs: Jobs
    timers: Timers = field(default_factory=Timers)
    commit_waiters: CommitWaiters = field(default_factory=CommitWaiters)

    @property
    def uncommitted_catalog(self) -> Journal | None:
        """A journal in which a stream is being created, changed or deleted."""
        return next((journal for journal in self.journals.values() if journal.catalog_unfinished), None)


class Services(Protocol):
    """An account, as its parts see it."""

    name: str
    router: AccountRouter
    timers: Timers
    jobs: AccountJobs
    commit_waiters: CommitWaiters
    limits: AccountLimits
    max_pending: int  # bytes that may be unsent to a client
    max_payload: int
    domain: str  # of JetStream; empty: none
    batch_usage: BatchUsage
    advisories: Advisories
    compat: bool  # answer as nats-server does, where the documents say otherwise
    leader_name: str  # of the server, and so of the first peer of each stream

    @property
    def ack_router(self) -> AckTargets: ...

    def is_bounded(self, storage: str) -> bool:
        """Whether the account has a limit on bytes of that storage."""

    def check_bytes(self, storage: str, size: int) -> None:
        """Raise an ApiError if a message of that size would exceed the account's limit."""
