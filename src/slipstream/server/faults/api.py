"""Orders of a test become what they ask of a running server: replicas held, leaders deposed, time moved, faults.

The same orders come as calls (`slipstream.testing`) and as requests on `$SLIPSTREAM.FAULTS.<order>` with a JSON object,
answered by one: so a test in any language gives them. They are carried out one at a time, in the order they came; an
order is answered when all that follows from it at once was done. A server without `faults` refuses them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.errors import Error, UsageError
from slipstream.server.engine.account import Account
from slipstream.server.engine.reads.direct_get import ReplicaPeer
from slipstream.server.engine.replication.ingest import CUT, HELD, Ingest
from slipstream.server.engine.streams.stream import Stream
from slipstream.server.faults.network import TO_CLIENT, Faults
from slipstream.server.loop.clock import VirtualClock

if TYPE_CHECKING:
    from slipstream.server.loop.committer import Committer
    from slipstream.server.loop.connection import Connection
    from slipstream.server.loop.driver import Driver

PREFIX = "$SLIPSTREAM.FAULTS."
REFUSAL = "this server takes no orders for faults; it is to be started with them on (faults=True)"


class FaultCommands:
    """What a test may ask of a server; each public method is an order, its arguments the fields of the body."""

    def __init__(self, driver: Driver, committers: Sequence[Committer], clock: Callable[[], int]) -> None:
        self._driver = driver
        self._engine = driver.engine
        self._committers = committers
        self._clock = clock
        self._lock = asyncio.Lock()
        self.faults = driver.faults = Faults(driver)

    async def carry_out(self, order: str, body: dict[str, Any], *, account: str = "") -> dict[str, Any]:
        """Do what an order says; raises UsageError if it cannot be done."""
        method = getattr(_Book, order, None) if order and not order.startswith("_") else None
        if method is None:
            known = ", ".join(sorted(name for name in vars(_Book) if not name.startswith("_")))
            raise UsageError(f"there is no order {order!r}; there are {known}")
        _check_body(order, method, body)
        async with self._lock:
            book = _Book(self, self._engine.account(account))
            answer: dict[str, Any] | None = method(book, **body)
            if order == "advance":
                await self._advance(book.until)
            self._driver.wake()
            await self._driver.settle()
        return answer or {}

    async def _advance(self, until: int) -> None:
        """Let time go by, stopping at every deadline on the way."""
        clock = self._clock
        assert isinstance(clock, VirtualClock)
        while (deadline := self._engine.next_deadline()) is not None and deadline <= until:
            clock.move_to(deadline)
            self._engine.tick(clock())
            self._driver.wake()
            await self._driver.settle()
        clock.move_to(until)


class _Book:
    """The orders, for the streams of one account."""

    def __init__(self, orders: FaultCommands, account: Account) -> None:
        self._orders, self._account = orders, account
        self._engine, self._driver = orders._engine, orders._driver
        self._now = orders._clock()
        self.until = 0

    # Replicas.

    def replicas(self, stream: str) -> dict[str, Any]:
        """Who they are, who leads, who is held, and up to which sequence each has the stream."""
        group = self._stream(stream).replicas
        return {
            "replicas": [
                {
                    "name": peer.peer,
                    "leads": peer is group.leader,
                    "held": group.is_held(peer),
                    "deposed": peer.deposed,
                    "last_seq": peer.log.committed.last_seq,
                }
                for peer in group.peers
            ]
        }

    def hold(self, stream: str, replica: str = "") -> None:
        """A replica (all but the leader, if none is named) applies nothing more until it is released."""
        group = self._stream(stream).replicas
        peers = self._peers(stream, replica, [peer for peer in group.peers if peer is not group.leader])
        if not peers:
            raise UsageError(f"stream {stream} has one replica only, which leads; num_replicas may be up to 5")
        for peer in peers:
            group.hold(peer, self._now)

    def release(self, stream: str, replica: str = "") -> None:
        """A replica (all, if none is named) catches up and follows again."""
        group = self._stream(stream).replicas
        for peer in self._peers(stream, replica, group.peers):
            group.release(peer)

    def depose(self, stream: str, to: str = "", unaware: bool = False) -> dict[str, Any]:
        """Another replica leads from now on (`to`, or the next that is not held). The old leader follows; or, if it is
        to be unaware of that, it goes on as if it led, from what it has, until it is released."""
        group = self._stream(stream).replicas
        former = group.leader.peer
        group.depose(self._now, to=to, unaware=unaware)
        return {"leader": group.leader.peer, "deposed": former}

    # Mirrors and sources.

    def hold_mirror(self, stream: str, source: str = "") -> None:
        """A mirror (or a source of a stream) takes nothing more from its upstream until it is released."""
        for ingest in self._inflows(stream, source):
            ingest.pause(HELD)

    def cut_mirror(self, stream: str, source: str = "") -> None:
        """The same, as a lost connection: the stream's info shows an error."""
        for ingest in self._inflows(stream, source):
            ingest.pause(CUT)

    def release_mirror(self, stream: str, source: str = "") -> None:
        """It goes on where it stopped."""
        for ingest in self._inflows(stream, source):
            ingest.resume()

    # Time.

    def now(self) -> dict[str, Any]:
        """The server's time, in nanoseconds since the epoch."""
        return {"now": self._now}

    def advance(self, seconds: float) -> dict[str, Any]:
        """Move the clock of a server with virtual time; everything that comes due on the way is done on the way."""
        if not isinstance(self._orders._clock, VirtualClock):
            raise UsageError("the server has the machine's time; virtual_time=True makes one that can be moved")
        if not seconds >= 0:
            raise UsageError(f"time moved by {seconds!r} seconds: at least 0 is allowed")
        self.until = self._now + round(seconds * 1e9)
        return {"now": self.until}

    # Faults.

    def connections(self) -> dict[str, Any]:
        """Who is connected: number and name."""
        return {"connections": [{"id": c.cid, "name": c.name} for c in self._driver.connections]}

    def fault(
        self,
        action: str,
        subject: str = ">",
        direction: str = TO_CLIENT,
        count: int = 1,
        skip: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Drop, duplicate or delay messages on a subject: `count` of them, after `skip`."""
        self._orders.faults.add(action, subject=subject, direction=direction, count=count, skip=skip, seconds=seconds)

    def cut(self, client: str = "", after: int = 0, direction: str = TO_CLIENT) -> dict[str, Any]:
        """Cut the connections of clients of that name (of all, if it is empty) after so many more bytes."""
        chosen: list[Connection] = [c for c in self._driver.connections if not client or c.name == client]
        if client and not chosen:
            raise UsageError(f"no client is named {client!r}")
        self._orders.faults.cut(chosen, direction=direction, after=after)
        return {"connections": len(chosen)}

    def clear(self) -> None:
        """No more faults of the network, and the disk takes writes again."""
        self._orders.faults.clear()
        self.allow_writes()

    def refuse_writes(self, reason: str = "no space left on device") -> None:
        """Nothing more can be stored: publishes get an error, what was acknowledged stays."""
        for committer in self._disks():
            committer.refusal = reason

    def allow_writes(self) -> None:
        for committer in self._disks():
            committer.refusal = ""

    # How they find what they are about.

    def _disks(self) -> list[Committer]:
        """Where streams with file storage are kept, be it in memory."""
        journal = self._account.journals["file"]
        return [committer for committer in self._orders._committers if committer.journal is journal]

    def _stream(self, name: str) -> Stream:
        found = self._account.streams.get(name)
        if found is None:
            raise UsageError(f"there is no stream {name!r}")
        return found

    def _peers(self, stream: str, replica: str, every: Sequence[ReplicaPeer]) -> Sequence[ReplicaPeer]:
        return [self._stream(stream).replicas.find(replica)] if replica else every

    def _inflows(self, stream: str, source: str) -> list[Ingest]:
        ingests = self._account.ingests(self._stream(stream))
        chosen = [ingest for ingest in ingests if not source or ingest.source.name == source]
        if not chosen:
            raise UsageError(f"stream {stream} has no mirror or source {source!r}".rstrip(" '"))
        return chosen


_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def _check_body(order: str, method: Callable[..., object], body: dict[str, Any]) -> None:
    """The fields of an order, against the arguments of its method."""
    parameters = dict(list(inspect.signature(method).parameters.items())[1:])
    allowed = ", ".join(parameters) or "none"
    for name, value in body.items():
        if name not in parameters:
            raise UsageError(f"order {order} has no field {name!r}; allowed: {allowed}")
        kind = parameters[name].annotation
        if not isinstance(value, _KINDS[kind]) or (kind != "bool" and isinstance(value, bool)):
            raise UsageError(f"order {order}: bad {name} {value!r}, a value of type {kind} is allowed")
    missing = [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and name not in body]
    if missing:
        raise UsageError(f"order {order} needs the field {missing[0]!r}")


class FaultApi:
    """Takes orders as messages, in one account. Without `orders` it says that there are none."""

    def __init__(self, driver: Driver, orders: FaultCommands | None, account: Account) -> None:
        self._driver, self._orders, self._account = driver, orders, account

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        if self._orders is None:
            self._say(reply, {"error": REFUSAL})
        else:
            self._driver.spawn(self._answer(self._orders, subject.removeprefix(PREFIX), reply, payload))
        return True

    async def _answer(self, orders: FaultCommands, order: str, reply: str, payload: bytes) -> None:
        try:
            body = msgspec.json.decode(payload, type=dict[str, Any]) if payload.strip() else {}
            answer = await orders.carry_out(order, body, account=self._account.name)
        except (Error, ValueError) as exc:
            answer = {"error": str(exc)}
        self._say(reply, answer)

    def _say(self, reply: str, answer: dict[str, Any]) -> None:
        if reply:
            self._account.router.send(reply, b"", msgspec.json.encode(answer))
            self._driver.wake()
