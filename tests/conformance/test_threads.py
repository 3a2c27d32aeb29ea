"""What the page on threads promises: what may be shared, and what each thread needs for itself."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipstream import BucketConfig, StreamConfig, connect, connect_blocking
from slipstream.errors import ConnectionClosedError, RequestTimeoutError

THREADS = 8
LIMIT = 30.0


def in_threads(work: Callable[[int], None]) -> None:
    """Run `work` in threads that begin together; an exception of one is raised here."""
    barrier = threading.Barrier(THREADS)

    def begin(number: int) -> None:
        barrier.wait(LIMIT)
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(begin, number) for number in range(THREADS)]:
            future.result(LIMIT)


def test_threads_share_a_handle_and_each_sees_what_it_wrote(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        kv = js.create_key_value(BucketConfig(bucket=fresh))

        def work(number: int) -> None:
            for turn in range(20):
                kv.put(f"key.{number}", b"%d" % turn)
                assert kv.get(f"key.{number}").value == b"%d" % turn

        in_threads(work)
        assert sorted(kv.keys()) == sorted(f"key.{number}" for number in range(THREADS))


def test_each_message_of_a_shared_subscription_goes_to_one_thread(any_server: str, fresh: str) -> None:
    taken: Counter[bytes] = Counter()
    lock = threading.Lock()
    with connect_blocking(any_server) as nc, connect_blocking(any_server) as other:
        subscription = nc.subscribe(fresh)
        nc.flush()
        for number in range(400):
            other.publish(fresh, b"%d" % number)
        for _ in range(THREADS):
            other.publish(fresh, b"end")
        other.flush()

        def work(_: int) -> None:
            while (message := subscription.next(timeout=LIMIT)).data != b"end":
                with lock:
                    taken[message.data] += 1

        in_threads(work)
    assert taken == Counter(b"%d" % number for number in range(400))


def test_each_thread_has_its_own_publisher_on_the_shared_connection(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))

        def work(number: int) -> None:
            with js.publisher(max_in_flight=10) as publisher:
                for turn in range(50):
                    publisher.publish(f"{fresh}.{number}", b"%d" % turn)
            assert (publisher.acked, publisher.failures) == (50, [])

        in_threads(work)
        stored: dict[str, list[bytes]] = {}
        for message in stream.read():
            stored.setdefault(message.subject, []).append(message.data)
    assert stored == {f"{fresh}.{number}": [b"%d" % turn for turn in range(50)] for number in range(THREADS)}


def test_threads_with_messages_of_their_own_share_the_work_of_a_consumer(any_server: str, fresh: str) -> None:
    taken: Counter[bytes] = Counter()
    lock = threading.Lock()
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        with js.publisher() as publisher:
            for number in range(200):
                publisher.publish(f"{fresh}.a", b"%d" % number)
        consumer = stream.create_consumer("workers")

        def work(_: int) -> None:
            while taken.total() < 200:
                with consumer.messages(idle_timeout=0.2) as messages:
                    for message in messages:
                        message.ack_sync(timeout=LIMIT)
                        with lock:
                            taken[message.data] += 1

        in_threads(work)
    assert taken == Counter(b"%d" % number for number in range(200))


@pytest.mark.parametrize("call", ["request", "next", "kv"])
def test_close_by_one_thread_ends_the_calls_of_the_others(any_server: str, fresh: str, call: str) -> None:
    waiting = threading.Barrier(THREADS + 1)
    ended: list[type[BaseException]] = []
    nc = connect_blocking(any_server)
    with connect_blocking(any_server) as other:
        other.subscribe(f"{fresh}.silent", callback=lambda _: None)
        other.flush()
        kv = nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        subscriptions = [nc.subscribe(f"{fresh}.{number}") for number in range(THREADS)]
        watches = [kv.watch(f"{number}") for number in range(THREADS)]
        for watch in watches:
            watch.initial()

        def work(number: int) -> None:
            waiting.wait(LIMIT)
            try:
                if call == "request":
                    nc.request(f"{fresh}.silent", timeout=LIMIT)
                elif call == "next":
                    subscriptions[number].next(timeout=LIMIT)
                else:
                    watches[number].next(timeout=LIMIT)
            except Exception as exc:
                ended.append(type(exc))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        waiting.wait(LIMIT)
        nc.close()
        for thread in threads:
            thread.join(LIMIT)
    assert len(ended) == THREADS
    assert not any(issubclass(kind, RequestTimeoutError) for kind in ended)
    assert all(issubclass(kind, ConnectionClosedError) for kind in ended)


def test_callbacks_run_in_one_thread_and_may_wait_for_answers(any_server: str, fresh: str) -> None:
    threads: set[int] = set()
    done = threading.Event()
    with connect_blocking(any_server) as nc:
        nc.subscribe(f"{fresh}.echo", callback=lambda message: message.respond(message.data))
        with connect_blocking(any_server) as other:

            def ask(message: object) -> None:
                threads.add(threading.get_ident())
                assert other.request(f"{fresh}.echo", b"x", timeout=LIMIT).data == b"x"
                if len(asked) == 20:
                    done.set()
                asked.append(message)

            asked: list[object] = []
            for name in ("a", "b", "c"):
                other.subscribe(f"{fresh}.{name}", callback=ask)
            other.flush()
            nc.flush()
            for number in range(21):
                other.publish(f"{fresh}.{'abc'[number % 3]}")
            assert done.wait(LIMIT)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_other_threads_hand_their_calls_to_the_loop_of_an_asyncio_client(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js, loop = nc.jetstream(), asyncio.get_running_loop()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))

        def work(number: int) -> None:
            for _ in range(10):
                asyncio.run_coroutine_threadsafe(js.publish(f"{fresh}.{number}"), loop).result(LIMIT)

        await asyncio.to_thread(in_threads, work)
        assert (await stream.info()).state.messages == 10 * THREADS


async def test_blocking_client_works_in_threads_of_an_event_loop(any_server: str, fresh: str) -> None:
    with await asyncio.to_thread(connect_blocking, any_server) as nc:
        js = nc.jetstream()
        await asyncio.to_thread(js.create_stream, StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        acks = await asyncio.gather(*(asyncio.to_thread(js.publish, f"{fresh}.a") for _ in range(20)))
        assert sorted(ack.seq for ack in acks) == list(range(1, 21))
        await asyncio.to_thread(nc.close)


def test_client_cannot_be_sent_to_another_process(any_server: str) -> None:
    with connect_blocking(any_server) as nc, pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(nc)
