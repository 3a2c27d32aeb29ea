"""Functions that are called back: those that would do nothing are rejected, or fail before anything is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from slipstream import BlockingJsMessage, BlockingMessage, JsMessage, Message, connect, connect_blocking
from slipstream.client.reporter import failure_of
from slipstream.errors import UsageError
from tests._sync.concurrency import until


async def coroutine(_: object) -> None:
    await asyncio.sleep(0)


async def async_generator(_: object) -> AsyncIterator[int]:
    yield 1


def generator(_: object) -> Iterator[int]:
    yield 1


class Coroutines:
    async def __call__(self, _: object) -> None: ...

    async def method(self, _: object) -> None: ...


def wrapped(function: Callable[[object], Any]) -> Callable[[object], Any]:
    @wraps(function)
    def wrapper(message: object) -> Any:
        return function(message)

    return wrapper


GENERATORS = [
    pytest.param(generator, id="generator"),
    pytest.param(async_generator, id="async generator"),
    pytest.param(partial(generator), id="partial generator"),
]
COROUTINES = [
    pytest.param(coroutine, id="coroutine function"),
    pytest.param(partial(coroutine), id="partial"),
    pytest.param(Coroutines().method, id="method"),
    pytest.param(Coroutines(), id="object"),
]
WRAPPED_GENERATORS = [
    pytest.param(wrapped(generator), id="wrapped generator"),
    pytest.param(wrapped(async_generator), id="wrapped async generator"),
]
WRAPPED_COROUTINE = [pytest.param(wrapped(coroutine), id="wrapped coroutine function")]


@pytest.mark.parametrize("callback", [*GENERATORS, *COROUTINES])
def test_blocking_client_rejects_what_it_would_not_run(
    our_url: str, fresh: str, callback: Callable[[object], Any]
) -> None:
    with connect_blocking(our_url) as nc:
        js = nc.jetstream()
        consumer = js.create_stream(fresh, subjects=[f"{fresh}.>"]).create_consumer("worker")
        for subscribe in (
            lambda: nc.subscribe(fresh, callback=callback),
            lambda: consumer.consume(callback),
            lambda: js.subscribe(f"{fresh}.x", callback=callback),
        ):
            with pytest.raises(UsageError, match=r"callback must be a (plain )?function .*got the"):
                subscribe()


@pytest.mark.parametrize("callback", GENERATORS)
async def test_asyncio_client_rejects_what_it_would_not_run(
    our_url: str, fresh: str, callback: Callable[[object], Any]
) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        consumer = await (await js.create_stream(fresh, subjects=[f"{fresh}.>"])).create_consumer("worker")
        with pytest.raises(UsageError, match=r"callback must be a function that does its work .*got the generator"):
            await nc.subscribe(fresh, callback=callback)
        with pytest.raises(UsageError, match=r"callback must be a function that does its work .*got the generator"):
            await consumer.consume(callback)
        with pytest.raises(UsageError, match=r"callback must be a function that does its work .*got the generator"):
            await js.subscribe(f"{fresh}.x", callback=callback)


@pytest.mark.parametrize("callback", [*WRAPPED_GENERATORS, *WRAPPED_COROUTINE])
def test_job_of_a_blocking_worker_that_was_not_done_is_not_acknowledged(
    our_url: str, fresh: str, callback: Callable[[object], Any]
) -> None:
    with connect_blocking(our_url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(fresh, subjects=[f"{fresh}.jobs"], retention="workqueue")
        js.publish(f"{fresh}.jobs", b"x")
        failed: list[Exception] = []

        def on_error(_: BlockingJsMessage, error: Exception) -> str:
            failed.append(error)
            return "leave"

        with stream.create_consumer("worker").consume(callback, auto_ack=True, on_error=on_error) as consuming:
            until(lambda: bool(failed or consuming.stats.handled))
        assert consuming.stats.handled == 0
        assert "a callback must have done its work when it returns" in str(failed[0])
        nc.flush()
        assert stream.info().state.messages == 1


async def returns_a_coroutine(message: object) -> object:
    return coroutine(message)


@pytest.mark.parametrize(
    "callback", [*WRAPPED_GENERATORS, pytest.param(returns_a_coroutine, id="coroutine in a coroutine")]
)
async def test_job_of_a_worker_that_was_not_done_is_not_acknowledged(
    our_url: str, fresh: str, callback: Callable[[object], Any]
) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(fresh, subjects=[f"{fresh}.jobs"], retention="workqueue")
        await js.publish(f"{fresh}.jobs", b"x")
        failed: asyncio.Queue[Exception] = asyncio.Queue()

        def on_error(_: JsMessage, error: Exception) -> str:
            failed.put_nowait(error)
            return "leave"

        consumer = await stream.create_consumer("worker")
        async with await consumer.consume(callback, auto_ack=True, on_error=on_error) as consuming:
            error = await asyncio.wait_for(failed.get(), 10)
        assert "a callback must have done its work when it returns" in str(error)
        assert consuming.stats.handled == 0
        await nc.flush()
        assert (await stream.info()).state.messages == 1


def test_blocking_callback_that_was_not_run_or_exits_is_reported(
    our_url: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exit in the thread of all callbacks would end that thread, and with it every other callback."""
    seen: list[bytes] = []

    def take(message: BlockingMessage) -> object:
        seen.append(message.data)
        if message.data == b"exit":
            raise SystemExit(3)
        return coroutine(message)

    with connect_blocking(our_url) as nc:
        nc.subscribe(fresh, callback=take)  # type: ignore[arg-type]  # what a program may get wrong
        for data in (b"exit", b"unrun"):
            nc.publish(fresh, data)
        until(lambda: "must have done its work" in caplog.text)
    assert seen == [b"exit", b"unrun"]
    assert "the callback raised SystemExit(3)" in caplog.text


async def test_callback_of_the_asyncio_client_may_return_anything_but_a_generator(
    our_url: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    def take(message: Message) -> object:
        seen.append(message.data)
        return generator(message) if message.data == b"generator" else len(seen)

    async with connect(our_url) as nc:
        subscription = await nc.subscribe(fresh, callback=take)  # type: ignore[arg-type]  # what a program may get wrong
        for data in (b"number", b"generator"):
            await nc.publish(fresh, data)
        await nc.flush()
        await subscription.drain(timeout=10)
    assert seen == [b"number", b"generator"]
    assert caplog.text.count("got a generator: nothing ran") == 1
    assert caplog.text.count("failed") == 1


def test_failures_can_be_reported() -> None:
    error = ValueError("x")
    assert failure_of(error) is error
    cancelled = asyncio.CancelledError()
    assert "cancelled elsewhere (CancelledError)" in str(failure_of(cancelled))
    assert failure_of(cancelled).__cause__ is cancelled
    assert "raised SystemExit(3)" in str(failure_of(SystemExit(3)))
