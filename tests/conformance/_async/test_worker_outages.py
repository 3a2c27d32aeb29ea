"""Workers without their server: stops that end in time, a client that gives up, restarts, acks that are lost."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream import connect
from slipstream.api import ConsumerConfig, StreamConfig
from slipstream.errors import ConsumerGoneError, Error
from slipstream.jetstream._async import failures
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream._async.single_pull import SinglePull
from slipstream.jetstream.consume.error_policy import DeadLetter
from slipstream.wire import Msg
from tests._async.concurrency import sleep, spawn, until
from tests.servers import OurProcess, RealProcess

Kind = type[OurProcess] | type[RealProcess]
BOTH = pytest.mark.parametrize("kind", [OurProcess, RealProcess], ids=["ours", "real"])
DUPLICATE_WINDOW = 120.0  # seconds, of a stream that does not say otherwise


async def worker(js: JetStream, jobs: int, *, name: str = "JOBS", ack_wait: float = 60.0) -> Consumer:
    """A consumer of a stream with so many jobs."""
    stream = await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
    async with js.publisher() as publisher:
        for job in range(jobs):
            await publisher.publish(f"{name}.job", b"%d" % job)
    return await stream.create_consumer(
        ConsumerConfig(durable_name="worker", ack_wait=timedelta(seconds=ack_wait), max_ack_pending=1000)
    )


async def slow(message: JsMessage) -> None:
    await sleep(0.02)
    await message.ack()


@BOTH
@pytest.mark.parametrize("jobs", [300, 0], ids=["busy", "idle"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stands still"])
async def test_a_stop_ends_in_time_without_an_answer_of_the_server(
    kind: Kind, tmp_path: Path, number: signal.Signals, jobs: int
) -> None:
    with kind(tmp_path) as server:
        async with connect(server.url) as nc:
            consuming = await (await worker(nc.jetstream(), jobs)).consume(slow)
            await until(lambda: consuming.stats.handled >= min(jobs, 5))
            server.send_signal(number)
            if number == signal.SIGKILL:
                await until(lambda: not nc.is_connected)
            await spawn(lambda: consuming.stop(give_back=True, timeout=4)).result(timeout=20)
            assert consuming.is_done
            server.kill()


@BOTH
async def test_an_ack_that_cannot_be_sent_ends_no_worker(
    kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no connection, and nothing is buffered until there is one: the job is done again."""
    with kind(tmp_path) as server:
        async with connect(server.url, reconnect_buffer_bytes=0) as nc:
            consumer = await worker(nc.jetstream(), 4, ack_wait=2.0)
            began: list[int] = []
            is_open: list[bool] = []

            async def handle(message: JsMessage) -> None:
                began.append(int(message.data))
                await until(lambda: bool(is_open))

            consuming = await consumer.consume(handle, auto_ack=True, concurrency=2)
            await until(lambda: len(began) == 2)
            server.kill()
            await until(lambda: not nc.is_connected)
            is_open.append(True)
            await until(lambda: caplog.text.count("the ack of consumer 'worker' for 'JOBS.job'") >= 2)
            server.start()
            await until(lambda: Counter(began) >= Counter([0, 0, 1, 1, 2, 3]), timeout=20)
            assert not consuming.is_done
            await consuming.stop()


@BOTH
async def test_a_client_that_gives_up_ends_workers_and_loops_loudly(kind: Kind, tmp_path: Path) -> None:
    with kind(tmp_path) as server:
        async with connect(server.url, max_reconnects=2, reconnect_wait=0.01, reconnect_max_wait=0.02) as nc:
            consumer = await worker(nc.jetstream(), 0)
            consuming = await consumer.consume(slow)

            async def read() -> None:
                async for _ in consumer.messages():
                    pass

            async def read_lists() -> None:
                async for _ in consumer.chunks():
                    pass

            ends = [spawn(lambda: consuming.wait(timeout=30)), spawn(read), spawn(read_lists)]
            await sleep(0.1)
            server.kill()
            for end in ends:
                with pytest.raises(Error, match="no server could be reached"):
                    await end.result(timeout=30)


async def test_a_client_that_is_closed_ends_workers_and_loops_without_an_error(any_server: str, fresh: str) -> None:
    nc = await connect(any_server)
    consumer = await worker(nc.jetstream(), 0, name=fresh)
    consuming = await consumer.consume(slow)
    messages = consumer.messages()

    async def read() -> None:
        async for _ in messages:
            pass

    reading = spawn(read)
    await sleep(0.1)
    await nc.close()
    await consuming.wait(timeout=30)
    await reading.result(timeout=30)


@BOTH
@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.steady
async def test_after_a_restart_of_the_server_only_what_was_in_flight_is_handled_again(
    kind: Kind, tmp_path: Path, concurrency: int
) -> None:
    """In flight is what a handler worked on: the server did not confirm its ack. It may have stored it, and then the
    message is not delivered again."""
    with kind(tmp_path) as server:
        async with connect(server.url, reconnect_wait=0.02, reconnect_max_wait=0.1) as nc:
            consumer = await worker(nc.jetstream(), 400, ack_wait=2.0)
            began: Counter[int] = Counter()
            confirmed: set[int] = set()
            in_flight: set[int] = set()
            wrong: list[int] = []

            async def handle(message: JsMessage) -> None:
                if began[message.seq] and message.seq not in in_flight:
                    wrong.append(message.seq)
                began[message.seq] += 1
                await sleep(0.002)
                try:
                    await message.ack_sync(timeout=5)
                except Error:
                    in_flight.add(message.seq)
                    raise
                confirmed.add(message.seq)

            consuming = await consumer.consume(handle, concurrency=concurrency)
            await until(lambda: len(confirmed) >= 100)
            server.stop()
            await until(lambda: not nc.is_connected)
            server.start()

            async def is_done() -> bool:
                info = await consumer.info(timeout=20)
                return info.ack_floor.stream_seq == 400

            await until(is_done, timeout=40)
            await consuming.stop()
            assert wrong == []
            assert set(began) == confirmed | in_flight == set(range(1, 401))


async def test_a_single_missing_responder_does_not_end_a_fetch(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a server restarts, where the loops retry."""
    receive, calls = SinglePull.receive, 0

    async def fail_twice(single: SinglePull, deadline: float) -> tuple[Msg, float] | None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ConsumerGoneError(503, "No Responders", "no such consumer, or its leader is changing")
        return await receive(single, deadline)

    monkeypatch.setattr(SinglePull, "receive", fail_twice)
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), 1, name=fresh)
        assert (await consumer.next(timeout=10)).data == b"0"
        await consumer.delete()
        calls = 0
        with pytest.raises(ConsumerGoneError):  # the server says that it does not exist
            await consumer.next(timeout=30)
        assert calls == 2


async def test_a_dead_letter_is_tried_again_within_half_of_the_duplicate_window(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream may have stored it, and only the ack was lost."""
    nak, delays = JsMessage.nak, []

    async def at_once(message: JsMessage, delay: float) -> None:
        delays.append(delay)
        await nak(message)

    monkeypatch.setattr(JsMessage, "nak", at_once)
    monkeypatch.setattr(failures, "PAUSES", ())
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), 1, name=fresh)

        def handle(_: JsMessage) -> None:
            raise KeyError("order_id")

        async with await consumer.consume(handle, on_error=lambda *_: DeadLetter(f"dead.{fresh}")):
            await until(lambda: len(delays) >= 6)
    assert max(delays) < DUPLICATE_WINDOW / 2
