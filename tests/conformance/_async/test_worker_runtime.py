"""The worker runtime: handlers at once and in order, what becomes of messages that fail, and the end of a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from slipstream import connect
from slipstream.api import ConsumerConfig, ConsumerInfo, StreamConfig
from slipstream.errors import Error, RequestTimeoutError, UsageError
from slipstream.jetstream._async import consuming as consuming_module
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.consuming import Consuming
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.error_policy import Attempts, DeadLetter, Nak
from tests._async.concurrency import sleep, spawn, until

LONG = timedelta(seconds=60)
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


async def worker(js: JetStream, name: str, subjects: list[str], **config: object) -> Consumer:
    """A consumer of a stream with a message for each of the subjects, numbered from 0."""
    stream = await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
    async with js.publisher() as publisher:
        for number, subject in enumerate(subjects):
            await publisher.publish(f"{name}.{subject}", b"%d" % number)
    settings = {"durable_name": "worker", "ack_wait": LONG} | config
    return await stream.create_consumer(ConsumerConfig(**settings))  # type: ignore[arg-type]  # names of its fields


class Jobs:
    """A handler that keeps count; messages from number `closed_from` on are done only when `is_open`."""

    def __init__(self, *, is_open: bool = True, closed_from: int = 0) -> None:
        self.is_open = is_open
        self.closed_from = closed_from
        self.closed: set[int] = set()
        self.began: list[tuple[str, int]] = []
        self.running = 0
        self.most = 0
        self.subjects: Counter[str] = Counter()

    async def handle(self, message: JsMessage) -> None:
        self.began.append((message.subject, int(message.data)))
        self.running += 1
        self.subjects[message.subject] += 1
        assert self.subjects[message.subject] == 1 or not self.is_ordered
        self.most = max(self.most, self.running)
        if int(message.data) >= self.closed_from:
            self.closed.add(int(message.data))
            await until(lambda: self.is_open, timeout=30)
        await sleep(0.001)
        self.subjects[message.subject] -= 1
        self.running -= 1

    is_ordered = False


async def unacked(consumer: Consumer, count: int) -> ConsumerInfo:
    """The info when so many messages are delivered and not acknowledged: servers take acks in behind a flush."""
    infos: list[ConsumerInfo] = []

    async def is_so() -> bool:
        infos.append(await consumer.info())
        return infos[-1].num_ack_pending == count

    await until(is_so, timeout=30)
    return infos[-1]


async def handled(consuming: Consuming, count: int) -> None:
    """Wait until so many handlers have returned."""
    await until(lambda: consuming.stats.handled >= count, timeout=30)


async def test_so_many_handlers_run_at_once(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"] * 20)
        jobs = Jobs(is_open=False)
        async with await consumer.consume(jobs.handle, concurrency=4, auto_ack=True) as consuming:
            await until(lambda: jobs.running == 4)
            assert consuming.stats.in_flight == 4
            jobs.is_open = True
            await handled(consuming, 20)
        assert jobs.most == 4
        assert sorted(number for _, number in jobs.began) == list(range(20))
        stats = consuming.stats
        assert (stats.handled, stats.failed, stats.redelivered, stats.in_flight, stats.lag) == (20, 0, 0, 0, 0)
        assert stats.seconds > 0
        await unacked(consumer, 0)


SOAK = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.parametrize(
    ("jobs", "seconds", "ack_wait"),
    [
        pytest.param(20, 0.1, 1.0, id="more than ack_wait in all"),
        pytest.param(500, 0.1, 30.0, id="500 of 100 ms", marks=SOAK),
        pytest.param(2_000, 0.02, 30.0, id="2,000 of 20 ms", marks=SOAK),
        pytest.param(40, 3.0, 30.0, id="40 of 3 s", marks=SOAK),
    ],
)
@pytest.mark.steady
async def test_a_worker_handles_each_job_once(
    any_server: str, fresh: str, jobs: int, seconds: float, ack_wait: float, concurrency: int
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"] * jobs, ack_wait=timedelta(seconds=ack_wait))
        seen: list[int] = []

        async def handle(message: JsMessage) -> None:
            seen.append(int(message.data))
            await sleep(seconds)

        async with await consumer.consume(handle, concurrency=concurrency, auto_ack=True) as consuming:
            await until(lambda: consuming.stats.handled >= jobs, timeout=50 + 3 * jobs * seconds)
        assert Counter(seen) == Counter(range(jobs))
        assert consuming.stats.redelivered == 0
        await unacked(consumer, 0)


async def test_messages_of_a_subject_are_handled_in_order(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        subjects = [f"s{number % 3}" if number % 2 else "busy" for number in range(60)]
        consumer = await worker(nc.jetstream(), fresh, subjects)
        jobs = Jobs()
        jobs.is_ordered = True
        async with await consumer.consume(jobs.handle, concurrency=4, ordered_by="subject", auto_ack=True) as consuming:
            await handled(consuming, 60)
        by_subject: dict[str, list[int]] = {}
        for subject, number in jobs.began:
            by_subject.setdefault(subject, []).append(number)
        assert all(numbers == sorted(numbers) for numbers in by_subject.values())
        assert sum(map(len, by_subject.values())) == 60
        assert consuming.stats.failed == 0


@pytest.mark.steady
async def test_a_message_that_waits_for_its_subject_is_kept_in_progress(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a", "a", "a"], ack_wait=timedelta(seconds=1))
        deliveries: list[int] = []

        async def handle(message: JsMessage) -> None:
            deliveries.append(message.num_delivered)
            await sleep(1.2)

        async with await consumer.consume(handle, concurrency=2, ordered_by="subject", auto_ack=True) as consuming:
            await handled(consuming, 3)
        assert deliveries == [1, 1, 1]


async def test_waiting_messages_are_bounded(any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming_module, "MAX_WAITING", 5)
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"] * 30)
        jobs = Jobs(is_open=False)
        jobs.is_ordered = True
        async with await consumer.consume(jobs.handle, concurrency=3, ordered_by="subject", auto_ack=True) as consuming:
            await until(lambda: consuming.stats.waiting >= 5)
            await sleep(0.05)
            assert consuming.stats.waiting <= 5
            jobs.is_open = True
            await handled(consuming, 30)


@pytest.mark.parametrize("gives_back", [False, True], ids=["kept", "given back"])
async def test_a_stop_keeps_the_order_of_a_subject(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch, gives_back: bool
) -> None:
    """What waits for its subject comes before what is in the prefetch, for the next call and for the server."""
    returned: list[int] = []
    give_back = Consuming._give_back

    async def spy(self: Consuming, message: JsMessage) -> bool:
        returned.append(int(message.data))
        return await give_back(self, message)

    monkeypatch.setattr(Consuming, "_give_back", spy)
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"] * 400)
        jobs = Jobs(is_open=False, closed_from=20)
        jobs.is_ordered = True
        options: dict[str, Any] = {"concurrency": 3, "ordered_by": "subject", "auto_ack": True}
        consuming = await consumer.consume(jobs.handle, **options)
        await until(lambda: bool(jobs.closed) and consuming.stats.waiting >= 40)
        stopping = spawn(lambda: consuming.stop(give_back=gives_back, timeout=20))
        await sleep(0.05)
        jobs.is_open = True
        await stopping.result(timeout=20)
        assert (consuming.stats.handled, consuming.stats.waiting) == (21, 0)
        assert returned == (list(range(21, 21 + len(returned))) if gives_back else [])
        assert bool(returned) == gives_back
        async with await consumer.consume(jobs.handle, **options) as again:
            await handled(again, 400 - 21)
        numbers = [number for _, number in jobs.began]
        assert sorted(numbers) == list(range(400))
        if not gives_back:  # a server may deliver newer ones before it has seen what was given back
            assert numbers == list(range(400))


async def test_a_stop_handles_in_order_what_the_server_would_not_redeliver(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a", "a", "b", "a"] * 25, max_deliver=1)
        jobs = Jobs(is_open=False, closed_from=20)
        jobs.is_ordered = True
        consuming = await consumer.consume(jobs.handle, concurrency=3, ordered_by="subject", auto_ack=True)
        await until(lambda: len(jobs.closed) == 2 and consuming.stats.waiting >= 5)
        stopping = spawn(lambda: consuming.stop(give_back=True, timeout=20))
        await sleep(0.05)
        jobs.is_open = True
        await stopping.result(timeout=20)
        for subject in ("a", "b"):
            numbers = [number for name, number in jobs.began if name.endswith(subject)]
            assert numbers == sorted(numbers)
        info = await unacked(consumer, 0)
        assert consuming.stats.returned == 0
        assert info.num_pending == 100 - consuming.stats.handled


@pytest.mark.parametrize(
    ("concurrency", "ordered_by", "config"),
    [
        pytest.param(1, None, {}, id="one worker"),
        pytest.param(2, None, {"max_deliver": 1}, id="two workers, the only delivery"),
        pytest.param(2, "subject", {}, id="ordered"),
        pytest.param(1, None, {"ack_policy": "all"}, id="acks for all before"),
    ],
)
@pytest.mark.steady
async def test_what_was_prefetched_outlives_a_handler_that_takes_longer_than_ack_wait(
    any_server: str,
    fresh: str,
    monkeypatch: pytest.MonkeyPatch,
    concurrency: int,
    ordered_by: str | None,
    config: dict[str, object],
) -> None:
    """While all workers are busy, or wait for a subject, none reads from the loop: it is renewed all the same."""
    monkeypatch.setattr(consuming_module, "MAX_WAITING", 10)
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"] * 120, ack_wait=timedelta(seconds=2), **config)
        seen: list[tuple[int, int]] = []

        async def handle(message: JsMessage) -> None:
            number = int(message.data)
            seen.append((number, message.num_delivered))
            await sleep(3 if number // concurrency == 40 // concurrency else 0.001)

        async with await consumer.consume(
            handle, auto_ack=True, concurrency=concurrency, ordered_by=ordered_by
        ) as consuming:
            await handled(consuming, 120)
        assert sorted(seen) == [(number, 1) for number in range(120)]
        assert consuming.stats.expired == 0
        assert consuming.stats.renewed > 0
        if concurrency == 1 or ordered_by:
            assert seen == sorted(seen)


async def test_a_failed_message_is_redelivered_after_its_delay(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"])
        seen: list[int] = []

        def handle(message: JsMessage) -> None:
            seen.append(message.num_delivered)
            if message.num_delivered < 3:
                raise KeyError("order_id")

        async with await consumer.consume(handle, on_error=Nak((0.01, 0.02)), auto_ack=True) as consuming:
            await handled(consuming, 1)
        assert seen == [1, 2, 3]
        stats = consuming.stats
        assert (stats.failed, stats.handled, stats.redelivered) == (2, 1, 2)
        assert "sequence 1, delivery 2) is redelivered in 0.02 s" in caplog.text


@pytest.mark.parametrize("on_error", ["term", Attempts(1)], ids=["term", "retry"])
async def test_a_failed_message_is_terminated(any_server: str, fresh: str, on_error: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"])

        def handle(_: JsMessage) -> None:
            raise KeyError("order_id\nwith two lines")

        async with await consumer.consume(handle, on_error=on_error) as consuming:
            await until(lambda: consuming.stats.failed == 1)
        assert (await unacked(consumer, 0)).ack_floor.stream_seq == 1


async def test_a_function_decides_about_a_failed_message(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a", "b", "c"], ack_wait=timedelta(seconds=60))
        decided: list[tuple[str, str]] = []

        async def decide(message: JsMessage, error: Exception) -> object:
            await sleep(0)
            decided.append((message.subject[-1], str(error)))
            if message.subject.endswith("c"):
                raise RuntimeError("cannot decide")
            return "term" if message.subject.endswith("b") else Nak(0.01)

        def handle(message: JsMessage) -> None:
            if message.num_delivered == 1:
                raise ValueError(message.subject[-1])

        async with await consumer.consume(handle, on_error=decide, auto_ack=True) as consuming:
            await until(lambda: (consuming.stats.failed, consuming.stats.handled) == (3, 1))
        assert decided == [("a", "a"), ("b", "b"), ("c", "c")]
        await unacked(consumer, 1)  # what could not be decided is left
        assert "on_error of consumer 'worker'" in caplog.text
        assert "cannot decide" in caplog.text


async def test_a_message_that_always_fails_ends_as_one_complete_dead_letter(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        dead = await js.create_stream(StreamConfig(name=f"{fresh}dead", subjects=(f"dead.{fresh}",)))
        consumer = await worker(js, fresh, [], max_deliver=3)
        headers = {"Trace": "abc", "Nats-Msg-Id": "7", "Nats-Expected-Stream": fresh}
        await js.publish(f"{fresh}.poison", b"payload", headers=headers)

        def handle(_: JsMessage) -> None:
            raise KeyError("order_id")

        policy = Attempts(10, then=DeadLetter(f"dead.{fresh}"), delays=0.01)
        async with await consumer.consume(handle, on_error=policy) as consuming:
            await until(lambda: consuming.stats.dead_lettered == 1)
        assert consuming.stats.failed == 3  # the last delivery that max_deliver allows, and not the tenth
        letter = await (await dead.create_consumer("reader")).next(timeout=5)
        assert letter.data == b"payload"
        found = dict(letter.headers.items())
        assert found["Trace"] == "abc"
        assert found["Original-Nats-Msg-Id"] == "7"
        assert found["Dead-Letter-Reason"] == "KeyError: 'order_id'"
        assert found["Dead-Letter-Error"] == "KeyError"
        assert "in handle" in found["Dead-Letter-Traceback"]
        assert (found["Dead-Letter-Stream"], found["Dead-Letter-Sequence"]) == (fresh, "1")
        assert (found["Dead-Letter-Subject"], found["Dead-Letter-Consumer"]) == (f"{fresh}.poison", "worker")
        assert found["Dead-Letter-Deliveries"] == "3"
        assert found["Dead-Letter-Time"].endswith("Z")
        await unacked(consumer, 0)


async def test_a_message_whose_dead_letter_cannot_be_stored_stays(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream of the letters is gone: the message is redelivered, and stored once when there is one again."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = StreamConfig(name=f"{fresh}dead", subjects=(f"dead.{fresh}",))
        await js.create_stream(config)
        consumer = await worker(js, fresh, ["a"], max_deliver=2)

        def handle(_: JsMessage) -> None:
            raise KeyError("order_id")

        async def on_error(message: JsMessage, _: Exception) -> object:
            if message.num_delivered == 1:
                await js.delete_stream(config.name)
            return DeadLetter(f"dead.{fresh}")

        async with await consumer.consume(handle, on_error=on_error) as consuming:
            await until(lambda: caplog.text.count("delivery 2) could not be stored") >= 1, timeout=30)
            dead = await js.create_stream(config)
            await until(lambda: consuming.stats.dead_lettered == 1, timeout=30)
        assert consuming.stats.failed == 2  # then it was tried again here: the server would not redeliver it
        assert (await dead.info()).state.messages == 1
        await unacked(consumer, 0)


async def test_dead_letters_need_a_stream_that_is_not_their_own(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, [])
        with pytest.raises(UsageError, match="a stream must listen on the subject of dead letters"):
            await consumer.consume(print, on_error=DeadLetter(f"dead.{fresh}"))
        with pytest.raises(UsageError, match="dead letters must not be delivered to their own consumer"):
            await consumer.consume(print, on_error=Attempts(3, then=DeadLetter(f"{fresh}.dead")))


async def test_a_message_that_its_handler_settled_stays_so(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"])

        async def handle(message: JsMessage) -> None:
            await message.ack()
            raise KeyError("order_id")

        async with await consumer.consume(handle, on_error=Nak(0)) as consuming:
            await until(lambda: consuming.stats.failed == 1)
        assert (await unacked(consumer, 0)).ack_floor.stream_seq == 1
        assert "was settled by its handler before the handler failed" in caplog.text


async def test_auto_ack_leaves_what_the_handler_settled(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"])
        seen: list[int] = []

        async def handle(message: JsMessage) -> None:
            seen.append(message.num_delivered)
            if message.num_delivered == 1:
                await message.nak()

        async with await consumer.consume(handle, auto_ack=True) as consuming:
            await handled(consuming, 2)
        assert seen == [1, 2]


# unasync: off
async def test_a_handler_whose_own_task_is_cancelled_has_failed(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a", "b"])

        async def handle(message: JsMessage) -> None:
            if message.subject.endswith("a"):
                task = asyncio.ensure_future(asyncio.sleep(5))
                task.cancel()
                await task

        async with await consumer.consume(handle) as consuming:
            await handled(consuming, 1)
            assert not consuming.is_done
        assert consuming.stats.failed == 1
        assert "cancelled elsewhere" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("does_swallow", [False, True], ids=["raised", "swallowed"])
async def test_a_watchdog_that_cancels_the_task_of_a_handler_ends_no_worker(
    any_server: str, fresh: str, concurrency: int, does_swallow: bool
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"] * 12)

        async def handle(message: JsMessage) -> None:
            if int(message.data) in (2, 5, 7) and message.num_delivered == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                with suppress(*[asyncio.CancelledError] * does_swallow):
                    await asyncio.sleep(60)
                cancelled = asyncio.get_running_loop().create_future()
                cancelled.cancel()
                await cancelled  # of another task, after the first cancellation was swallowed

        async with await consumer.consume(
            handle, auto_ack=True, concurrency=concurrency, on_error=Nak(0.01)
        ) as consuming:
            await handled(consuming, 12)
            assert not consuming.is_done
        assert (consuming.stats.handled, consuming.stats.failed) == (12, 3)


async def test_a_watchdog_that_comes_too_late_ends_no_worker(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, ["a"])
        tasks: list[asyncio.Task[None]] = []

        async def handle(_: JsMessage) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)

        async with await consumer.consume(handle, auto_ack=True) as consuming:
            for count in (1, 2, 3):
                await handled(consuming, count)
                tasks[-1].cancel()  # it waits for the next message
                await js.publish(f"{fresh}.a", b"0")
            await handled(consuming, 4)
        assert consuming.stats.failed == 0


async def test_a_function_that_decides_and_is_cancelled_ends_no_worker(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a", "b"])

        def handle(message: JsMessage) -> None:
            if message.subject.endswith("a"):
                raise KeyError("order_id")

        async def decide(_: JsMessage, __: Exception) -> None:
            cancelled = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled

        async with await consumer.consume(handle, on_error=decide, auto_ack=True) as consuming:
            await handled(consuming, 1)
        assert (consuming.stats.handled, consuming.stats.failed) == (1, 1)
        assert "on_error of consumer 'worker'" in caplog.text


async def test_a_handler_that_a_stop_cancelled_counts_as_given_back_alone(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"])
        jobs = Jobs(is_open=False)
        consuming = await consumer.consume(jobs.handle, auto_ack=True)
        await until(lambda: jobs.running == 1)
        with pytest.raises(RequestTimeoutError, match="is still running after"):
            await consuming.stop(give_back=True, timeout=0.1)
        await until(lambda: consuming.is_done)
        stats = consuming.stats
        assert (stats.handled, stats.failed, stats.returned, stats.in_flight) == (0, 0, 1, 0)


async def test_a_worker_that_is_cancelled_before_it_began_has_ended(any_server: str, fresh: str) -> None:
    nc = await connect(any_server)
    consumer = await worker(nc.jetstream(), fresh, [])
    consuming = await consumer.consume(print)
    await nc.close()
    await consuming.wait(timeout=30)


# unasync: on
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt], ids=["SystemExit", "KeyboardInterrupt"])
async def test_an_exit_in_a_handler_ends_the_worker(
    any_server: str, fresh: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a", "b"])

        def handle(_: JsMessage) -> None:
            raise kind(3)

        consuming = await consumer.consume(handle)
        with pytest.raises(kind):
            await consuming.wait(timeout=30)
        assert consuming.is_done
        assert (consuming.stats.handled, consuming.stats.failed) == (0, 1)
        assert f"consume() of consumer 'worker' has ended: {kind.__name__}" in caplog.text


async def test_a_handler_cannot_wait_for_its_own_end(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"])
        raised: list[UsageError] = []
        workers: list[Consuming] = []

        async def handle(_: JsMessage) -> None:
            await until(lambda: bool(workers))
            try:
                await workers[0].wait()
            except UsageError as error:
                raised.append(error)
            await workers[0].stop()  # this may be called: it does not wait

        workers.append(await consumer.consume(handle))
        await workers[0].wait(timeout=30)
        assert "wait() must not be called by the handler" in str(raised[0])


async def test_the_deletion_of_a_stream_ends_all_workers(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, [])
        consuming = await consumer.consume(print, concurrency=3)
        await js.delete_stream(fresh)
        waiting = spawn(lambda: consuming.wait(timeout=30))
        with pytest.raises(Error, match=r"Consumer Deleted|does not exist"):
            await waiting.result(timeout=30)
        assert f"consumer 'worker' of stream '{fresh}' was deleted" in caplog.text


async def test_what_was_prefetched_is_given_back_by_a_stop(any_server: str, fresh: str) -> None:
    """Other workers get it at once: `ack_wait` is a minute here."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, ["a"] * 200)
        jobs = Jobs(is_open=False, closed_from=60)
        consuming = await consumer.consume(jobs.handle, concurrency=2, auto_ack=True)
        await until(lambda: len(jobs.closed) == 2)
        stopping = spawn(lambda: consuming.stop(give_back=True, timeout=20))
        other = await js.stream(fresh).consumer("worker")
        seen: list[int] = []
        while len(seen) + len(jobs.began) < 200:  # while the two handlers still run
            for message in await other.fetch(50, timeout=10):
                seen.append(int(message.data))
                await message.ack()
        assert not stopping.is_done
        jobs.is_open = True
        await stopping.result()
        assert sorted(seen + [number for _, number in jobs.began]) == list(range(200))
        await unacked(consumer, 0)


