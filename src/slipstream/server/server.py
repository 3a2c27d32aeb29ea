"""`Server`: the engine with its stores on a TCP port, for programs and tests.

    async with Server() as server:            # in a running loop
        client = await connect(server.url)

    with Server(data_dir="data") as server:   # from blocking code: a thread with a loop of its own
        ...

Streams with `storage: file` are kept in LMDB below `data_dir`; without a `data_dir` they are kept in memory like the
others, and end with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import random
import secrets
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slipstream.errors import UsageError
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.authenticator import WEBSOCKET
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT, AccountOptions, User
from slipstream.server.engine.core.session import Listener
from slipstream.server.engine.engine import Engine, Settings
from slipstream.server.engine.monitoring.health import Health
from slipstream.server.engine.ports import Store, memory_size
from slipstream.server.faults.api import PREFIX, FaultApi, FaultCommands
from slipstream.server.loop.clock import Clock, VirtualClock
from slipstream.server.loop.committer import Committer, Worker
from slipstream.server.loop.connection import Connection
from slipstream.server.loop.driver import Driver
from slipstream.server.loop.monitoring import Monitor
from slipstream.server.loop.signatures import verify
from slipstream.server.loop.tls import PathLike, Tls
from slipstream.server.loop.upstream import UpstreamLike, Upstreams, named
from slipstream.server.loop.websocket import Origins, WebSocketConnection
from slipstream.server.options import ServerOptions, TlsOptions, WebSocketOptions, free
from slipstream.server.process.trace import Trace
from slipstream.server.store.memory.store import MemoryStore
from slipstream.version import VERSION
from slipstream.wire import is_valid_subject

log = logging.getLogger("slipstream.server")

STOP_TIMEOUT = 10.0
NEVER = 1e9  # seconds


class Server:
    """A JetStream server in this process."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        name: str = "",
        jetstream: bool = True,
        domain: str = "",
        limits: AccountLimits | Mapping[str, AccountLimits] | None = None,
        user: str = "",
        password: str = "",
        token: str = "",
        users: Iterable[User] = (),
        accounts: Iterable[AccountOptions] = (),
        no_auth_user: str = "",
        tls: ssl.SSLContext | None = None,
        tls_cert: PathLike | None = None,
        tls_key: PathLike | None = None,
        tls_ca: PathLike | None = None,
        tls_verify: bool = False,
        tls_map: bool = False,
        tls_first: bool = False,
        tls_timeout: float = 2.0,
        websocket: WebSocketOptions | None = None,
        http_port: int | None = None,
        max_payload: int = 1024 * 1024,
        max_control_line: int = 4096,
        max_connections: int = 65536,
        max_subscriptions: int = 100_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
        ping_interval: float = 120.0,
        auth_timeout: float = 2.0,
        write_deadline: float = 10.0,
        upstreams: Mapping[str, UpstreamLike] | None = None,
        faults: bool = False,
        virtual_time: bool = False,
    ) -> None:
        """Port 0 takes a free one; `port` and `url` tell which once the server runs.

        `user` and `password`, or `token`, are for one user who may do everything; `users` for several, each with its
        own permissions and account. Without any of them everyone may come in. A client that shows nothing is
        `no_auth_user`, if that is given. `accounts` says what single accounts may have.

        With a `domain`, JetStream's API is answered on `$JS.<domain>.API.>` too, and answers name it. `limits` are what
        each account may use of JetStream, or those of single accounts by name.

        TLS is spoken with `tls`, or with the files `tls_cert` and `tls_key`; with `tls_verify` clients must show a
        certificate of `tls_ca`, and with `tls_map` they are the user that it names. Clients are told so in INFO, in
        plain text, unless `tls_first`. `websocket` opens a second port, `http_port` one for the monitoring endpoints.

        `upstreams` are the servers that mirrors and sources with an `external` read from, by its domain or API prefix:
        `{"hub": "nats://hub.example:4222"}`, or an `Upstream` where a login is needed.

        For tests: with `faults` the server takes orders to hold replicas, cut connections and the like, from everyone
        who may publish to `$SLIPSTREAM.FAULTS.>`. With `virtual_time` its clock stands still until an order moves it.
        """
        secured = TlsOptions(
            context=tls, cert=tls_cert, key=tls_key, ca=tls_ca, verify=tls_verify, by_certificate=tls_map,
            first=tls_first, timeout=tls_timeout,
        )  # fmt: skip
        everyone = _users(user, password, token, users)
        self._setup(
            ServerOptions(
                host=host,
                port=port,
                name=name,
                jetstream=jetstream,
                store_dir=data_dir,
                domain=domain,
                limits=_limits(limits, everyone),
                users=everyone,
                accounts=tuple(accounts),
                no_auth_user=no_auth_user,
                tls=secured,
                websocket=websocket,
                http_port=http_port,
                max_payload=max_payload,
                max_control_line=max_control_line,
                max_connections=max_connections,
                max_subscriptions=max_subscriptions,
                max_pending=max_pending_bytes,
                ping_interval=ping_interval,
                auth_timeout=auth_timeout,
                write_deadline=write_deadline,
                upstreams=named(upstreams or {}),
                faults=faults,
                virtual_time=virtual_time,
            )
        )

    @classmethod
    def of(cls, options: ServerOptions) -> Self:
        """A server with everything that can be told in one value; `from_config` makes it of a file."""
        server = cls.__new__(cls)
        server._setup(options)
        return server

    @classmethod
    def from_config(cls, path: str | os.PathLike[str]) -> Self:
        """A server as a configuration file of nats-server has it; a UsageError names the place that cannot be used."""
        from slipstream.server.process.config_file import read_config

        return cls.of(read_config(path).server)

    def _setup(self, options: ServerOptions) -> None:
        self.options = options
        self.host = options.host
        self.port = free(options.port)
        self._data_dir = Path(options.store_dir) if options.store_dir is not None else None
        self._tls = options.tls.load() if options.tls is not None else None
        self.websocket_port = 0
        self.http_port = 0
        self._settings = _settings(options, self._tls)
        self._sites: list[asyncio.Server] = []
        self._readers: Upstreams | None = None
        self._driver: Driver | None = None
        self._worker: Worker | None = None
        self._stores: list[Store] = []
        self._committers: list[Committer] = []
        self._thread: _Thread | None = None
        self._orders: FaultCommands | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # where it runs

    @property
    def settings(self) -> Settings:
        """What the engine is told; the name and the id of the server are there."""
        return self._settings

    @property
    def url(self) -> str:
        """Where clients connect to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'nats' if self._tls is None else 'tls'}://{host}:{self.port}"

    def health(self) -> Health:
        """What is wrong with the server; callable from any thread while it runs."""
        if self._driver is None:
            return Health(problems=("the server does not run",))
        return self._driver.engine.health()

    @property
    def websocket_url(self) -> str:
        """Where WebSockets connect to; empty without that listener."""
        websocket = self.options.websocket
        if websocket is None:
            return ""
        host = f"[{websocket.host}]" if ":" in websocket.host else websocket.host
        return f"{'ws' if websocket.tls is None else 'wss'}://{host}:{self.websocket_port}"

    @property
    def http_url(self) -> str:
        """Where the monitoring endpoints are; empty without them."""
        if self.options.http_port is None:
            return ""
        host = self.options.http_host or self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.http_port}"

    # On a running loop.

    async def start(self) -> None:
        """Open the stores and listen."""
        if self._driver is not None:
            raise UsageError("the server runs already")
        self.loop = loop = asyncio.get_running_loop()
        clock = VirtualClock() if self.options.virtual_time else Clock()
        memory = MemoryStore(size_of=memory_size)
        file: Store = MemoryStore()
        if self._data_dir is not None:
            file = await loop.run_in_executor(None, _open, self._data_dir)
        self._stores = [memory, file]
        try:
            await self._listen(loop, clock, file, memory)
        except BaseException:
            await self.stop()
            raise

    async def _listen(self, loop: asyncio.AbstractEventLoop, clock: Clock, file: Store, memory: Store) -> None:
        tls, options = self._tls, self.options
        first = tls if tls is not None and tls.first else None
        listener = await self._open_site(loop, lambda: Connection(self._running, door), self.host, self.port, first)
        self.port = _port_of(listener)
        settings = dataclasses.replace(self._settings, port=self.port)
        engine = Engine(settings, file=file, memory=memory, rng=random.Random(), now=clock(), verify=verify)
        engine.listener = door = engine.listener._replace(by_certificate=tls is not None and tls.by_certificate)
        self._driver = driver = Driver(
            engine,
            clock=clock,
            max_connections=options.max_connections,
            max_control_line=options.max_control_line,
            write_deadline=options.write_deadline,
            tls=tls,
            trace=Trace() if options.trace else None,
        )
        if self._data_dir is not None:
            self._worker = Worker(loop)
        self._committers = [
            Committer(
                engine,
                journal,
                worker=self._worker if journal.store is file else None,
                clock=clock,
                wake=driver.wake,
            )
            for journal in engine.journals
        ]
        driver.use(self._committers)
        self._orders = FaultCommands(driver, self._committers, clock) if options.faults else None
        for account in engine.accounts:
            account.router.add(f"{PREFIX}>", FaultApi(driver, self._orders, account))
        if options.http_port is not None:
            await self._open_monitor(loop, driver, options.http_host or self.host, options.http_port)
        if options.websocket is not None:
            await self._open_websocket(loop, options.websocket)
        self._readers = Upstreams(driver, options.upstreams)
        self._readers.start()
        await listener.start_serving()
        log.info("Listening for client connections on %s", _address(self.host, self.port))

    async def _open_site(
        self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol], host: str, port: int,
        tls: Tls | None,
    ) -> asyncio.Server:  # fmt: skip
        site = await loop.create_server(
            protocol,
            host,
            free(port),
            start_serving=False,
            ssl=tls.context if tls is not None else None,
            ssl_handshake_timeout=tls.timeout if tls is not None else None,
        )
        self._sites.append(site)
        return site

    async def _open_websocket(self, loop: asyncio.AbstractEventLoop, options: WebSocketOptions) -> None:
        tls = options.tls.load() if options.tls is not None else None
        origins = Origins(options.same_origin, frozenset(options.allowed_origins), tls is not None)

        def connect() -> WebSocketConnection:
            return WebSocketConnection(
                self._running, door, origins=origins, headers=options.headers, timeout=options.handshake_timeout
            )

        site = await self._open_site(loop, connect, options.host, options.port, tls)
        self.websocket_port = _port_of(site)
        secured = tls is not None
        door = Listener(
            options.host, self.websocket_port, WEBSOCKET, tls_required=secured, tls_available=secured,
            by_certificate=tls is not None and tls.by_certificate,
        )  # fmt: skip
        await site.start_serving()
        log.info("Listening for websocket clients on %s", self.websocket_url)

    async def _open_monitor(self, loop: asyncio.AbstractEventLoop, driver: Driver, host: str, port: int) -> None:
        monitor = Monitor(driver, self)
        site = await self._open_site(loop, monitor.connection, host, port, None)
        self.http_port = _port_of(site)
        await site.start_serving()
        log.info("Starting http monitor on %s", _address(host, self.http_port))

    async def order(self, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Carry out an order of a test (see `slipstream.testing`) in the default account; its answer."""
        if self._orders is None:
            raise UsageError("the server takes no orders: it does not run, or not with faults=True")
        return await self._orders.carry_out(name, body or {})

    async def lame_duck(self, *, duration: float = 120.0, grace: float = 10.0) -> None:
        """Take nobody new, tell clients to go elsewhere, and see them off: after `grace` seconds those who stayed are
        cut off, spread over the rest of `duration`, so that they do not all reconnect at once. Then stop the server."""
        if self._driver is None:
            raise UsageError("the server does not run")
        if not 0 <= grace <= duration:
            raise UsageError(f"a grace of {grace:g} s in a duration of {duration:g} s, 0 up to the duration is allowed")
        self._close_sites()
        await self._driver.retire(grace=grace, duration=duration)

    async def stop(self) -> None:
        """Stop listening, carry through what is under way, close."""
        self._close_sites()
        if self._readers is not None:
            await self._readers.stop()
        if self._driver is not None:
            await self._settle()
            self._driver.close_all()
            await asyncio.sleep(0)
            self._driver.stop()
        if self._worker is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._worker.stop)
        stuck = {id(committer.journal.store) for committer in self._committers if committer.journal.unfinished}
        for store in self._stores:
            if (
                id(store) in stuck
            ):  # its transaction belongs to a thread that does not come back; nothing of it was told
                log.error("a group was still on its way to the disk after %g s; it is given up", STOP_TIMEOUT)
            else:
                store.close()
        self._driver = self._worker = self._orders = self._readers = self.loop = None
        self._stores, self._committers = [], []

    def _close_sites(self) -> None:
        for site in self._sites:
            site.close()
        self._sites = []

    async def _settle(self) -> None:
        """No new work; what was taken in becomes durable and is answered."""
        assert self._driver is not None
        self._driver.quiet()
        for committer in self._committers:
            committer.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                while not all(committer.journal.settled for committer in self._committers):
                    self._driver.wake()
                    await asyncio.sleep(0.001)
        await asyncio.sleep(0)

    @property
    def _running(self) -> Driver:
        assert self._driver is not None
        return self._driver

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # From blocking code.

    def __enter__(self) -> Self:
        self._thread = _Thread(self)
        self._thread.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._thread.end()
        self._thread = None


