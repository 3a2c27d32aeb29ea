"""Events of the system account: clients that connect, leave or are refused, connections per account, statistics.

Names and shapes are nats-server's. An event is encoded only if it has subscribers, who are users of the system account.
It describes a client without secrets: no token, no password, no JWT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream.api import encode_json, format_time
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from slipstream.server.engine.core.client_info import client_info, closed_reason
from slipstream.server.engine.core.routing import AccountRouter
from slipstream.server.engine.core.session import Session
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.settings import Totals

TYPE = "io.nats.server.advisory.v1."
CONNECTIONS_INTERVAL = 30_000_000_000  # ns between reports of an account that has connections
CONNECTIONS_DELAY = 50_000_000  # ns from a change to its report: many clients that come at once are one report
STATSZ_FIRST, STATSZ_INTERVAL = 250_000_000, 10_000_000_000  # doubled from the first to the last

_JETSTREAM, _SNAPSHOTS, _ACCOUNT_GROUPS = 1, 2, 4  # capabilities


class ServerIdentity:
    """The field `server` of every event and response: who sends it, the how manieth one it is, and when."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sent = 0

    def describe(self, now: int) -> dict[str, Any]:
        settings = self._engine.settings
        self._sent += 1
        domain = {"domain": settings.domain} if settings.domain else {}
        flags = (_JETSTREAM if settings.jetstream else 0) | _SNAPSHOTS | _ACCOUNT_GROUPS
        return {
            "name": settings.server_name,
            "host": settings.host,
            "id": settings.server_id,
            **domain,
            "ver": settings.version,
            "jetstream": settings.jetstream,
            "flags": flags,
            "seq": self._sent,
            "time": format_time(now),
        }


class AccountStatistics:
    """Messages and bytes of every account, those of clients that have left included."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._left: dict[str, Totals] = {}

    def left(self, session: Session) -> None:
        self._left.setdefault(session.account or DEFAULT_ACCOUNT, Totals()).add(session)

    def report(self, account: str) -> dict[str, Any]:
        """One account, as nats-server's `AccountStat`."""
        sessions = [
            one for one in self._engine.sessions.values() if one.identity is not None and one.account == account
        ]
        past, router = self._left.get(account, Totals()), self._engine.account(account).router
        none = {"msgs": 0, "bytes": 0}
        elsewhere = {"gateways": none, "routes": none, "leafs": none}
        sent = {
            "msgs": past.out_msgs + sum(one.out_msgs for one in sessions),
            "bytes": past.out_bytes + sum(one.out_bytes for one in sessions),
        }
        received = {
            "msgs": past.in_msgs + sum(one.in_msgs for one in sessions),
            "bytes": past.in_bytes + sum(one.in_bytes for one in sessions),
        }
        return {
            "acc": account,
            "name": account,
            "conns": len(sessions),
            "leafnodes": 0,
            "total_conns": len(sessions),
            "num_subscriptions": router.inserts - router.removes,
            "sent": sent | elsewhere,
            "received": received | elsewhere,
            "slow_consumers": past.slow,
        }


