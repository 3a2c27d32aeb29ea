"""The server without its sockets: events of clients and the time go in, frames for clients come out.

Deterministic: no clock, no randomness, no I/O of its own; the same calls give the same output and state. Everything
that receives messages, clients' subscriptions as well as streams, the API and the responders of Direct Get, is a
subscriber on one router, so that queue groups, echo and no-responders follow the same rules for all.

A driver calls `connect`, `receive` and `disconnect` as clients do; once per turn of its loop `tick` and `step`, carries
the journals' groups to the disk and reports them with `committed` or `failed`, and writes what `take_output` gives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slipstream.api import Storage, encode_json
from slipstream.errors import StreamStoreFailedError
from slipstream.server.engine.account import Account
from slipstream.server.engine.advisories import Advisories
from slipstream.server.engine.auth import Gate, Verify, nobody_signs
from slipstream.server.engine.batches import Load
from slipstream.server.engine.direct import QUEUE
from slipstream.server.engine.features import API_LEVEL
from slipstream.server.engine.host import Job, Progress, Waiter
from slipstream.server.engine.inflow import Remote
from slipstream.server.engine.journal import Answer, Batch, Home, Journal
from slipstream.server.engine.limits import UNLIMITED, AccountLimits
from slipstream.server.engine.permissions import Grant, quoted
from slipstream.server.engine.ports import Store
from slipstream.server.engine.session import ClientSub, Session, State
from slipstream.server.engine.stream import Stream
from slipstream.server.engine.switch import INBOX, Dice, Switch
from slipstream.server.engine.timers import Timers
from slipstream.server.engine.users import DEFAULT_ACCOUNT, User
from slipstream.wire import (
    Connect,
    Event,
    Ping,
    Pong,
    Pub,
    Sub,
    Unsub,
    Violation,
    err,
    has_wildcard,
    is_valid_filter,
)
from slipstream.wire.encode import OK, PING, PONG

MAX_PARKED = 10_000
MAX_JOBS = 10_000
STEP_MESSAGES = 1024  # what all jobs together send per turn
CHECKED_SUBJECTS = 16 * 1024


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
    max_payload: int = 1024 * 1024
    max_pending: int = 64 * 1024 * 1024
    max_subscriptions: int = 100_000  # of one client
    users: tuple[User, ...] = ()  # none: everyone may come in
    tls_required: bool = False
    tls_verify: bool = False  # clients show certificates
    auth_timeout: int = 2_000_000_000
    ping_interval: int = 120_000_000_000
    max_pings_out: int = 2


class Engine:
    """Sessions, routing, streams, timers, jobs."""

    def __init__(
        self, settings: Settings, *, file: Store, memory: Store, dice: Dice, now: int, verify: Verify = nobody_signs
    ) -> None:
        """`file` and `memory` keep the streams of that storage; they may be the same store. `verify` is for nkeys."""
        self.settings = settings
        self.timers = Timers()
        self.max_pending = settings.max_pending
        self.leader_name = settings.server_name
        self.version, self.domain = settings.version, settings.domain
        self.batch_load = Load()
        self.advisories = Advisories(settings.server_id, settings.domain)
        self.remotes: dict[Remote, None] = {}  # what the driver is to read from other servers
        journal = Journal(file)
        self._by_storage = {
            Storage.FILE.value: journal,
            Storage.MEMORY.value: journal if memory is file else Journal(memory),
        }
        self.journals = tuple(dict.fromkeys(self._by_storage.values()))
        self._jobs: deque[Job] = deque()
        self.has_new_jobs = False
        self._parked = 0
        self._waiters: dict[Waiter, int] = {}
        self.watchers: dict[Waiter, None] = {}  # those who look after every commit
        self._gate = Gate(settings.users, verify)
        self._dirty: list[Session] = []
        self._accounts = {
            name: Account(
                self,
                name,
                Switch(dice, now, self._dirty),
                jetstream=settings.jetstream,
                limits=settings.limits.get(name, UNLIMITED),
            )
            for name in self._gate.accounts
        }
        self._switches = tuple(account.switch for account in self._accounts.values())
        self._default = self._accounts[DEFAULT_ACCOUNT]
        self.streams = self._default.streams
        self._sessions: dict[int, Session] = {}
        self._checked: set[str] = set()  # subjects that were found valid
        if settings.jetstream:
            for journal in self.journals:
                self._load(journal, now)

    # Clients.

    @property
    def wants_nonces(self) -> bool:
        """Whether `connect` needs a nonce, made for that client alone."""
        return self._gate.nonces

    def connect(self, cid: int, client_ip: str, now: int, *, nonce: str = "") -> None:
        """A client is there; greet it."""
        session = self._sessions[cid] = Session(cid, self.settings.max_pending, self._default.switch)
        session.client_ip, session.nonce = client_ip, nonce
        session.switch.push(session, self._info(session))
        if self._gate.required:
            session.timer = self.timers.at(
                now + self.settings.auth_timeout, lambda _: self.close(cid, "Authentication Timeout")
            )
        else:
            self._keep_alive(session, now)

    def disconnect(self, cid: int) -> None:
        """A client is gone."""
        session = self._sessions.pop(cid, None)
        if session is not None:
            session.switch.drop(session)
            session.close()

    def close(self, cid: int, text: str = "") -> None:
        """Tell a client why, and have the driver cut it off."""
        session = self._sessions.get(cid)
        if session is not None:
            session.switch.close(session, text)

    def receive(self, cid: int, events: Iterable[Event], now: int) -> None:
        """Handle what a client sent."""
        session = self._sessions.get(cid)
        if session is None or session.closed:
            return
        session.switch.now = now
        session.pings_out = 0
        locked = session.state is State.GREETED and self._gate.required
        straight = session.switch.straight if session.grant is None and not locked else {}
        for event in events:
            if type(event) is Pub and not locked:
                subject, reply, header, payload = event
                stream = straight.get(subject)
                if stream is not None and not session.verbose and (session.headers or not header):
                    stream.receive(subject, reply, header, payload, now)
                    continue
                self._publish(session, event)
            elif locked and type(event) is not Connect and type(event) is not Violation:
                session.switch.close(session, "Authorization Violation")
            else:
                self._control(session, event)
                locked = session.state is State.GREETED and self._gate.required
                if type(event) is Connect:
                    straight = session.switch.straight if session.grant is None else {}
            if session.closed:
                return

    def client_name(self, cid: int) -> str:
        """What a client calls itself."""
        session = self._sessions.get(cid)
        return session.name if session is not None else ""

    def account(self, name: str = "") -> Account:
        """An account that some user belongs to; without a name the default one."""
        return self._accounts[name or DEFAULT_ACCOUNT]

    @property
    def accounts(self) -> Iterable[Account]:
        return self._accounts.values()

    def announce_end(self) -> None:
        """Tell every client that understands it to go elsewhere (lame duck mode)."""
        for session in self._sessions.values():
            if session.protocol >= 1:
                session.switch.push(session, self._info(session, lame_duck=True))

    def congested(self, cid: int, yes: bool) -> None:
        """The driver's buffer for a client is full (or not any more): batches for it wait."""
        session = self._sessions.get(cid)
        if session is not None:
            session.congested = yes

    def take_output(self) -> list[Session]:
        """The sessions with output (or to be closed); the driver takes `out` and sets `room`."""
        dirty = self._dirty[:]
        self._dirty.clear()  # the switches hold the same list
        return dirty

    @property
    def has_output(self) -> bool:
        return bool(self._dirty)

    # Time and work.

    def _set_time(self, now: int) -> None:
        for switch in self._switches:
            switch.now = now

    def next_deadline(self) -> int | None:
        """When `tick` is wanted next."""
        return self.timers.next_deadline()

    def tick(self, now: int) -> None:
        """Do what the time demands."""
        self._set_time(now)
        self.timers.due(now)

    def step(self, now: int) -> bool:
        """Let every job do a chunk, round robin; True if there is more to do at once."""
        self._set_time(now)
        self.has_new_jobs = False
        jobs = self._jobs
        budget, more = STEP_MESSAGES, False
        for _ in range(len(jobs)):
            if budget <= 0:
                return True
            job = jobs.popleft()
            progress, sent = job.run()
            budget -= sent
            if progress is not Progress.DONE:
                jobs.append(job)
                more = more or progress is Progress.MORE
        return more

    def committed(self, batch: Batch, now: int) -> None:
        """A group is durable: readers see it, its answers go out."""
        self._set_time(now)
        answers = batch.journal.finish(batch)
        for home, subject, header, payload in batch.events:
            home.send(subject, header, payload)
        if len(self._switches) == 1:
            self._default.switch.answer_all(answers)
        else:
            homes: dict[Home, list[Answer]] = {}
            for answer in answers:
                homes.setdefault(answer[2].home, []).append(answer)
            for home, theirs in homes.items():
                home.answer_all(theirs)
        for waiter in (*self._waiters, *self.watchers):
            waiter.release()

    def failed(self, journal: Journal, error: Exception, now: int) -> None:
        """A group could not be kept: everything unfinished is as if it had not been, and its senders are told."""
        self._set_time(now)
        reason = StreamStoreFailedError(str(error) or type(error).__name__)
        lost = journal.abandon()
        self._load(journal, now)
        for reply, _, source, _ in lost:
            source.home.send(reply, b"", source.failure(reason))

    # What its accounts ask of the engine (`account.House`).

    def start(self, job: Job) -> bool:
        if len(self._jobs) >= MAX_JOBS:
            return False
        self._jobs.append(job)
        self.has_new_jobs = True
        return True

    def wait(self, waiter: Waiter, count: int) -> bool:
        if self._parked + count > MAX_PARKED:
            return False
        self._parked += count
        now = self._waiters.get(waiter, 0) + count
        if now > 0:
            self._waiters[waiter] = now
        else:
            self._waiters.pop(waiter, None)
        return True

    def journal_for(self, storage: str) -> Journal:
        return self._by_storage[storage]

    def _load(self, journal: Journal, now: int) -> None:
        """The streams of accounts that no user belongs to stay in the store, for the day when one does."""
        for account in self._accounts.values():
            account.load(journal, now)

    # The protocol.

    def _info(self, session: Session, *, lame_duck: bool = False) -> bytes:
        settings = self.settings
        info: dict[str, object] = {
            "server_id": settings.server_id,
            "server_name": settings.server_name,
            "version": settings.version,
            "slipstream": settings.slipstream,
            "proto": 1,
            "host": settings.host,
            "port": settings.port,
            "headers": True,
            "max_payload": settings.max_payload,
            "jetstream": settings.jetstream,
            "client_id": session.cid,
            "client_ip": session.client_ip,
            "api_lvl": API_LEVEL,
        }
        if settings.domain:
            info["domain"] = settings.domain
        if self._gate.required:
            info["auth_required"] = True
        if settings.tls_required:
            info["tls_required"] = True
        if settings.tls_verify:
            info["tls_verify"] = True
        if lame_duck:
            info["ldm"] = True
        elif session.nonce:
            info["nonce"] = session.nonce
        return b"INFO %b\r\n" % encode_json(info)

    def _control(self, session: Session, event: Event) -> None:
        if isinstance(event, Sub):
            if not self._subscribe(session, event):
                return
        elif isinstance(event, Unsub):
            self._unsubscribe(session, event)
        elif isinstance(event, Ping):
            session.switch.push(session, PONG)
            return
        elif isinstance(event, Pong):
            return
        elif isinstance(event, Connect):
            self._introduce(session, event)
        elif isinstance(event, Violation):
            session.switch.close(session, event.err)
        else:  # INFO, +OK, -ERR and MSG are a server's words; the parser for clients gives none of them
            session.switch.close(session, "Unknown Protocol Operation")
        if session.verbose and not session.closed:
            session.switch.push(session, OK)

    def _introduce(self, session: Session, event: Connect) -> None:
        member = self._gate.admit(event.options, session.nonce)
        if member is None or session.member not in (None, member):  # who came in stays who it is
            session.switch.close(session, "Authorization Violation")
        elif event.options.no_responders and not event.options.headers:
            session.switch.close(session, "no responders requires headers support")
        else:
            session.introduce(event.options)
            if session.member is None:
                session.member = member
                session.switch = self._accounts[member.account].switch
                session.switch.now = self._default.switch.now
                session.grant = Grant(member.rules) if member.rules is not None else None
            if session.timer is not None:
                session.timer.cancel()
            self._keep_alive(session, session.switch.now)

    def _subscribe(self, session: Session, event: Sub) -> bool:
        subject, queue, sid = event
        grant = session.grant
        if queue == QUEUE or (grant is not None and not grant.rules.may_subscribe(subject, queue)):
            # The members of that group answer for streams: a client that joined could answer in their name.
            text = f"Permissions Violation for Subscription to {quoted(subject)}"
            session.switch.push(session, err(f"{text} using queue {quoted(queue)}" if queue else text))
        elif not is_valid_filter(subject):
            session.switch.push(session, err("Invalid Subject"))
        elif len(session.subs) >= self.settings.max_subscriptions:
            session.switch.push(session, err("maximum subscriptions exceeded"))
        else:
            if sid not in session.subs:
                make = grant.subscription if grant is not None else ClientSub
                sub = session.subs[sid] = make(session, subject, queue, sid)
                session.switch.add(subject, sub, queue)
            return True
        return False

    def _unsubscribe(self, session: Session, event: Unsub) -> None:
        sub = session.subs.get(event.sid)
        if sub is None:
            return
        if event.max_msgs:
            session.switch.end_after(sub, event.max_msgs)
        else:
            session.switch.remove(sub)

    def _publish(self, session: Session, event: Pub) -> None:
        subject, reply, header, payload = event
        if header and not session.headers:
            session.switch.close(session, "message headers not supported")
            return
        valid = subject in self._checked or self._check(subject)
        if session.pedantic and (not valid or has_wildcard(subject)):
            session.switch.push(session, err("Invalid Publish Subject"))
        if session.grant is not None and not session.grant.may_publish(subject, session.switch.now):
            session.switch.push(session, err(f"Permissions Violation for Publish to {quoted(subject)}"))
            return
        if session.verbose:
            session.switch.push(session, OK)
        if not valid:
            return
        # A reply inbox is used once: it would only push others out of the router's memory.
        if subject.startswith(INBOX):
            found = session.switch.router.match_once(subject)
        else:
            found = session.switch.router.match(subject)
            if len(found.plain) == 1 and not found.queues and isinstance(found.plain[0], Stream):
                session.switch.remember(subject, found.plain[0])
        delivered = session.switch.route(found, subject, reply, header, payload, session)
        if not delivered and reply and session.no_responders:
            session.switch.tell_nobody(session, subject, reply)

    def _check(self, subject: str) -> bool:
        if not is_valid_filter(subject):
            return False
        if len(self._checked) >= CHECKED_SUBJECTS:
            self._checked.clear()
        self._checked.add(subject)
        return True

    def _keep_alive(self, session: Session, now: int) -> None:
        def check(now: int) -> None:
            if session.pings_out >= self.settings.max_pings_out:
                session.switch.close(session, "Stale Connection")
                return
            session.pings_out += 1
            session.switch.push(session, PING)
            self._keep_alive(session, now)

        if not session.closed:
            session.timer = self.timers.at(now + self.settings.ping_interval, check)
