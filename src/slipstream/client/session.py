"""The state machine of a client: core NATS without I/O.

Theory of operation. A driver (asyncio or blocking) owns the socket and the clock; a `Session` owns everything else and
lives as long as its client, over any number of connections. Its states, and the steps between them (`_TABLE`):

```text
         dial           opened           INFO              PONG
   IDLE ------> DIALING ------> GREETING ------> HANDSHAKE ------> CONNECTED
                   ^               |  TLS needed     ^                 |
                   |               +--> SECURING ----+                 |
              dial |                                                   | lost
                   +------------------ WAITING <-----------------------+   (from every state but IDLE, too)

   any state -- close, or an error that no retry can mend --> CLOSED
```

The driver calls `dial` and opens a transport to the server it names, reports `opened`, `received`, `lost` and (when
`timer` is due) `tick`, carries out the effects that each of them returns, and sends what `outgoing.take` returns. It
makes no decisions: whether to reconnect, where and when, is in the state and in `timer`.

The first connection is tried in rounds over all servers: one round, or with `wait_for_server` as many as fit into that
time. A round in which a server rejected our credentials or could not be trusted is the last one: waiting mends neither.

A connection is in use (`is_connected`) in CONNECTED alone. Outside of it publishes and requests are kept, in bounds,
and sent after the next handshake; subscriptions are sent to the next server. `epoch` counts the connections that were
lost while in use, for those who depend on one of them.

The parts of a session are whole objects of their own, which share `Effects`: `Outgoing` (frames to be sent),
`Requests` (tokens and reply sinks), `Subscriptions` (sids and mailboxes), `RawScanner` (readers of columns). `received`
is where messages are handed to them.

Invariants: `_move` alone changes the state, along `_TABLE`; a request is answered, failed or cancelled, never forgotten
by the connection that carried it; messages are delivered in the order they were received.
"""

from __future__ import annotations

import enum
import math
from collections import deque

from slipstream.client.address import Address, learned_addresses
from slipstream.client.auth import Login
from slipstream.client.backoff import Backoff
from slipstream.client.events import (
    Connected,
    Drop,
    Effect,
    Effects,
    Ended,
    EventKind,
    PendingPing,
    Ready,
    StartTls,
    Stats,
)
from slipstream.client.mailbox import Mailbox
from slipstream.client.options import ClientOptions, connect_options
from slipstream.client.outgoing import Outgoing
from slipstream.client.raw_scanner import RawScanner
from slipstream.client.requests import INBOX_SID, Requests
from slipstream.client.server_errors import parse_err
from slipstream.client.server_pool import ServerPool
from slipstream.client.subscriptions import Subscriptions
from slipstream.errors import (
    AuthorizationError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    RemoteProtocolError,
    RequestTimeoutError,
    TlsError,
    UsageError,
)
from slipstream.wire import (
    Err,
    Event,
    Inbox,
    Info,
    Msg,
    Parser,
    Ping,
    Pong,
    ServerInfo,
    Side,
    Violation,
    connect,
    ping,
    pong,
)

MOVE_TIMEOUT = 1.0  # seconds for each other server, when one was left because it is silent: the next may be frozen
ROUND_TRIP_GROWTH = 1.25  # from one PONG to the next, at most
MAX_INCOMING = 65 * 1024 * 1024  # nats-server allows max_payload up to 64 MiB; a JetStream reply adds headers to that


class State(enum.Enum):
    """Where the client stands."""

    IDLE = "no server was dialled yet"
    DIALING = "a transport is being opened"
    GREETING = "the server's INFO is awaited"
    SECURING = "TLS is being set up, as INFO asked for"
    HANDSHAKE = "CONNECT and PING are sent, the PONG is awaited"
    CONNECTED = "in use"
    WAITING = "the connection is lost, the next attempt is at `timer`"
    CLOSED = "for good"


class Step(enum.Enum):
    """What can happen to the state."""

    DIAL = "the driver opens a transport"
    OPENED = "the transport is open"
    INFO = "the server sent INFO"
    SECURE = "the server sent INFO and continues in TLS"
    PONG = "the server accepted us"
    LOST = "the transport is gone"
    CLOSE = "the user or the last error ended it"


