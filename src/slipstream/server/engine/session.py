"""One client connection: greeted with INFO, introduced by CONNECT, served, closed; its subscriptions and its output.

Invariants: `state` changes only in `_become`, along `_NEXT`; nothing is added to the output of a closed session but
what tells it why; a session that does not read is cut off before its output grows past the bound.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from slipstream.errors import UsageError
from slipstream.server.engine.timers import Timer
from slipstream.wire import ConnectOptions, err

if TYPE_CHECKING:
    from slipstream.server.engine.auth import Member
    from slipstream.server.engine.permissions import Grant
    from slipstream.server.engine.switch import Switch


class State(enum.Enum):
    """Where a connection is in its life."""

    GREETED = "greeted"
    READY = "ready"
    CLOSED = "closed"


_NEXT: dict[State, frozenset[State]] = {
    State.GREETED: frozenset((State.READY, State.CLOSED)),
    State.READY: frozenset((State.READY, State.CLOSED)),  # a client may send CONNECT again
    State.CLOSED: frozenset(),
}


class Session:
    """What the engine knows of one client. `out` is taken by the driver once per turn; the session is dirty while it is
    not empty."""

    __slots__ = (
        "cid",
        "client_ip",
        "closed",
        "congested",
        "echo",
        "grant",
        "headers",
        "member",
        "name",
        "no_responders",
        "nonce",
        "out",
        "pedantic",
        "pings_out",
        "protocol",
        "room",
        "state",
        "subs",
        "switch",
        "timer",
        "verbose",
    )

    def __init__(self, cid: int, room: int, switch: Switch) -> None:
        self.cid = cid
        self.switch = switch  # its account's; the default account's until it was let in
        self.state = State.GREETED
        self.closed = False
        # What nats-server assumes of a client that has not introduced itself.
        self.verbose = self.pedantic = self.echo = True
        self.headers = self.no_responders = False
        self.subs: dict[bytes, ClientSub] = {}
        self.out: list[bytes] = []
        self.room = room  # bytes that may still be queued before it counts as a slow consumer
        self.congested = False  # the driver's own buffer is full: batch jobs wait
        self.pings_out = 0
        self.timer: Timer | None = None
        self.client_ip = ""
        self.name = ""  # what it calls itself
        self.protocol = 0  # 1: it understands INFO at any time
        self.nonce = ""  # what it was given to sign
        self.member: Member | None = None  # who it is, once it was let in
        self.grant: Grant | None = None  # None: it may do everything

    def introduce(self, options: ConnectOptions) -> None:
        """The client was let in."""
        self._become(State.READY)
        self.verbose, self.pedantic, self.echo = options.verbose, options.pedantic, options.echo
        self.headers = options.headers
        self.name = options.name
        self.protocol = options.protocol
        self.no_responders = options.no_responders and options.headers

    def close(self, text: str = "") -> None:
        """No more for this client; `text` tells it why."""
        if self.state is State.CLOSED:
            return
        self._become(State.CLOSED)
        self.closed = True
        if text:
            self.out.append(err(text))
        if self.timer is not None:
            self.timer.cancel()

    def _become(self, state: State) -> None:
        if state not in _NEXT[self.state]:
            raise UsageError(f"a session that is {self.state.value} cannot become {state.value}")
        self.state = state


class ClientSub:
    """A client's subscription, as the router holds it."""

    __slots__ = ("delivered", "max_msgs", "queue", "session", "sid", "subject")

    def __init__(self, session: Session, subject: str, queue: str, sid: bytes) -> None:
        self.session = session
        self.subject = subject
        self.queue = queue
        self.sid = sid
        self.delivered = 0
        self.max_msgs = 0  # 0: no end
