"""Fault commands: what a test may do to a running server, as calls and as messages.

A command holds a replica, deposes a leader, moves the clock, drops a message, cuts a connection. `slipstream.testing`
runs commands by calls; a test in any language sends a request to `$SLIPSTREAM.FAULTS.<command>` with a JSON object and
gets one back. Commands run one at a time, in the order they arrived, and a command is answered when everything that
follows from it at once is done, so a test needs no sleeps. A server without `faults` rejects them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from slipstream.errors import Error, UsageError
from slipstream.server.engine.account import Account
from slipstream.server.engine.api.consumers import consumer_info
from slipstream.server.engine.reads.direct_get import ReplicaPeer
from slipstream.server.engine.replication.ingest import CUT, HELD, Ingest
from slipstream.server.engine.streams.stream import Stream
from slipstream.server.faults.network import TO_CLIENT, NetworkFaults
from slipstream.server.faults.traffic import Traffic
from slipstream.server.loop.clock import VirtualClock
from slipstream.server.loop.committer import Committer
from slipstream.server.loop.driver import Driver

PREFIX = "$SLIPSTREAM.FAULTS."
SETTLE_TIMEOUT = 10.0
DISABLED = "fault commands are disabled; start the server with faults=True"


class FaultCommands:
    """The commands, for the streams of one account: each public method is one, its arguments are the fields of the
    body, its result is the answer."""

    def __init__(self, driver: Driver, network: NetworkFaults, account: Account) -> None:
        self._driver, self._network, self._account = driver, network, account
        self._now = driver.clock()

    # Replicas.

    def replicas(self, stream: str) -> dict[str, Any]:
        """Name, leadership, hold and last sequence of each replica."""
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

    def hold(self, stream: str = "", replica: str = "") -> None:
        """A replica (all but the leader, if none is named) applies nothing more until it is released. Without a stream:
        those of every stream that has several."""
        if not stream:
            _check_no_replica(replica)
            for one in self._account.streams.values():
                group = one.replicas
                for peer in group.peers:
                    if peer is not group.leader:
                        group.hold(peer, self._now)
            return
        group = self._stream(stream).replicas
        peers = self._peers(stream, replica, [peer for peer in group.peers if peer is not group.leader])
        if not peers:
            raise UsageError(f"stream {stream} has one replica only, which leads; num_replicas may be up to 5")
        for peer in peers:
            group.hold(peer, self._now)

    def release(self, stream: str = "", replica: str = "") -> None:
        """A replica (all, if none is named) catches up and follows again. Without a stream: those of every stream."""
        if not stream:
            _check_no_replica(replica)
            for one in self._account.streams.values():
                for peer in one.replicas.peers:
                    one.replicas.release(peer)
            return
        group = self._stream(stream).replicas
        for peer in self._peers(stream, replica, group.peers):
            group.release(peer)

    def depose(self, stream: str, to: str = "", unaware: bool = False) -> dict[str, Any]:
        """Another replica becomes leader (`to`, or the next that is not held). The old leader follows it; one that is
        `unaware` keeps acting as leader, from its own data, until it is released."""
        group = self._stream(stream).replicas
        former = group.leader.peer
        group.depose(self._now, to=to, unaware=unaware)
        return {"leader": group.leader.peer, "deposed": former}

    # Mirrors and sources.

    def hold_mirror(self, stream: str, source: str = "") -> None:
        """A mirror (or a source of a stream) takes nothing more from its upstream until it is released."""
        for ingest in self._ingests(stream, source):
            ingest.pause(HELD)

    def cut_mirror(self, stream: str, source: str = "") -> None:
        """The same, as a lost connection: the stream's info shows an error."""
        for ingest in self._ingests(stream, source):
            ingest.pause(CUT)

    def release_mirror(self, stream: str, source: str = "") -> None:
        """It resumes where it stopped."""
        for ingest in self._ingests(stream, source):
            ingest.resume()

    # Time.

    def now(self) -> dict[str, Any]:
        """The server's time, in nanoseconds since the epoch."""
        return {"now": self._now}

    async def advance(self, seconds: float) -> dict[str, Any]:
        """Move a virtual clock, stopping at every deadline on the way and doing what is due there."""
        clock, engine = self._driver.clock, self._driver.engine
        if not isinstance(clock, VirtualClock):
            raise UsageError("the clock of this server cannot be moved; start the server with virtual_time=True")
        if not seconds >= 0:
            raise UsageError(f"seconds must be at least 0, got {seconds!r}")
        until = self._now + round(seconds * 1e9)
        while (deadline := engine.next_deadline()) is not None and deadline <= until:
            clock.move_to(deadline)
            engine.tick(clock())
            self._driver.wake()
            await self._driver.settle()
        clock.move_to(until)
        return {"now": until}

    # The network.

    def connections(self) -> dict[str, Any]:
        """Id and name of each client that is connected to the account."""
        mine = (c for c in self._driver.connections if self._network.account_of(c) == self._account.name)
        return {"connections": [{"id": c.cid, "name": c.name} for c in mine]}

    def fault(
        self,
        action: str,
        subject: str = ">",
        direction: str = TO_CLIENT,
        count: int = 1,
        skip: int = 0,
        seconds: float = 0.0,
        every: int = 1,
    ) -> None:
        """Drop, duplicate or delay messages on a subject, cut the connection in their place, or lose the replies to
        them: `count` times, after `skip` messages, and then each `every`-th."""
        self._network.add(
            action, subject=subject, direction=direction, count=count, skip=skip, seconds=seconds, every=every,
            account=self._account.name,
        )  # fmt: skip

    def cut(self, client: str = "", after: int = 0, direction: str = TO_CLIENT) -> dict[str, Any]:
        """Cut the connections of clients of that name (all, if it is empty) after so many more bytes."""
        mine = [c for c in self._driver.connections if self._network.account_of(c) == self._account.name]
        chosen = [c for c in mine if not client or c.name == client]
        if client and not chosen:
            raise UsageError(f"no client is named {client!r}")
        self._network.cut(chosen, direction=direction, after=after)
        return {"connections": len(chosen)}

    def clear(self) -> None:
        """Remove all network faults, and let the disk accept writes again."""
        self._network.clear(self._account.name)
        self.allow_writes()

    # State: consumers, and the streams as they were before.

    def consumer(self, stream: str, consumer: str) -> dict[str, Any]:
        """Counts of a consumer: messages that wait, that are delivered and unacknowledged, and acknowledgements."""
        found = self._stream(stream).consumers.items.get(consumer)
        if found is None:
            raise UsageError(f"stream {stream!r} has no consumer {consumer!r}")
        info = consumer_info(found)
        acks = self._network.acks_of(self._account.name, stream, consumer)
        return {
            "pending": info["num_pending"],
            "ack_pending": info["num_ack_pending"],
            "redelivered": info["num_redelivered"],
            "waiting": info["num_waiting"],
            "delivered": info["delivered"]["consumer_seq"],
            **acks,
        }

    async def snapshot(self) -> dict[str, Any]:
        """Remember all streams of the server with their consumers; `restore` returns to it."""
        await self._commit_all()
        return {"snapshot": self._driver.engine.add_savepoint(self._driver.clock())}

    def restore(self, snapshot: int) -> dict[str, Any]:
        """Return to a snapshot: streams, consumers and a virtual clock are as they were, faults and holds end. Clients
        stay connected."""
        clock, engine = self._driver.clock, self._driver.engine
        then = engine.savepoint_time(snapshot)
        if isinstance(clock, VirtualClock):
            clock.set_back(then)
        self._network.start_over()
        self._allow_writes()
        engine.roll_back(snapshot, clock())
        return {"now": clock()}

    async def reset(self) -> None:
        """Delete all streams of the account and remove all its faults; clients stay connected."""
        self.clear()
        self._network.start_over(self._account.name)
        self._account.reset()
        await self._commit_all()

    async def _commit_all(self) -> None:
        """Wait until nothing is uncommitted, the state of consumers included."""
        journals = [committer.journal for committer in self._driver.committers]
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT):
                while not all(journal.settled for journal in journals):
                    for journal in journals:
                        journal.seal_requested = True
                    self._driver.wake()
                    await asyncio.sleep(0)
        except TimeoutError:
            raise UsageError(
                f"the server must be idle for a snapshot, but clients wrote for {SETTLE_TIMEOUT:g} s"
            ) from None

    # The disk.

    def refuse_writes(self, reason: str = "no space left on device") -> None:
        """Streams with file storage can store nothing more: publishes get an error, acknowledged messages stay."""
        for committer in self._file_committers():
            committer.write_error = reason

    def allow_writes(self) -> None:
        """The disk accepts writes again."""
        self._allow_writes()

    def _allow_writes(self) -> None:
        for committer in self._file_committers():
            committer.write_error = ""

    # Lookups.

    def _file_committers(self) -> list[Committer]:
        """Those of file storage, which is in memory without a `data_dir`."""
        journal = self._account.journals["file"]
        return [committer for committer in self._driver.committers if committer.journal is journal]

    def _stream(self, name: str) -> Stream:
        found = self._account.streams.get(name)
        if found is None:
            raise UsageError(f"there is no stream {name!r}")
        return found

    def _peers(self, stream: str, replica: str, default: Sequence[ReplicaPeer]) -> Sequence[ReplicaPeer]:
        return [self._stream(stream).replicas.find(replica)] if replica else default

    def _ingests(self, stream: str, source: str) -> list[Ingest]:
        ingests = self._account.ingests(self._stream(stream))
        chosen = [ingest for ingest in ingests if not source or ingest.source.name == source]
        if not chosen:
            raise UsageError(f"stream {stream} has no mirror or source {source!r}".rstrip(" '"))
        return chosen


