"""Admission of clients: from the greeting to an authenticated session in its account, and its keep-alive from then on.

A session that must authenticate is closed after `auth_timeout`. A secret that is stored as a hash is compared by the
driver, away from the loop: until `checked` is called, `Session.pending` is set and what the client sends is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from slipstream.server.engine.auth.authenticator import Authenticator, Credentials, Hashed, Identity, Refused
from slipstream.server.engine.auth.permissions import Grant, quoted
from slipstream.server.engine.core.routing import AccountRouter
from slipstream.server.engine.core.session import Session, subscription
from slipstream.server.engine.settings import Check, Settings
from slipstream.server.engine.timers import Timers
from slipstream.wire import ConnectOptions, err
from slipstream.wire.encode import PING

CHECK_TIME = 10_000_000_000  # ns, added to the timeout of a client whose secret is compared with a hash


class SessionObserver(Protocol):
    """A part of the server that reports on clients: the events of the system account."""

    def joined(self, session: Session) -> None:
        """A client was authenticated and belongs to its account now."""

    def left(self, session: Session) -> None:
        """A client disconnected, or was refused."""


class Admission:
    """Authenticates sessions, assigns them to accounts and pings them."""

    def __init__(
        self, settings: Settings, authenticator: Authenticator, routers: Mapping[str, AccountRouter], timers: Timers
    ) -> None:
        """`routers` by `Session.account`."""
        self._settings, self._authenticator, self._routers, self._timers = settings, authenticator, routers, timers
        self.checks: list[Check] = []  # secrets to be compared with hashes, by the driver
        self._connections: dict[str, int] = {}  # by account
        self.observer: SessionObserver | None = None

    def begin(self, session: Session, now: int) -> None:
        """A client was greeted."""
        if self._authenticator.required:
            session.timer = self._timers.at(
                now + self._settings.auth_timeout, lambda _: self._close(session, "Authentication Timeout")
            )
        else:
            self._keep_alive(session, now)

    def reload(self, settings: Settings, authenticator: Authenticator, sessions: Iterable[Session]) -> None:
        """Apply changed settings and users. A client whose credentials are not valid any more is closed; permissions
        and limits of the others change at once, and they lose the subscriptions that are not permitted any more."""
        before, self._settings, self._authenticator = self._authenticator, settings, authenticator
        for session in sessions:
            if session.closed:
                continue
            if session.pending is not None:  # what its secret was to be compared with may have changed
                self._refuse(session, "the configuration was reloaded")
            elif session.identity is not None:
                identity = authenticator.renew(session.identity, before, by_default=session.by_default)
                if identity is None:
                    self._refuse(session, "not valid after a reload of the configuration")
                else:
                    self._change(session, identity)
            elif authenticator.required and not before.required:  # it may have sent no CONNECT yet, but messages
                self._refuse(session, "not authenticated after a reload of the configuration")

    def _change(self, session: Session, identity: Identity) -> None:
        old, session.identity = session.identity, identity
        session.max_subs, session.max_payload = identity.max_subscriptions, identity.max_payload
        old_rules = old.rules.permissions if old is not None and old.rules is not None else None
        if old_rules == (identity.rules.permissions if identity.rules is not None else None):
            return
        router = self._routers[session.account]
        grant = session.grant = Grant(identity.rules) if identity.rules is not None else None
        for sub in list(session.subs.values()):
            if grant is not None and not grant.rules.may_subscribe(sub.subject, sub.queue):
                router.remove(sub)
                sid = quoted(sub.sid.decode(errors="replace"))
                router.push(
                    session, err(f"Permissions Violation for Subscription to {quoted(sub.subject)} (sid {sid})")
                )
            else:
                router.replace(sub, subscription(session, sub.subject, sub.queue, sub.sid))

    def left(self, session: Session) -> None:
        """A client disconnected."""
        if session.identity is not None:
            self._connections[session.account] -= 1
        if self.observer is not None:
            self.observer.left(session)

    def connect(self, session: Session, options: ConnectOptions) -> None:
        """Judge a CONNECT: the session is ready, closed, or pending until its secret is checked."""
        listener, now = session.listener, self._routers[session.account].now
        session.describe(options)
        verdict = self._authenticator.admit(
            Credentials(
                options, session.nonce, session.peer.host, listener.connection_type, session.certificate,
                listener.by_certificate, now,
            )
        )  # fmt: skip
        if isinstance(verdict, Hashed):
            session.pending = options, verdict.identity
            if session.timer is not None:  # the client has done its part: how long the comparison takes is up to us
                session.timer.cancel()
                session.timer = self._timers.at(
                    now + self._settings.auth_timeout + CHECK_TIME,
                    lambda _: self._close(session, "Authentication Timeout"),
                )
            self.checks.append(Check(session.cid, verdict.secret, verdict.hash))
        elif isinstance(verdict, Refused):
            self._refuse(session, verdict.reason)
        else:
            self._enter(session, verdict, options)

    def checked(self, session: Session, right: bool) -> bool:
        """The secret of a pending session was compared; False if the client is refused."""
        assert session.pending is not None
        (options, identity), session.pending = session.pending, None
        if not right or identity is None:
            self._refuse(session)
            return False
        self._enter(session, identity, options)
        return True

    def admit_default(self, session: Session) -> bool:
        """Admit a client that sent something else before CONNECT as the default user, or refuse it if there is none."""
        identity = self._authenticator.default
        if identity is None:
            self._refuse(session, "the first command was not CONNECT")
            return False
        self._enter(session, identity, ConnectOptions())
        return not session.closed

    def _close(self, session: Session, text: str) -> None:
        self._routers[session.account].close(session, text)

    def _refuse(self, session: Session, reason: str = "wrong secret") -> None:
        """Close the session. The reason is for monitoring: the client does not learn what was wrong."""
        self._close(session, "Authorization Violation")
        session.reason = f"Authentication Failure: {reason}"

    def _enter(self, session: Session, identity: Identity, options: ConnectOptions) -> None:
        if session.identity is not None and session.identity.key != identity.key:  # an identity does not change
            self._refuse(session, "a second CONNECT by another user")
            return
        if options.no_responders and not options.headers:
            self._close(session, "no responders requires headers support")
            return
        session.introduce(options)
        if session.identity is None and not self._join(session, identity):
            return
        if session.timer is not None:
            session.timer.cancel()
        self._keep_alive(session, self._routers[session.account].now)

    def _join(self, session: Session, identity: Identity) -> bool:
        """Assign the session to its account; False if that has too many connections."""
        limit = self._authenticator.accounts[identity.account].max_connections
        connections = self._connections.get(identity.account, 0)
        if 0 <= limit <= connections:
            self._close(session, "maximum account active connections exceeded")
            return False
        self._connections[identity.account] = connections + 1
        now = self._routers[session.account].now
        session.identity, session.account = identity, identity.account
        self._routers[session.account].now = now
        session.grant = Grant(identity.rules) if identity.rules is not None else None
        session.max_subs, session.max_payload = identity.max_subscriptions, identity.max_payload
        session.by_default = not session.user and identity is self._authenticator.default
        session.user = session.user or identity.shown_name
        if identity.expires:
            whose = "Account" if identity.expires == self._authenticator.expiry_of(identity.account) else "User"
            session.expiry = self._timers.at(
                identity.expires, lambda _: self._close(session, f"{whose} Authentication Expired")
            )
        if self.observer is not None:
            self.observer.joined(session)
        return True

    def _keep_alive(self, session: Session, now: int) -> None:
        """Ping the client after each interval; close the session if it left too many pings unanswered."""

        def ping(now: int) -> None:
            if session.pings_out >= self._settings.max_pings_out:
                self._close(session, "Stale Connection")
                return
            session.pings_out += 1
            session.pinged = now
            self._routers[session.account].push(session, PING)
            self._keep_alive(session, now)

        if not session.closed:
            session.timer = self._timers.at(now + self._settings.ping_interval, ping)
