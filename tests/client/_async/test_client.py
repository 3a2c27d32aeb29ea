"""What only asyncio has: cancellation at any await, coroutine callbacks, clients that are awaited or entered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from slipstream.client._async.client import Message, connect
from slipstream.errors import ConnectionClosedError, ConnectionLostError
from tests.client.support import LIMIT, FakeServer, Peer


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT):
            await coroutine

    asyncio.run(bounded(), debug=True)


def test_a_client_can_be_awaited_or_entered(nats_url: str) -> None:
    async def main() -> None:
        async with connect(nats_url) as nc:
            await nc.flush()
        assert nc.is_closed
        other = await connect(nats_url)
        async with other:
            await other.flush()
        assert other.is_closed

    run(main())


def test_a_cancelled_reader_loses_nothing(nats_url: str) -> None:
    async def main() -> None:
        dice = random.Random(1)
        async with connect(nats_url) as nc:
            sub = await nc.subscribe("cancel")
            seen: list[int] = []

            async def read(kind: int) -> None:
                # Nothing is awaited between the hand-over and the append: what was handed over is counted.
                if kind == 0:
                    seen.append(int((await sub.next()).data))
                elif kind == 1:
                    seen.extend(int(message.data) for message in await sub.next_chunk())
                else:
                    async for message in sub:
                        seen.append(int(message.data))

            for i in range(300):
                await nc.publish("cancel", b"%d" % i)
                task = asyncio.create_task(read(i % 3))
                for _ in range(dice.randrange(6)):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            await nc.flush()
            while sub.pending:
                seen.append(int((await sub.next()).data))
            assert seen == list(range(300))

    run(main())


def test_a_cancelled_request_is_forgotten(nats_url: str) -> None:
    async def main() -> None:
        async with connect(nats_url) as nc:
            sub = await nc.subscribe("forget")
            task = asyncio.create_task(nc.request("forget"))
            await sub.next()
            task.cancel()
            await asyncio.wait([task])
            waiter = asyncio.create_task(nc.wait(lambda: False, timeout=5, what="x"))
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.wait([waiter])
            assert nc._session.requests.sinks == {}
            assert nc._connection._waiters == {}

    run(main())


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        greeted = asyncio.Event()
        loop = asyncio.get_running_loop()

        def script(peer: Peer) -> None:
            loop.call_soon_threadsafe(greeted.set)
            peer.until_closed()

        with FakeServer(script) as server:
            task = asyncio.create_task(connect(server.url))
            await greeted.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert asyncio.all_tasks() == before

    run(main())


def test_coroutine_callbacks_run_one_after_the_other(nats_url: str) -> None:
    async def main() -> None:
        order: list[str] = []

        async def callback(message: Message) -> None:
            order.append(f"begin {message.data.decode()}")
            await asyncio.sleep(0)
            order.append(f"end {message.data.decode()}")
            await message.respond(message.data)

        async with connect(nats_url) as nc:
            await nc.subscribe("coro", callback=callback)
            replies = await asyncio.gather(*(nc.request("coro", b"%d" % i) for i in range(3)))
            assert [reply.data for reply in replies] == [b"0", b"1", b"2"]
        assert order == [f"{what} {i}" for i in range(3) for what in ("begin", "end")]

    run(main())


def test_a_callback_may_close_its_client(nats_url: str) -> None:
    async def main() -> None:
        nc = await connect(nats_url)
        closed = asyncio.Event()

        async def callback(_: Message) -> None:
            await nc.close()
            closed.set()

        await nc.subscribe("close.me", callback=callback)
        await nc.publish("close.me")
        await closed.wait()
        with pytest.raises(ConnectionClosedError):
            await nc.publish("close.me")

    run(main())


def test_two_readers_share_a_subscription(nats_url: str) -> None:
    async def main() -> None:
        async with connect(nats_url) as nc:
            sub = await nc.subscribe("two")
            readers = [asyncio.create_task(sub.next()) for _ in range(2)]
            await asyncio.sleep(0)
            await nc.publish("two", b"1")
            await nc.publish("two", b"2")
            assert sorted([(await reader).data for reader in readers]) == [b"1", b"2"]

    run(main())


@pytest.mark.parametrize("reconnect", [False, True])
def test_a_publisher_held_back_is_released_when_the_connection_goes(reconnect: bool) -> None:
    async def main() -> None:
        release = asyncio.Event()

        def script(peer: Peer) -> None:
            peer.greet()
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(LIMIT)

        loop = asyncio.get_running_loop()
        server = FakeServer(script)
        server.__enter__()
        nc = await connect(server.url, reconnect=reconnect, reconnect_wait=60, on_event=lambda _: None)

        async def publish() -> None:
            while True:
                await nc.publish("a", b"x" * 10_000)

        task = asyncio.create_task(publish())
        await asyncio.sleep(0.1)
        assert not task.done()
        release.set()
        with pytest.raises(ConnectionLostError):
            await task
        await nc.close()
        server.__exit__(None, None, None)

    run(main())