def _check_no_replica(replica: str) -> None:
    if replica:
        raise UsageError(f"replica must be named together with its stream, got replica {replica!r} alone")


COMMANDS = {name: method for name, method in vars(FaultCommands).items() if not name.startswith("_")}


class FaultRunner:
    """Runs fault commands, one at a time."""

    def __init__(self, driver: Driver, network: NetworkFaults) -> None:
        self._driver, self._network = driver, network
        self._lock = asyncio.Lock()
        self.traffic: Traffic = Traffic(driver.engine, network)

    async def run(self, command: str, body: dict[str, Any], *, account: str = "") -> dict[str, Any]:
        """Run a command in an account (the default one, if none is named); raises UsageError if it is rejected."""
        method = COMMANDS.get(command)
        if method is None:
            raise UsageError(f"unknown fault command {command!r}; commands are {', '.join(sorted(COMMANDS))}")
        _check_body(command, method, body)
        async with self._lock:
            commands = FaultCommands(self._driver, self._network, self._driver.engine.account(account))
            answer = method(commands, **body)
            if inspect.isawaitable(answer):
                answer = await answer
            self._driver.wake()
            await self._driver.settle()
        return answer or {}


_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def _check_body(command: str, method: Callable[..., object], body: dict[str, Any]) -> None:
    """Check the fields of a body against the arguments of a command's method."""
    parameters = dict(list(inspect.signature(method).parameters.items())[1:])
    for name, value in body.items():
        if name not in parameters:
            raise UsageError(f"{command} has no field {name!r}; its fields are {', '.join(parameters) or 'none'}")
        kind = parameters[name].annotation
        if not isinstance(value, _KINDS[kind]) or (kind != "bool" and isinstance(value, bool)):
            raise UsageError(f"{name} of {command} must be of type {kind}, got {value!r}")
    missing = [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and name not in body]
    if missing:
        raise UsageError(f"{command} needs the field {missing[0]!r}")


class FaultApi:
    """Fault commands as messages, in one account: a subscriber on `$SLIPSTREAM.FAULTS.>`."""

    def __init__(self, driver: Driver, runner: FaultRunner | None, account: Account) -> None:
        """Without a runner, every command is answered with an error."""
        self._driver, self._runner, self._account = driver, runner, account

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        if self._runner is None:
            self._send(reply, {"error": DISABLED})
        else:
            self._driver.spawn(self._answer(self._runner, subject.removeprefix(PREFIX), reply, payload))
        return True

    async def _answer(self, runner: FaultRunner, command: str, reply: str, payload: bytes) -> None:
        try:
            body = msgspec.json.decode(payload, type=dict[str, Any]) if payload.strip() else {}
            answer = await runner.run(command, body, account=self._account.name)
        except (Error, ValueError, msgspec.MsgspecError) as exc:  # the last is a ValueError from msgspec 0.22 on only
            answer = {"error": str(exc)}
        self._send(reply, answer)

    def _send(self, reply: str, answer: dict[str, Any]) -> None:
        if reply:
            self._account.router.send(reply, b"", msgspec.json.encode(answer))
            self._driver.wake()