async def test_a_stop_handles_what_the_server_would_not_redeliver(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"] * 100, max_deliver=1)
        jobs = Jobs()
        consuming = await consumer.consume(jobs.handle, auto_ack=True)
        await handled(consuming, 40)
        await consuming.stop(give_back=True, timeout=20)
        info = await unacked(consumer, 0)
        assert consuming.stats.returned == 0
        assert info.num_pending == 100 - consuming.stats.handled


async def test_handlers_that_do_not_end_in_time_lose_their_messages(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, ["a"])
        jobs = Jobs(is_open=False)
        consuming = await consumer.consume(jobs.handle, auto_ack=True)
        await until(lambda: jobs.running == 1)
        with pytest.raises(RequestTimeoutError, match="is still running after"):
            await consuming.stop(give_back=True, timeout=0.1)
        other = await js.stream(fresh).consumer("worker")
        again = await other.next(timeout=30)
        assert again.num_delivered == 2
        assert "1 handlers did not end in time" in caplog.text
        jobs.is_open = True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_signal_stops_the_workers_of_a_process(
    any_server: str, fresh: str, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slipstream.consumer")
    before = signal.getsignal(number)
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"] * 5)
        jobs, others = Jobs(is_open=False), Jobs(is_open=False)
        one = await consumer.consume(jobs.handle, auto_ack=True)
        await until(lambda: jobs.running == 1)
        two = await consumer.consume(others.handle, auto_ack=True)
        await until(lambda: others.running == 1)
        with one.drain_on_signals(timeout=20), two.drain_on_signals(timeout=20):
            os.kill(os.getpid(), number)
            await until(lambda: caplog.text.count(f"{number.name}, stopping after 1 running handlers") == 2)
            jobs.is_open = others.is_open = True
            await one.wait(timeout=30)
            await two.wait(timeout=30)
            assert signal.getsignal(number) == before  # a second signal has its usual effect
        assert jobs.running == others.running == 0
        assert (one.stats.failed, two.stats.failed) == (0, 0)
    assert signal.getsignal(number) == before


async def test_a_signal_gives_back_what_is_not_handled_in_time(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, ["a"])
        jobs = Jobs(is_open=False)
        consuming = await consumer.consume(jobs.handle, auto_ack=True)
        await until(lambda: jobs.running == 1)
        with consuming.drain_on_signals(timeout=0.1):
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(RequestTimeoutError, match="still running"):
                await consuming.wait(timeout=30)
        other = await js.stream(fresh).consumer("worker")
        assert (await other.next(timeout=30)).num_delivered == 2
        jobs.is_open = True


async def test_a_handler_that_exits_while_a_signal_stops_its_worker_is_heard_of(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By the program that waits, and by nothing else: what stops the worker runs beside it."""
    caplog.set_level(logging.INFO, "slipstream.consumer")
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"])

        async def handle(_: JsMessage) -> None:
            await until(lambda: "SIGTERM, stopping after 1 running handlers" in caplog.text)
            raise SystemExit(3)

        consuming = await consumer.consume(handle)
        await until(lambda: consuming.stats.in_flight == 1)
        with consuming.drain_on_signals(timeout=20):
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(SystemExit, match="3"):
                await consuming.wait(timeout=30)
            await sleep(0.05)
        assert consuming.is_done


async def test_handlers_at_once_need_acks_of_their_own(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, [], ack_policy="all")
        with pytest.raises(UsageError, match=r"concurrency must be 1 .* its ack policy is 'all'"):
            await consumer.consume(print, concurrency=2)
        with pytest.raises(UsageError, match="concurrency must be a whole number of at least 1, got 0"):
            await consumer.consume(print, concurrency=0)
        with pytest.raises(UsageError, match="ordered_by must be None or 'subject', got 'key'"):
            await consumer.consume(print, ordered_by="key")


@pytest.mark.steady
async def test_a_block_keeps_a_message_in_progress(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, ["a"], ack_wait=timedelta(seconds=1))
        message = await consumer.next()
        async with consumer.keep_in_progress(message):
            await sleep(1.8)
            with suppress(RequestTimeoutError):
                again = await consumer.next(timeout=0.3)
                raise AssertionError(f"delivered again: {again.num_delivered}")
            await message.ack_sync()