class SystemEvents:
    """Sends the events; the engine reports joins and leaves to it."""

    def __init__(
        self,
        engine: Engine,
        server: ServerIdentity,
        statistics: AccountStatistics,
        statsz: Callable[[], dict[str, Any]],
    ) -> None:
        """`statsz` gives the server's statistics, those of its process included."""
        self._engine, self._server, self._statistics, self._statsz = engine, server, statistics, statsz
        self._interval = STATSZ_FIRST
        self._is_ticking = False
        self._changed: set[str] = set()  # accounts whose connections are reported soon

    @property
    def _router(self) -> AccountRouter | None:
        engine = self._engine
        return engine.account(engine.system_account).router if engine.has_account(engine.system_account) else None

    def start(self, now: int) -> None:
        """Begin the periodic events, if there is a system account."""
        if self._router is not None and not self._is_ticking:
            self._is_ticking = True
            self._engine.timers.at(now + self._interval, self._report_statistics)
            self._engine.timers.at(now + CONNECTIONS_INTERVAL, self._report_connections)

    # What clients do.

    def joined(self, session: Session) -> None:
        self._connections_changed(session.account)
        self._send(f"$SYS.ACCOUNT.{session.account}.CONNECT", "client_connect", lambda: {
            "client": client_info(session, tagged=True),
        })  # fmt: skip

    def left(self, session: Session) -> None:
        self._statistics.left(session)
        if session.reason.startswith("Authentication"):
            server = self._engine.settings.server_id
            self._send(f"$SYS.SERVER.{server}.CLIENT.AUTH.ERR", "client_disconnect", lambda: _left(session))
        elif session.identity is None:
            return  # nats-server counts a client once it has sent CONNECT
        else:
            self._connections_changed(session.account)
        self._send(
            f"$SYS.ACCOUNT.{session.account or DEFAULT_ACCOUNT}.DISCONNECT", "client_disconnect", lambda: _left(session)
        )

    def _connections_changed(self, account: str) -> None:
        """Report the connections of an account soon. Counting them takes time in proportion to their number."""
        router = self._router
        if router is None or account in self._changed:
            return
        self._changed.add(account)

        def report(_: int) -> None:
            self._changed.discard(account)
            self._connections(account)

        self._engine.timers.at(router.now + CONNECTIONS_DELAY, report)

    def _connections(self, account: str) -> None:
        """Report the connections of an account; those of the default account are not reported, as on nats-server."""
        if account == DEFAULT_ACCOUNT or not self._engine.has_account(account):
            return
        for subject in (f"$SYS.SERVER.ACCOUNT.{account}.CONNS", f"$SYS.ACCOUNT.{account}.SERVER.CONNS"):
            self._send(subject, "account_connections", lambda: self._statistics.report(account))

    # Periodic, and at the end.

    def _report_connections(self, now: int) -> None:
        if self._router is None:
            self._is_ticking = False
            return
        for account in {one.account for one in self._engine.sessions.values() if one.identity is not None}:
            self._connections(account)
        self._engine.timers.at(now + CONNECTIONS_INTERVAL, self._report_connections)

    def _report_statistics(self, now: int) -> None:
        if (router := self._router) is None:
            return
        subject = f"$SYS.SERVER.{self._engine.settings.server_id}.STATSZ"
        if router.interest(subject)[0]:
            router.send(
                subject, b"", encode_json({"server": self._server.describe(router.now), "statsz": self._statsz()})
            )
        self._interval = min(2 * self._interval, STATSZ_INTERVAL)
        self._engine.timers.at(now + self._interval, self._report_statistics)

    def ending(self, event: str) -> None:
        """The server enters lame duck mode (`LAMEDUCK`) or stops (`SHUTDOWN`)."""
        if (router := self._router) is not None:
            subject = f"$SYS.SERVER.{self._engine.settings.server_id}.{event}"
            router.send(subject, b"", encode_json(self._server.describe(router.now)))

    def connections(self, account: str, now: int) -> bytes:
        """The event about an account's connections, as the answer to a request for it."""
        return self._encode("account_connections", now, self._statistics.report(account))

    def _send(self, subject: str, kind: str, fields: Callable[[], dict[str, Any]]) -> None:
        router = self._router
        if router is not None and router.interest(subject)[0]:
            router.send(subject, b"", self._encode(kind, router.now, fields()))

    def _encode(self, kind: str, now: int, fields: dict[str, Any]) -> bytes:
        server = self._server.describe(now)
        event = {"type": TYPE + kind, "id": f"{server['id'][:12]}{server['seq']:010d}", "timestamp": format_time(now)}
        return encode_json(event | {"server": server} | fields)


def _left(session: Session) -> dict[str, Any]:
    """A client that left: what it sent and received, and why it was closed."""
    return {
        "client": client_info(session, tagged=True, stopped=session.stopped),
        "sent": {"msgs": session.in_msgs, "bytes": session.in_bytes},
        "received": {"msgs": session.out_msgs, "bytes": session.out_bytes},
        "reason": closed_reason(session),
    }
