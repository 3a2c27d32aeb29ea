"""What a test can do to a server and see of it: replicas, faults, time, traffic, seeds.

Every method returns when everything that follows from it at once is done, so a test needs no sleeps. The methods may be
called from any thread and from async code: they block for about as long as a message to another thread takes. The
exceptions are `advance` over very many deadlines and the waits, which have a twin for asyncio (`wait_for_async`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from slipstream import BlockingClient, StoredMessage, connect_blocking
from slipstream.api.times import Duration, to_datetime
from slipstream.api.times import seconds as in_seconds
from slipstream.errors import UsageError
from slipstream.server import Server
from slipstream.testing import seeding
from slipstream.testing.recording import Recording, refuse_in_loop, result_of
from slipstream.wire.arguments import check_integer, check_seconds

TIMEOUT = 30.0
MOST_ADVANCED = 100 * 365 * 86_400  # seconds: the times of messages end with the year 2262

Result = TypeVar("Result")


class Replica(NamedTuple):
    """One replica of a stream."""

    name: str
    leads: bool
    held: bool  # applies nothing, answers from its own data
    deposed: bool  # no longer the leader, and unaware of it
    last_seq: int


class ConsumerCounts(NamedTuple):
    """How far a consumer is. The last four count messages for which clients sent that answer, since the server was
    started, reset or restored."""

    pending: int  # not delivered yet
    ack_pending: int  # delivered, and not acknowledged yet
    redelivered: int  # of those, delivered more than once
    waiting: int  # pull requests that wait for messages
    delivered: int  # deliveries, redeliveries included
    acked: int
    naked: int
    termed: int
    in_progress: int

    @property
    def is_done(self) -> bool:
        """Whether every message was delivered and none waits for its ack."""
        return not self.pending and not self.ack_pending


class ServerControls:
    """Controls of one account of a running server: the default account (`TestServer`) or one of a single test."""

    def __init__(self, server: Server, account: str) -> None:
        self.server = server
        self._account = account  # empty: the default one

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.server!r}>"

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return self.server.url

    # Replicas.

    def replicas(self, stream: str) -> list[Replica]:
        """The replicas of a stream."""
        return [Replica(**entry) for entry in self._run("replicas", stream=stream)["replicas"]]

    def hold(self, stream: str = "", replica: str = "") -> None:
        """A replica (without a name: all but the leader) applies nothing more, and answers from its own data. Without a
        stream: those of every stream that exists now."""
        self._run("hold", stream=stream, replica=replica)

    def release(self, stream: str = "", replica: str = "") -> None:
        """A replica (without a name: all of them) catches up and follows again. Without a stream: those of every
        stream."""
        self._run("release", stream=stream, replica=replica)

    @contextmanager
    def held(self, stream: str = "", replica: str = "") -> Iterator[None]:
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
        """Move a virtual clock, by a timedelta or by seconds; timers that become due on the way fire in order."""
        amount = in_seconds(seconds, "seconds")
        if not 0 <= amount <= MOST_ADVANCED:
            raise UsageError(f"seconds must be between 0 and {MOST_ADVANCED:,} (100 years), got {seconds!r}")
        self._run("advance", seconds=amount)

    # Faults.

    def drop(
        self, subject: str, *, direction: str = "to_client", count: int = 1, skip: int = 0, every: int = 1
    ) -> None:
        """Lose the next messages on a subject; `to_server` for what clients send. Acks go out on inboxes."""
        self._fault("drop", subject, direction, count, skip, every)

    def duplicate(
        self, subject: str, *, direction: str = "to_client", count: int = 1, skip: int = 0, every: int = 1
    ) -> None:
        """Deliver the next messages on a subject twice."""
        self._fault("duplicate", subject, direction, count, skip, every)

    def delay(
        self,
        subject: str,
        seconds: Duration,
        *,
        direction: str = "to_client",
        count: int = 1,
        skip: int = 0,
        every: int = 1,
    ) -> None:
        """Deliver the next messages on a subject later, by the server's time."""
        self._fault("delay", subject, direction, count, skip, every, seconds=in_seconds(seconds, "seconds"))

    def lose_replies(self, subject: str, *, count: int = 1, skip: int = 0, every: int = 1) -> None:
        """The next requests and publishes on a subject are carried out, and their replies (or acks) are lost."""
        self._fault("lose_reply", subject, "to_server", count, skip, every)

    def cut_at(
        self, subject: str, *, direction: str = "to_server", count: int = 1, skip: int = 0, every: int = 1
    ) -> None:
        """Cut the connection of a client in place of its next message on a subject."""
        self._fault("cut", subject, direction, count, skip, every)

    def cut(self, client: str = "", *, after: int = 0, direction: str = "to_client") -> int:
        """Cut the connections of clients of that name (without one: all) once `after` more bytes went that way; returns
        how many there are."""
        count: int = self._run("cut", client=client, after=after, direction=direction)["connections"]
        return count

    def refuse_writes(self, reason: str = "no space left on device") -> None:
        """Streams with file storage can store nothing more: publishes get an error. This holds for the whole server."""
        self._run("refuse_writes", reason=reason)

    def allow_writes(self) -> None:
        """The disk accepts writes again."""
        self._run("allow_writes")

    def clear(self) -> None:
        """Remove all faults."""
        self._run("clear")

    def _fault(self, action: str, subject: str, direction: str, count: int, skip: int, every: int, **more: Any) -> None:
        self._run(
            "fault", action=action, subject=subject, direction=direction, count=count, skip=skip, every=every, **more
        )

    # Traffic.

    @contextmanager
    def recorded(self, subject: str = ">") -> Iterator[Recording]:
        """Record what clients publish on a subject while the `with` block runs, whether or not it is accepted: core
        messages and those of streams, requests, Key-Value writes (`$KV.bucket.>`)."""
        recording = Recording(subject, self._until)
        end = self._submit(self._begin_recording(recording)).result(TIMEOUT)
        try:
            yield recording
        finally:
            if self.server.loop is not None:
                self._submit(self._end_recording(end)).result(TIMEOUT)

    async def _end_recording(self, end: Callable[[], None]) -> None:
        end()

    async def _begin_recording(self, recording: Recording) -> Callable[[], None]:
        return self.server.traffic().record(recording.subject, recording.add, account=self._account)

    def stored(self, subject: str = ">") -> list[StoredMessage]:
        """The messages that streams hold on a subject, stream by stream."""
        return self._submit(self._stored(subject)).result(TIMEOUT)

    async def _stored(self, subject: str) -> list[StoredMessage]:
        return [
            StoredMessage(record.subject, record.seq, record.time, record.header, record.payload, stream)
            for stream, record in self.server.traffic().stored(subject, account=self._account)
        ]

    def wait_for(self, subject: str, count: int = 1, *, timeout: Duration = 5.0) -> list[StoredMessage]:
        """Wait until streams hold `count` messages on a subject, and return them. Messages stored before the call
        count. Raises AssertionError if they do not arrive in time."""
        refuse_in_loop("wait_for", "wait_for_async")
        timeout = check_seconds(timeout)
        _check_wait(subject, count)
        done = result_of(self._until(self._has(subject, count), timeout), timeout)
        return self._found(done, subject, count, timeout, self.stored(subject))

    async def wait_for_async(self, subject: str, count: int = 1, *, timeout: Duration = 5.0) -> list[StoredMessage]:
        """As `wait_for`, for asyncio."""
        timeout = check_seconds(timeout)
        _check_wait(subject, count)
        done = await asyncio.wrap_future(self._until(self._has(subject, count), timeout))
        stored = await asyncio.wrap_future(self._submit(self._stored(subject)))
        return self._found(done, subject, count, timeout, stored)

    def _has(self, subject: str, count: int) -> Callable[[], bool]:
        return lambda: self.server.traffic().count(subject, account=self._account) >= count

    def _found(
        self, done: bool, subject: str, count: int, timeout: float, stored: list[StoredMessage]
    ) -> list[StoredMessage]:
        if not done:
            seen = f": {', '.join(message.subject for message in stored[:10])}" if stored else ""
            raise AssertionError(
                f"{len(stored)} of {count} messages on {subject!r} were stored within {timeout:g} s{seen}"
            )
        return stored

    def consumer(self, stream: str, consumer: str) -> ConsumerCounts:
        """How far a consumer is."""
        return ConsumerCounts(**self._run("consumer", stream=stream, consumer=consumer))

    def wait_until_done(self, stream: str, consumer: str, *, timeout: Duration = 5.0) -> ConsumerCounts:
        """Wait until a consumer has delivered all messages and every one is acknowledged; AssertionError if it takes
        longer."""
        refuse_in_loop("wait_until_done", "wait_until_done_async")
        timeout = check_seconds(timeout)
        return result_of(self._submit(self._wait_until_done(stream, consumer, timeout)), timeout)

    async def wait_until_done_async(self, stream: str, consumer: str, *, timeout: Duration = 5.0) -> ConsumerCounts:
        """As `wait_until_done`, for asyncio."""
        work = self._wait_until_done(stream, consumer, check_seconds(timeout))
        return await asyncio.wrap_future(self._submit(work))

    async def _wait_until_done(self, stream: str, consumer: str, timeout: float) -> ConsumerCounts:
        loop = asyncio.get_running_loop()
        end, body = loop.time() + timeout, {"stream": stream, "consumer": consumer}
        while True:
            counts = ConsumerCounts(**await self.server.fault_command("consumer", body, account=self._account))
            if counts.is_done:
                return counts
            if loop.time() >= end:
                raise AssertionError(f"consumer {consumer!r} of {stream!r} was not done within {timeout:g} s: {counts}")
            await asyncio.sleep(0.002)

    def _until(self, is_done: Callable[[], bool], timeout: float) -> Future[bool]:
        return self._submit(self._wait(is_done, timeout))

    async def _wait(self, is_done: Callable[[], bool], timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self.server.traffic().until(is_done, account=self._account)
        except TimeoutError:
            return is_done()
        return True

    # Seeds.

    def seed(
        self,
        streams: seeding.Streams = (),
        messages: seeding.Messages = (),
        kv: seeding.Buckets | None = None,
        *,
        client: BlockingClient | None = None,
    ) -> None:
        """Create streams (a dict of names and subjects, or StreamConfigs), publish messages (a dict of subjects with a
        payload or a list of them, or pairs) and put values into buckets (a dict of dicts). Payloads are bytes, text or
        anything that JSON can express. `client` is needed where the server asks for credentials."""
        with self._client(client) as connected:
            seeding.seed(connected, streams, messages, kv or {})

    def load(self, path: str | os.PathLike[str], *, client: BlockingClient | None = None) -> int:
        """Create what a file of JSON lines describes; returns the number of lines. A line is `{"stream": "ORDERS",
        "subjects": ["orders.>"]}`, `{"subject": "orders.1", "data": {…}}` or `{"bucket": "settings", "key": "theme",
        "value": "dark"}`."""
        with self._client(client) as connected:
            return seeding.load(connected, path)

    @contextmanager
    def _client(self, client: BlockingClient | None) -> Iterator[BlockingClient]:
        if client is not None:
            yield client
            return
        with connect_blocking(self.url, name="slipstream.testing") as own:
            yield own

    # Starting over.

    def reset(self) -> None:
        """Delete all streams, buckets and object stores, and remove all faults. Clients stay connected, with their
        subscriptions."""
        self._run("reset")

    def fault_command(self, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any fault command, by its name and fields: the same as a request on `$SLIPSTREAM.FAULTS.<name>`."""
        return self._submit(self.server.fault_command(name, body, account=self._account)).result(TIMEOUT)

    def _run(self, name: str, /, **body: Any) -> dict[str, Any]:
        return self.fault_command(name, body)

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        loop = self.server.loop
        if loop is None:
            work.close()
            raise UsageError("the server is not running")
        return asyncio.run_coroutine_threadsafe(work, loop)


def _check_wait(subject: str, count: int) -> None:
    if not isinstance(subject, str) or subject.split() != [subject]:
        raise UsageError(f"subject must be a subject or a filter such as 'orders.*', got {subject!r}")
    check_integer(count, "count")
