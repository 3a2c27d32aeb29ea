"""One client connection as the engine knows it: state, subscriptions, output that waits for the driver.

Invariants: `state` changes only in `_become`, along `_NEXT`; a closed session gets no more output except the error that
says why; a session whose client does not read is closed before its output exceeds `max_pending` (slow consumer).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from slipstream.errors import UsageError
from slipstream.server.engine.auth.authenticator import Certificate, Identity
from slipstream.server.engine.auth.permissions import Grant
from slipstream.server.engine.timers import Timer
from slipstream.wire import ConnectOptions, Event, err

TRANCHE = 32 * 1024  # bytes of output between two looks at what all sessions have queued


class SessionState(enum.Enum):
    """The lifecycle of a connection."""

    GREETED = "greeted"
    READY = "ready"
    CLOSED = "closed"


_NEXT: dict[SessionState, frozenset[SessionState]] = {
    SessionState.GREETED: frozenset((SessionState.READY, SessionState.CLOSED)),
    SessionState.READY: frozenset((SessionState.READY, SessionState.CLOSED)),  # a client may send CONNECT again
    SessionState.CLOSED: frozenset(),
}


class Listener(NamedTuple):
    """A listening address, as its clients see it in INFO."""

    host: str
    port: int
    connection_type: str = "STANDARD"
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    by_certificate: bool = False  # users are identified by their certificates


class PeerAddress(NamedTuple):
    """The client's end of the connection."""

    host: str
    port: int = 0


NO_LISTENER, NO_ADDRESS = Listener("", 0), PeerAddress("")


