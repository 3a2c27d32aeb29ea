"""Publishes with a message id over lost answers, cut connections and restarts: stored once, or reported as in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from slipstream import BlockingJetStream, JetStream, PubAck, StreamConfig, connect, connect_blocking
from slipstream.errors import ConnectionLostError, NoStreamError, RequestTimeoutError
from tests.client.conftest import RealServer
from tests.proxy import Proxy, proxy_to
from tests.servers import OurProcess

LIMIT = 30.0
OPTIONS: dict[str, Any] = {"reconnect_wait": 0.01, "on_event": lambda _: None}


class LostAcks:
    """A fault of the proxy: the first acks of publishes do not arrive, and the connection is cut with them."""

    def __init__(self, proxy: Proxy, count: int = 1, *, cut: bool = True) -> None:
        self._proxy = proxy
        self._left = count
        self._cuts = cut
        self.lost = asyncio.Event()
        proxy.fault = self

    def __call__(self, frame: bytes) -> list[bytes]:
        if not self._left or b'"seq":' not in frame or b'"stream":' not in frame:
            return [frame]
        self._left -= 1
        self.lost.set()
        if self._cuts:
            self._proxy.cut()
        return []


async def asyncio_publish(url: str, *args: Any, **options: Any) -> PubAck:
    async with connect(url, **OPTIONS) as nc:
        return await nc.jetstream().publish(*args, **options)


async def blocking_publish(url: str, *args: Any, **options: Any) -> PubAck:
    def publish() -> PubAck:
        with connect_blocking(url, **OPTIONS) as nc:
            return nc.jetstream().publish(*args, **options)

    return await asyncio.to_thread(publish)


async def stored(url: str, name: str) -> list[bytes]:
    async with connect(url) as nc:
        return [message.data async for message in nc.jetstream().stream(name).read()]


async def create(url: str, name: str, **config: Any) -> None:
    async with connect(url) as nc:
        config = {"subjects": (f"{name}.>",), "allow_direct": True, **config}
        await nc.jetstream().create_stream(StreamConfig(name=name, **config))


both_drivers = pytest.mark.parametrize("publish", [asyncio_publish, blocking_publish], ids=["asyncio", "blocking"])


@both_drivers
@pytest.mark.parametrize("losses", [1, 2])
async def test_publish_whose_ack_was_lost_with_the_connection_is_stored_once(
    any_server: str, fresh: str, publish: Callable[..., Any], losses: int
) -> None:
    await create(any_server, fresh)
    async with proxy_to(any_server) as proxy:
        LostAcks(proxy, losses)
        ack = await publish(proxy.url, f"{fresh}.a", b"one", msg_id="1", timeout=LIMIT)
    assert (ack.seq, ack.duplicate) == (1, True)
    assert await stored(any_server, fresh) == [b"one"]


@both_drivers
async def test_publish_that_did_not_reach_the_stream_is_stored_by_its_copy(
    any_server: str, fresh: str, publish: Callable[..., Any]
) -> None:
    await create(any_server, fresh)
    async with proxy_to(any_server) as proxy:
        proxy.hold = b"one"
        publishing = asyncio.create_task(publish(proxy.url, f"{fresh}.a", b"one", msg_id="1", timeout=LIMIT))
        async with asyncio.timeout(LIMIT):
            await proxy.holding.wait()
        proxy.cut()
        proxy.release.set()
        ack = await publishing
    assert (ack.seq, ack.duplicate) == (1, False)
    assert await stored(any_server, fresh) == [b"one"]


@both_drivers
async def test_publish_whose_ack_alone_was_lost_is_sent_again_before_the_timeout(
    any_server: str, fresh: str, publish: Callable[..., Any]
) -> None:
    await create(any_server, fresh)
    async with proxy_to(any_server) as proxy:
        LostAcks(proxy, cut=False)
        ack = await publish(proxy.url, f"{fresh}.a", b"one", msg_id="1", timeout=6, retries=60)
    assert (ack.seq, ack.duplicate) == (1, True)


@both_drivers
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"msg_id": "1", "retries": 0},
        {"msg_id": "1", "expected_last_seq": 0},
        {"msg_id": "1", "expected_last_subject_seq": 0},
    ],
    ids=str,
)
async def test_publish_that_may_not_be_repeated_reports_the_loss(
    any_server: str, fresh: str, publish: Callable[..., Any], options: dict[str, Any]
) -> None:
    await create(any_server, fresh)
    async with proxy_to(any_server) as proxy:
        LostAcks(proxy)
        with pytest.raises(ConnectionLostError, match="was lost"):
            await publish(proxy.url, f"{fresh}.a", b"one", timeout=LIMIT, **options)
    assert await stored(any_server, fresh) == [b"one"]


@both_drivers
async def test_outage_longer_than_the_duplicate_window_is_reported_and_stores_no_copy(
    any_server: str, fresh: str, publish: Callable[..., Any]
) -> None:
    await create(any_server, fresh, duplicate_window=timedelta(milliseconds=100))
    async with proxy_to(any_server) as proxy:
        lost = LostAcks(proxy)
        publishing = asyncio.create_task(publish(proxy.url, f"{fresh}.a", b"one", msg_id="1", timeout=LIMIT))
        async with asyncio.timeout(LIMIT):
            await lost.lost.wait()
            proxy.is_refusing = True
            await asyncio.sleep(0.2)  # twice the window
            proxy.is_refusing = False
            with pytest.raises(ConnectionLostError, match="was lost"):
                await publishing
    assert await stored(any_server, fresh) == [b"one"]


async def test_outage_longer_than_the_timeout_is_reported(any_server: str, fresh: str) -> None:
    await create(any_server, fresh)
    async with proxy_to(any_server) as proxy, connect(proxy.url, **OPTIONS) as nc:
        lost = LostAcks(proxy)
        publishing = asyncio.create_task(nc.jetstream().publish(f"{fresh}.a", b"one", msg_id="1", timeout=0.5))
        async with asyncio.timeout(LIMIT):
            await lost.lost.wait()
            proxy.is_refusing = True
            with pytest.raises((ConnectionLostError, RequestTimeoutError)):
                await publishing
            proxy.is_refusing = False
            await nc.flush(timeout=LIMIT)  # nothing of it is left to be sent
    assert await stored(any_server, fresh) == [b"one"]


async def test_subject_without_a_stream_raises_as_before(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        with pytest.raises(NoStreamError):
            await nc.jetstream().publish(f"{fresh}.a", b"", msg_id="1", retries=1, retry_wait=0.01)


@pytest.mark.parametrize("method", ["publish", "send"])
async def test_publisher_sends_again_what_has_an_id_in_order(any_server: str, fresh: str, method: str) -> None:
    await create(any_server, fresh)
    async with proxy_to(any_server) as proxy, connect(proxy.url, **OPTIONS) as nc:
        LostAcks(proxy, 2)
        async with nc.jetstream().publisher(max_in_flight=20, timeout=LIMIT) as publisher:
            for number in range(100):
                await getattr(publisher, method)(f"{fresh}.{number % 7}", b"%d" % number, msg_id=str(number))
        assert (publisher.acked, publisher.failures) == (100, [])
        assert publisher.duplicates >= 1
    assert await stored(any_server, fresh) == [b"%d" % number for number in range(100)]


def blocking_publisher(js: BlockingJetStream, name: str) -> tuple[int, int]:
    with js.publisher(max_in_flight=20, timeout=LIMIT) as publisher:
        for number in range(100):
            publisher.publish(f"{name}.a", b"%d" % number, msg_id=str(number))
    return publisher.acked, len(publisher.failures)


async def test_blocking_publisher_sends_again_what_has_an_id_in_order(any_server: str, fresh: str) -> None:
    await create(any_server, fresh)
    async with proxy_to(any_server) as proxy:
        with await asyncio.to_thread(connect_blocking, proxy.url, **OPTIONS) as nc:
            LostAcks(proxy, 2)
            assert await asyncio.to_thread(blocking_publisher, nc.jetstream(), fresh) == (100, 0)
            await asyncio.to_thread(nc.close)
    assert await stored(any_server, fresh) == [b"%d" % number for number in range(100)]


async def test_publisher_reports_what_has_no_id_and_repeats_the_rest(any_server: str, fresh: str) -> None:
    await create(any_server, fresh)
    async with proxy_to(any_server) as proxy, connect(proxy.url, **OPTIONS) as nc:
        proxy.hold = b"with"
        publisher = nc.jetstream().publisher(timeout=LIMIT)
        await publisher.publish(f"{fresh}.a", b"without")
        await publisher.publish(f"{fresh}.a", b"with", msg_id="1")
        async with asyncio.timeout(LIMIT):
            await proxy.holding.wait()
        proxy.cut()
        proxy.release.set()
        with pytest.raises(ConnectionLostError):
            await publisher.flush()
        assert [failure.position for failure in publisher.failures] == [0]
        assert publisher.acked == 1
    assert await stored(any_server, fresh) == [b"with"]


# Restarts


class Restartable:
    """A server process with a store, killed and started again on the same port."""

    def __init__(self, kind: str, folder: Path, stack: ExitStack) -> None:
        if kind == "ours":
            ours = OurProcess(folder)
            self.start, self.kill = ours.start, ours.kill
            ours.start()
            self.url = ours.url
        else:
            real = RealServer("-js", "-sd", str(folder))
            self.start, self.kill = real.start, real.stop  # type: ignore[assignment]
            real.start()
            self.url = real.url
        stack.callback(self.kill)


@pytest.fixture(params=["ours", "real"])
def restartable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restartable]:
    with ExitStack() as stack:
        yield Restartable(request.param, tmp_path, stack)


async def lose_ack_and_restart(server: Restartable, name: str, meanwhile: Callable[[JetStream], Any]) -> Any:
    """Publish with an id; the ack is lost, `meanwhile` runs, and the server is killed and started again."""
    async with proxy_to(server.url) as proxy, connect(proxy.url, **OPTIONS) as nc:
        lost = LostAcks(proxy)
        publishing = asyncio.create_task(nc.jetstream().publish(f"{name}.a", b"one", msg_id="1", timeout=LIMIT))
        async with asyncio.timeout(LIMIT):
            await lost.lost.wait()
            proxy.is_refusing = True
            async with connect(server.url) as other:
                await meanwhile(other.jetstream())
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            proxy.is_refusing = False
            (result,) = await asyncio.gather(publishing, return_exceptions=True)
            return result


async def nothing(_: JetStream) -> None:
    """Nothing happens meanwhile."""


async def test_publish_over_a_restart_of_the_server_is_stored_once(restartable: Restartable) -> None:
    await create(restartable.url, "R")
    ack = await lose_ack_and_restart(restartable, "R", nothing)
    assert (ack.seq, ack.duplicate) == (1, True)
    assert await stored(restartable.url, "R") == [b"one"]


async def test_job_that_was_done_before_a_restart_of_the_server_is_not_published_again(
    restartable: Restartable,
) -> None:
    async def do_the_job(js: JetStream) -> None:
        consumer = await js.stream("W").create_consumer("workers")
        await (await consumer.next()).ack_sync()

    await create(restartable.url, "W", retention="workqueue")
    error = await lose_ack_and_restart(restartable, "W", do_the_job)
    assert isinstance(error, ConnectionLostError)
    assert await stored(restartable.url, "W") == []


async def test_older_value_does_not_replace_a_newer_one_after_a_restart_of_the_server(restartable: Restartable) -> None:
    async def write(js: JetStream) -> None:
        await js.publish("V.a", b"newer")

    await create(restartable.url, "V", max_msgs_per_subject=1)
    error = await lose_ack_and_restart(restartable, "V", write)
    assert isinstance(error, ConnectionLostError)
    assert await stored(restartable.url, "V") == [b"newer"]
