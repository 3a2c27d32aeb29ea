"""The server without its sockets: a deterministic state machine.

Theory of operation
===================

**In and out.** A driver feeds the engine with what clients send and with the time, and writes what the engine queues
for clients. The engine has no clock, no randomness and no I/O of its own: every call gets `now`, random numbers come
from `rng`, and bytes for a client collect in `Session.out`. The same calls give the same output and the same state, so
a test moves time as a number and replays what happened.

    connect, receive, disconnect   what clients do
    tick, step                     once per turn: due timers, then a chunk of every job
    committed, failed              what became of a sealed group
    take_output                    the sessions that have bytes to write

**Routing.** Everything that receives messages is a subscriber on the router of its account: clients, streams, the
JetStream API, the responders of Direct Get. Queue groups, echo and "no responders" follow the same rules for all.

**Group commit.** A publish is checked against the *writer's* view of its stream, gets its sequence and joins the open
group of its journal (there is one journal per store). The driver seals the group, writes it and syncs it; meanwhile the
next group fills. One sync pays for all publishes that arrived during the one before.

**Why acks wait.** An ack promises that the message survives a crash, so it is queued in the journal and sent by
`committed`, never before. The *readers'* view moves at the same moment: no get, consumer or mirror sees a message that
a crash could take back. `failed` drops everything uncommitted and answers it with errors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from slipstream.api import Storage
from slipstream.errors import StreamStoreFailedError, UsageError
from slipstream.server.engine.account import Account
from slipstream.server.engine.api.advisories import Advisories
from slipstream.server.engine.api.dispatch import Api
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.authenticator import Authenticator, Certificate, reject_signatures
from slipstream.server.engine.auth.jwt import Verify
from slipstream.server.engine.auth.permissions import quoted
from slipstream.server.engine.auth.reply_targets import INBOX, schedule_targets
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT, at_most
from slipstream.server.engine.consumers.ack_router import ACK_PREFIX
from slipstream.server.engine.core.admission import Admission, SessionObserver
from slipstream.server.engine.core.info import info
from slipstream.server.engine.core.output import Output
from slipstream.server.engine.core.routing import AccountRouter, Random, Subscriber
from slipstream.server.engine.core.session import ClientSub, Listener, PeerAddress, Session, SessionState, subscription
from slipstream.server.engine.jobs import RECEIVE_UNITS, Jobs, Load, Progress
from slipstream.server.engine.journal import Answer, CommitBatch, Journal, ReplyPort
from slipstream.server.engine.monitoring.health import Health, examine
from slipstream.server.engine.ports import Savepoints, Store
from slipstream.server.engine.reads.direct_get import QUEUE, ReplicaPeer
from slipstream.server.engine.replication.ingest import RemoteIngests
from slipstream.server.engine.services import SharedServices
from slipstream.server.engine.settings import Check, Settings, Totals
from slipstream.server.engine.streams.atomic_batches import BatchUsage
from slipstream.server.engine.streams.stream import Stream
from slipstream.server.engine.timers import Timers
from slipstream.wire import (
    Connect,
    Event,
    Match,
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
from slipstream.wire.encode import OK, PONG

__all__ = ["Check", "Engine", "Health", "Settings"]

MAX_PENDING = 512  # changes in the open group at which a client that is served in slices waits, if it adds to it
CONNECT_UNITS = 32  # of work (`engine.jobs`): a client may send it again, perhaps with a signature
MAX_VALID_SUBJECTS = 16 * 1024  # remembered
BRANCHES_PER_UNIT = 48  # of the tree of subscriptions, that a subject meets
MAX_CLOSED = 1000  # closed connections that monitoring still shows

_NO_SHORTCUTS: Final[dict[str, Subscriber]] = {}
# Replies between these two are not reserved, `_INBOX.…` among them: one comparison for nearly every message.
_FREE_FROM: Final = "_H"
_FREE_TO: Final = "_R"


class Engine:
    """Accounts, sessions, and the order of what happens around a commit."""

    def __init__(
        self,
        settings: Settings,
        *,
        file: Store,
        memory: Store,
        rng: Random,
        now: int,
        verify: Verify = reject_signatures,
    ) -> None:
        """`file` and `memory` keep the streams of that storage; they may be the same store. `verify` is for nkeys."""
        self.settings: Settings = settings
        self.started = now
        file_journal = Journal(file)
        memory_journal = file_journal if memory is file else Journal(memory)
        self.journals: tuple[Journal, ...] = tuple(dict.fromkeys((file_journal, memory_journal)))
        self._shared = shared = SharedServices(
            server_name=settings.server_name,
            version=settings.version,
            domain=settings.domain,
            max_pending=settings.max_pending_bytes,
            max_payload=settings.max_payload,
            advisories=Advisories(settings.server_id, settings.domain),
            compat=settings.compat,
            journals={Storage.FILE.value: file_journal, Storage.MEMORY.value: memory_journal},
            batch_usage=BatchUsage(settings.max_pending_total),
            load=(load := Load()),
            jobs=Jobs(load),
        )
        self.timers: Timers = shared.timers
        self.jobs: Jobs = shared.jobs
        self.batch_usage: BatchUsage = shared.batch_usage
        self._commit_waiters = shared.commit_waiters
        for journal in self.journals:
            journal.store.measure(load)
        self.remote_ingests: RemoteIngests = RemoteIngests()  # what the driver reads from other servers
        self._verify, self._rng = verify, rng
        self._authenticator = self._make_authenticator(settings)
        self.system_account: str = self._authenticator.system_account or settings.system_account
        self.listener: Listener = Listener(
            settings.host, settings.port, tls_required=settings.tls_required, tls_verify=settings.tls_verify
        )
        self.output: Output = Output()  # shared with the routers
        self.load: Load = shared.load
        self.held_back: set[int] = set()  # clients whose input waits; the driver reads nothing more from them
        self.resumed: list[int] = []  # those that it may read from again; the driver takes them
        self.filled_by: dict[int, list[Journal]] = {}  # of those that are held back: whose groups their input adds to
        self._accounts = {name: self._make_account(name, now) for name in self._authenticator.accounts}
        self._default = self._accounts[DEFAULT_ACCOUNT]
        self._had_accounts = len(self._accounts) > 1  # ever: answers may wait for one that a reload has removed
        self.streams: dict[str, Stream] = self._default.streams
        # By `Session.account`, which is empty until a client is authenticated.
        self._routers = {"": self._default.router} | {name: one.router for name, one in self._accounts.items()}
        self._admission = Admission(settings, self._authenticator, self._routers, self.timers)
        self.checks: list[Check] = self._admission.checks  # the driver takes each, compares, and calls `checked`
        self._sessions: dict[int, Session] = {}
        self.closed: deque[Session] = deque(maxlen=MAX_CLOSED)
        self.totals: Totals = Totals()
        self._valid_subjects: set[str] = set()
        self._savepoint_times: dict[int, int] = {}  # by number; in the stores they are counted from 1
        self._savepoints_made = 0
        if settings.jetstream:
            for journal in self.journals:
                self._load(journal, now)

    def _make_authenticator(self, settings: Settings) -> Authenticator:
        return Authenticator(
            settings.users,
            self._verify,
            accounts=settings.accounts,
            no_auth_user=settings.no_auth_user,
            operators=settings.operators,
            account_tokens=settings.account_tokens,
        )

    def _make_account(self, name: str, now: int) -> Account:
        has_api = self.settings.jetstream and name != self.system_account
        return Account(
            self._shared,
            name,
            AccountRouter(self._rng, now, self.output, self.load),
            remote_ingests=self.remote_ingests,
            jetstream=self.has_jetstream(name) if has_api else None,
            limits=self._limits_of(name),
            resume=self._resume,
        )

    def _limits_of(self, name: str) -> AccountLimits:
        return self.settings.limits_of(name, self._authenticator.accounts[name].jetstream)

    # A changed configuration.

    def prepare_reload(self, settings: Settings) -> Callable[[int], list[Account]]:
        """Check changed settings against the running server; raises a UsageError, or returns a function that applies
        them at a time. That function returns the accounts that are new."""
        authenticator = self._make_authenticator(settings)
        if (authenticator.system_account or settings.system_account) != self.system_account:
            raise UsageError("the system account cannot be changed by a reload; restart the server")
        for name, account in self._accounts.items():
            known = authenticator.accounts.get(name)
            if known is None:
                if account.streams or account.restores:
                    raise UsageError(
                        f"account {name!r} has streams and cannot be removed by a reload; delete them first"
                    )
            elif (known.jetstream is None) != (self._authenticator.accounts[name].jetstream is None):
                raise UsageError(
                    f"JetStream of account {name!r} cannot be turned on or off by a reload; restart the server"
                )
        return lambda now: self._reload(settings, authenticator, now)

    def _reload(self, settings: Settings, authenticator: Authenticator, now: int) -> list[Account]:
        self._set_time(now)
        announce = settings.max_payload != self.settings.max_payload
        self.settings = settings
        self._shared = replace(self._shared, max_pending=settings.max_pending_bytes, max_payload=settings.max_payload)
        self._admission.reload(settings, authenticator, list(self._sessions.values()))
        self._authenticator = authenticator
        for name in [name for name in self._accounts if name not in authenticator.accounts]:
            del self._accounts[name]  # its router stays: the sessions that were closed are still to be disconnected
        made = [self._make_account(name, now) for name in authenticator.accounts if name not in self._accounts]
        for account in self._accounts.values():
            account.limits = self._limits_of(account.name)
            account.max_pending, account.max_payload = settings.max_pending_bytes, settings.max_payload
        self._had_accounts |= bool(made)
        for account in made:
            self._accounts[account.name] = account
            self._routers[account.name] = account.router
            if self.has_jetstream(account.name):
                for journal in self.journals:
                    account.load(journal, now)
        if announce:
            for session in self._sessions.values():
                if session.protocol >= 1 and not session.closed:
                    self._routers[session.account].push(session, self._info(session))
        return made

    # Accounts.

    def has_jetstream(self, account: str) -> bool:
        """Whether an account may have streams."""
        limits = self._authenticator.accounts[account].jetstream
        return self.settings.jetstream and limits is not None and account != self.system_account

    def has_account(self, name: str) -> bool:
        """Whether there is such an account; the system account exists if it has users."""
        return name in self._accounts

    def account(self, name: str = "") -> Account:
        """An account; without a name the default one."""
        return self._accounts[name or DEFAULT_ACCOUNT]

    @property
    def accounts(self) -> Iterable[Account]:
        return self._accounts.values()

    # Clients.

    @property
    def sessions(self) -> Mapping[int, Session]:
        """Every connected client."""
        return self._sessions

    @property
    def auth_required(self) -> bool:
        return self._authenticator.required

    @property
    def wants_nonces(self) -> bool:
        """Whether `connect` needs a nonce, made for that client alone."""
        return self._authenticator.nonces

    def connect(
        self,
        cid: int,
        client_ip: str,
        now: int,
        *,
        client_port: int = 0,
        nonce: str = "",
        listener: Listener | None = None,
    ) -> None:
        """A client connected: greet it with INFO."""
        peer = PeerAddress(client_ip, client_port)
        session = Session(cid, self.settings.max_pending_bytes, listener or self.listener, peer, now)
        self._sessions[cid] = session
        session.nonce = nonce
        self.totals.connections += 1
        self._default.router.push(session, self._info(session))
        self._admission.begin(session, now)

    def secured(self, cid: int, certificate: Certificate | None, version: str, cipher: str) -> None:
        """A client completed the TLS handshake, perhaps with a certificate."""
        session = self._sessions.get(cid)
        if session is not None:
            session.certificate, session.tls = certificate, (version, cipher)

    def disconnect(self, cid: int) -> None:
        """A connection was lost or closed."""
        session = self._sessions.pop(cid, None)
        if session is None:
            return
        router = self._routers[session.account]
        router.drop(session)
        session.close()
        session.out.clear()  # monitoring shows closed sessions for a while: without what they did not read
        session.stopped = router.now
        self.held_back.discard(cid)
        self.filled_by.pop(cid, None)
        self.totals.add(session)
        self.closed.append(session)
        self._admission.left(session)

    def close(self, cid: int, text: str = "") -> None:
        """Send a client the reason, and have the driver close the connection."""
        session = self._sessions.get(cid)
        if session is not None:
            self._routers[session.account].close(session, text)

    def receive(self, cid: int, events: Iterable[Event], now: int) -> None:
        """Handle what a client sent. This loop runs once per message: it takes the shortcuts itself.

        The first publish to a subject goes through `_publish`: checks, matcher, `AccountRouter.route`. If a stream (or
        the replica that answers Direct Gets) is its only subscriber, the router remembers that in `sole_receivers`, and
        further publishes to the subject call it from here. Acks go to the ack router in the same way.
        """
        session = self._sessions.get(cid)
        if session is None or session.closed:
            return
        if session.pending is not None or session.held_back:  # until its secret is checked, or until its turn comes
            session.held += events
            return
        if session.searches:  # its answers go to very many, and are on their way
            self._hold_back(session, iter(events))
            return
        load = self.load
        load.client, load.units = session, 0
        try:
            self._handle(session, events, now)
        finally:
            load.client = None

    def _handle(self, session: Session, events: Iterable[Event], now: int) -> None:
        load = self.load
        self._routers[session.account].now = session.active = now
        session.pings_out = 0
        remaining = iter(events)
        if session.state is SessionState.GREETED and self._authenticator.required:
            remaining = self._authenticate(session, remaining)
        router, shortcuts = self._shortcuts(session, now)
        count = size = 0
        allowed = RECEIVE_UNITS
        for event in remaining:
            if type(event) is Pub:
                subject, reply, header, payload = event
                count += 1
                size += len(header) + len(payload)
                receiver = shortcuts.get(subject)
                if (
                    receiver is not None
                    and (session.headers or not header)
                    and (not reply or _FREE_FROM < reply < _FREE_TO or not _is_reserved(reply))
                ):
                    receiver.receive(subject, reply, header, payload, now)
                    if load.units >= allowed or session.searches:
                        self._hold_back(session, remaining)
                        break
                    continue
                if (
                    subject.startswith(ACK_PREFIX)
                    and (not reply or not _is_reserved(reply))
                    and shortcuts is not _NO_SHORTCUTS
                    and router.acks is not None
                    and router.acks.receive(subject, reply, header, payload, now)
                ):
                    if load.units >= allowed:
                        self._hold_back(session, remaining)
                        break
                    continue
                self._publish(session, router, event)
                if session.searches or load.units >= allowed:
                    self._hold_back(session, remaining)
                    break
            else:
                self._control(session, router, event)
                if type(event) is Connect:
                    if session.pending is not None:
                        session.held += remaining
                        break
                    load.units += CONNECT_UNITS
                    router, shortcuts = self._shortcuts(session, now)
                if load.units >= allowed and not session.closed:
                    self._hold_back(session, remaining)
                    break
            if session.closed:
                break
        session.in_msgs += count
        session.in_bytes += size
        router.origin = None

    def _hold_back(self, session: Session, rest: Iterator[Event]) -> None:
        """The rest of what a client sent waits: for the search that its last request began, or for its next turn."""
        session.held += rest
        if session.searches or session.held:
            session.held_back = True
            self.held_back.add(session.cid)
            if not session.searches:
                self._resume(session)

    def _resume(self, session: Session) -> None:
        """Handle what waits of a client's input, in its turn."""
        if not session.closed:
            self.jobs.go_on(HeldInput(self, session), session.account, session)

    def handle_held(self, session: Session) -> None:
        """Handle what waits of a client's input, or as much of it as its turn is for."""
        if session.closed:
            return
        held, session.held = session.held, []
        session.held_back = False
        before = [journal.store.pending for journal in self.journals]
        self.receive(session.cid, held, self._routers[session.account].now)
        if session.held_back:
            pairs = zip(self.journals, before, strict=True)
            self.filled_by[session.cid] = [journal for journal, count in pairs if journal.store.pending > count]
        else:
            self.filled_by.pop(session.cid, None)
            self.held_back.discard(session.cid)
            self.resumed.append(session.cid)

    def _authenticate(self, session: Session, events: Iterator[Event]) -> Iterator[Event]:
        """Handle the events of a client up to its authentication; what is left may be handled normally."""
        for event in events:
            if type(event) is Connect or type(event) is Violation:
                self._control(session, self._routers[session.account], event)
                if session.pending is not None:
                    session.held += events
            elif self._admission.admit_default(session):
                return chain((event,), events)
            if session.closed or session.pending is not None:
                break
            if session.state is not SessionState.GREETED:
                return events
        return iter(())

    def _shortcuts(self, session: Session, now: int) -> tuple[AccountRouter, dict[str, Subscriber]]:
        """The session's router, and its shortcuts if the session may use them: it must have nothing to check
        (permissions, sizes) and nothing to confirm (`+OK` of a verbose client)."""
        router = self._routers[session.account]
        router.now, router.origin = now, session
        direct = session.is_unrestricted and not session.verbose
        return router, router.sole_receivers if direct else _NO_SHORTCUTS

    def checked(self, cid: int, right: bool, now: int) -> None:
        """Whether a client's secret matches its hash."""
        session = self._sessions.get(cid)
        if session is None or session.pending is None:
            return
        held, session.held = session.held, []
        self._routers[session.account].now = now
        if self._admission.checked(session, right):
            if session.verbose and not session.closed:
                self._routers[session.account].push(session, OK)
            self.receive(cid, held, now)

    def observe(self, observer: SessionObserver) -> None:
        """Report to `observer` whenever a client joins its account or leaves."""
        self._admission.observer = observer

    def kick(self, cid: int) -> bool:
        """Disconnect a client at the request of an administrator; False if there is no such client."""
        session = self._sessions.get(cid)
        if session is None:
            return False
        self._routers[session.account].close(session, "")
        session.reason = session.reason or "Kicked"
        return True

    def announce_end_to(self, cid: int) -> bool:
        """Ask one client to connect elsewhere; False if there is no such client."""
        session = self._sessions.get(cid)
        if session is not None and session.protocol >= 1:
            self._routers[session.account].push(session, self._info(session, lame_duck=True))
        return session is not None

    def client_name(self, cid: int) -> str:
        """The name that a client gave in CONNECT."""
        session = self._sessions.get(cid)
        return session.name if session is not None else ""

    def announce_end(self) -> None:
        """Ask every client that understands it to connect elsewhere (lame duck mode)."""
        for session in self._sessions.values():
            if session.protocol >= 1:
                self._routers[session.account].push(session, self._info(session, lame_duck=True))

    def retire(self) -> None:
        """The server stops: consumers deliver nothing more, and end the pull requests that wait."""
        for account in self._accounts.values():
            for stream in account.streams.values():
                stream.consumers.retire()

    def congested(self, cid: int, yes: bool) -> None:
        """The driver's buffer for a client is full (or no longer): batches for it wait."""
        session = self._sessions.get(cid)
        if session is not None:
            session.congested = yes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of requests that wait in memory: open atomic batches."""
        return self.batch_usage.bytes

    def take_output(self) -> list[Session]:
        """The sessions with output (or to be closed); the driver takes `out` and sets the capacity."""
        return self.output.take()

    # Time and work.

    def _set_time(self, now: int) -> None:
        for router in self._routers.values():
            router.now, router.origin = now, None

    def next_deadline(self) -> int | None:
        """When `tick` must be called next."""
        return self.timers.next_deadline()

    def tick(self, now: int) -> None:
        """Run the timers that are due."""
        self._set_time(now)
        self.load.units = 0
        self.timers.due(now)

    def step(self, now: int) -> bool:
        """Run a chunk of every job; True if there is more to do at once."""
        self._set_time(now)
        self.load.units = 0
        return self.jobs.step()

    @property
    def has_new_jobs(self) -> bool:
        """Whether jobs were started since the last step."""
        return self.jobs.has_new

    # Commits.

    def committed(self, batch: CommitBatch, now: int) -> None:
        """A group is durable. Everything that follows a commit happens here, in this order; what happens before it is
        in `Journal.seal`. `docs/design/engine.md` has the same list."""
        self._set_time(now)
        self.load.units = 0
        journal = batch.journal
        # 1. The readers' view moves: from here on the group is visible.
        answers = journal.finish(batch)
        try:
            # 2. Messages about the group: republished ones, advisories.
            self._send_events(batch)
            # 3. Consumers look for new messages.
            for follower in list(journal.followers):
                follower.committed(now)
            # 4. What waited for this group only: a new consumer begins, a restored stream is complete.
            for callback in batch.after:
                callback()
        finally:  # what is durable is acknowledged, even if something above failed
            # 5. Acks and API responses, those of one account together.
            for port, own_answers in self._by_port(answers):
                port.answer_all(own_answers)
            # 6. Reports that take a search begin.
            for report in batch.reports:
                report()
            # 7. Mirrors and sources, then reads that wait for a sequence.
            self._commit_waiters.release()

    def _send_events(self, batch: CommitBatch) -> None:
        """Send republished messages and advisories, in the order of the stream, of all publishers."""
        load = self.load
        load.is_about_commit = True
        try:
            for port, subject, header, payload, client in batch.events:
                load.owner = client
                port.send(subject, header, payload)
        finally:
            load.owner, load.is_about_commit = None, False

    def _by_port(self, answers: list[Answer]) -> Iterable[tuple[ReplyPort, list[Answer]]]:
        if not self._had_accounts:
            return ((self._default.router, answers),)
        by_port: dict[ReplyPort, list[Answer]] = {}
        for answer in answers:
            by_port.setdefault(answer[2].reply_port, []).append(answer)
        return by_port.items()

    def failed(self, journal: Journal, error: Exception, now: int) -> None:
        """A group could not be stored: drop everything uncommitted, go back to the last commit, answer with errors."""
        self._set_time(now)
        reason = StreamStoreFailedError(str(error) or type(error).__name__)
        journal.failure = reason.description
        reports = journal.take_reports()
        lost = journal.abandon()
        self._load(journal, now)
        for reply, _, source, _, _ in lost:
            if answer := source.failure(reason):
                source.reply_port.send(reply, b"", answer)
        for report in reports:
            report()

    def _load(self, journal: Journal, now: int) -> None:
        """Bring the streams in line with a store. Streams of accounts that are not configured stay in the store."""
        for name, account in self._accounts.items():
            if self.has_jetstream(name):
                account.load(journal, now)

    # Savepoints, for tests.

    def add_savepoint(self, now: int) -> int:
        """Remember the streams as they are, with their consumers; everything must be committed. Returns its number."""
        stores = [self._savepoints(journal) for journal in self.journals]
        for store in stores:
            store.add_savepoint()
        self._savepoints_made += 1
        self._savepoint_times[self._savepoints_made] = now
        return self._savepoints_made

    def savepoint_time(self, number: int) -> int:
        """When a savepoint was set."""
        if number not in self._savepoint_times:
            known = ", ".join(map(str, self._savepoint_times)) or "there is none"
            raise UsageError(f"snapshot must be one that no later restore has undone ({known}), got {number}")
        return self._savepoint_times[number]

    def roll_back(self, number: int, now: int) -> None:
        """Return to a savepoint, and forget those that were set after it. Streams are opened as after a restart:
        replicas that were held follow again, open batches and consumers that do not outlive a server are gone."""
        self.savepoint_time(number)
        position = list(self._savepoint_times).index(number) + 1
        for later in [one for one in self._savepoint_times if one > number]:
            del self._savepoint_times[later]
        self._set_time(now)
        for account in self._accounts.values():
            account.unload()
        for journal in self.journals:
            lost = journal.abandon()
            self._savepoints(journal).roll_back(position)
            self._load(journal, now)
            for reply, _, source, _, _ in lost:
                if answer := source.failure(StreamStoreFailedError("the server was restored to a snapshot")):
                    source.reply_port.send(reply, b"", answer)

    def _savepoints(self, journal: Journal) -> Savepoints:
        found = journal.store.savepoints
        if found is None:
            raise UsageError("savepoints need streams in memory; this server has a data_dir")
        return found

    def health(self) -> Health:
        """The server's problems in words; empty if there are none."""
        return examine(self.journals)

    # The protocol of clients.

    def _info(self, session: Session, *, lame_duck: bool = False) -> bytes:
        return info(
            self.settings,
            session,
            locked=self._authenticator.required and self._authenticator.default is None,
            system_account=self.system_account,
            lame_duck=lame_duck,
        )

    def _control(self, session: Session, router: AccountRouter, event: Event) -> None:
        if isinstance(event, Sub):
            if not self._subscribe(session, router, event):
                return
        elif isinstance(event, Unsub):
            self._unsubscribe(session, router, event)
        elif isinstance(event, Ping):
            router.push(session, PONG)
            if not session.info_sent and session.protocol >= 1:
                session.info_sent = True
                router.push(session, self._info(session))
            return
        elif isinstance(event, Pong):
            if session.pinged:
                session.rtt, session.pinged = max(1, session.active - session.pinged), 0
            return
        elif isinstance(event, Connect):
            self._admission.connect(session, event.options)
            if session.pending is not None:
                return
            router = self._routers[session.account]
        elif isinstance(event, Violation):
            router.close(session, event.err)
        else:  # INFO, +OK, -ERR and MSG are sent by servers only; the parser for clients yields none of them
            router.close(session, "Unknown Protocol Operation")
        if session.verbose and not session.closed:
            router.push(session, OK)

    def _subscribe(self, session: Session, router: AccountRouter, event: Sub) -> bool:
        subject, queue, sid = event
        grant = session.grant
        if queue == QUEUE or (grant is not None and not grant.rules.may_subscribe(subject, queue)):
            # The members of that group answer for streams: a client that joined could answer in their name.
            text = f"Permissions Violation for Subscription to {quoted(subject)}"
            router.push(session, err(f"{text} using queue {quoted(queue)}" if queue else text))
        elif not is_valid_filter(subject):
            router.push(session, err("Invalid Subject"))
        elif 0 <= at_most(session.max_subs, self.settings.max_subscriptions) <= len(session.subs):
            router.push(session, err("maximum subscriptions exceeded"))
        else:
            if sid not in session.subs:
                sub = session.subs[sid] = subscription(session, subject, queue, sid)
                router.add(subject, sub, queue)
            return True
        return False

    def _unsubscribe(self, session: Session, router: AccountRouter, event: Unsub) -> None:
        sub = session.subs.get(event.sid)
        if sub is None:
            return
        if event.max_msgs:
            router.end_after(sub, event.max_msgs)
        else:
            router.remove(sub)

    def _publish(self, session: Session, router: AccountRouter, event: Pub) -> None:
        """The whole way of a publish: checks, matcher, delivery. See `receive` for the shortcut."""
        subject, reply, header, payload = event
        if header and not session.headers:
            router.close(session, "message headers not supported")
            return
        if 0 <= session.max_payload < len(header) + len(payload):
            router.close(session, "Maximum Payload Violation")
            return
        valid = subject in self._valid_subjects or self._validate(subject)
        if session.pedantic and (not valid or has_wildcard(subject)):
            router.push(session, err("Invalid Publish Subject"))
        rules = None
        if session.grant is not None:
            rules = session.grant.rules
            if not session.grant.may_publish(subject, router.now):
                router.push(session, err(f"Permissions Violation for Publish to {quoted(subject)}"))
                return
            refused = [target for target in schedule_targets(header) if not rules.may_publish(target)]
            if refused:
                router.push(session, err(f"Permissions Violation for Publish to {quoted(refused[0])}"))
                return
        if reply and (_is_reserved(reply) or (rules is not None and not router.may_reply(rules, reply))):
            router.push(session, err(f"Permissions Violation for Publish with Reply of {quoted(reply)}"))
            return
        if session.verbose:
            router.push(session, OK)
        if not valid:
            return
        # A reply inbox is used once: in the matcher's cache it would only displace others.
        if subject.startswith(INBOX) or subject.startswith(ACK_PREFIX):
            found = router.matcher.match_once(subject)
        else:
            found = router.matcher.match(subject)
            receiver = _sole_receiver(found)
            if receiver is not None:
                router.remember_sole_receiver(subject, receiver)
        # A client that pipelines publishes which take long is served in slices.
        if router.matcher.branches:
            self.load.units += router.matcher.branches // BRANCHES_PER_UNIT
            router.matcher.branches = 0
        if rules is not None:
            router.requester = rules
            try:
                delivered = router.route(found, subject, reply, header, payload, session)
            finally:
                router.requester = None
        else:
            delivered = router.route(found, subject, reply, header, payload, session)
        if not delivered and reply and session.no_responders:
            router.send_no_responders(session, subject, reply)

    def _validate(self, subject: str) -> bool:
        if not is_valid_filter(subject):
            return False
        if len(self._valid_subjects) >= MAX_VALID_SUBJECTS:
            self._valid_subjects.clear()
        self._valid_subjects.add(subject)
        return True