class Session:
    """One client connection. The driver takes `out` once per turn; the session is dirty while `out` is not empty."""

    __slots__ = (
        "account", "active", "by_default", "certificate", "cid", "closed", "congested", "echo", "expiry", "grant",
        "headers", "held", "held_back", "identity", "in_bytes", "in_msgs", "info_sent", "lang", "listener",
        "max_payload", "max_subs", "name", "no_responders", "nonce", "out", "out_bytes", "out_capacity", "out_reserve",
        "past_msgs", "pedantic", "peer", "pending", "pinged", "pings_out", "protocol", "reason", "rtt", "searches",
        "started", "state", "stopped", "subs", "timer", "tls", "user", "verbose", "version",
    )  # fmt: skip

    def __init__(
        self,
        cid: int,
        out_capacity: int,
        listener: Listener = NO_LISTENER,
        peer: PeerAddress = NO_ADDRESS,
        now: int = 0,
    ) -> None:
        self.cid: int = cid
        self.listener: Listener = listener
        self.peer: PeerAddress = peer
        self.started: int = now
        self.active: int = now
        self.stopped: int = 0
        self.state: SessionState = SessionState.GREETED
        self.closed: bool = False
        # What nats-server assumes of a client before its CONNECT.
        self.verbose: bool = True
        self.pedantic: bool = True
        self.echo: bool = True
        self.headers: bool = False
        self.no_responders: bool = False
        self.subs: dict[bytes, ClientSub] = {}
        self.out: list[bytes] = []
        # Bytes that may still be queued before it counts as a slow consumer: of the open tranche, and beyond it.
        self.out_capacity: int = 0
        self.out_reserve: int = 0
        self.set_capacity(out_capacity)
        self.congested: bool = False  # the driver's own buffer is full: batch jobs wait
        self.pings_out: int = 0
        self.timer: Timer | None = None
        self.expiry: Timer | None = None  # when its credentials expire
        self.protocol: int = 0  # 1: it accepts INFO at any time
        self.nonce: str = ""  # what it was asked to sign
        self.identity: Identity | None = None  # once it is authenticated
        self.grant: Grant | None = None  # None: everything is permitted
        self.account: str = ""  # empty until it is authenticated: it then uses the default account's router
        self.max_payload: int = -1  # of its own, below the server's; -1 is none
        self.max_subs: int = -1
        self.certificate: Certificate | None = None
        self.tls: tuple[str, str] = ("", "")  # version and cipher
        self.pending: tuple[ConnectOptions, Identity | None] | None = None  # its secret is being checked elsewhere
        self.held: list[Event] = []  # what it sent in the meantime
        self.held_back: bool = False  # what it sends waits for its turn, in `held`: see `engine.jobs`
        self.searches: int = 0  # of its requests, those that are on their way and that its input waits for
        self.info_sent: bool = False  # the INFO that names its account
        self.reason: str = ""  # why it was closed
        # Statistics.
        self.name: str = ""
        self.lang: str = ""
        self.version: str = ""
        self.by_default: bool = False  # it showed no credentials, and is the configured default user
        self.user: str = ""  # the name that it authenticated with, or tried to; a token is not shown
        self.in_msgs: int = 0
        self.in_bytes: int = 0
        self.out_bytes: int = 0
        self.past_msgs: int = 0  # delivered to subscriptions that have ended
        self.pinged: int = 0  # ns
        self.rtt: int = 0  # ns

    def describe(self, options: ConnectOptions) -> None:
        """Keep what the client says about itself, for monitoring, whether or not it is accepted."""
        self.name, self.lang, self.version = options.name, options.lang, options.version
        self.user = options.nkey or options.user or ("[REDACTED]" if options.auth_token else "")

    def introduce(self, options: ConnectOptions) -> None:
        """The client's CONNECT was accepted."""
        self._become(SessionState.READY)
        self.verbose, self.pedantic, self.echo = options.verbose, options.pedantic, options.echo
        self.headers = options.headers
        self.protocol = options.protocol
        self.no_responders = options.no_responders and options.headers

    def close(self, text: str = "") -> None:
        """End the session; `text` is sent as its last `-ERR`."""
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

    def set_capacity(self, size: int) -> None:
        """Some bytes may be queued from now on."""
        self.out_capacity = min(size, TRANCHE)
        self.out_reserve = size - self.out_capacity

    def next_tranche(self) -> int:
        """The open tranche is used up, and perhaps more: open the next one. Returns the bytes that were used, or 0 if
        there is no capacity left for them."""
        beyond = -self.out_capacity
        if beyond > self.out_reserve:
            return 0
        self.set_capacity(self.out_reserve - beyond)
        return TRANCHE + beyond

    @property
    def capacity(self) -> int:
        """Bytes that may still be queued."""
        return self.out_capacity + self.out_reserve

    @property
    def is_unrestricted(self) -> bool:
        """Whether its publishes need no check of permissions or size."""
        return self.grant is None and self.max_payload < 0

    @property
    def out_msgs(self) -> int:
        """Messages delivered to it."""
        return self.past_msgs + sum(sub.delivered for sub in self.subs.values())

    def _become(self, state: SessionState) -> None:
        if state not in _NEXT[self.state]:
            raise UsageError(f"a session that is {self.state.value} cannot become {state.value}")
        self.state = state


class ClientSub:
    """A client's subscription, as the router holds it."""

    __slots__ = ("delivered", "max_msgs", "queue", "session", "sid", "subject")

    def __init__(self, session: Session, subject: str, queue: str, sid: bytes) -> None:
        self.session: Session = session
        self.subject: str = subject
        self.queue: str = queue
        self.sid: bytes = sid
        self.delivered: int = 0
        self.max_msgs: int = 0  # 0: no limit


class GuardedSub(ClientSub):
    """A subscription whose every message is checked: it could match a denied subject, or its messages may be answered.
    Others cost nothing more than without permissions."""

    __slots__ = ("grant",)

    def __init__(self, session: Session, subject: str, queue: str, sid: bytes, grant: Grant) -> None:
        super().__init__(session, subject, queue, sid)
        self.grant: Grant = grant

    def admits(self, subject: str) -> bool:
        return not self.grant.rules.denies(subject, self.queue)


def subscription(session: Session, subject: str, queue: str, sid: bytes) -> ClientSub:
    """A subscription of a client that may make it, guarded where that is necessary."""
    grant = session.grant
    if grant is not None and grant.needs_guard(subject, queue):
        return GuardedSub(session, subject, queue, sid, grant)
    return ClientSub(session, subject, queue, sid)
