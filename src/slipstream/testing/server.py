"""`TestServer`: a server in a thread, with its controls as methods; snapshots of it, and accounts for single tests."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from slipstream.errors import UsageError
from slipstream.server import Server, ServerOptions, User
from slipstream.testing.controls import ServerControls

ANYONE = "anyone"  # the user of clients without credentials: other users can then be added while it runs


class ServerSnapshot:
    """The streams of a server at one moment, made by `TestServer.snapshot`."""

    def __init__(self, run: object, number: int, directory: Path | None = None) -> None:
        self.run = run  # of the server, in which it was made
        self.number = number
        self.directory = directory
        if directory is not None:
            weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<ServerSnapshot {self.number}>"


class TestAccount(ServerControls):
    """An account of a shared server, for one test: its own subjects, streams, buckets and faults."""

    __test__ = False

    def __init__(self, server: Server, user: User) -> None:
        super().__init__(server, user.account)
        self._user = user

    def __repr__(self) -> str:
        return f"<TestAccount {self._user.account!r} of {self.server.url}>"

    @property
    def url(self) -> str:
        """Where clients of this test connect to, with their user and password."""
        scheme, _, address = self.server.url.partition("://")
        return f"{scheme}://{self._user.name}:{self._user.password}@{address}"


class TestServer(ServerControls):
    """A JetStream server for a test; `url` is where clients connect to."""

    __test__ = False  # for pytest: not a test class, in spite of its name

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        virtual_time: bool = False,
        server: Server | None = None,
    ) -> None:
        """Streams are kept in memory, or on disk below `data_dir`. With `virtual_time` the server's clock stands still
        until `advance` moves it. For all other options, pass a `Server(faults=True, ...)` as `server`."""
        if server is not None and (data_dir is not None or virtual_time):
            raise UsageError("server must not be combined with data_dir or virtual_time: pass them to the Server")
        super().__init__(
            server
            or Server(
                data_dir=data_dir,
                virtual_time=virtual_time,
                faults=True,
                users=(User(name=ANYONE, anyone=True),),
                no_auth_user=ANYONE,
            ),
            "",
        )
        self._run_id = object()
        self._disk_snapshots = self._accounts_made = 0
        self._on_disk: set[int] = set()  # snapshots that no restore of an earlier one has undone
        self._users_lock = threading.Lock()  # tests in several threads may share a server

    def __repr__(self) -> str:
        return f"<TestServer {'not running' if self.server.loop is None else self.url}>"

    # Start and stop.

    def start(self) -> Self:
        """Start the server; on the same port as before, if it ran before."""
        self.server.__enter__()
        self._run_id = object()
        return self

    def stop(self) -> None:
        """Stop the server; streams on disk are kept. `start` starts it again."""
        self.server.__exit__(None, None, None)

    def restart(self) -> None:
        """Stop and start: holds, faults and streams in memory are gone."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.server.loop is not None:
            self.stop()

    # Snapshots.

    def snapshot(self) -> ServerSnapshot:
        """Remember all streams with their messages and consumers. In memory nothing is copied, so the time it takes
        does not depend on how much they hold. With a `data_dir` the directory is copied and the server restarted."""
        if self._data_dir is None:
            return ServerSnapshot(self._run_id, self._run("snapshot")["snapshot"])
        if self.server.options.virtual_time:
            raise UsageError("snapshot() of a server with a data_dir needs real time: a restart moves a virtual clock")
        copy = Path(tempfile.mkdtemp(prefix="slipstream-snapshot-"))
        self._disk_snapshots += 1
        found = ServerSnapshot(self, self._disk_snapshots, copy)
        self._check_running()
        self.stop()
        try:
            shutil.copytree(self._data_dir, copy, dirs_exist_ok=True)
        finally:
            self.start()
        self._on_disk.add(found.number)
        return found

    def restore(self, snapshot: ServerSnapshot) -> None:
        """Return to a snapshot: streams, messages, consumers and a virtual clock are as they were, faults and holds
        end. In memory this takes as long as undoing the changes since; clients stay connected and repeat their waiting
        pull requests. Snapshots nest: those taken later are invalid. With a `data_dir` the directory is replaced, and
        the server restarted."""
        if not isinstance(snapshot, ServerSnapshot):
            raise UsageError(f"snapshot must be a value returned by snapshot(), got {snapshot!r}")
        if snapshot.directory is None:
            if snapshot.run is not self._run_id:
                raise UsageError("the snapshot belongs to another server, or to this one before a restart")
            self._run("restore", snapshot=snapshot.number)
            return
        data_dir = self._data_dir
        if data_dir is None:
            raise UsageError("the snapshot belongs to a server with a data_dir; this server is in memory")
        if snapshot.run is not self:
            raise UsageError("the snapshot belongs to another server")
        if snapshot.number not in self._on_disk:
            known = ", ".join(map(str, sorted(self._on_disk))) or "there is none"
            raise UsageError(f"snapshot must be one that no later restore has undone ({known}), got {snapshot.number}")
        self._check_running()
        self.stop()
        try:
            shutil.rmtree(data_dir)
            shutil.copytree(snapshot.directory, data_dir)
        finally:
            self.start()
        self._on_disk = {number for number in self._on_disk if number <= snapshot.number}

    @contextmanager
    def restored(self) -> Iterator[ServerSnapshot]:
        """Undo all that a `with` block does to the streams."""
        snapshot = self.snapshot()
        try:
            yield snapshot
        finally:
            if self.server.loop is not None:
                self.restore(snapshot)

    @property
    def _data_dir(self) -> Path | None:
        path = self.server.options.data_dir
        return Path(path) if path is not None else None

    def _check_running(self) -> None:
        if self.server.loop is None:
            raise UsageError("the server is not running")

    # Isolation.

    @contextmanager
    def isolated(self) -> Iterator[TestAccount]:
        """A separate account for the length of a `with` block. It has its own subjects, streams and faults, and shares
        the clock and the disk of the server; its streams are deleted and its clients disconnected at the end."""
        self._check_running()
        options = self.server.options
        if not options.users or not options.no_auth_user:
            raise UsageError("isolated() needs a server with users and a no_auth_user, like TestServer()")
        self._accounts_made += 1
        name = f"test-{self._accounts_made}"
        user = User(name=name, password=os.urandom(8).hex(), account=name)
        self._reload(lambda users: (*users, user))
        account = TestAccount(self.server, user)
        try:
            yield account
        finally:
            if self.server.loop is not None:
                account.reset()
                self._reload(lambda users: tuple(one for one in users if one.name != name))

    def _reload(self, change: Callable[[tuple[User, ...]], tuple[User, ...]]) -> None:
        with self._users_lock:
            options: ServerOptions = self.server.options
            self.server.reload(dataclasses.replace(options, users=change(tuple(options.users))))
