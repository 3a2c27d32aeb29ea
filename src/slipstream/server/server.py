"""`Server`: an engine with its stores on a TCP port, embedded in a program or a test.

    async with Server() as server:            # in a running loop
        client = await connect(server.url)

    with Server(data_dir="data") as server:   # from blocking code: a thread with a loop of its own
        ...

Streams with `storage: file` are kept in LMDB below `data_dir`; without a `data_dir` they are kept in memory like the
others, and are gone when the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import os
import random
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

from slipstream.errors import UsageError
from slipstream.server.engine.auth.authenticator import WEBSOCKET
from slipstream.server.engine.core.session import Listener
from slipstream.server.engine.engine import Engine, Settings
from slipstream.server.engine.monitoring.health import Health
from slipstream.server.engine.monitoring.system_services import SystemServices
from slipstream.server.engine.ports import Store
from slipstream.server.faults.api import PREFIX, FaultApi, FaultRunner
from slipstream.server.faults.network import NetworkFaults
from slipstream.server.faults.traffic import Traffic
from slipstream.server.loop.clock import Clock, VirtualClock
from slipstream.server.loop.committer import Worker
from slipstream.server.loop.compacting import Compacted, Compacting
from slipstream.server.loop.connection import Connection, ConnectionLimits
from slipstream.server.loop.driver import Driver
from slipstream.server.loop.listening import ListeningSockets
from slipstream.server.loop.monitoring import Monitor
from slipstream.server.loop.process_report import ListenPorts, ServerReport
from slipstream.server.loop.scrubbing import Scrubbing
from slipstream.server.loop.tls import Tls
from slipstream.server.loop.upstream import Upstreams, named
from slipstream.server.loop.websocket import Origins, WebSocketConnection
from slipstream.server.options import ListenerOptions, ServerOptions, WebSocketOptions, bindable
from slipstream.server.process.trace import Trace
from slipstream.server.reload import check_reload
from slipstream.server.store.opening import open_file_store, open_memory_store
from slipstream.version import VERSION
from slipstream.wire.arguments import Duration, check_seconds
from slipstream.wire.nkeys import verify

log: logging.Logger = logging.getLogger("slipstream.server")

STOP_TIMEOUT = 10.0
NEVER = 1e9  # seconds: some thirty years


_P = ParamSpec("_P")


def _takes(_: Callable[_P, ServerOptions]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Give a method the parameters of `ServerOptions`, for type checkers and for `inspect.signature`."""

    def give(method: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(ServerOptions)
        method.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[self, *signature.parameters.values()], return_annotation=None
        )
        return method

    return give


