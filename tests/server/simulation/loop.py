"""A virtual event loop, the worker thread of a store as a queue, and a socket that is a buffer: nothing here waits.

The driver, the committers and the connections of the real server run on them. Time is a number that the simulation
moves; what the worker is to do, and when a client reads, is decided by the simulation.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from slipstream.server.engine.ports import Store
from slipstream.server.loop.committer import Done, Step, Worker
from slipstream.server.loop.connection import Connection

SECOND = 1_000_000_000


class Time:
    """The machine's two clocks, in nanoseconds."""

    def __init__(self, wall: int) -> None:
        self.monotonic = SECOND
        self.offset = wall - SECOND  # of the wall clock; somebody may set it

    def wall(self) -> int:
        return self.monotonic + self.offset

    def tick(self) -> int:
        return self.monotonic


class Handle:
    """A call that is due now or later."""

    __slots__ = ("_args", "_call", "cancelled", "order", "when")

    def __init__(self, when: int, order: int, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.when, self.order, self._call, self._args = when, order, call, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        if not self.cancelled:
            self._call(*self._args)

    def __lt__(self, other: Handle) -> bool:
        return (self.when, self.order) < (other.when, other.order)


class VirtualLoop:
    """The part of an event loop that the server uses."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._ready: deque[Handle] = deque()
        self._later: list[Handle] = []
        self._order = 0

    def time(self) -> float:
        return self._time.monotonic / SECOND

    def call_soon(self, call: Callable[..., object], *args: Any) -> Handle:
        handle = Handle(0, 0, call, args)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, call: Callable[..., object], *args: Any) -> Handle:
        self._order += 1
        # Rounded up: a timer that fires too early would find nothing due, and be set again.
        handle = Handle(self._time.monotonic + int(delay * SECOND) + 1, self._order, call, args)
        heapq.heappush(self._later, handle)
        return handle

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def next_due(self) -> int | None:
        """When the next timer is due."""
        while self._later and self._later[0].cancelled:
            heapq.heappop(self._later)
        return self._later[0].when if self._later else None

    def run_one(self) -> bool:
        """Run one call that is due; False if there is none."""
        due = self.next_due()
        if due is not None and due <= self._time.monotonic:
            self._ready.append(heapq.heappop(self._later))
        if not self._ready:
            return False
        self._ready.popleft().run()
        return True

    def enter(self) -> None:
        """Be the running loop of this thread."""
        asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, self))

    def leave(self) -> None:
        asyncio._set_running_loop(None)


class VirtualWorker(Worker):
    """The thread that blocks on the disk, as a queue: the simulation decides when a step is done."""

    def __init__(self, loop: VirtualLoop, store: Store) -> None:
        self.store = store
        self._virtual = loop
        self.submitted: deque[tuple[Step, Done]] = deque()

    def submit(self, step: Step, done: Done) -> None:
        self.submitted.append((step, done))

    def waits_for_disk(self) -> None:
        """There is no lock."""

    def give_way(self) -> None:
        """Nor a thread that could want it."""

    def stop(self) -> None:
        """There is no thread."""

    def run_one(self) -> None:
        """Do the next step, and report it to the loop. A crash is nothing that the server could catch."""
        step, done = self.submitted.popleft()
        error: Exception | None = None
        try:
            step()
        except Exception as exc:
            error = exc
        self._virtual.call_soon(done, error)


class Outbox(list[bytes]):
    """`Session.out` of a connection, which knows what of it is never written."""

    def __init__(self, parts: Iterable[bytes], lost: Callable[[bytes], None]) -> None:
        super().__init__(parts)
        self._lost = lost
        self.is_written = False

    def clear(self) -> None:
        """It was written, or is given up."""
        if not self.is_written:
            self.give_up()
        self.is_written = False
        super().clear()

    def give_up(self) -> None:
        """The connection is gone, with what is in here."""
        if self:
            self._lost(b"".join(self))


class Wire(asyncio.Transport):
    """The server's end of a connection. What the server writes waits until the client reads."""

    def __init__(self, loop: VirtualLoop, number: int, sent: Callable[[bytes], None]) -> None:
        """`sent` sees what the server writes at the moment it does."""
        super().__init__()
        self._virtual, self._number, self._sent = loop, number, sent
        self.outbox: Outbox | None = None
        self.protocol: Connection | None = None
        self.unread = 0  # bytes
        self.accepts = True
        self.is_lost = False
        self._closing = False
        self._high, self._low, self._is_full = 1 << 16, 1 << 14, False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", self._number) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high, self._low = high or 0, low or 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self.accepts = False

    def resume_reading(self) -> None:
        self.accepts = True

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing:
            return
        self.unread += len(data)
        if self.outbox is not None:
            self.outbox.is_written = True
        self._sent(bytes(data))
        if self.unread > self._high and not self._is_full and self.protocol is not None:
            self._is_full = True
            self.protocol.pause_writing()

    def take(self, size: int) -> None:
        """The client has read so many bytes."""
        self.unread -= size
        if self._is_full and self.unread <= self._low and self.protocol is not None and not self._closing:
            self._is_full = False
            self.protocol.resume_writing()
        if self._closing and not self.unread:
            self._lose()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self.unread:
                self._lose()

    def abort(self) -> None:
        self._closing = True
        self._lose()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._virtual.call_soon(self._lost)

    def _lost(self) -> None:
        if self.protocol is not None:
            self.protocol.connection_lost(None)
