"""Request services of the system account (`$SYS.REQ.…`): what the `nats` tool asks for in `server list`, `info`,
`report` and `check`, and what it does by `server request kick` and `reload`.

The reports are those of the monitoring endpoints. Users of the system account may ask for everything that their
permissions allow; users of other accounts for themselves (`$SYS.REQ.USER.INFO`) and for their own account, whatever
account a request of theirs names. Requests without a reply subject do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

import msgspec

from slipstream.api import NOT_JSON, encode_json, format_time
from slipstream.errors import UsageError
from slipstream.server.engine.account import Account
from slipstream.server.engine.core.routing import AccountRouter
from slipstream.server.engine.core.session import Session
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.jobs import AccountJobs
from slipstream.server.engine.monitoring import endpoints
from slipstream.server.engine.monitoring.system_events import AccountStatistics, ServerIdentity, SystemEvents
from slipstream.server.engine.ports import Walk

SERVER, ACCOUNT = "$SYS.REQ.SERVER", "$SYS.REQ.ACCOUNT"
USER_INFO = "$SYS.REQ.USER.INFO"
TOO_MANY = "too many reports at once"

Body = Mapping[str, Any]


class ProcessReport(Protocol):
    """What only the process around the engine knows."""

    def varz(self) -> dict[str, Any]:
        """As the endpoint `/varz`."""

    def usage(self) -> dict[str, Any]:
        """`mem`, `cores` and `cpu`."""


class Reload(Protocol):
    """Applies a changed configuration; raises a UsageError that says why it cannot."""

    def __call__(self) -> None: ...


class _Skip(Exception):  # noqa: N818
    """The request is for another server, or there is nothing to say."""


class Service:
    """One subject with its handler."""

    def __init__(self, handler: Callable[[str, str, bytes, int], None]) -> None:
        self._handler = handler

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        if reply:
            self._handler(subject, reply, payload, now)
        return True


class SystemServices:
    """The services of one server."""

    def __init__(self, engine: Engine, process: ProcessReport, *, reload: Reload | None = None) -> None:
        self._engine, self._process, self._reload = engine, process, reload
        self._server = ServerIdentity(engine)
        self._statistics = AccountStatistics(engine)
        self.events: SystemEvents = SystemEvents(engine, self._server, self._statistics, self._statsz)
        self._by_server: dict[str, Callable[[Body, int], Any]] = {
            "VARZ": lambda _, __: process.varz(),
            "CONNZ": lambda body, now: endpoints.connz(engine, now, _connz_query(body)),
            "SUBSZ": lambda body, now: endpoints.subsz(engine, now, _query(body, subscriptions="subs", account="acc")),
            "JSZ": lambda body, now: endpoints.jsz(engine, now, _query(body, account="acc", consumer="consumers")),
            "ACCOUNTZ": lambda body, now: endpoints.accountz(engine, now, _query(body, account="acc")),
            "HEALTHZ": lambda body, _: _healthz(engine, body),
            "ROUTEZ": lambda _, now: self._head(now) | {"num_routes": 0, "routes": []},
            "GATEWAYZ": lambda _, now: self._head(now) | {"outbound_gateways": {}, "inbound_gateways": {}},
            "LEAFZ": lambda _, now: self._head(now) | {"leafnodes": 0, "leafs": []},
            "RAFTZ": lambda _, __: {},
        }
        self._by_account: dict[str, Callable[[str, Body, int], Any]] = {
            "INFO": lambda name, _, now: endpoints.accountz(engine, now, {"acc": name})["account_detail"],
            "CONNZ": lambda name, body, now: endpoints.connz(engine, now, {**_connz_query(body), "acc": name}),
            "SUBSZ": lambda name, _, now: endpoints.subsz(engine, now, {"acc": name, "subs": "1"}),
            "JSZ": self._account_jsz,
            "STATZ": lambda name, body, now: self._statz([name], body, now),
            "LEAFZ": lambda _, __, now: self._head(now) | {"leafnodes": 0, "leafs": []},
        }

    def attach(self) -> None:
        """Subscribe in every account, and begin to report events."""
        engine = self._engine
        engine.observe(self.events)
        for account in engine.accounts:
            self.attach_to(account)

    def attach_to(self, account: Account) -> None:
        """Subscribe in an account."""
        self._subscribe(account.router, account.jobs, account.name)
        self.events.start(account.router.now)

    def _subscribe(self, router: AccountRouter, jobs: AccountJobs, account: str) -> None:
        def add(subject: str, handler: Callable[[str, str, bytes, int], None]) -> None:
            router.add(subject, Service(handler))

        add(USER_INFO, lambda _, reply, __, now: self._user_info(router, reply, now))
        if account != self._engine.system_account:
            # In the system account these report on all accounts, here on the account of the client that asks.
            for subject in (f"{ACCOUNT}.PING.CONNZ", f"{SERVER}.PING.CONNZ"):
                add(
                    subject,
                    self._answering(router, jobs, lambda _, body, now: self._by_account["CONNZ"](account, body, now)),
                )
            add(
                f"{ACCOUNT}.PING.STATZ",
                self._answering(router, jobs, lambda _, body, now: self._statz([account], body, now)),
            )
            return
        own = self._engine.settings.server_id
        statsz, idz = self._statsz_request(router), self._id_request(router)
        add(f"{SERVER}.PING", statsz)
        for name in (f"{SERVER}.PING", f"{SERVER}.{own}"):
            add(f"{name}.STATSZ", statsz)
            add(f"{name}.IDZ", idz)
            for kind in self._by_server:
                add(f"{name}.{kind}", self._answering(router, jobs, self._of_server))
        for kind in self._by_account:
            add(f"{ACCOUNT}.*.{kind}", self._answering(router, jobs, self._of_account))
        add(f"{ACCOUNT}.PING.STATZ", self._answering(router, jobs, lambda _, body, now: self._statz(None, body, now)))
        add(f"{ACCOUNT}.*.CONNS", lambda subject, reply, _, now: self._conns(router, subject, reply, now))
        add(
            f"{SERVER}.{own}.KICK",
            self._answering(router, jobs, lambda _, body, __: self._on_client(Engine.kick, body)),
        )
        add(
            f"{SERVER}.{own}.LDM",
            self._answering(router, jobs, lambda _, body, __: self._on_client(Engine.announce_end_to, body)),
        )
        add(f"{SERVER}.{own}.RELOAD", self._answering(router, jobs, lambda _, __, ___: self._do_reload()))

    def _of_server(self, subject: str, body: Body, now: int) -> Any:
        return self._by_server[subject.rpartition(".")[2]](body, now)

    def _of_account(self, subject: str, body: Body, now: int) -> Any:
        *_, name, kind = subject.split(".")
        if name == "PING":
            raise _Skip
        if not self._engine.has_account(name):
            raise UsageError(f"Account {name[:64]} does not exist")
        return self._by_account[kind](name, body, now)

    # The envelope.

    def _answering(
        self, router: AccountRouter, jobs: AccountJobs, report: Callable[[str, Body, int], Any]
    ) -> Callable[[str, str, bytes, int], None]:
        """A handler that sends what `report` returns, or its error, with the server that answers. A report that may be
        long is a walk, made in slices."""

        def send(reply: str, fields: dict[str, Any], now: int) -> None:
            router.send(reply, b"", encode_json({"server": self._server.describe(now)} | fields))

        def guarded(walk: Walk[Any]) -> Walk[dict[str, Any]]:
            try:
                return {"data": (yield from walk)}
            except (UsageError, ValueError) as exc:
                return {"error": {"code": 500, "description": str(exc)}}

        def failed(reply: str, error: object, now: int) -> None:
            send(reply, {"error": {"code": 500, "description": str(error)}}, now)

        def answer(subject: str, reply: str, payload: bytes, now: int) -> None:
            fields: dict[str, Any]
            try:
                body = _decode(payload)
                if self._is_for_others(body):
                    return
                data = report(subject, body, now)
                if isinstance(data, Generator):
                    if not jobs.search(
                        guarded(data), lambda found: send(reply, found, now), lambda error: failed(reply, error, now)
                    ):
                        failed(reply, TOO_MANY, now)
                    return
                fields = {} if data is None else {"data": data}
            except _Skip:
                return
            except _BadRequestError as exc:
                fields = {"error": {"code": 400, "description": str(exc)}}
            except (UsageError, ValueError) as exc:
                fields = {"error": {"code": 500, "description": str(exc)}}
            send(reply, fields, now)

        return answer

    def _is_for_others(self, body: Body) -> bool:
        """Whether the filters of a request exclude this server."""
        settings = self._engine.settings
        exact = body.get("exact_match") is True
        for field, own in (("server_name", settings.server_name), ("host", settings.host)):
            wanted = body.get(field)
            if isinstance(wanted, str) and wanted and (wanted != own if exact else wanted not in own):
                return True
        domain = body.get("domain")
        return bool(body.get("cluster") or body.get("tags")) or bool(domain and domain != settings.domain)

    def _head(self, now: int) -> dict[str, Any]:
        return {"server_id": self._engine.settings.server_id, "now": format_time(now)}

    def _id_request(self, router: AccountRouter) -> Callable[[str, str, bytes, int], None]:
        settings = self._engine.settings
        own = {"name": settings.server_name, "host": settings.host, "id": settings.server_id}

        def answer(_: str, reply: str, __: bytes, ___: int) -> None:
            router.send(reply, b"", encode_json(own))

        return answer

    # Reports.

    def _statsz(self) -> dict[str, Any]:
        return endpoints.statsz(self._engine, self._process.usage())

    def _statsz_request(self, router: AccountRouter) -> Callable[[str, str, bytes, int], None]:
        def answer(_: str, reply: str, payload: bytes, now: int) -> None:
            try:
                if self._is_for_others(_decode(payload)):
                    return
            except _BadRequestError as exc:
                fields: dict[str, Any] = {"error": {"code": 400, "description": str(exc)}}
            else:
                fields = {"statsz": self._statsz()}
            router.send(reply, b"", encode_json({"server": self._server.describe(now)} | fields))

        return answer

    def _statz(self, names: list[str] | None, body: Body, now: int) -> dict[str, Any]:
        """The statistics of accounts; of all that have connections, if none is named."""
        unused = body.get("include_unused") is True
        if names is None:
            asked = body.get("accounts")
            names = [name for name in asked if isinstance(name, str)] if isinstance(asked, list) else []
            names = names or sorted(account.name for account in self._engine.accounts)
        found = [self._statistics.report(name) for name in names if self._engine.has_account(name)]
        found = [one for one in found if unused or one["conns"]]
        if not found and not unused:
            raise _Skip
        return self._head(now) | {"account_statz": found}

    def _account_jsz(self, name: str, body: Body, now: int) -> Walk[Any]:
        query = {**_query(body, consumer="consumers"), "acc": name, "accounts": "1"}
        if not self._engine.has_account(name) or not self._engine.has_jetstream(name):
            raise UsageError(f"account {name[:64]!r} has no JetStream")
        page = yield from endpoints.jsz(self._engine, now, query)
        return page["account_details"][0]

    def _conns(self, router: AccountRouter, subject: str, reply: str, now: int) -> None:
        name = subject.split(".")[3]
        if self._engine.has_account(name):
            router.send(reply, b"", self.events.connections(name, now))

    def _user_info(self, router: AccountRouter, reply: str, now: int) -> None:
        session = router.origin
        if session is not None:
            data = _user(session, now)
            router.send(reply, b"", encode_json({"server": self._server.describe(now), "data": data}))

    # Actions.

    def _on_client(self, action: Callable[[Engine, int], bool], body: Body) -> None:
        cid = body.get("cid")
        if not isinstance(cid, int) or isinstance(cid, bool):
            raise _Skip
        if not action(self._engine, cid):
            raise UsageError("no such client or leafnode id")

    def _do_reload(self) -> None:
        if self._reload is None:
            raise UsageError("the server was not started with a configuration file")
        self._reload()


class _BadRequestError(Exception):
    """The body of a request cannot be read."""


def _decode(payload: bytes) -> Body:
    if not payload:
        return {}
    try:
        body = msgspec.json.decode(payload)
    except NOT_JSON as exc:
        raise _BadRequestError(str(exc)) from exc
    if not isinstance(body, dict):
        raise _BadRequestError("the request must be a JSON object")
    return body


def _query(body: Body, **names: str) -> endpoints.Query:
    """The options of a request as the endpoints take them; `names` are those that differ."""
    query: dict[str, str] = {}
    for key, value in body.items():
        if isinstance(value, bool):
            query[names.get(key, key)] = "1" if value else "0"
        elif isinstance(value, str | int) and value != "":
            query[names.get(key, key)] = str(value)
    return query


def _connz_query(body: Body) -> endpoints.Query:
    query = dict(_query(body, subscriptions="subs", subscriptions_detail="detail"))
    if query.pop("detail", "0") == "1":
        query["subs"] = "detail"
    return query


def _healthz(engine: Engine, body: Body) -> dict[str, Any]:
    status, seen = endpoints.healthz(engine, _query(body))
    return {"status": seen["status"], "status_code": status} | seen


def _user(session: Session, now: int) -> dict[str, Any]:
    """A user, as it may see itself."""
    identity = session.identity
    account = session.account
    found: dict[str, Any] = {"user": session.user, "account": account, "account_name": account}
    if identity is not None and identity.rules is not None:
        found["permissions"] = identity.rules.report()
    if identity is not None and identity.expires:
        found["expires"] = max(0, identity.expires - now)
    return found
