"""Reads and publishes through the client on our server: invalid arguments, abandoned publishers, threads."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, TypeVar, cast

import pytest

from slipstream import JetStream, connect, connect_blocking
from slipstream.api import GetRequest
from slipstream.client._async.client import Client
from slipstream.codecs import Json
from slipstream.errors import (
    MessageNotFoundError,
    MinLastSequenceError,
    RequestTimeoutError,
    StaleReadError,
    UsageError,
)
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.publisher import Publisher
from slipstream.jetstream.publish.ack_window import AckWindow, PublishAcks
from slipstream.jetstream.publish.sent import Sent
from slipstream.wire import Msg
from tests.conformance.test_streams import config
from tests.proxy import proxy_to

T = TypeVar("T")


@pytest.mark.spec("RW-02", "RW-04", on="E C")
async def test_message_get_keeps_min_last_seq_on_our_server(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        await js.publish(f"{fresh}.a", b"old")
        request = GetRequest(last_by_subj=f"{fresh}.a", min_last_seq=2)
        with pytest.raises(MinLastSequenceError) as caught:
            await stream.get_from_leader(request)
        assert (caught.value.code, caught.value.err_code) == (412, 10180)
        assert isinstance(caught.value, StaleReadError)
        await js.publish(f"{fresh}.a", b"new")
        assert (await stream.get_from_leader(request)).data == b"new"


@pytest.mark.parametrize(
    "bad", [{"end": -1}, {"start": -5}, {"min_last_seq": -1}, {"end": 2**64}, {"subject": "a..b"}, {"subject": "a b"}]
)
async def test_an_invalid_range_is_rejected_before_anything_is_sent(our_url: str, bad: dict[str, Any]) -> None:
    async with connect(our_url) as nc:
        sent = nc.stats.out_msgs
        with pytest.raises(UsageError):
            await anext(nc.jetstream().stream("S").read_columns(**bad))
        assert nc.stats.out_msgs == sent


async def test_an_empty_range_is_empty_and_asks_nothing(our_url: str) -> None:
    async with connect(our_url) as nc:
        assert [m async for m in nc.jetstream().stream("NO_SUCH").read(start=5, end=4)] == []


async def test_a_timeout_of_zero_times_out(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(config(fresh, no_ack=True))
        begin = nc.now()
        for wait in (js.publish(f"{fresh}.a", timeout=0), stream.info(timeout=0)):
            with pytest.raises(RequestTimeoutError):
                await wait
        publisher = js.publisher(timeout=0)
        await publisher.publish(f"{fresh}.a")
        with pytest.raises(RequestTimeoutError):
            await publisher.flush()
        assert nc.now() - begin < 10


async def publish_and_fail(js: JetStream, subject: str) -> None:
    async with js.publisher() as publisher:
        await publisher.publish(subject)
        raise ZeroDivisionError


async def test_an_abandoned_publisher_leaves_nothing_behind(our_url: str, fresh: str) -> None:
    """A stream without acks is a server that never answers."""
    async with connect(our_url) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh, no_ack=True))
        publisher = js.publisher(timeout=30)
        for _ in range(10):
            await publisher.publish(f"{fresh}.a")
        flush = asyncio.ensure_future(publisher.flush())
        await asyncio.sleep(0)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
        assert len(publisher.failures) == 10
        with pytest.raises(ZeroDivisionError):
            await publish_and_fail(js, f"{fresh}.a")
        acks = nc.shared(PublishAcks)  # of all publishers of the client
        assert nc._session.requests.sinks == {acks.token: (acks, "")}
        assert acks.in_flight == 0


class SlowAcks:
    """A client whose server acknowledges one publish every 0.4 seconds of a virtual clock, and some never."""

    codec = Json[object]()

    def __init__(self, *, acks: int) -> None:
        self.clock = 0.0
        self._acks = acks
        self._sent: deque[tuple[int, PublishAcks]] = deque()
        self._tokens = count(1)

    def shared(self, kind: Callable[[], T]) -> T:
        return kind()

    def start_one(
        self, _: str, __: bytes, sink: PublishAcks, entry: tuple[AckWindow, Sent], *, header: bytes = b""
    ) -> int:
        assert not header
        token = next(self._tokens)
        sink.register(token, entry)
        self._sent.append((token, sink))
        return token

    async def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        deadline = self.clock + timeout
        while not ready():
            if self.clock + 0.4 > deadline or not self._acks:
                self.clock = deadline
                raise RequestTimeoutError(what)
            self.clock += 0.4
            self._acks -= 1
            token, sink = self._sent.popleft()
            sink.deliver(Msg(f"_INBOX.x.{token}", b"1", "", b"", b'{"stream":"S","seq":1}'))

    def cancel(self, token: str) -> None:
        """Nothing to do."""


def slow_publisher(client: SlowAcks) -> Publisher:
    context = JetStreamContext(cast("Client", client), "$JS.API", timeout=5.0)
    return Publisher(context, max_in_flight=100, timeout=0.5)


async def test_a_flush_waits_as_long_as_acks_arrive() -> None:
    client = SlowAcks(acks=20)
    async with slow_publisher(client) as publisher:
        for _ in range(20):
            await publisher.publish("a")
    assert publisher.acked == 20
    assert client.clock == pytest.approx(8.0)  # sixteen times the timeout


async def test_a_flush_times_out_once_no_ack_arrives() -> None:
    client = SlowAcks(acks=3)
    publisher = slow_publisher(client)
    for _ in range(5):
        await publisher.publish("a")
    with pytest.raises(RequestTimeoutError):
        await publisher.flush()
    assert (publisher.acked, len(publisher.failures)) == (3, 2)
    assert client.clock == pytest.approx(3 * 0.4 + 0.5)


async def test_a_flush_of_a_large_window_is_complete(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        async with js.publisher(max_in_flight=100_000, timeout=30) as publisher:
            for _ in range(60_000):
                await publisher.publish(f"{fresh}.a", b"x" * 100)
        assert publisher.acked == 60_000


def test_blocking_reads_and_publishes_are_whole_when_other_threads_read_the_socket(our_url: str, fresh: str) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # a thread may be interrupted almost anywhere
    try:
        with connect_blocking(our_url) as nc, ThreadPoolExecutor(3) as pool:
            js = nc.jetstream()
            stream = js.create_stream(config(fresh))

            def publish(worker: int) -> int:
                with js.publisher(max_in_flight=64) as publisher:
                    for n in range(1_500):
                        publisher.publish(f"{fresh}.{worker}", b"%d" % n)
                return publisher.acked

            assert list(pool.map(publish, range(3))) == [1_500] * 3
            counts = list(pool.map(lambda _: sum(1 for _ in stream.read()), range(6)))
            assert counts == [4_500] * 6
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("key", ["a", "missing"])
async def test_a_server_that_keeps_min_last_seq_is_asked_once(our_url: str, fresh: str, key: str) -> None:
    async with proxy_to(our_url) as proxy, connect(proxy.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        last = (await js.publish(f"{fresh}.a", b"x")).seq
        await stream.get_last(f"{fresh}.a", min_last_seq=last)  # finds out that the server keeps it
        proxy.sent.clear()
        with contextlib.suppress(MessageNotFoundError):
            await stream.get_last(f"{fresh}.{key}", min_last_seq=last)
        assert proxy.sent.count(b"$JS.API.") == 1
