"""Cluster routes pass through here and can be held, paced, released and dropped: one proxy for any number of pairs.

A pair is a node that dials and a node that is dialled; all routes between the two go through one listener. Bytes are
always read, so that a held route never blocks its sender; while held they are kept, and sent in order on release.
Routes come in two kinds, told apart by their first bytes: the one of the system account, on which replication and the
JetStream API run, and those of the pool, on which users' messages (Direct Gets, mirrors) run. Holding only the first
makes a replica stale without making anything time out.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

CALL_TIMEOUT = 10.0
_CHUNK = 1 << 16
_TICK = 0.01  # seconds between two portions of a paced route
_KIND_BYTES = 4096  # INFO and CONNECT come first, and name the account where the route is for one account


class Way(NamedTuple):
    """One direction between two nodes, by their names."""

    source: str
    target: str


class _Direction:
    """One direction of one route."""

    def __init__(self, way: Way, writer: asyncio.StreamWriter) -> None:
        self.way = way
        self.writer = writer
        self.kept = bytearray()
        self.is_held = False
        self.is_paced = False

    def send(self, data: bytes) -> None:
        if self.is_held or self.is_paced:
            self.kept += data
        else:
            self.writer.write(data)

    def trickle(self, size: int) -> None:
        """Send so many bytes of what was kept, if it is paced."""
        if self.is_paced and not self.is_held:
            self.writer.write(bytes(self.kept[:size]))
            del self.kept[:size]

    def release(self) -> None:
        self.is_held = self.is_paced = False
        self.writer.write(bytes(self.kept))
        self.kept.clear()


class _Route:
    """One connection: two directions, and the kind once it is known."""

    def __init__(self, out: _Direction, back: _Direction) -> None:
        self.directions = (out, back)
        self.is_system = False
        self._seen = b""

    def look(self, data: bytes) -> bool:
        """Take note of the first bytes; True when they just told that this is the system account's route."""
        if self.is_system or len(self._seen) > _KIND_BYTES:
            return False
        self._seen += data
        self.is_system = b'"route_account":"$SYS"' in self._seen or b'"route_account": "$SYS"' in self._seen
        return self.is_system

    def cut(self) -> None:
        for direction in self.directions:
            direction.kept.clear()
            direction.writer.transport.abort()


class RouteProxy:
    """Listeners for pairs of nodes, and orders for what passes between them, which any thread may give."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="route proxy", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ports: dict[str, int] = {}  # where a node listens for routes, once it is known
        self._routes: list[_Route] = []
        self._held: dict[Way, bool] = {}  # way -> only the system account's route
        self._paced: dict[Way, int] = {}  # way -> bytes per tick, of every route
        self._thread.start()
        self._ticks = asyncio.run_coroutine_threadsafe(self._tick(), self._loop)

    def listen(self, source: str, target: str) -> int:
        """The port that `source` is to dial for its routes to `target`."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with contextlib.suppress(OSError):
                    await self._carry(Way(source, target), reader, writer)
            finally:
                self._tasks.discard(task)
                writer.transport.abort()

        async def serve() -> int:
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            port: int = server.sockets[0].getsockname()[1]
            return port

        return self._call(serve())

    def reach(self, node: str, port: int) -> None:
        """`node` listens for routes on `port` from now on."""
        self._do(lambda: self._ports.__setitem__(node, port))

    def hold(self, source: str, target: str, *, system_only: bool = True) -> None:
        """Keep what `source` sends to `target`: replication alone, or everything."""
        way = Way(source, target)

        def hold() -> None:
            self._held[way] = system_only
            for direction, route in self._directions(way):
                direction.is_held = direction.is_held or route.is_system or not system_only

        self._do(hold)

    def pace(self, source: str, target: str, rate: int) -> None:
        """Let at most `rate` bytes per second pass on each route from `source` to `target`; ends a hold."""
        way = Way(source, target)

        def pace() -> None:
            self._held.pop(way, None)
            self._paced[way] = max(1, round(rate * _TICK))
            for direction, _ in self._directions(way):
                direction.is_held, direction.is_paced = False, True

        self._do(pace)

    def release(self, source: str, target: str) -> None:
        """Send what was kept, in order, and keep nothing more."""
        way = Way(source, target)

        def release() -> None:
            self._held.pop(way, None)
            self._paced.pop(way, None)
            for direction, _ in self._directions(way):
                direction.release()

        self._do(release)

    def release_all(self) -> None:
        """Every way is free again."""
        for way in [*self._held, *self._paced]:
            self.release(*way)

    def drop(self, one: str, other: str) -> None:
        """Cut every route between the two, and lose what was kept: they must catch up. Holds stay for new routes."""

        def drop() -> None:
            for route in list(self._routes):
                if {*route.directions[0].way} == {one, other}:
                    route.cut()

        self._do(drop)

    def held(self) -> list[Way]:
        """The ways that are held now."""
        return list(self._held)

    def close(self) -> None:
        """Cut everything and end the thread."""

        async def stop() -> None:
            for server in self._servers:
                server.close()
            for route in list(self._routes):
                route.cut()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._ticks.cancel()
        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT)
        self._loop.close()

    def _directions(self, way: Way) -> Iterator[tuple[_Direction, _Route]]:
        for route in self._routes:
            for direction in route.directions:
                if direction.way == way:
                    yield direction, route

    async def _carry(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._ports.get(way.target)
        if port is None:
            return  # not started yet: whoever dialled tries again
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        route = _Route(_Direction(way, far_writer), _Direction(Way(way.target, way.source), writer))
        for direction in route.directions:
            direction.is_held = self._held.get(direction.way) is False
            direction.is_paced = direction.way in self._paced
        self._routes.append(route)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, route, route.directions[0]))
                group.create_task(self._copy(far_reader, route, route.directions[1]))
        except* OSError:
            pass
        finally:
            self._routes.remove(route)
            route.cut()

    async def _copy(self, reader: asyncio.StreamReader, route: _Route, direction: _Direction) -> None:
        while data := await reader.read(_CHUNK):
            if route.look(data):
                for each in route.directions:
                    each.is_held = each.is_held or self._held.get(each.way) is True
            direction.send(data)
        raise ConnectionResetError("one side closed its end")  # the other end must not live on

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            for way, size in self._paced.items():
                for direction, _ in self._directions(way):
                    direction.trickle(size)

    def _do(self, order: Callable[[], object]) -> None:
        async def carry_out() -> None:
            order()

        self._call(carry_out())

    def _call(self, order: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(order, self._loop).result(CALL_TIMEOUT)
