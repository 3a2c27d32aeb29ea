"""A handler whose task was cancelled, or that waited for one that was, fails like any other; its endpoint goes on."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from slipstream import Message, ServiceRequest, connect
from slipstream.errors import ServiceError


async def test_handler_that_awaits_a_cancelled_task_is_a_500(our_url: str, fresh: str) -> None:
    async def fail(request: ServiceRequest) -> None:
        if request.data:
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task
        await request.respond()

    async with connect(our_url) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("fail", fail, subject=f"{fresh}.fail")
        with pytest.raises(ServiceError, match="500: RuntimeError: the handler was cancelled"):
            await nc.services.request(f"{fresh}.fail", b"x")
        assert (await nc.services.request(f"{fresh}.fail")).data == b""


@pytest.mark.parametrize("is_late", [False, True], ids=["in its handler", "behind it"])
async def test_watchdog_that_cancels_the_task_of_a_handler_does_not_end_the_endpoint(
    our_url: str, fresh: str, is_late: bool
) -> None:
    """A late one finds the task of the endpoint waiting for the next request."""
    tasks: list[asyncio.Task[None]] = []

    async def work(request: ServiceRequest) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        if request.data:
            task.cancel()
            await asyncio.sleep(60)
        await request.respond(b"done")

    async with connect(our_url) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("work", work, subject=f"{fresh}.work")
        for _ in range(2):
            assert (await nc.services.request(f"{fresh}.work")).data == b"done"
            if is_late:
                tasks[-1].cancel()
            else:
                with pytest.raises(ServiceError, match="500: RuntimeError: the handler was cancelled"):
                    await nc.services.request(f"{fresh}.work", b"x")
        assert (await nc.services.request(f"{fresh}.work")).data == b"done"


async def test_callback_that_is_cancelled_does_not_end_its_subscription(our_url: str, fresh: str) -> None:
    seen: list[bytes] = []

    async def take(message: Message) -> None:
        seen.append(message.data)
        if message.data == b"1":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)

    async with connect(our_url) as nc:
        subscription = await nc.subscribe(fresh, callback=take)
        for data in (b"1", b"2"):
            await nc.publish(fresh, data)
        await nc.flush()
        await subscription.drain(timeout=10)
        assert seen == [b"1", b"2"]


PROGRAM = """
import asyncio, sys
from slipstream import connect

began, cancelled = [], []

def handler(name):
    async def hang(_):
        began.append(name)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
    return hang

async def main(url, name):
    nc = await connect(url)
    service = await nc.add_service(name, "1.0.0")
    await service.add_endpoint("work", handler("service"), subject=f"{name}.work")
    await nc.subscribe(f"{name}.take", callback=handler("subscription"))
    js = nc.jetstream()
    stream = await js.create_stream(name, subjects=[f"{name}.jobs"])
    await js.publish(f"{name}.jobs", b"x")
    await (await stream.create_consumer("worker")).consume(handler("consumer"), keep_in_progress=False)
    await nc.publish(f"{name}.work", b"x")
    await nc.publish(f"{name}.take", b"x")
    async with asyncio.timeout(30):
        while len(began) < 3:
            await asyncio.sleep(0.01)

asyncio.run(main(*sys.argv[1:]))
print(*sorted(cancelled))
"""


def test_end_of_a_program_that_closes_nothing_ends_its_handlers(our_url: str, fresh: str) -> None:
    """`asyncio.run` cancels every task that is left, and waits for all of them."""
    command = [sys.executable, "-c", PROGRAM, our_url, fresh]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout) == (0, "consumer service subscription\n"), done.stderr
