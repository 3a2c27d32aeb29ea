"""`TestServer`: a server in a thread, with its fault commands as methods.

Every method returns when everything that follows from it at once is done, so a test needs no sleeps. The methods may be
called from any thread and from async code: they block for about as long as a message to another thread takes, except
for `advance` over very many deadlines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

from slipstream.api.times import Duration, to_datetime
from slipstream.api.times import seconds as in_seconds
from slipstream.errors import UsageError
from slipstream.server import Server

TIMEOUT = 30.0


class Replica(NamedTuple):
    """One replica of a stream."""

    name: str
    leads: bool
    held: bool  # applies nothing, answers from its own data
    deposed: bool  # no longer the leader, and unaware of it
    last_seq: int


class TestServer:
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
        self.server = server or Server(data_dir=data_dir, virtual_time=virtual_time, faults=True)

    def __repr__(self) -> str:
        return f"<TestServer {'not running' if self.server.loop is None else self.url}>"

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return self.server.url

    # Start and stop.

    def start(self) -> Self:
        """Start the server; on the same port as before, if it ran before."""
        self.server.__enter__()
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

    # Replicas.

    def replicas(self, stream: str) -> list[Replica]:
        """The replicas of a stream."""
        return [Replica(**entry) for entry in self._run("replicas", stream=stream)["replicas"]]

    def hold(self, stream: str, replica: str = "") -> None:
        """A replica (without a name: all but the leader) applies nothing more, and answers from its own data."""
        self._run("hold", stream=stream, replica=replica)

    def release(self, stream: str, replica: str = "") -> None:
        """A replica (without a name: all of them) catches up and follows again."""
        self._run("release", stream=stream, replica=replica)

    @contextmanager
    def held(self, stream: str, replica: str = "") -> Iterator[None]:
        """Hold for the length of a `with` block."""
        self.hold(stream, replica)
        try:
            yield
        finally:
            self.release(stream, replica)

    def depose(self, stream: str, *, to: str = "", unaware: bool = False) -> str:
        """Make another replica the leader; returns its name. An `unaware` old leader keeps acting as leader, from its
        own data, until it is released."""
        leader: str = self._run("depose", stream=stream, to=to, unaware=unaware)["leader"]
        return leader

    # Mirrors and sources.

    def hold_mirror(self, stream: str, *, source: str = "") -> None:
        """A mirror, or a source of a stream, takes nothing more from its upstream."""
        self._run("hold_mirror", stream=stream, source=source)

    def cut_mirror(self, stream: str, *, source: str = "") -> None:
        """The same as a lost connection: the stream's info shows an error."""
        self._run("cut_mirror", stream=stream, source=source)

    def release_mirror(self, stream: str, *, source: str = "") -> None:
        """It resumes where it was held or cut."""
        self._run("release_mirror", stream=stream, source=source)

    # Time.

    @property
    def now(self) -> int:
        """The server's time, in nanoseconds since the epoch."""
        now: int = self._run("now")["now"]
        return now

    @property
    def now_at(self) -> datetime:
        """The same as a datetime in UTC."""
        return to_datetime(self.now)

    def advance(self, seconds: Duration) -> None:
        """Move a virtual clock, by a timedelta or by seconds; what is due on the way is done on the way, in order."""
        self._run("advance", seconds=in_seconds(seconds, "seconds"))

    # Faults.

    def drop(self, subject: str, *, direction: str = "to_client", count: int = 1, skip: int = 0) -> None:
        """Lose the next messages on a subject; `to_server` for what clients send. Acks go out on inboxes."""
        self._run("fault", action="drop", subject=subject, direction=direction, count=count, skip=skip)

    def duplicate(self, subject: str, *, direction: str = "to_client", count: int = 1, skip: int = 0) -> None:
        """Deliver the next messages on a subject twice."""
        self._run("fault", action="duplicate", subject=subject, direction=direction, count=count, skip=skip)

    def delay(
        self,
        subject: str,
        seconds: Duration,
        *,
        direction: str = "to_client",
        count: int = 1,
        skip: int = 0,
    ) -> None:
        """Deliver the next messages on a subject later, by the server's time."""
        late = in_seconds(seconds, "seconds")
        self._run("fault", action="delay", subject=subject, direction=direction, count=count, skip=skip, seconds=late)

    def cut(self, client: str = "", *, after: int = 0, direction: str = "to_client") -> int:
        """Cut the connections of clients of that name (without one: all) once `after` more bytes went that way; returns
        how many there are."""
        count: int = self._run("cut", client=client, after=after, direction=direction)["connections"]
        return count

    def refuse_writes(self, reason: str = "no space left on device") -> None:
        """Streams with file storage can store nothing more: publishes get an error."""
        self._run("refuse_writes", reason=reason)

    def allow_writes(self) -> None:
        """The disk accepts writes again."""
        self._run("allow_writes")

    def clear(self) -> None:
        """Remove all faults."""
        self._run("clear")

    def fault_command(self, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any fault command, by its name and fields: the same as a request on `$SLIPSTREAM.FAULTS.<name>`."""
        loop = self.server.loop
        if loop is None:
            raise UsageError("the server is not running")
        return asyncio.run_coroutine_threadsafe(self.server.fault_command(name, body), loop).result(TIMEOUT)

    def _run(self, name: str, /, **body: Any) -> dict[str, Any]:
        return self.fault_command(name, body)