class Server:
    """A JetStream server in this process."""

    @_takes(ServerOptions)
    def __init__(self, *args: Any, **options: Any) -> None:
        """`Server(host, port, **options)`: the fields of `ServerOptions`, by name. Port 0, the default, takes a free
        one; `port` and `url` have the real one once the server runs."""
        self._configure(ServerOptions(*args, **options))

    @classmethod
    def of(cls, options: ServerOptions) -> Self:
        """A server with these options."""
        server = cls.__new__(cls)
        server._configure(options)
        return server

    @classmethod
    def from_config(cls, path: str | os.PathLike[str]) -> Self:
        """A server configured by a file in nats-server's format; a UsageError has the file, line and column of what
        cannot be used. Options that are not in the file have the defaults of the command (`COMMAND_DEFAULTS`)."""
        from slipstream.server.process.config_file import read_config

        server = cls.of(read_config(path).server)
        server.reloader = lambda: server.reload(read_config(path).server)
        return server

    def _configure(self, options: ServerOptions) -> None:
        self.options: ServerOptions = options
        self.host: str = options.host
        self.port: int = bindable(options.port)
        self._data_dir = Path(options.data_dir) if options.data_dir is not None else None
        self._tls = options.load_tls()
        self.websocket_port: int = 0
        self.http_port: int = 0
        self._settings = engine_settings(options, self._tls)
        self._sockets: list[ListeningSockets] = []
        self._upstreams: Upstreams | None = None
        self._driver: Driver | None = None
        self._worker: Worker | None = None
        self._stores: list[Store] = []
        self._thread: _Thread | None = None
        self._faults: FaultRunner | None = None
        self._system: SystemServices | None = None
        self._scrubbing: Scrubbing | None = None
        self._compacting: Compacting | None = None
        self._report: ServerReport | None = None
        self._websocket_tls: Tls | None = None
        self.reloader: Callable[[], None] | None = None  # applies the configuration again, for the system account
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop it runs on

    def __repr__(self) -> str:
        kept = "in memory" if self._data_dir is None else f"data in {str(self._data_dir)!r}"
        return f"<Server {f'{self.url}, {kept}' if self._driver is not None else f'not running, {kept}'}>"

    @property
    def settings(self) -> Settings:
        """The engine's settings, the name and the id of the server included."""
        return self._settings

    @property
    def url(self) -> str:
        """Where clients connect to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'nats' if self._tls is None else 'tls'}://{host}:{self.port}"

    def health(self) -> Health:
        """Known problems of the server; callable from any thread while it runs."""
        if self._driver is None:
            return Health(problems=("the server is not running",))
        return self._driver.engine.health()

    @property
    def websocket_url(self) -> str:
        """Where WebSockets connect to; empty without that listener."""
        websocket = self.options.websocket
        if websocket is None:
            return ""
        host = f"[{websocket.host}]" if ":" in websocket.host else websocket.host
        return f"{'wss' if websocket.has_tls else 'ws'}://{host}:{self.websocket_port}"

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
            raise UsageError("the server is already running")
        self.loop = loop = asyncio.get_running_loop()
        clock = VirtualClock() if self.options.virtual_time else Clock()
        memory = open_memory_store()
        path = self._data_dir
        file = open_file_store() if path is None else await loop.run_in_executor(None, open_file_store, str(path))
        self._stores = [memory, file]
        try:
            await self._listen(loop, clock, file, memory)
        except BaseException:
            await self.stop()
            raise

    async def _listen(self, loop: asyncio.AbstractEventLoop, clock: Clock, file: Store, memory: Store) -> None:
        """Put the parts together. All ports are taken first (INFO names them, and a port that is lost must not cost the
        time of loading), and served last."""
        tls, options = self._tls, self.options
        clients = await self._open(self.host, self.port)
        self.port = clients.port
        websockets = monitoring = None
        if options.websocket is not None:
            websockets = await self._open(options.websocket.host, options.websocket.port)
            self.websocket_port = websockets.port
        if options.http_port is not None:
            monitoring = await self._open(options.http_host or self.host, options.http_port)
            self.http_port = monitoring.port
        settings = dataclasses.replace(self._settings, port=self.port)
        engine = Engine(settings, file=file, memory=memory, rng=random.Random(), now=clock(), verify=verify)
        engine.listener = engine.listener._replace(by_certificate=tls is not None and tls.map_users)
        network = NetworkFaults(engine, clock) if options.faults else None
        self._worker = Worker(loop, file) if self._data_dir is not None else None
        self._driver = driver = Driver(
            engine,
            clock=clock,
            worker=self._worker,
            max_connections=options.max_connections,
            trace=Trace() if options.trace else None,
            faults=network,
        )
        log.info("Memory for pending data of clients: %s", _bytes(driver.pending.limit))
        self._faults = FaultRunner(driver, network) if network is not None else None
        for account in engine.accounts:
            account.router.add(f"{PREFIX}>", FaultApi(driver, self._faults, account))
        self._report = report = ServerReport(
            engine,
            clock,
            options,
            lambda: ListenPorts(self.http_port, self.websocket_port),
            driver.pending,
            driver.committers,
        )
        self._system = SystemServices(engine, report, reload=self._reload_now)
        self._system.attach()
        if monitoring is not None:
            await monitoring.serve(Monitor(engine, clock, report, driver.wake).connection, None)
            log.info("Starting http monitor on %s", _address(options.http_host or self.host, self.http_port))
        if websockets is not None and options.websocket is not None:
            await self._serve_websockets(websockets, engine, options.websocket)
        if options.scrub_rate and file.scrubber is not None:
            interval = check_seconds(options.scrub_interval)
            self._scrubbing = Scrubbing(driver, file.scrubber, rate=options.scrub_rate, interval=interval)
        if self._worker is not None:
            committer = next(each for each in driver.committers if each.journal.store is file)
            self._compacting = Compacting(file, committer, percent=options.compact_percent)
        self._upstreams = Upstreams(driver, named(options.upstreams or {}))
        self._upstreams.start()
        await clients.serve(
            lambda: Connection(self._running, engine, engine.listener, self._limits, self._tls),
            tls if tls is not None and tls.first else None,
        )
        log.info("Listening for client connections on %s", _address(self.host, self.port))

    async def _open(self, host: str, port: int) -> ListeningSockets:
        sockets = await ListeningSockets.open(host, bindable(port))
        self._sockets.append(sockets)
        return sockets

    async def _serve_websockets(self, sockets: ListeningSockets, engine: Engine, options: WebSocketOptions) -> None:
        self._websocket_tls = tls = options.load_tls()
        origins = Origins(options.same_origin, frozenset(options.allowed_origins), tls is not None)

        def connect() -> WebSocketConnection:
            return WebSocketConnection(
                self._running,
                engine,
                listener,
                self._limits,
                origins=origins,
                headers=options.headers,
                timeout=check_seconds(options.handshake_timeout),
            )

        secured = tls is not None
        listener = Listener(
            options.host, self.websocket_port, WEBSOCKET, tls_required=secured, tls_available=secured,
            by_certificate=tls is not None and tls.map_users,
        )  # fmt: skip
        await sockets.serve(connect, tls)
        log.info("Listening for websocket clients on %s", self.websocket_url)

    async def fault_command(
        self, name: str, body: dict[str, Any] | None = None, *, account: str = ""
    ) -> dict[str, Any]:
        """Run a fault command (see `slipstream.testing`) in an account (the default one, if none is named); returns its
        answer."""
        return await self._fault_runner.run(name, body or {}, account=account)

    def traffic(self) -> Traffic:
        """Access to what clients publish and streams hold, for tests. Its methods must be called on the server's
        loop."""
        return self._fault_runner.traffic

    @property
    def _fault_runner(self) -> FaultRunner:
        if self._faults is None:
            raise UsageError("fault commands need a running server with faults=True")
        return self._faults

    # A changed configuration.

    def reload(self, options: ServerOptions) -> None:
        """Change the options of the running server: users, permissions, accounts and their limits, certificates, limits
        and times. Raises a UsageError, and changes nothing, if an option cannot be changed or is wrong.

        Clients whose credentials are not valid any more are disconnected. Callable from any thread.
        """
        if self.loop is None:
            raise UsageError("the server is not running")
        try:
            is_own = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_own = False
        if is_own:
            self._reload(options)
        else:
            asyncio.run_coroutine_threadsafe(self._reload_soon(options), self.loop).result()

    async def _reload_soon(self, options: ServerOptions) -> None:
        self._reload(options)

    def _reload(self, options: ServerOptions) -> None:
        driver, report, system = self._running, self._report, self._system
        assert report is not None
        assert system is not None
        # 1. Everything that can fail.
        check_reload(self.options, options)
        tls = options.load_tls()
        websocket_tls = options.websocket.load_tls() if options.websocket is not None else None
        known = driver.engine.settings
        settings = dataclasses.replace(
            engine_settings(options, tls), port=known.port, server_id=known.server_id, server_name=known.server_name
        )
        apply = driver.engine.prepare_reload(settings)
        # 2. Nothing of this can.
        if options.tls_first:
            self._renew_certificate(self._tls, options)
        else:
            self._tls = tls
        if websocket_tls is not None and options.websocket is not None:
            self._renew_certificate(self._websocket_tls, options.websocket)
        self.options = report.options = options
        self._settings = settings
        driver.engine.listener = driver.engine.listener._replace(
            tls_required=tls is not None,
            tls_verify=settings.tls_verify,
            by_certificate=tls is not None and tls.map_users,
        )
        for account in apply(driver.clock()):
            account.router.add(f"{PREFIX}>", FaultApi(driver, self._faults, account))
            system.attach_to(account)
        driver.reload(max_connections=options.max_connections, trace=options.trace, limits=self._limits)

    def _reload_now(self) -> None:
        if self.reloader is None:
            raise UsageError("the server was not started with a configuration file")
        self.reloader()

    @staticmethod
    def _renew_certificate(tls: Tls | None, options: ListenerOptions) -> None:
        """Put the certificate of the files, which was read before, into the context of a listener."""
        if tls is not None and options.tls_cert is not None:
            tls.context.load_cert_chain(options.tls_cert, options.tls_key)

    @property
    def _limits(self) -> ConnectionLimits:
        return ConnectionLimits(self.options.max_control_line, check_seconds(self.options.write_deadline))

    async def compact(self) -> Compacted:
        """Copy the file of the streams without its free space, and replace it by the copy, while clients are served.
        Returns the file's size before and after. Raises a StoreError if the file is damaged or the disk too full: then
        everything is as before."""
        if self._driver is None:
            raise UsageError("the server is not running")
        if self._compacting is None:
            raise UsageError("a server without data_dir has no file that could be compacted")
        return await self._compacting.compact()

    async def lame_duck(self, *, duration: Duration | None = None, grace: Duration | None = None) -> None:
        """Accept no new clients and ask the others to reconnect elsewhere. After `grace` seconds those that stayed are
        disconnected, spread over the rest of `duration`, so that they do not all reconnect at once. Returns when no
        client is left; `stop` the server then. Without arguments the options `lame_duck_…` hold."""
        duration = check_seconds(self.options.lame_duck_duration if duration is None else duration, "duration")
        grace = check_seconds(self.options.lame_duck_grace if grace is None else grace, "grace")
        if self._driver is None:
            raise UsageError("the server is not running")
        if grace > duration:
            raise UsageError(f"grace must be between 0 and the duration ({duration:g} s), got {grace:g} s")
        self._close_sockets()
        if self._system is not None:
            self._system.events.ending("LAMEDUCK")
        await self._driver.lame_duck(grace=grace, duration=duration)

    async def stop(self) -> None:
        """Stop listening, commit and answer everything that was received, then close."""
        self._close_sockets()
        if self._scrubbing is not None:
            await self._scrubbing.stop()
            self._scrubbing = None
        if self._compacting is not None:
            await self._compacting.stop()
            self._compacting = None
        if self._upstreams is not None:
            await self._upstreams.stop()
        unfinished: set[int] = set()
        if self._driver is not None:
            if self._system is not None:
                self._system.events.ending("SHUTDOWN")
            await self._settle(self._driver)
            self._driver.close_all()
            await asyncio.sleep(0)
            self._driver.stop()
            journals = [committer.journal for committer in self._driver.committers]
            unfinished = {id(journal.store) for journal in journals if journal.unfinished}
        if self._worker is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._worker.stop)
        for store in self._stores:
            if id(store) not in unfinished:
                store.close()
            else:  # its transaction belongs to a thread that is stuck
                log.error(
                    "commit still running %g s after shutdown began; abandoning it (none of it was acknowledged)",
                    STOP_TIMEOUT,
                )
        self._driver = self._worker = self._faults = self._system = self._report = self._upstreams = self.loop = None
        self._stores = []

    def _close_sockets(self) -> None:
        for sockets in self._sockets:
            sockets.close()
        self._sockets = []

    async def _settle(self, driver: Driver) -> None:
        """Take nothing more; commit and answer what was received."""
        driver.stop_reading()
        for committer in driver.committers:
            committer.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                while not all(committer.journal.settled for committer in driver.committers):
                    driver.wake()
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
    """A thread with a loop, for a server in blocking code."""

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
    """An event loop: uvloop's where it is installed, which is about twice as fast."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def engine_settings(options: ServerOptions, tls: Tls | None) -> Settings:
    """What the engine reads of the options; it counts time in nanoseconds."""
    server_id = secrets.token_hex(16).upper()
    return Settings(
        server_id=server_id,
        server_name=options.name or server_id,
        slipstream=VERSION,
        host=options.host,
        port=options.port,
        jetstream=options.jetstream,
        domain=options.domain,
        limits=options.account_limits(),
        max_memory=options.max_memory,
        max_storage=options.max_storage,
        max_payload=options.max_payload,
        max_pending_bytes=options.max_pending_bytes,
        max_pending_total=options.pending_budget,
        max_subscriptions=options.max_subscriptions,
        tls_required=tls is not None,
        tls_verify=tls is not None and tls.verify,
        users=options.every_user(),
        accounts=tuple(options.accounts),
        no_auth_user=options.no_auth_user,
        operators=options.operators,
        account_tokens=options.account_tokens,
        system_account=options.system_account,
        compat=options.compat == "nats-server",
        # Clients live in real time even if the server's is virtual: they would seem to answer no PING.
        ping_interval=round((NEVER if options.virtual_time else check_seconds(options.ping_interval)) * 1e9),
        max_pings_out=options.max_pings_out,
        # The timer starts with the connection: the TLS handshake comes on top.
        auth_timeout=round((check_seconds(options.auth_timeout) + (tls.timeout if tls is not None else 0)) * 1e9),
    )


def _bytes(size: int) -> str:
    return "unlimited" if size < 0 else f"{size / 1024 / 1024:.4g} MiB (max_pending_total)"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
