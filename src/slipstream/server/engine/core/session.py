"""One client connection: greeted with INFO, introduced by CONNECT, served, closed; its subscriptions and its output.

Invariants: `state` changes only in `_become`, along `_NEXT`; nothing is added to the output of a closed session but
what tells it why; a session that does not read is cut off before its output grows past the bound.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from slipstream.errors import UsageError
from slipstream.server.engine.timers import Timer
from slipstream.wire import ConnectOptions, Event, err

if TYPE_CHECKING:
    from slipstream.server.engine.auth.authenticator import Certificate, Identity
    from slipstream.server.engine.auth.permissions import Grant
    from slipstream.server.engine.core.routing import AccountRouter


class SessionState(enum.Enum):
    """Where a connection is in its life."""

    GREETED = "greeted"
    READY = "ready"
    CLOSED = "closed"


_NEXT: dict[SessionState, frozenset[SessionState]] = {
    SessionState.GREETED: frozenset((SessionState.READY, SessionState.CLOSED)),
    SessionState.READY: frozenset((SessionState.READY, SessionState.CLOSED)),  # a client may send CONNECT again
    SessionState.CLOSED: frozenset(),
}


class Listener(NamedTuple):
    """A listener, as its clients see it in INFO."""

    host: str
    port: int
    connection_type: str = "STANDARD"
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    by_certificate: bool = False  # users are known by their certificates


class PeerAddress(NamedTuple):
    """Where a client comes from."""

    host: str
    port: int = 0


NO_DOOR, NOWHERE = Listener("", 0), PeerAddress("")


class Session:
    """What the engine knows of one client. `out` is taken by the driver once per turn; the session is dirty while it is
    not empty."""

    __slots__ = (
        "account", "active", "certificate", "cid", "closed", "congested", "door", "echo", "expiry", "grant", "headers",
        "held", "in_bytes", "in_msgs", "is_told", "lang", "max_payload", "max_subs", "member", "name", "no_responders",
        "nonce", "out", "out_bytes", "past_msgs", "pedantic", "peer", "pending", "pinged", "pings_out", "protocol",
        "reason", "room", "rtt", "started", "state", "stopped", "subs", "switch", "timer", "tls", "verbose", "version",
    )  # fmt: skip

    def __init__(
        self,
        cid: int,
        room: int,
        switch: AccountRouter,
        door: Listener = NO_DOOR,
        peer: PeerAddress = NOWHERE,
        now: int = 0,
    ) -> None:
        self.cid = cid
        self.door, self.peer = door, peer
        self.started = self.active = now
        self.stopped = 0
        self.switch = switch  # its account's; the default account's until it was let in
        self.state = SessionState.GREETED
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
        self.expiry: Timer | None = None  # when its credentials end
        self.protocol = 0  # 1: it understands INFO at any time
        self.nonce = ""  # what it was given to sign
        self.member: Identity | None = None  # who it is, once it was let in
        self.grant: Grant | None = None  # None: it may do everything
        self.account = ""
        self.max_payload = -1  # of its own, below the server's; -1 is none
        self.max_subs = -1
        self.certificate: Certificate | None = None
        self.tls = ("", "")  # version and cipher
        self.pending: tuple[ConnectOptions, Identity | None] | None = None  # its secret is being checked elsewhere
        self.held: list[Event] = []  # what it sent meanwhile
        self.is_told = False  # that it was let in, by INFO
        self.reason = ""  # why it was closed
        # Figures.
        self.name = self.lang = self.version = ""
        self.in_msgs = self.in_bytes = self.out_bytes = 0
        self.past_msgs = 0  # given to subscriptions that are gone
        self.pinged = self.rtt = 0  # ns

    def introduce(self, options: ConnectOptions) -> None:
        """The client was let in."""
        self._become(SessionState.READY)
        self.verbose, self.pedantic, self.echo = options.verbose, options.pedantic, options.echo
        self.headers = options.headers
        self.protocol = options.protocol
        self.name, self.lang, self.version = options.name, options.lang, options.version
        self.no_responders = options.no_responders and options.headers

    def close(self, text: str = "") -> None:
        """No more for this client; `text` tells it why."""
        if self.state is SessionState.CLOSED:
            return
        self._become(SessionState.CLOSED)
        self.closed = True
        self.reason = text
        self.held, self.pending = [], None
        if text:
            self.out.append(err(text))
        for timer in (self.timer, self.expiry):
            if timer is not None:
                timer.cancel()

    @property
    def is_free(self) -> bool:
        """Whether what it publishes needs no check of its own."""
        return self.grant is None and self.max_payload < 0

    @property
    def out_msgs(self) -> int:
        """Messages it was given."""
        return self.past_msgs + sum(sub.delivered for sub in self.subs.values())

    def _become(self, state: SessionState) -> None:
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
