"""`TestServer`: a server in a thread, and a test's orders as calls on it.

Every call returns when all that follows from it at once was done; so a test needs no sleeps. The calls may come from
any thread and from async code: they block for about as long as a message to another thread takes, but for `advance`
over very many deadlines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

from slipstream.errors import UsageError
from slipstream.server import Server

TIMEOUT = 30.0


class Replica(NamedTuple):
    """One replica of a stream."""

    name: str
    leads: bool
    held: bool  # applies nothing, answers from what it has
    deposed: bool  # believes that it leads
    last_seq: int


class TestServer:
    """A JetStream server for a test; `url` is where clients connect to."""

    __test__ = False  # for pytest: no test, whatever its name begins with

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        virtual_time: bool = False,
        server: Server | None = None,
    ) -> None:
        """Streams are kept in memory, or (`data_dir`) on disk. With `virtual_time` the server's clock stands still
        until `advance` moves it. For all other settings, pass a `server` that was made with `faults=True`."""
        if server is not None and (data_dir is not None or virtual_time):
            raise UsageError("a TestServer is given a server, or settings for one, not both")
        self.server = server or Server(data_dir=data_dir, virtual_time=virtual_time, faults=True)

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return self.server.url

    # Its life.

    def start(self) -> Self:
        """Run; on the same port as before, if it ran before."""
        self.server.__enter__()
        return self

    def stop(self) -> None:
        """Stop; what is on disk stays. `start` runs it again."""
        self.server.__exit__(None, None, None)

    def restart(self) -> None:
        """Stop and start: holds and faults are gone, streams in memory too."""
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
        return [Replica(**entry) for entry in self._do("replicas", stream=stream)["replicas"]]

    def hold(self, stream: str, replica: str = "") -> None:
        """A replica (without a name: all but the leader) applies nothing more, and answers from what it has."""
        self._do("hold", stream=stream, replica=replica)

    def release(self, stream: str, replica: str = "") -> None:
        """A replica (without a name: all of them) catches up and follows again."""
        self._do("release", stream=stream, replica=replica)

    @contextmanager
    def held(self, stream: str, replica: str = "") -> Iterator[None]:
        """Hold for the length of a `with` block."""
        self.hold(stream, replica)
        try:
            yield
        finally:
            self.release(stream, replica)

    def depose(self, stream: str, *, to: str = "", unaware: bool = False) -> str:
        """Another replica leads from now on; gives its name. An old leader that is to be unaware of that goes on as if
        it led, from what it has, until it is released."""
        leader: str = self._do("depose", stream=stream, to=to, unaware=unaware)["leader"]
        return leader

    # Mirrors and sources.

    def hold_mirror(self, stream: str, *, source: str = "") -> None:
        """A mirror, or a source of a stream, takes nothing more from its upstream."""
        self._do("hold_mirror", stream=stream, source=source)

    def cut_mirror(self, stream: str, *, source: str = "") -> None:
        """The same as a lost connection: the stream's info shows an error."""
        self._do("cut_mirror", stream=stream, source=source)

    def release_mirror(self, stream: str, *, source: str = "") -> None:
        """It goes on where it was held or cut."""
        self._do("release_mirror", stream=stream, source=source)

    # Time.

    @property
    def now(self) -> int:
        """The server's time, in nanoseconds since the epoch."""
        now: int = self._do("now")["now"]
        return now

    def advance(self, seconds: float) -> None:
        """Move a virtual clock; whatever comes due on the way is done on the way, in order."""
        self._do("advance", seconds=seconds)

    # Faults.

    def drop(self, subject: str, *, direction: str = "to_client", count: int = 1, skip: int = 0) -> None:
        """Lose the next messages on a subject; `to_server` for what clients send. Acks go out on inboxes."""
        self._do("fault", action="drop", subject=subject, direction=direction, count=count, skip=skip)

    def duplicate(self, subject: str, *, direction: str = "to_client", count: int = 1, skip: int = 0) -> None:
        """Deliver the next messages on a subject twice."""
        self._do("fault", action="duplicate", subject=subject, direction=direction, count=count, skip=skip)

    def delay(
        self, subject: str, seconds: float, *, direction: str = "to_client", count: int = 1, skip: int = 0
    ) -> None:
        """Deliver the next messages on a subject later, by the server's time."""
        self._do("fault", action="delay", subject=subject, direction=direction, count=count, skip=skip, seconds=seconds)

    def cut(self, client: str = "", *, after: int = 0, direction: str = "to_client") -> int:
        """Cut the connections of clients of that name (without one: all) once `after` more bytes went that way; gives
        how many there are."""
        count: int = self._do("cut", client=client, after=after, direction=direction)["connections"]
        return count

    def refuse_writes(self, reason: str = "no space left on device") -> None:
        """Streams with file storage can store nothing more: publishes get an error."""
        self._do("refuse_writes", reason=reason)

    def allow_writes(self) -> None:
        """The disk takes writes again."""
        self._do("allow_writes")

    def clear(self) -> None:
        """No faults any more."""
        self._do("clear")

    def order(self, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any order, by its name and fields: the same as a request on `$SLIPSTREAM.FAULTS.<name>`."""
        loop = self.server.loop
        if loop is None:
            raise UsageError("the server does not run")
        return asyncio.run_coroutine_threadsafe(self.server.order(name, body), loop).result(TIMEOUT)

    def _do(self, name: str, /, **body: Any) -> dict[str, Any]:
        return self.order(name, body)
