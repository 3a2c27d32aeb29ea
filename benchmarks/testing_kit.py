"""What the testing kit costs a test: `python -m benchmarks.testing_kit` prints the table of docs/testing.md.

Each line is the fastest of many runs, in milliseconds: on a busy machine the others measure the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from slipstream import connect_blocking
from slipstream.testing import TestServer
from tests.servers import real_server

RUNS = 60
SIZES = (100, 10_000, 1_000_000)


def fastest(work: Callable[[], object], runs: int = RUNS) -> float:
    """Milliseconds of the fastest run."""
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


def start_stop() -> None:
    with TestServer():
        pass


def whole_test() -> None:
    with TestServer() as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream("ORDERS", subjects=["orders.>"])
        js.publish("orders.1", b"one")


def nats_server() -> None:
    with real_server() as url, connect_blocking(url) as client:
        js = client.jetstream()
        js.create_stream("ORDERS", subjects=["orders.>"])
        js.publish("orders.1", b"one")


def main() -> None:
    print(f"a server, started and stopped: {fastest(start_stop):.1f}")
    print(f"with a client, a stream and a publish: {fastest(whole_test):.1f}")
    print(f"the same with a nats-server process: {fastest(nats_server, 5):.1f}")
    with ExitStack() as stack:
        server = stack.enter_context(TestServer())

        def isolated() -> None:
            with server.isolated():
                pass

        print(f"an isolated account of a shared server: {fastest(isolated):.1f}")
        client = stack.enter_context(connect_blocking(server.url))
        js = client.jetstream()
        for size in SIZES:
            server.reset()
            js.create_stream("ORDERS", subjects=["orders.>"])
            with js.publisher() as publisher:
                for number in range(size):
                    publisher.publish(f"orders.{number % 1000}", b"x" * 100)
            print(f"snapshot of {size:,} messages: {fastest(server.snapshot, 20):.2f}")
            snapshot = server.snapshot()

            def change_and_restore() -> float:
                for number in range(10):
                    js.publish(f"orders.{number}", b"new")
                begin = time.perf_counter()
                server.restore(snapshot)  # noqa: B023
                return time.perf_counter() - begin

            print(f"restore of {size:,} messages, 10 changed: {min(change_and_restore() for _ in range(20)) * 1e3:.2f}")


if __name__ == "__main__":
    main()
