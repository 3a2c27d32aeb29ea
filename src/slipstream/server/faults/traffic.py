"""Traffic of a server, for tests: what clients published while it was recorded, and what streams hold.

A recorder sees the messages of clients as they arrive, after the network's faults: one that a fault dropped is not
recorded, one that it duplicated is recorded twice. It is no subscriber, so a request that nothing answers still gets
its "no responders".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from slipstream.server.engine.account import Account
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.ports import Record, matcher
from slipstream.server.faults.network import NetworkFaults, Recorder
from slipstream.wire import check_filter


class StoredRecord(NamedTuple):
    """A message of a stream."""

    stream: str
    record: Record


class Traffic:
    """What clients publish, and what streams hold. All calls are made on the server's loop."""

    def __init__(self, engine: Engine, network: NetworkFaults) -> None:
        self._engine, self._network = engine, network

    def record(self, subject: str, take: Recorder, *, account: str = "") -> Callable[[], None]:
        """Call `take(subject, reply, header, payload, time)` for each message that clients of an account publish on
        subjects that match; returns a function that ends it."""
        check_filter(subject)
        return self._network.record(self._engine.account(account).name, subject, take)

    def stored(self, subject: str, *, account: str = "") -> list[StoredRecord]:
        """The messages of all streams of an account on subjects that match, stream by stream."""
        check_filter(subject)
        found: list[StoredRecord] = []
        for stream in self._engine.account(account).streams.values():
            records = stream.log.scan(subject, 0, limit=stream.log.committed.messages)
            found += [StoredRecord(stream.name, record) for record in records]
        return found

    def count(self, subject: str, *, account: str = "") -> int:
        """How many messages `stored` would return."""
        fits = matcher(subject)
        total = 0
        for stream in self._engine.account(account).streams.values():
            if subject == ">":
                total += stream.log.committed.messages
            else:
                total += sum(count for name, count in stream.log.subjects(subject) if fits(name))
        return total

    async def until(self, is_done: Callable[[], bool], *, account: str = "") -> None:
        """Wait until `is_done` says so; it is asked after each commit and each message of a client."""
        waiter = _Waiter()
        one: Account = self._engine.account(account)
        one.commit_waiters.follow(waiter)
        end = self._network.record(one.name, ">", waiter.seen)
        try:
            while not is_done():
                waiter.event.clear()
                await waiter.event.wait()
                await asyncio.sleep(0)  # the turn that woke us goes on to its end first
        finally:
            end()
            one.commit_waiters.unfollow(waiter)


class _Waiter:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def release(self) -> None:
        self.event.set()

    def seen(self, subject: str, reply: str, header: bytes, payload: bytes, time: int) -> None:  # noqa: ARG002
        asyncio.get_running_loop().call_soon(self.event.set)