class _Thread:
    """A server on a loop of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = new_loop()
        self._started = threading.Event()
        self._ending = asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="slipstream-server", daemon=True)

    def begin(self) -> None:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as exc:
            self._error = exc
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._started.set()

    async def _serve(self) -> None:
        async with self._server:
            self._started.set()
            await self._ending.wait()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where there is one: about twice as fast."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _users(user: str, password: str, token: str, users: Iterable[User]) -> tuple[User, ...]:
    one = [User(name=user, password=password)] if user or password else []
    return (*one, *([User(token=token)] if token else []), *users)


def _domain(domain: str) -> str:
    if domain and (not is_valid_subject(domain) or "." in domain or domain == "API"):
        raise UsageError(f"bad domain {domain!r}: one token of a subject is allowed, and not 'API'")
    return domain


def _limits(
    limits: AccountLimits | Mapping[str, AccountLimits] | None, users: Iterable[User]
) -> Mapping[str, AccountLimits]:
    if not isinstance(limits, AccountLimits):
        return dict(limits or {})
    return dict.fromkeys({DEFAULT_ACCOUNT, *(user.account for user in users)}, limits)


def _settings(options: ServerOptions, tls: Tls | None) -> Settings:
    """What of the options is for the engine."""
    server_id = secrets.token_hex(16).upper()
    return Settings(
        server_id=server_id,
        server_name=options.name or server_id,
        slipstream=VERSION,
        host=options.host,
        jetstream=options.jetstream,
        domain=_domain(options.domain),
        limits=options.limits,
        max_memory=options.max_memory,
        max_storage=options.max_storage,
        max_payload=options.max_payload,
        max_pending=options.max_pending,
        max_subscriptions=options.max_subscriptions,
        tls_required=tls is not None,
        tls_verify=tls is not None and tls.verify,
        users=options.users,
        accounts=options.accounts,
        no_auth_user=options.no_auth_user,
        operators=options.operators,
        account_tokens=options.account_tokens,
        system_account=options.system_account,
        # Under virtual time clients still live in the machine's.
        ping_interval=round((NEVER if options.virtual_time else options.ping_interval) * 1e9),
        max_pings_out=options.ping_max,
        # The time for the handshake comes on top.
        auth_timeout=round((options.auth_timeout + (tls.timeout if tls is not None else 0)) * 1e9),
    )


def _port_of(site: asyncio.Server) -> int:
    return int(site.sockets[0].getsockname()[1])


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _open(path: Path) -> Store:
    from slipstream.server.store.lmdb.store import LmdbStore

    return LmdbStore(path)
