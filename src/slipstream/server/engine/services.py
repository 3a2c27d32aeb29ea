"""What the parts of an account ask of it: to route, to wait, to work in chunks. `account.Account` is the host."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Any, Protocol

from slipstream.server.engine.api.advisories import Advisories
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.core.session import ClientSub
from slipstream.server.engine.journal import Home
from slipstream.server.engine.streams.atomic_batches import Load
from slipstream.server.engine.timers import Timers


class Progress(enum.Enum):
    """How a job stands after a chunk."""

    DONE = "done"
    MORE = "more"
    BLOCKED = "blocked"  # whoever it sends to does not keep up: try again later


class Job(Protocol):
    """Work that is done in chunks, so that others get their turn between."""

    def run(self) -> tuple[Progress, int]:
        """Do one chunk; how it stands now, and how many messages it sent."""


class Target(Hashable, Protocol):
    """A subscriber inside the server."""

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:
        """Take a message; False if it is none of its business after all."""


class Waiter(Hashable, Protocol):
    """Somebody whose requests wait for a commit."""

    def release(self) -> None:
        """Look again which of them can be answered."""


class Interested(Hashable, Protocol):
    """Somebody whom the subscribers of a subject concern."""

    def interest_changed(self, now: int) -> None:
        """A subscription on the subject came or went."""


class AckTarget(Protocol):
    """A consumer, as acks and answers to flow control reach it."""

    def ack(self, tokens: list[str], at: int, reply: str, payload: bytes, now: int) -> bool:
        """Take an ack. From `at` on `tokens` are delivery count, stream sequence, consumer sequence, time, pending."""

    def flow(self, subject: str, now: int) -> None:
        """Take the answer to a flow control request."""


class AckDesk(Protocol):
    """Where acks arrive."""

    @property
    def consumers(self) -> dict[tuple[str, str], AckTarget]:
        """By stream and name."""


class Inlet(Protocol):
    """Where messages of another stream come in."""

    def info(self, now: int) -> dict[str, Any]:
        """For the stream's info."""

    def covers(self, subject: str) -> bool:
        """Whether it wants the messages of a subject."""

    def lacks(self, seq: int) -> bool:
        """Whether it has not got that far yet, for good."""


class Host(Protocol):
    """An account, as its parts see it."""

    name: str
    timers: Timers
    max_pending: int  # bytes that may be unsent to a client
    max_payload: int
    limits: AccountLimits
    domain: str  # of JetStream; empty: none
    batch_load: Load  # of batches, on the whole server
    advisories: Advisories
    leader_name: str  # of the server, and so of the first peer of each stream

    @property
    def desk(self) -> AckDesk: ...

    @property
    def switch(self) -> Home: ...

    @property
    def now(self) -> int:
        """The time of what is being handled."""

    def token(self, size: int) -> str:
        """A name that nobody has."""

    def chance(self) -> float:
        """At least 0, less than 1."""

    def sample(self, percent: int) -> bool:
        """True in so many of a hundred cases."""

    def audience(self, subject: str) -> int:
        """How many subscriptions there are on a subject, each member of a queue group counted."""

    def add(self, pattern: str, target: Target) -> None:
        """Subscribe."""

    def discard(self, pattern: str, target: Target) -> None:
        """Unsubscribe."""

    def pass_on(self, to: str, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        """Give whoever listens on `to` a message that shows another subject; whether anybody got it."""

    def members(self, subject: str, queue: str) -> list[ClientSub]:
        """The clients that subscribed to exactly this subject, in that queue group or in none."""

    def attend(self, subject: str, interested: Interested, yes: bool) -> None:
        """Tell somebody whenever a subscription on exactly this subject comes or goes (or no more)."""

    def send(self, subject: str, header: bytes, payload: bytes) -> bool:
        """Publish from within the server; whether anybody got it."""

    def sole_client(self, subject: str, *, limited: bool = False) -> ClientSub | None:
        """The one client subscription on a subject, if it is the only subscriber and takes any number of messages
        (`limited`: or is to end after some; the caller sees to that)."""

    def push(self, sub: ClientSub, frames: bytes, count: int) -> None:
        """Queue `count` encoded messages for a subscription."""

    def end(self, sub: ClientSub) -> None:
        """End a subscription that has got all it wanted."""

    def listeners(self, subject: str) -> tuple[bool, bool]:
        """Whether anybody listens on a subject, and whether one of them does not keep up."""

    def bounded(self, storage: str) -> bool:
        """Whether the account has a limit on bytes of that storage."""

    def check_bytes(self, storage: str, size: int) -> None:
        """Raise an ApiError if the account has no room for a message of that size."""

    def start(self, job: Job) -> bool:
        """Take on a job; False when there are too many."""

    def wait(self, waiter: Waiter, count: int) -> bool:
        """Count `count` more (or fewer) waiting requests; False when there would be too many."""