def _sole_receiver(found: Match[ClientSub | Subscriber]) -> Stream | ReplicaPeer | None:
    """The part of the server that alone receives a subject: a stream, or the only replica that answers Direct Gets. The
    API subscribes to those as well, and declines them."""
    plain, queues = found.plain, found.queues
    if not queues:
        if len(plain) == 1:
            stream = plain[0]
            if isinstance(stream, Stream):
                return stream
        return None
    members = queues[0][1]
    if len(queues) == 1 and len(members) == 1:
        peer = members[0]
        if isinstance(peer, ReplicaPeer):
            for other in plain:
                if not isinstance(other, Api):
                    return None
            return peer
    return None


class HeldInput:
    """The input of a client that waits for its turn, as a job."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self._engine, self._session = engine, session

    def run(self) -> tuple[Progress, int]:
        for journal in self._engine.filled_by.get(self._session.cid, ()):
            if not journal.admits(MAX_PENDING):
                return Progress.BLOCKED, 0
        units = len(self._session.held) // 4
        load = self._engine.load
        self._engine.handle_held(self._session)
        return Progress.DONE, units + load.units


def _is_reserved(reply: str) -> bool:
    """Whether only servers may ask for answers there. An answer below `$JS.ACK.` would settle a message of a consumer,
    in the name of the server that sends it; the other two are for replies across accounts and gateways."""
    return reply.startswith("_R_.") or (reply.startswith((ACK_PREFIX, "_GR_.")) and reply not in (ACK_PREFIX, "_GR_."))