_PERMANENT = (AuthorizationError, TlsError)  # the next attempt would end in the same way
_TRYING = (State.DIALING, State.GREETING, State.SECURING, State.HANDSHAKE)
_TABLE: dict[tuple[State, Step], State] = {
    (State.IDLE, Step.DIAL): State.DIALING,
    (State.WAITING, Step.DIAL): State.DIALING,
    (State.DIALING, Step.OPENED): State.GREETING,
    (State.GREETING, Step.INFO): State.HANDSHAKE,
    (State.GREETING, Step.SECURE): State.SECURING,
    (State.SECURING, Step.INFO): State.HANDSHAKE,
    (State.HANDSHAKE, Step.PONG): State.CONNECTED,
    **{(s, Step.LOST): State.WAITING for s in (*_TRYING, State.CONNECTED)},
    **{(s, Step.CLOSE): State.CLOSED for s in State if s is not State.CLOSED},
}


class Session:
    """The state of one client, over all its connections."""

    def __init__(self, options: ClientOptions, *, nonce: str) -> None:
        inbox, first = Inbox(nonce, prefix=options.inbox_prefix), options.addresses[0]
        self.options = options
        self.state: State = State.IDLE
        self.server: Address = first  # dialled or connected to
        self.info: ServerInfo = ServerInfo()  # the server's last one
        self.effects: Effects = Effects(first)
        self.outgoing: Outgoing = Outgoing(inbox, server=first, keep_bytes=options.reconnect_buffer_bytes)
        self._scanner = RawScanner()
        self.requests: Requests = Requests(self.outgoing, inbox, scanner=self._scanner, effects=self.effects)
        self.subscriptions: Subscriptions = Subscriptions(self.outgoing, scanner=self._scanner, effects=self.effects)
        self.login: Login = Login()  # the driver reads it again for each connection
        self.timer: float = math.inf  # when `tick` (or, while WAITING, `dial`) is due
        self.epoch: int = 0  # how many connections were lost while in use
        self.connected_at: float = 0.0  # when the last of them was accepted
        self._is_secure = False  # TLS is, or is about to be, around what we say
        self._was_open = False  # the state was CONNECTED once
        self._dialed_at = math.inf  # for the first time
        self._round: list[Error] = []  # before the first connection: how this round over all servers went so far
        self._pool = ServerPool(options.addresses)
        self._backoff = Backoff(options.waits.reconnect_wait, options.waits.reconnect_max_wait)
        self._is_moving = False  # the last connection was left for one to another server
        self.time_allowed: float = 0.0  # seconds, for the attempt under way
        self._failed = 0  # attempts since the last connection, its loss included,
        self._failures: deque[Error] = deque(maxlen=8)  # and how the last of them ended
        self._server_error: Error | None = None  # an -ERR: the reason, should the server close the connection next
        self._parser = _new_parser()
        self._inbox_cut = len(inbox.base)
        self._own_inboxes = Inbox(f"{nonce}u", prefix=options.inbox_prefix)  # not below the shared wildcard
        self._pings: deque[PendingPing | None] = deque()  # unanswered; None: a keep-alive
        self._silent_pings = 0  # keep-alives since the server was last heard
        self._marked_at = -math.inf  # when `mark` sent the last PING of this connection
        self.round_trip: float = 0.0  # seconds from a PING to its PONG, of late and at best; 0: not known
        self._in_msgs = self._in_bytes = self._reconnects = 0

    def _move(self, step: Step) -> None:
        """The only place where the state changes."""
        state = _TABLE.get((self.state, step))
        if state is None:
            raise UsageError(f"{step.name} is not possible in state {self.state.name}: {self.state.value}")
        self.state = state
        self.outgoing.is_open = state is State.CONNECTED

    # Connecting

    def dial(self, now: float) -> Address:
        """The server to open a transport to; it has until `timer`."""
        self._move(Step.DIAL)
        self._dialed_at = min(self._dialed_at, now)
        self.server = self.effects.server = self._pool.next(now)
        self._is_secure = self.server.scheme == "wss" or (self.options.tls_first and not self.server.is_websocket)
        # A frozen server accepts connections and says nothing: a read that moves has no time for that. When each other
        # one was tried, slow ones get all of theirs.
        is_quick = self._is_moving and self._failed < len(self._pool)
        self.time_allowed = min(self.options.waits.timeout, MOVE_TIMEOUT if is_quick else math.inf)
        self.timer = now + self.time_allowed
        return self.server

    @property
    def is_trying(self) -> bool:
        """Whether a server was dialled and has not accepted the connection yet."""
        return self.state in _TRYING

    def opened(self) -> list[Effect]:
        """The transport is open and the server speaks first; or it is secured, as INFO asked for."""
        self._parser = _new_parser()
        if self.state is State.SECURING:
            self._log_in()
        else:
            self._move(Step.OPENED)
        return self.effects.take()

    def lost(self, error: Error, *, now: float, random: float) -> list[Effect]:
        """The transport could not be opened, or is gone. The state says what comes next: WAITING or CLOSED."""
        was_open = self.outgoing.is_open
        self._move(Step.LOST)
        reason = self._server_error or error
        self._server_error = None
        self._scanner.detach()
        self.outgoing.drop()
        self._failed += 1
        self._failures.append(reason)
        if self._was_open and not was_open:
            self.effects.report(EventKind.RECONNECT_FAILED, reason)
        if was_open:
            self.epoch += 1
            self._fail_waiting(_lost_error(self.server, reason))
            self.subscriptions.wake_all()
            self.effects.report(EventKind.DISCONNECTED, reason)
        if isinstance(reason, AuthorizationError) and not was_open:  # accepted and expired later is not rejected
            self._pool.rejected(self.server)
        pause = self._retry_pause(now, random) if len(self._pool) else None
        if pause is None:
            self._end(self._final_error(now))
        else:
            self.timer = now + pause
        return self.effects.take()

    def _retry_pause(self, now: float, random: float) -> float | None:
        """Seconds until the next attempt; None for none."""
        if not self._was_open:
            return self._first_pause(now, random)
        limit = self.options.max_reconnects
        if not self.options.reconnect or (limit is not None and self._failed > limit):
            return None
        # The pause grows with each round over all servers: within a round the next server may be fine.
        return self._backoff.after((self._failed - 1) // len(self._pool), random)

    def _first_pause(self, now: float, random: float) -> float | None:
        """The same for the first connection: no pause within a round, no round after the time is up."""
        last, left = self._failures[-1], self._dialed_at + self.options.first_wait - now
        self._round.append(last)
        is_over = len(self._round) >= len(self._pool)
        if isinstance(last, UsageError):  # a mistake of the caller's fails on every server
            return None
        if is_over and (left <= 0 or any(isinstance(error, _PERMANENT) for error in self._round)):
            return None
        if self.options.first_wait:
            self.effects.report(EventKind.CONNECT_FAILED, last)
        if not is_over:
            return 0.0
        self._round.clear()
        return min(left, self._backoff.after(max(0, self._failed // len(self._pool) - 1), random))

    def _final_error(self, now: float) -> Error:
        last = self._failures[-1]
        if not self._was_open and self.options.first_wait:
            last = next((error for error in self._round if isinstance(error, _PERMANENT)), last)
            return last if isinstance(last, (UsageError, *_PERMANENT)) else self._waited_error(last, now)
        if isinstance(last, AuthorizationError | UsageError) or (self._failed == 1 and not self._was_open):
            return last
        if self._failed == 1:
            return _lost_error(self.server, last)
        seen = "; ".join(dict.fromkeys(str(failure) for failure in self._failures))
        error = ConnectionLostError(f"no server could be reached in {self._failed} attempts: {seen}")
        error.__cause__ = last
        return error

    def _waited_error(self, last: Error, now: float) -> Error:
        servers = ", ".join(str(server) for server in self._pool.servers)
        error = ConnectionLostError(
            f"no server could be reached within {now - self._dialed_at:.1f} s, in {self._failed} attempts, at "
            f"{servers}; the last error was: {last}"
        )
        error.__cause__ = last
        return error

    def _end(self, error: Error) -> None:
        self._move(Step.CLOSE)
        self.outgoing.close(error)
        self.outgoing.drop()
        self.outgoing.drop_kept()
        self.timer = math.inf
        self._fail_waiting(error)
        self.subscriptions.close(error, is_ordered=False)
        self.effects.add(Ended(error))
        self.effects.report(EventKind.CLOSED, error)

    def close(self) -> list[Effect]:
        """The user closes the client. What is in `outgoing` may still be sent; what mailboxes hold can be taken."""
        if self.state is State.CLOSED:
            return []
        self._move(Step.CLOSE)
        error = ConnectionClosedError("the client was closed")
        self.outgoing.close(error)
        self.timer = math.inf
        self._fail_waiting(error)
        self.subscriptions.close(error, is_ordered=True)
        self.effects.report(EventKind.CLOSED, None)
        return self.effects.take()

    def leave(self, reason: Error, now: float) -> list[Effect]:
        """Drop this connection for one to another server, if another is known; this one is avoided for a while."""
        if self.outgoing.is_open and self.options.reconnect and len(self._pool) > 1:
            self._pool.leave(self.server, now)
            self._is_moving = True
            self.effects.add(Drop(reason))
        return self.effects.take()

    def _fail_waiting(self, error: Error) -> None:
        """Requests and flushes get no answer any more."""
        pings, self._pings = self._pings, deque()
        for pending in pings:
            if pending is not None:
                self.subscriptions.end(pending.draining)  # what the server still had for them is lost with it
        self.requests.fail_all(error)

    # Time

    def tick(self, now: float) -> list[Effect]:
        """`timer` has passed: a PING is due, or the server was silent for too long."""
        if now < self.timer:
            return []
        if self.outgoing.is_open:
            self._keep_alive(now)
        elif self.is_trying:
            self.timer = math.inf
            names = {State.DIALING: "connection", State.GREETING: "INFO", State.SECURING: "end of the TLS handshake"}
            awaited = names.get(self.state, "PONG")
            self.effects.add(Drop(RequestTimeoutError(f"{self.server}: no {awaited} within {self.time_allowed:g} s")))
        return self.effects.take()

    def _keep_alive(self, now: float) -> None:
        if self._silent_pings >= self.options.max_pings_out:
            self.timer = math.inf
            count, interval = self._silent_pings, self.options.waits.ping_interval
            stale = f"{self.server} is silent, {count} PINGs {interval:g} s apart were not answered"
            self.effects.add(Drop(ConnectionLostError(stale)))
            return
        self.timer = now + self.options.waits.ping_interval
        self._silent_pings += 1
        self._pings.append(None)
        self.outgoing.send(ping())

    # Received bytes

    def received(self, data: bytes, now: float) -> list[Effect]:
        """Handle a chunk: messages go to their sinks and mailboxes, the rest becomes effects and outgoing frames."""
        self.subscriptions.now = now
        events = self._parser.feed(data)
        self._silent_pings = 0
        self._server_error = None  # the server went on after it
        self._in_bytes += len(data)
        if not self.outgoing.is_open:
            events = self._shake_hands(events, now)
        self._in_msgs += len(events)
        requests = self.requests
        sinks, cut = requests.sinks, self._inbox_cut
        # Messages in a row for one subscription are delivered together: one check of bounds, one wake-up.
        runs: list[tuple[bytes, list[Msg]]] = []
        run_sid = b""
        run: list[Msg] = []
        for event in events:
            if type(event) is not Msg:
                self._in_msgs -= 1
                if runs:  # a PONG may end subscriptions, which must have what came before it
                    self.subscriptions.deliver(runs)
                    runs, run_sid = [], b""
                self._control(event, now)
                sinks = requests.sinks  # another dict, if an error failed all requests
                continue
            sid = event.sid
            if sid == run_sid:
                run.append(event)
                continue
            if sid == INBOX_SID:
                token = event.subject[cut:]
                entry = sinks.get(token)
                if entry is not None:
                    try:
                        if entry[0].deliver(event):
                            requests.cancel(token)
                    except Exception as exc:  # code that is not ours: the connection must not break
                        requests.sink_failed(token, exc)
                elif requests.windows:
                    requests.deliver_to_window(token, event)
                continue
            run_sid, run = sid, [event]
            runs.append((sid, run))
        if runs:
            self.subscriptions.deliver(runs)
        return self.effects.take() if self.effects.pending else []

    def _shake_hands(self, events: list[Event], now: float) -> list[Event]:
        """Handle events before the server accepted the connection; returns those after it.

        Until then the server has no message to deliver. Nor may anything follow an INFO that asks for TLS: an attacker
        on the way could have injected it, to be believed once the connection is secure.
        """
        for index, event in enumerate(events):
            if self.outgoing.is_open:
                return events[index:]
            if event.__class__ is Msg or self.state is State.SECURING:
                self._break(f"{event.__class__.__name__} before the handshake was done")
                return []
            self._control(event, now)
            if self.effects.pending and isinstance(self.effects.pending[-1], Drop):
                return []  # one reason is enough
        if self.state is State.SECURING and self._parser.buffered:
            self._break("more than INFO before TLS")
        return []

    def _break(self, reason: str) -> None:
        self.effects.pending = [Drop(RemoteProtocolError(f"{self.server} broke the protocol: {reason}"))]

    def _control(self, event: Event, now: float) -> None:
        if isinstance(event, Ping):
            self.outgoing.send(pong())
        elif isinstance(event, Pong):
            self._ponged(now)
        elif isinstance(event, Info):
            self._informed(event.info)
        elif isinstance(event, Err):
            self._rejected(event.text)
        elif isinstance(event, Violation):
            self.effects.add(Drop(RemoteProtocolError(f"{self.server} broke the protocol: {event.reason}")))
        # +OK means nothing; the operations of clients are violations when a server sends them.

    def _informed(self, info: ServerInfo) -> None:
        self.info, was_lame = info, self.info.ldm
        self.outgoing.server_is(self.server, info)
        learned = learned_addresses(info, like=self.server)
        if learned and self._pool.learn(learned) and self._was_open:
            self.effects.report(EventKind.DISCOVERED, None)
        if self.state is State.GREETING:
            self._greeted(info)
        elif info.ldm and not was_lame:
            self.effects.report(EventKind.LAME_DUCK, None)

    def _greeted(self, info: ServerInfo) -> None:
        is_wanted = self.options.tls_required or self.server.scheme == "tls"
        if self._is_secure or self.server.is_websocket:
            self._log_in()
        elif info.tls_required or (is_wanted and info.tls_available):
            self._move(Step.SECURE)
            self._is_secure = True
            self.effects.add(StartTls())
        elif is_wanted:
            self.effects.add(Drop(TlsError(f"{self.server} does not offer TLS, which is required")))
        else:
            self._log_in()

    def _log_in(self) -> None:
        try:
            frame = connect(
                connect_options(self.options, self.server, self.info, self.login, is_secure=self._is_secure)
            )
        except ConnectionLostError as exc:
            self.effects.add(Drop(exc))
            return
        self._move(Step.INFO)
        self.outgoing.send(frame)
        self.outgoing.send(ping())

    def _ponged(self, now: float) -> None:
        if self.state is State.HANDSHAKE:
            self._move(Step.PONG)
            self._resume(now)
        elif self._pings:
            pending = self._pings.popleft()
            if pending is not None:
                pending.is_answered = True
                self.subscriptions.sent_after = max(self.subscriptions.sent_after, pending.sent_at)
                if pending.marked_at is not None:
                    self._measured(max(now - pending.marked_at, 0.0))
                self.subscriptions.end(pending.draining)

    def _measured(self, seconds: float) -> None:
        """A round trip took so long. Longer is believed bit by bit: a PONG waits behind data, or for the program."""
        self.round_trip = min(seconds, self.round_trip * ROUND_TRIP_GROWTH) if self.round_trip else seconds

    def _resume(self, now: float) -> None:
        """The server accepted the connection: subscribe again, then send what was kept."""
        self.connected_at = now
        self.timer = now + self.options.waits.ping_interval
        self._silent_pings = 0
        self._marked_at = -math.inf
        self.round_trip = 0.0
        self._failed = 0
        self._is_moving = False
        self._failures.clear()
        self._pool.accepted(self.server)
        self._scanner.attach(self._parser)
        self.requests.resubscribe()
        self.subscriptions.resubscribe()
        self.effects.add(Ready())
        info = self.info
        offers = "with JetStream" if info.jetstream else "without JetStream"
        detail = f"server {info.server_name or info.server_id!r}, version {info.version or 'unknown'}, {offers}"
        if self._was_open:
            self._reconnects += 1
            self.effects.report(EventKind.RECONNECTED, None, detail)
        else:
            self.effects.add(Connected(str(self.server), detail))
        self._was_open = True
        if rejected := self.outgoing.send_kept():
            limit = self.outgoing.max_payload
            lost = (
                f"{rejected} message(s) kept for the next connection are larger than its max_payload of {limit} bytes"
            )
            self.effects.report(EventKind.ERROR, UsageError(lost))

    def _rejected(self, text: str) -> None:
        """The server sent -ERR."""
        reply = parse_err(text)
        error = reply.error
        if not self.outgoing.is_open:
            self.effects.add(Drop(error))
            return
        if reply.is_final:
            self._server_error = error
        elif reply.denied_publish:
            self.requests.deny(error, reply.denied_publish)
        elif reply.denied_subscription:
            self.requests.deny_inbox(error, reply.denied_subscription)
            self.subscriptions.deny(error, reply.denied_subscription, reply.queue)
        self.effects.report(EventKind.SERVER_SHUTDOWN if reply.is_shutdown else EventKind.ERROR, error)

    # Flush and drain

    def mark(self, now: float, *, interval: float, at: float | None = None) -> None:
        """Send a PING, unless one was sent less than `interval` seconds ago: its PONG moves `Subscriptions.sent_after`.

        A server answers in the order of its deliveries, so what is received behind the PONG was sent after the PING.
        That holds however much is on its way, and however late it is read. `now` is by the clock `uptime`; `at` is the
        same time by the clock of `received`, where that is another one.
        """
        if self.outgoing.is_open and now - self._marked_at >= interval:
            self._marked_at = now
            self.ping(sent_at=now).marked_at = now if at is None else at

    def ping(self, *, sent_at: float = -math.inf) -> PendingPing:
        """Send a PING; its PONG shows that the server has processed everything sent so far."""
        pending = PendingPing(sent_at=sent_at)
        self.outgoing.send_or_keep(ping())
        self._pings.append(pending)
        return pending

    def drain(self, box: Mailbox | None = None) -> PendingPing:
        """End one subscription, or all, after every message that the server sends before it answers."""
        self.outgoing.check()
        self.subscriptions.is_draining = self.subscriptions.is_draining or box is None
        boxes = self.subscriptions.stop(box)
        if self.outgoing.is_open:
            pending = self.ping()
            pending.draining = boxes
        else:  # whatever would have arrived was for the connection that is lost
            pending = PendingPing(boxes)
            pending.is_answered = True
            self.subscriptions.end(boxes)
        return pending

    def new_inbox(self) -> str:
        """A unique subject."""
        return self._own_inboxes.next()

    # What can be known

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection in use."""
        return self.outgoing.is_open

    @property
    def error(self) -> Error | None:
        """Why the client is closed; None while it is not."""
        return self.outgoing.error

    @property
    def servers(self) -> tuple[Address, ...]:
        """Every server that may be tried, including those learned from INFO."""
        return tuple(self._pool.servers)

    @property
    def stats(self) -> Stats:
        """Messages and bytes so far."""
        out = self.outgoing
        in_msgs = self._in_msgs + self._scanner.msgs
        return Stats(in_msgs, self._in_bytes, out.sent_msgs, out.sent_bytes, self._reconnects)


def _new_parser() -> Parser:
    return Parser(Side.SERVER, max_payload=MAX_INCOMING)


def _lost_error(server: Address, reason: Error) -> ConnectionLostError:
    error = ConnectionLostError(f"the connection to {server} was lost: {reason}")
    error.__cause__ = reason
    return error
