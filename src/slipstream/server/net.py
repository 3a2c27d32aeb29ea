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
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slipstream.errors import UsageError
from slipstream.server.clock import Clock, VirtualClock
from slipstream.server.commits import Committer, Worker
from slipstream.server.driver import Connection, Driver
from slipstream.server.engine.engine import Engine, Settings
from slipstream.server.engine.limits import AccountLimits
from slipstream.server.engine.ports import Store, memory_size
from slipstream.server.engine.users import DEFAULT_ACCOUNT, User, check_users
from slipstream.server.orders import PREFIX, Desk, Orders
from slipstream.server.signatures import verify
from slipstream.server.store.memory import MemoryStore
from slipstream.server.tls import PathLike
from slipstream.server.tls import settings as tls_settings
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
        tls: ssl.SSLContext | None = None,
        tls_cert: PathLike | None = None,
        tls_key: PathLike | None = None,
        tls_ca: PathLike | None = None,
        tls_verify: bool = False,
        tls_first: bool = False,
        tls_timeout: float = 2.0,
        max_payload: int = 1024 * 1024,
        max_control_line: int = 4096,
        max_connections: int = 65536,
        max_subscriptions: int = 100_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
        ping_interval: float = 120.0,
        auth_timeout: float = 2.0,
        faults: bool = False,
        virtual_time: bool = False,
    ) -> None:
        """Port 0 takes a free one; `port` and `url` tell which once the server runs.

        `user` and `password`, or `token`, are for one user who may do everything; `users` for several, each with its
        own permissions. Without any of them everyone may come in.

        With a `domain`, JetStream's API is answered on `$JS.<domain>.API.>` too, and answers name it. `limits` are what
        each account may use, or those of single accounts by name.

        TLS is spoken with `tls`, or with the files `tls_cert` and `tls_key`; with `tls_verify` clients must show a
        certificate of `tls_ca`. Clients are told so in INFO, in plain text, unless `tls_first`.

        For tests: with `faults` the server takes orders to hold replicas, cut connections and the like, from everyone
        who may publish to `$SLIPSTREAM.FAULTS.>`. With `virtual_time` its clock stands still until an order moves it.
        """
        self._faults = faults
        self._virtual_time = virtual_time
        if virtual_time:
            ping_interval = NEVER  # clients live in the machine's time
        self.host = host
        self.port = port
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._max_control_line = max_control_line
        self._max_connections = max_connections
        self._tls = tls_settings(
            tls, cert=tls_cert, key=tls_key, ca=tls_ca, verify=tls_verify, first=tls_first, timeout=tls_timeout
        )
        if self._tls is not None:  # the time for the handshake comes on top
            auth_timeout += tls_timeout
        everyone = _users(user, password, token, users)
        server_id = secrets.token_hex(16).upper()
        self._settings = Settings(
            server_id=server_id,
            server_name=name or server_id,
            slipstream=VERSION,
            host=host,
            port=port,
            jetstream=jetstream,
            domain=_domain(domain),
            limits=_limits(limits, everyone),
            max_payload=max_payload,
            max_pending=max_pending_bytes,
            max_subscriptions=max_subscriptions,
            tls_required=self._tls is not None,
            tls_verify=self._tls is not None and self._tls.verify,
            users=everyone,
            ping_interval=round(ping_interval * 1e9),
            auth_timeout=round(auth_timeout * 1e9),
        )
        self._listener: asyncio.Server | None = None
        self._driver: Driver | None = None
        self._worker: Worker | None = None
        self._stores: list[Store] = []
        self._committers: list[Committer] = []
        self._thread: _Thread | None = None
        self._orders: Orders | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # where it runs

    @property
    def url(self) -> str:
        """Where clients connect to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'nats' if self._tls is None else 'tls'}://{host}:{self.port}"

    # On a running loop.

    async def start(self) -> None:
        """Open the stores and listen."""
        if self._driver is not None:
            raise UsageError("the server runs already")
        self.loop = loop = asyncio.get_running_loop()
        clock = VirtualClock() if self._virtual_time else Clock()
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
        first = self._tls if self._tls is not None and self._tls.first else None
        listener = await loop.create_server(
            lambda: Connection(self._running),
            self.host,
            self.port,
            start_serving=False,
            ssl=first.context if first is not None else None,
            ssl_handshake_timeout=first.timeout if first is not None else None,
        )
        self._listener = listener
        self.port = listener.sockets[0].getsockname()[1]
        settings = dataclasses.replace(self._settings, port=self.port)
        engine = Engine(settings, file=file, memory=memory, dice=random.Random(), now=clock(), verify=verify)
        self._driver = driver = Driver(
            engine,
            clock=clock,
            max_connections=self._max_connections,
            max_control_line=self._max_control_line,
            tls=self._tls,
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
        self._orders = Orders(driver, self._committers, clock) if self._faults else None
        for account in engine.accounts:
            account.switch.add(f"{PREFIX}>", Desk(driver, self._orders, account))
        await listener.start_serving()
        log.info("listening on %s", self.url)

    async def order(self, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Carry out an order of a test (see `slipstream.testing`) in the default account; its answer."""
        if self._orders is None:
            raise UsageError("the server takes no orders: it does not run, or not with faults=True")
        return await self._orders.carry_out(name, body or {})

    async def lame_duck(self, *, duration: float = 120.0, grace: float = 10.0) -> None:
        """Take nobody new, tell clients to go elsewhere, and see them off: after `grace` seconds those who stayed are
        cut off, spread over the rest of `duration`, so that they do not all reconnect at once. Then stop the server."""
        if self._driver is None or self._listener is None:
            raise UsageError("the server does not run")
        if not 0 <= grace <= duration:
            raise UsageError(f"a grace of {grace:g} s in a duration of {duration:g} s, 0 up to the duration is allowed")
        self._listener.close()
        await self._driver.retire(grace=grace, duration=duration)

    async def stop(self) -> None:
        """Stop listening, carry through what is under way, close."""
        if self._listener is not None:
            self._listener.close()
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
        self._listener = self._driver = self._worker = self._orders = self.loop = None
        self._stores, self._committers = [], []

    async def _settle(self) -> None:
        """No new work; what was taken in becomes durable and is answered."""
        assert self._driver is not None
        self._driver.quiet()
        for committer in self._committers:
            committer.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                while any(committer.journal.unfinished for committer in self._committers):
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
    return check_users([*one, *([User(token=token)] if token else []), *users])


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


def _open(path: Path) -> Store:
    from slipstream.server.store.lmdb import LmdbStore

    return LmdbStore(path)
