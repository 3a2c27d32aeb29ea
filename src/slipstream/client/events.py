"""The small values that pass between the protocol, the drivers and the user: notices, effects, figures, ports."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from slipstream.client.mailbox import Mailbox
from slipstream.errors import Error
from slipstream.wire import Msg


class ReplySink(Protocol):
    """Where the replies of one request go. Called from the reader's loop: both methods must be quick and not raise."""

    def deliver(self, msg: Msg) -> bool:
        """Take one reply; True when it was the last one, and the token is forgotten."""
        ...

    def fail(self, error: Error) -> None:
        """The connection is gone; no reply will come."""
        ...


class BulkSink(ReplySink, Protocol):
    """A sink that reads its replies out of the received bytes by itself, where there are many of them."""

    def attach(self, prefix: bytes) -> None:
        """Every reply is a frame that begins with `prefix`."""
        ...

    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        """Take the whole frames at `pos`; returns where they end and how many they were. What it leaves there, and
        only that, comes to `deliver`."""
        ...


class WindowSink(BulkSink, Protocol):
    """A sink for one answer each to many requests that go out in blocks. `token` is for `cancel`, once it is set."""

    token: str

    def sending(self, first: int, messages: Sequence[tuple[str, bytes, bytes]]) -> None:
        """These requests go out now, with the tokens from `first` on."""
        ...

    def awaits(self, token: int) -> bool:
        """Whether that one has no answer yet."""
        ...

    def asks(self, subject: str) -> bool:
        """Whether something that has no answer yet went to that subject."""
        ...


class EventKind(enum.StrEnum):
    """What can happen to a client beside the messages."""

    DISCONNECTED = "disconnected"
    RECONNECT_FAILED = "reconnect_failed"  # one try; the next follows
    RECONNECTED = "reconnected"
    DISCOVERED = "discovered"  # servers we had not heard of: `client.servers` has them
    LAME_DUCK = "lame_duck"  # the server will go soon and asks its clients to look for another
    SERVER_SHUTDOWN = "server_shutdown"  # it goes now
    ERROR = "error"
    CLOSED = "closed"


class ClientEvent(NamedTuple):
    """One thing that happened, for `on_event`. `server` is the address without credentials."""

    kind: EventKind
    server: str = ""
    error: Exception | None = None


EventHandler = Callable[[ClientEvent], None]


class Stats(NamedTuple):
    """Figures since the client was made. Messages as the user counts them, bytes as they went over the wire."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    reconnects: int


class Ready(NamedTuple):
    """The handshake is done: the connection can be used."""


class StartTls(NamedTuple):
    """The server greeted and waits for TLS: secure the transport, then call `opened` again."""


class Drop(NamedTuple):
    """Cut the transport now; then tell the protocol with `lost(error)`."""

    error: Error


class Ended(NamedTuple):
    """The client is closed for good; `error` says why."""

    error: Error


class Report(NamedTuple):
    """Tell the user."""

    event: ClientEvent


Effect = Ready | StartTls | Drop | Ended | Report


class Pong:
    """The answer to one PING that somebody waits for; when it is here, the subscriptions in `draining` have all."""

    __slots__ = ("draining", "is_here")

    def __init__(self, draining: Sequence[Mailbox] = ()) -> None:
        self.is_here = False
        self.draining = draining
