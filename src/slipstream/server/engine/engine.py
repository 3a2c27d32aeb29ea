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

from slipstream.api import Storage
from slipstream.errors import StreamStoreFailedError
from slipstream.server.engine.account import Account
from slipstream.server.engine.api.advisories import Advisories
from slipstream.server.engine.auth.authenticator import (
    Authenticator,
    Certificate,
    Credentials,
    Hashed,
    Identity,
    Refused,
    nobody_signs,
)
from slipstream.server.engine.auth.jwt import Verify
from slipstream.server.engine.auth.permissions import Grant, quoted
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT, AccountOptions, at_most
from slipstream.server.engine.consumers.ack_router import ACK_PREFIX
from slipstream.server.engine.core import info as greeting
from slipstream.server.engine.core.routing import INBOX, AccountRouter, Dice
from slipstream.server.engine.core.session import ClientSub, Listener, PeerAddress, Session, SessionState
from slipstream.server.engine.journal import Answer, CommitBatch, Home, Journal
from slipstream.server.engine.monitoring.health import Health, examine
from slipstream.server.engine.ports import Store
from slipstream.server.engine.reads.direct_get import QUEUE
from slipstream.server.engine.replication.ingest import Remotes
from slipstream.server.engine.services import Job, Progress, Waiter
from slipstream.server.engine.settings import Check, Settings, Totals
from slipstream.server.engine.streams.atomic_batches import Load
from slipstream.server.engine.streams.stream import Stream
from slipstream.server.engine.timers import Timers
from slipstream.wire import (
    Connect,
    ConnectOptions,
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

__all__ = ["Check", "Engine", "Health", "Settings"]

MAX_PARKED = 10_000
MAX_JOBS = 10_000
STEP_MESSAGES = 1024  # what all jobs together send per turn
CHECKED_SUBJECTS = 16 * 1024
MAX_CLOSED = 1000  # connections that are gone and still told of


class Engine:
    """Sessions, routing, streams, timers, jobs."""

    def __init__(
        self, settings: Settings, *, file: Store, memory: Store, dice: Dice, now: int, verify: Verify = nobody_signs
    ) -> None:
        """`file` and `memory` keep the streams of that storage; they may be the same store. `verify` is for nkeys."""
        self.settings = settings
        self.timers = Timers()
        self.max_pending = settings.max_pending
        self.max_payload = settings.max_payload
        self.leader_name = settings.server_name
        self.version, self.domain = settings.version, settings.domain
        self.batch_load = Load()
        self.advisories = Advisories(settings.server_id, settings.domain)
        self.remotes = Remotes()  # what the driver is to read from other servers
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
        self._gate = Authenticator(
            settings.users,
            verify,
            accounts=settings.accounts,
            no_auth_user=settings.no_auth_user,
            operators=settings.operators,
            account_tokens=settings.account_tokens,
        )
        self.system_account = self._gate.system_account or settings.system_account
        self.door = Listener(
            settings.host,
            settings.port,
            tls_required=settings.tls_required,
            tls_verify=settings.tls_verify,
        )
        self.started = now
        self.closed: deque[Session] = deque(maxlen=MAX_CLOSED)
        self.totals = Totals()
        self._checks: list[Check] = []
        self._crowds: dict[str, int] = {}  # connections by account
        self._dirty: list[Session] = []
        self._accounts = {
            name: Account(
                self,
                name,
                AccountRouter(dice, now, self._dirty),
                jetstream=self.has_jetstream(name) if settings.jetstream and name != self.system_account else None,
                limits=settings.limits_of(name, self._gate.accounts[name].jetstream),
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

    def has_jetstream(self, account: str) -> bool:
        """Whether an account may have streams."""
        limits = self._gate.accounts[account].jetstream
        return self.settings.jetstream and limits is not None and account != self.system_account

    # Clients.

    @property
    def sessions(self) -> Mapping[int, Session]:
        """Every client that is connected."""
        return self._sessions

    @property
    def account_options(self) -> Mapping[str, AccountOptions]:
        """What each account may have."""
        return self._gate.accounts

    @property
    def auth_required(self) -> bool:
        return self._gate.required

    @property
    def wants_nonces(self) -> bool:
        """Whether `connect` needs a nonce, made for that client alone."""
        return self._gate.nonces

    def connect(
        self, cid: int, client_ip: str, now: int, *, client_port: int = 0, nonce: str = "", door: Listener | None = None
    ) -> None:
        """A client is there; greet it."""
        switch, peer = self._default.switch, PeerAddress(client_ip, client_port)
        session = Session(cid, self.settings.max_pending, switch, door or self.door, peer, now)
        self._sessions[cid] = session
        session.nonce = nonce
        self.totals.connections += 1
        switch.push(session, self._info(session))
        if self._gate.required:
            session.timer = self.timers.at(
                now + self.settings.auth_timeout, lambda _: self.close(cid, "Authentication Timeout")
            )
        else:
            self._keep_alive(session, now)

    def secured(self, cid: int, certificate: Certificate | None, version: str, cipher: str) -> None:
        """A client speaks TLS, and may have shown a certificate."""
        session = self._sessions.get(cid)
        if session is not None:
            session.certificate, session.tls = certificate, (version, cipher)

    def disconnect(self, cid: int) -> None:
        """A client is gone."""
        session = self._sessions.pop(cid, None)
        if session is None:
            return
        session.switch.drop(session)
        session.close()
        session.stopped = session.switch.now
        if session.member is not None:
            self._crowds[session.account] -= 1
        self.totals.add(session)
        self.closed.append(session)

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
        if session.pending is not None:
            session.held += events
            return
        session.switch.now = session.active = now
        session.pings_out = 0
        locked = session.state is SessionState.GREETED and self._gate.required
        swift = session.is_free and not locked
        straight = session.switch.straight if swift else {}
        count = size = 0
        events = iter(events)
        for event in events:
            if type(event) is Pub and not locked:
                subject, reply, header, payload = event
                count += 1
                size += len(header) + len(payload)
                stream = straight.get(subject)
                if stream is not None and not session.verbose and (session.headers or not header):
                    stream.receive(subject, reply, header, payload, now)
                    continue
                acks = session.switch.acks
                if (
                    subject[:8] == ACK_PREFIX
                    and acks is not None
                    and swift
                    and not session.verbose
                    and acks.receive(subject, reply, header, payload, now)
                ):
                    continue
                self._publish(session, event)
            elif locked and type(event) is not Connect and type(event) is not Violation:
                locked = not self._admit_default(session)
                if not locked:
                    self.receive(cid, [event], now)
                    swift = session.is_free
                    straight = session.switch.straight if swift else {}
            else:
                self._control(session, event)
                if type(event) is Connect:
                    if session.pending is not None:
                        session.held += events  # all that is left
                        break
                    locked = session.state is SessionState.GREETED and self._gate.required
                    swift = session.is_free and not locked
                    straight = session.switch.straight if swift else {}
            if session.closed:
                break
        session.in_msgs += count
        session.in_bytes += size

    def take_checks(self) -> list[Check]:
        """Secrets that are to be compared with hashes; each is answered by `checked`."""
        checks, self._checks = self._checks, []
        return checks

    def checked(self, cid: int, right: bool, now: int) -> None:
        """Whether a client's secret fits its hash."""
        session = self._sessions.get(cid)
        if session is None or session.pending is None:
            return
        session.switch.now = now
        (options, member), session.pending = session.pending, None
        held, session.held = session.held, []
        if not right or member is None:
            self._refuse(session)
            return
        self._enter(session, member, options)
        if session.verbose and not session.closed:
            session.switch.push(session, OK)
        self.receive(cid, held, now)

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

    def retire(self) -> None:
        """The server stops: consumers deliver nothing more, and whoever waits for a message is told."""
        for account in self._accounts.values():
            for stream in account.streams.values():
                stream.consumers.retire()

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

    def committed(self, batch: CommitBatch, now: int) -> None:
        """A group is durable: readers see it, its answers go out."""
        self._set_time(now)
        answers = batch.journal.finish(batch)
        try:
            for home, subject, header, payload in batch.events:
                home.send(subject, header, payload)
            for reader in list(batch.journal.readers):
                reader.committed(now)
            for then in batch.after:
                then()
        finally:  # whatever goes wrong with those who follow, what is durable is answered
            self._answer(answers)

    def _answer(self, answers: list[Answer]) -> None:
        """Send what waited for a group, and let those look again who wait for a commit."""
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
        journal.failure = reason.description
        lost = journal.abandon()
        self._load(journal, now)
        for reply, _, source, _ in lost:
            if answer := source.failure(reason):
                source.home.send(reply, b"", answer)

    def health(self) -> Health:
        """What is wrong with the server, in words; nothing, if all is well."""
        return examine(self.journals)

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
        for name, account in self._accounts.items():
            if self.has_jetstream(name):
                account.load(journal, now)

    # The protocol.

    def _info(self, session: Session, *, lame_duck: bool = False) -> bytes:
        return greeting.info(
            self.settings,
            session,
            locked=self._gate.required and self._gate.default is None,
            system_account=self.system_account,
            lame_duck=lame_duck,
        )

    def _control(self, session: Session, event: Event) -> None:
        if isinstance(event, Sub):
            if not self._subscribe(session, event):
                return
        elif isinstance(event, Unsub):
            self._unsubscribe(session, event)
        elif isinstance(event, Ping):
            session.switch.push(session, PONG)
            if not session.is_told and session.protocol >= 1:
                session.is_told = True
                session.switch.push(session, self._info(session))
            return
        elif isinstance(event, Pong):
            if session.pinged:
                session.rtt, session.pinged = max(1, session.active - session.pinged), 0
            return
        elif isinstance(event, Connect):
            self._introduce(session, event.options)
            if session.pending is not None:
                return
        elif isinstance(event, Violation):
            session.switch.close(session, event.err)
        else:  # INFO, +OK, -ERR and MSG are a server's words; the parser for clients gives none of them
            session.switch.close(session, "Unknown Protocol Operation")
        if session.verbose and not session.closed:
            session.switch.push(session, OK)

    def _introduce(self, session: Session, options: ConnectOptions) -> None:
        now, door = session.switch.now, session.door
        verdict = self._gate.admit(
            Credentials(
                options, session.nonce, session.peer.host, door.connection_type, session.certificate,
                door.by_certificate, now,
            )
        )  # fmt: skip
        if isinstance(verdict, Hashed):
            session.pending = options, verdict.member
            self._checks.append(Check(session.cid, verdict.secret, verdict.hash))
        elif isinstance(verdict, Refused):
            self._refuse(session, verdict.reason)
        else:
            self._enter(session, verdict, options)

    def _admit_default(self, session: Session) -> bool:
        """Let a client in that does not introduce itself, if there is a user for such; or turn it away."""
        member = self._gate.default
        if member is None:
            self._refuse(session, "the first words were not CONNECT")
            return False
        self._enter(session, member, ConnectOptions())
        return not session.closed

    def _refuse(self, session: Session, reason: str = "wrong secret") -> None:
        session.switch.close(session, "Authorization Violation")
        session.reason = f"Authentication Failure: {reason}"

    def _enter(self, session: Session, member: Identity, options: ConnectOptions) -> None:
        if session.member is not None and session.member.key != member.key:  # who came in stays who it is
            self._refuse(session, "a second CONNECT by another user")
            return
        if options.no_responders and not options.headers:
            session.switch.close(session, "no responders requires headers support")
            return
        session.introduce(options)
        if session.member is None and not self._join(session, member):
            return
        if session.timer is not None:
            session.timer.cancel()
        self._keep_alive(session, session.switch.now)

    def _join(self, session: Session, member: Identity) -> bool:
        """The client belongs to an account now; False if that has no room for it."""
        limit = self._gate.accounts[member.account].max_connections
        crowd = self._crowds.get(member.account, 0)
        if limit >= 0 and crowd >= limit:
            session.switch.close(session, "maximum account active connections exceeded")
            return False
        self._crowds[member.account] = crowd + 1
        now = session.switch.now
        session.member, session.account = member, member.account
        session.switch = self._accounts[member.account].switch
        session.switch.now = now
        session.grant = Grant(member.rules) if member.rules is not None else None
        session.max_subs, session.max_payload = member.max_subscriptions, member.max_payload
        if member.expires:
            whose = "Account" if member.expires == self._gate.expiry_of(member.account) else "User"
            session.expiry = self.timers.at(
                member.expires, lambda _: self.close(session.cid, f"{whose} Authentication Expired")
            )
        return True

    def _subscribe(self, session: Session, event: Sub) -> bool:
        subject, queue, sid = event
        grant = session.grant
        if queue == QUEUE or (grant is not None and not grant.rules.may_subscribe(subject, queue)):
            # The members of that group answer for streams: a client that joined could answer in their name.
            text = f"Permissions Violation for Subscription to {quoted(subject)}"
            session.switch.push(session, err(f"{text} using queue {quoted(queue)}" if queue else text))
        elif not is_valid_filter(subject):
            session.switch.push(session, err("Invalid Subject"))
        elif 0 <= at_most(session.max_subs, self.settings.max_subscriptions) <= len(session.subs):
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
        if 0 <= session.max_payload < len(header) + len(payload):
            session.switch.close(session, "Maximum Payload Violation")
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
        if subject.startswith((INBOX, ACK_PREFIX)):
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
            session.pinged = now
            session.switch.push(session, PING)
            self._keep_alive(session, now)

        if not session.closed:
            session.timer = self.timers.at(now + self.settings.ping_interval, check)
