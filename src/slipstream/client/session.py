"""Bytes of a server, orders of the user and the time become frames to send, deliveries and effects: core NATS, no I/O.

Invariants: `_move` alone changes the state, along `_TABLE`; a request is answered, failed or cancelled, never forgotten
by the connection that carried it; what the server knows of us (subscriptions) can be told again to the next one.

A driver dials the server that `dial` names, reports `opened`, `received`, `lost` and (at `timer`) `tick`, carries out
the effects it gets back, and sends what `take` returns. One `Session` lives as long as its client.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from functools import partial

from slipstream.client.auth import Login
from slipstream.client.backoff import Backoff
from slipstream.client.events import (
    Drop,
    Effect,
    Ended,
    EventKind,
    Pong,
    Ready,
    ReplySink,
    StartTls,
    Stats,
)
from slipstream.client.mailbox import Mailbox
from slipstream.client.options import Address, Options, connect_options, learned_addresses
from slipstream.client.outgoing import Kept, check_names
from slipstream.client.raw_columns import Packed, Packer
from slipstream.client.requests import INBOX_SID, Requests, new_parser
from slipstream.client.server_errors import read_complaint
from slipstream.client.server_pool import ServerPool
from slipstream.errors import (
    AuthorizationError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    RemoteProtocolError,
    RequestTimeoutError,
    SlowConsumerError,
    TlsError,
    UsageError,
)
from slipstream.wire import (
    Err,
    Event,
    Inbox,
    Info,
    Msg,
    Ping,
    ServerInfo,
    Violation,
    check_filter,
    check_subject,
    connect,
    ping,
    pong,
    sub,
    unsub,
)
from slipstream.wire import (
    Pong as PongEvent,
)

__all__ = ["ReplySink", "Session", "State", "Step"]


class State(enum.Enum):
    """Where the client stands."""

    IDLE = "no server was tried yet"
    DIALING = "a transport is being opened"
    GREETING = "the server's INFO is awaited"
    SECURING = "TLS is being set up, as INFO asked for"
    HANDSHAKE = "CONNECT and PING are sent, the PONG is awaited"
    CONNECTED = "in use"
    WAITING = "the connection is lost, the next try comes at `timer`"
    CLOSED = "for good"


class Step(enum.Enum):
    """What can happen to the state."""

    DIAL = "the driver opens a transport"
    OPENED = "the transport is open"
    INFO = "the server greeted"
    SECURE = "the server greeted, and goes on in TLS"
    PONG = "the server accepted us"
    LOST = "the transport is gone"
    CLOSE = "the user or the last error ended it"


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


class Session(Requests):
    """The state of one client."""

    def __init__(self, options: Options, *, nonce: str) -> None:
        super().__init__(options, Inbox(nonce, prefix=options.inbox_prefix))
        self.state = State.IDLE
        self.login = Login()  # the driver reads it anew for each connection
        self.is_draining = False  # no new subscriptions
        self.timer = math.inf  # when `tick` (or, while WAITING, `dial`) is due
        self.epoch = 0  # how many connections were lost while in use
        self._is_secure = False  # TLS is, or is about to be, around what we say
        self._was_open = False  # the state was CONNECTED once
        self._pool = ServerPool(options.servers)
        self._backoff = Backoff(options.reconnect_wait, options.reconnect_max_wait)
        self._failed = 0  # tries since the last connection, its loss included,
        self._failures: deque[Error] = deque(maxlen=8)  # and how the last of them ended
        self._complaint: Error | None = None  # an -ERR: the reason, should the server hang up next
        self._boxes: dict[bytes, Mailbox] = {}
        self._last_sid = int(INBOX_SID)
        self._own_inboxes = Inbox(f"{nonce}u", prefix=options.inbox_prefix)  # not below the shared wildcard
        self._pongs: deque[Pong | None] = deque()  # None: a PING of our own
        self._unanswered = 0  # PINGs of our own since the server was last heard
        self._in_bytes = self._reconnects = 0

    def _move(self, step: Step) -> None:
        """The only place where the state changes."""
        state = _TABLE.get((self.state, step))
        if state is None:
            raise UsageError(f"{step.name} is not possible in state {self.state.name}: {self.state.value}")
        self.state = state
        self._is_open = state is State.CONNECTED

    # Connecting

    def dial(self, now: float) -> Address:
        """The server to open a transport to; it has until `timer`."""
        self._move(Step.DIAL)
        self.server = self._pool.next()
        self._is_secure = self.server.scheme == "wss" or (self.options.tls_first and not self.server.is_websocket)
        self.timer = now + self.options.timeout
        return self.server

    @property
    def is_trying(self) -> bool:
        """Whether a server was dialled and has not accepted us yet."""
        return self.state in _TRYING

    def opened(self) -> list[Effect]:
        """The transport is open and the server speaks first; or it is secured, as INFO asked for."""
        self._parser = new_parser()
        if self.state is State.SECURING:
            self._log_in()
        else:
            self._move(Step.OPENED)
        return self._take_effects()

    def lost(self, error: Error, *, now: float, random: float) -> list[Effect]:
        """The transport could not be opened, or is gone. The state says what comes next: WAITING or CLOSED."""
        was_open = self._is_open
        self._move(Step.LOST)
        reason = self._complaint or error
        self._complaint = None
        self._drop_out()
        self._failed += 1
        self._failures.append(reason)
        if self._was_open and not was_open:
            self._report(EventKind.RECONNECT_FAILED, reason)
        if was_open:
            self.epoch += 1
            self._fail_waiting(_lost_error(self.server, reason))
            for box in list(self._boxes.values()):
                box.stir()
            self._report(EventKind.DISCONNECTED, reason)
        if isinstance(reason, AuthorizationError) and not was_open:  # what was accepted, and expired, is not refused
            self._pool.refused(self.server)
        if self._may_retry():
            # One pause for each round over all servers: within a round the next server may be fine.
            rounds = (self._failed - 1) // len(self._pool)
            self.timer = now + self._backoff.after(rounds, random) if self._was_open else now
        else:
            self._end(self._final_error())
        return self._take_effects()

    def _may_retry(self) -> bool:
        if not len(self._pool):
            return False
        if not self._was_open:  # what the caller must mend is not tried elsewhere
            return self._failed < len(self._pool) and not isinstance(self._failures[-1], UsageError)
        limit = self.options.max_reconnects
        return self.options.reconnect and (limit is None or self._failed <= limit)

    def _final_error(self) -> Error:
        last = self._failures[-1]
        if isinstance(last, AuthorizationError | UsageError) or (self._failed == 1 and not self._was_open):
            return last
        if self._failed == 1:
            return _lost_error(self.server, last)
        seen = "; ".join(dict.fromkeys(str(failure) for failure in self._failures))
        error = ConnectionLostError(f"no server could be reached in {self._failed} tries: {seen}")
        error.__cause__ = last
        return error

    def _end(self, error: Error) -> None:
        self._move(Step.CLOSE)
        self.error = error
        self.timer = math.inf
        self._drop_out()
        self._drop_kept()
        self._fail_waiting(error)
        for box in list(self._boxes.values()):
            box.end(error)
        self._boxes, self._packers = {}, {}
        self._effects.append(Ended(error))
        self._report(EventKind.CLOSED, error)

    def close(self) -> list[Effect]:
        """The user wants no more. What is in `out` may still be sent; subscriptions end after what they hold."""
        if self.state is State.CLOSED:
            return []
        self._move(Step.CLOSE)
        self.error = ConnectionClosedError("the client was closed")
        self.timer = math.inf
        self._fail_waiting(self.error)
        for box in list(self._boxes.values()):
            box.end(closing=self.error)
        self._boxes, self._packers = {}, {}
        self._report(EventKind.CLOSED, None)
        return self._take_effects()

    def leave(self, reason: Error) -> list[Effect]:
        """Go on with another server, if there is one to go to."""
        if self._is_open and self.options.reconnect and len(self._pool) > 1:
            self._effects.append(Drop(reason))
        return self._take_effects()

    def _fail_waiting(self, error: Error) -> None:
        """Requests and flushes get no answer any more."""
        pongs, self._pongs = self._pongs, deque()
        for answer in pongs:
            if answer is not None:
                self._drained(answer)  # what the server still had for them is gone with it
        self._fail_requests(error)

    # The time

    def tick(self, now: float) -> list[Effect]:
        """`timer` has passed: a PING is due, or the server was silent for too long."""
        if now < self.timer:
            return []
        if self._is_open:
            self._keep_alive(now)
        elif self.is_trying:
            self.timer = math.inf
            names = {State.DIALING: "connection", State.GREETING: "INFO", State.SECURING: "end of the TLS handshake"}
            awaited = names.get(self.state, "PONG")
            self._effects.append(
                Drop(RequestTimeoutError(f"{self.server}: no {awaited} within {self.options.timeout:g} s"))
            )
        return self._take_effects()

    def _keep_alive(self, now: float) -> None:
        if self._unanswered >= self.options.max_pings_out:
            self.timer = math.inf
            count, interval = self._unanswered, self.options.ping_interval
            stale = f"{self.server} is silent, {count} PINGs {interval:g} s apart were not answered"
            self._effects.append(Drop(ConnectionLostError(stale)))
            return
        self.timer = now + self.options.ping_interval
        self._unanswered += 1
        self._pongs.append(None)
        self._send(ping())

    # What the server says

    def received(self, data: bytes, now: float) -> list[Effect]:
        """Handle a chunk: messages go to their sinks and mailboxes, the rest becomes effects and answers in `out`."""
        events = self._parser.feed(data)
        self._unanswered = 0
        self._complaint = None  # the server went on after it
        self._in_bytes += len(data)
        if not self._is_open:
            events = self._shake_hands(events, now)
        self._in_msgs += len(events)
        sinks, cut = self._sinks, len(self._inbox.base)
        runs: list[tuple[bytes, list[Msg]]] = []  # messages in a row for one subscription, handed over together
        run_sid, run = b"", list[Msg]()
        push = run.append
        for event in events:
            if event.__class__ is not Msg:
                self._in_msgs -= 1
                if runs:  # a PONG may end subscriptions, which must have what came before it
                    self._hand_over(runs)
                    runs, run_sid = [], b""
                self._control(event, now)
                sinks = self._sinks
                continue
            sid: bytes = event[1]
            if sid == INBOX_SID:
                token: str = event[0][cut:]
                entry = sinks.get(token)
                if entry is not None:
                    try:
                        if entry[0].deliver(event):
                            self.cancel(token)
                    except Exception as exc:  # the top of code that is not ours: the connection must not break
                        self._sink_failed(token, exc)
                elif self._windows:
                    self._to_window(token, event)
                continue
            if sid != run_sid:
                run_sid, run = sid, []
                push = run.append
                runs.append((sid, run))
            push(event)
        if runs:
            self._hand_over(runs)
        return self._take_effects() if self._effects else []

    def _shake_hands(self, events: list[Event], now: float) -> list[Event]:
        """Until the server has accepted us it has nothing to deliver; what comes after that is returned.

        Nor may anything follow an INFO that asks for TLS: it could come from anybody on the way, to be believed later.
        """
        for index, event in enumerate(events):
            if self._is_open:
                return events[index:]
            if event.__class__ is Msg or self.state is State.SECURING:
                self._break(f"{event.__class__.__name__} before the handshake was done")
                return []
            self._control(event, now)
            if self._effects and isinstance(self._effects[-1], Drop):
                return []  # one reason is enough
        if self.state is State.SECURING and self._parser.buffered:
            self._break("more than INFO before TLS")
        return []

    def _break(self, reason: str) -> None:
        self._effects = [Drop(RemoteProtocolError(f"{self.server} broke the protocol: {reason}"))]

    def _hand_over(self, runs: list[tuple[bytes, list[Msg]]]) -> None:
        for sid, run in runs:
            box = self._boxes.get(sid)
            if box is not None and box.add_all(run):
                self._remove(box)

    def _remove(self, box: Mailbox) -> None:
        """What still comes for it is dropped."""
        self._boxes.pop(box.sid, None)
        if self._packers.pop(box.sid, None) is not None:
            self._set_lane()

    def pack(self, box: Mailbox, reply_prefix: str) -> None:
        """Let a subscription have the messages with such reply subjects in packs from now on."""
        if self._boxes.get(box.sid) is box:
            self._packers[box.sid] = Packer(box.sid, reply_prefix, partial(self._hand_over_packed, box))
            self._set_lane()

    def _hand_over_packed(self, box: Mailbox, packed: Packed) -> None:
        if box.add_packed(packed):
            self._remove(box)

    def _control(self, event: Event, now: float) -> None:
        if isinstance(event, Ping):
            self._send(pong())
        elif isinstance(event, PongEvent):
            self._ponged(now)
        elif isinstance(event, Info):
            self._informed(event.info)
        elif isinstance(event, Err):
            self._complained(event.text)
        elif isinstance(event, Violation):
            self._effects.append(Drop(RemoteProtocolError(f"{self.server} broke the protocol: {event.reason}")))
        # +OK says nothing; the operations of clients are violations when a server sends them.

    def _informed(self, info: ServerInfo) -> None:
        self.info, was_lame = info, self.info.ldm
        self.max_payload = info.max_payload
        learned = learned_addresses(info, like=self.server)
        if learned and self._pool.learn(learned) and self._was_open:
            self._report(EventKind.DISCOVERED, None)
        if self.state is State.GREETING:
            self._greeted(info)
        elif info.ldm and not was_lame:
            self._report(EventKind.LAME_DUCK, None)

    def _greeted(self, info: ServerInfo) -> None:
        is_wanted = self.options.tls_required or self.server.scheme == "tls"
        if self._is_secure or self.server.is_websocket:
            self._log_in()
        elif info.tls_required or (is_wanted and info.tls_available):
            self._move(Step.SECURE)
            self._is_secure = True
            self._effects.append(StartTls())
        elif is_wanted:
            self._effects.append(Drop(TlsError(f"{self.server} does not offer TLS, and it was asked for")))
        else:
            self._log_in()

    def _log_in(self) -> None:
        try:
            said = connect(connect_options(self.options, self.server, self.info, self.login, is_secure=self._is_secure))
        except ConnectionLostError as exc:
            self._effects.append(Drop(exc))
            return
        self._move(Step.INFO)
        self._send(said)
        self._send(ping())

    def _ponged(self, now: float) -> None:
        if self.state is State.HANDSHAKE:
            self._move(Step.PONG)
            self._resume(now)
        elif self._pongs:
            waiting = self._pongs.popleft()
            if waiting is not None:
                waiting.is_here = True
                self._drained(waiting)

    def _resume(self, now: float) -> None:
        """The server accepted us: tell it what it must know, then send what was kept."""
        self.timer = now + self.options.ping_interval
        self._unanswered = 0
        self._failed = 0
        self._failures.clear()
        self._pool.accepted(self.server)
        self._set_lane()  # asked for while there was no connection
        if self._is_inbox_used:
            self._send(sub(self._inbox.wildcard, INBOX_SID))
        for box in list(self._boxes.values()):
            self._send(sub(box.subject, box.sid, box.queue))
            box.before = box.received
            if box.limit:
                self._send(unsub(box.sid, box.limit - box.before))
        self._effects.append(Ready())
        if self._was_open:
            self._reconnects += 1
            self._report(EventKind.RECONNECTED, None)
        self._was_open = True
        if refused := self._send_kept():
            lost = f"{refused} message(s) were kept for a connection, this server allows {self.max_payload} bytes each"
            self._report(EventKind.ERROR, UsageError(lost))

    def _complained(self, text: str) -> None:
        complaint = read_complaint(text)
        error = complaint.error
        if not self._is_open:
            self._effects.append(Drop(error))
            return
        if complaint.is_final:
            self._complaint = error
        elif complaint.denied_publish:
            self._deny_requests(error, complaint.denied_publish)
        elif complaint.denied_subscription:
            self._deny_subscription(error, complaint.denied_subscription, complaint.queue)
        self._report(EventKind.SERVER_SHUTDOWN if complaint.is_shutdown else EventKind.ERROR, error)

    def _deny_subscription(self, error: Error, subject: str, queue: str) -> None:
        """The server did not take a subscription: whoever waits on it would wait forever."""
        if subject == self._inbox.wildcard:
            self._is_inbox_used = False
            self._deny_requests(error)
        for box in [box for box in self._boxes.values() if (box.subject, box.queue) == (subject, queue)]:
            self._remove(box)
            box.end(error)

    # What the user wants

    def ping(self) -> Pong:
        """Ask for a sign that everything sent so far was processed."""
        answer = Pong()
        if self._is_open:
            self._send(ping())
        else:
            self.check()
            self._kept.append(Kept(ping(), 0))
            self._kept_size += len(ping())
        self._pongs.append(answer)
        return answer

    def subscribe(self, subject: str, *, queue: str = "", max_msgs: int, max_bytes: int) -> Mailbox:
        """Ask for the messages of a subject; they arrive in the mailbox."""
        self.check()
        if self.is_draining:
            raise UsageError(f"the client is draining: no new subscription of {subject!r} is possible")
        check_filter(subject)
        if queue:
            check_subject(queue)
        check_names("a subject with its queue group" if queue else "a subject", subject, queue)
        sid = b"%d" % (self._last_sid + 1)
        box = Mailbox(sid, subject, queue=queue, max_msgs=max_msgs, max_bytes=max_bytes)
        box.on_gap = self._overflowed
        self._last_sid += 1
        self._boxes[sid] = box
        if self._is_open:
            self._send(sub(subject, sid, queue))
        return box

    def unsubscribe(self, box: Mailbox, max_msgs: int = 0) -> None:
        """End a subscription, at once or after `max_msgs` messages in all."""
        if max_msgs < 0:
            raise UsageError(f"max_msgs is {max_msgs}, 0 or more is allowed")
        if self._boxes.get(box.sid) is not box:
            return
        if max_msgs > box.received:
            box.limit = max_msgs
        else:
            self._remove(box)
            box.end()
        if self._is_open:  # the server counts from the SUB it got
            self._send(unsub(box.sid, 0 if box.is_ended else box.limit - box.before))

    def drain(self, box: Mailbox | None = None) -> Pong:
        """Ask for no more messages of one subscription, or of any; what was sent before the answer is still taken."""
        self.check()
        self.is_draining = self.is_draining or box is None
        boxes = [one for one in self._boxes.values() if box is None or one is box]
        if self._is_open:
            for one in boxes:
                self._send(unsub(one.sid))
            answer = self.ping()
            answer.draining = boxes
        else:  # whatever would have come was for the connection that is lost
            answer = Pong(boxes)
            answer.is_here = True
            self._drained(answer)
        return answer

    def _drained(self, answer: Pong) -> None:
        for box in answer.draining:
            if self._boxes.get(box.sid) is box:
                self._remove(box)
                box.end()

    def new_inbox(self) -> str:
        """A subject nobody else has."""
        return self._own_inboxes.next()

    @property
    def is_connected(self) -> bool:
        """Whether a server is there right now."""
        return self._is_open

    @property
    def servers(self) -> tuple[Address, ...]:
        """Every server that may be tried, those learned from INFO too."""
        return tuple(self._pool.servers)

    @property
    def stats(self) -> Stats:
        """The figures so far."""
        return Stats(self._in_msgs, self._in_bytes, self._out_msgs, self._out_bytes, self._reconnects)

    def _overflowed(self, error: SlowConsumerError) -> None:
        self._report(EventKind.ERROR, error)


def _lost_error(server: Address, reason: Error) -> ConnectionLostError:
    error = ConnectionLostError(f"the connection to {server} was lost: {reason}")
    error.__cause__ = reason
    return error
