"""Values that pass between the session, its drivers and the user: reply sinks, events, effects and statistics."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from slipstream.client.address import Address
from slipstream.client.mailbox import Mailbox
from slipstream.errors import Error
from slipstream.wire import Msg


class ReplySink(Protocol):
    """Where the replies of one request go. Called while the socket is read: methods must be quick and not raise."""

    def deliver(self, msg: Msg) -> bool:
        """Take one reply; True when it was the last one, and the token is forgotten."""
        ...

    def fail(self, error: Error) -> None:
        """The connection is gone; no reply will come."""
        ...


class AwaitedSink(ReplySink, Protocol):
    """A sink that a call waits for, at no cost for other calls: it calls `notify` when it becomes ready."""

    notify: Callable[[], object] | None

    def is_ready(self) -> bool:
        """Whether there is a reply, or an error."""
        ...


class BulkSink(ReplySink, Protocol):
    """A sink that reads many replies from the received bytes itself; see `raw_scanner`."""

    def attach(self, prefix: bytes) -> None:
        """Every reply is a frame that begins with `prefix`."""
        ...

    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        """Take the whole frames at `pos`; returns where they end and how many they were. What it leaves there, and
        only that, is delivered by `deliver`."""
        ...


class WindowSink(BulkSink, Protocol):
    """A sink for one answer each to many requests, whose tokens are numbers. Its own `token` is for `cancel`, once it
    is set."""

    token: str

    def awaits(self, token: int) -> bool:
        """Whether the request with that token has no answer yet."""
        ...

    def deny(self, error: Error, subject: str) -> bool:
        """The server rejects requests to that subject: fail those that have no answer yet, or return True for all."""
        ...


E = TypeVar("E", contravariant=True)


class SingleWindowSink(WindowSink, Protocol[E]):
    """A sink for one answer each to many requests that go out one by one."""

    def register(self, token: int, entry: E) -> None:
        """This request is sent now, with that token."""
        ...


class BlockWindowSink(WindowSink, Protocol):
    """The same for requests that go out in blocks."""

    def sending(self, first: int, messages: Sequence[tuple[str, bytes, bytes]]) -> None:
        """These requests are sent now, with the tokens from `first` on."""
        ...


class EventKind(enum.StrEnum):
    """Events of a client other than messages."""

    CONNECT_FAILED = "connect_failed"  # one attempt at the first connection; the next follows (`wait_for_server`)
    DISCONNECTED = "disconnected"
    RECONNECT_FAILED = "reconnect_failed"  # one attempt; the next follows
    RECONNECTED = "reconnected"
    DISCOVERED = "discovered"  # INFO listed new servers: `client.servers` has them
    LAME_DUCK = "lame_duck"  # the server will shut down soon and asks its clients to move to another
    SERVER_SHUTDOWN = "server_shutdown"  # the server shuts down now
    ERROR = "error"
    CLOSED = "closed"


class ClientEvent(NamedTuple):
    """One thing that happened, for `on_event`. `server` is the address without credentials.

    `detail` says more in words: which server it is that the client is connected to again.
    """

    kind: EventKind
    server: str = ""
    error: Exception | None = None
    detail: str = ""


EventHandler = Callable[[ClientEvent], None]


class Stats(NamedTuple):
    """Statistics since the client was made. Messages as the user counts them, bytes as they went over the wire."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    reconnects: int


class Ready(NamedTuple):
    """The handshake is done: the connection can be used."""


class StartTls(NamedTuple):
    """The server sent INFO and waits for TLS: secure the transport, then call `opened` again."""


class Drop(NamedTuple):
    """Abort the transport now; then call `lost(error)`."""

    error: Error


class Ended(NamedTuple):
    """The client is closed for good; `error` says why."""

    error: Error


class Report(NamedTuple):
    """Tell the user."""

    event: ClientEvent


class SendNow(NamedTuple):
    """The server waits for what was sent just now: write it before the readers of what arrived get their turn."""


class Connected(NamedTuple):
    """Log the first connection. It is no event for the user: `connect` returns."""

    server: str
    detail: str


Effect = Ready | StartTls | Drop | Ended | Report | SendNow | Connected


class Effects:
    """What a session wants its driver to do, in order, until the driver takes it; and the last error reported.

    One object is shared by the parts of a session: each of them may have something to report.
    """

    __slots__ = ("last_error", "pending", "server")

    def __init__(self, server: Address) -> None:
        self.pending: list[Effect] = []
        self.last_error: Exception | None = None  # as `on_event` got it
        self.server: Address = server  # of the events that are reported

    def add(self, effect: Effect) -> None:
        """Append an effect."""
        self.pending.append(effect)

    def report(self, kind: EventKind, error: Exception | None, detail: str = "") -> None:
        """Append an event for the user."""
        if error is not None:
            self.last_error = error
        self.pending.append(Report(ClientEvent(kind, str(self.server), error, detail)))

    def take(self) -> list[Effect]:
        """Everything so far."""
        effects, self.pending = self.pending, []
        return effects


class PendingPing:
    """A PING whose PONG is awaited. When it is answered, the subscriptions in `draining` have all their messages.

    `sent_at` is a time before it was sent, and `marked_at` the same by the clock of the driver, where they are of use.
    """

    __slots__ = ("draining", "is_answered", "marked_at", "sent_at")

    def __init__(self, draining: Sequence[Mailbox] = (), *, sent_at: float = -math.inf) -> None:
        self.is_answered: bool = False
        self.draining: Sequence[Mailbox] = draining
        self.sent_at: float = sent_at
        self.marked_at: float | None = None
