"""The work of one client of a benchmark: what it prepares before the clock runs, and what is measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from slipstream import BlockingClient

UNLIMITED = 1 << 40  # no message may be dropped, since all of them are counted
SILENCE = 30.0  # seconds without a message after which a client gives up
STEP = 1000  # messages between two reports of progress


class Plan(NamedTuple):
    """What one client does; it is sent to a process."""

    work: str
    size: int
    connect: dict[str, Any]
    jetstream: dict[str, Any]
    messages: int = 0
    subject: str = ""
    stream: str = ""
    consumer: str = ""
    first: int = 1
    batch: int = 0
    keys: int = 1


Progress = Callable[[int], None]
Measured = Callable[[], None]


def no_progress(_: int) -> None:
    """Progress that is not shown."""


def _publish(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    payload = os.urandom(plan.size)

    def run() -> None:
        for number in range(plan.messages):
            client.publish(plan.subject, payload)
            if not number % STEP:
                progress(number)
        client.flush(timeout=SILENCE * 2)

    return run


def _subscribe(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    subscription = client.subscribe(plan.subject, max_pending_msgs=UNLIMITED, max_pending_bytes=UNLIMITED)
    client.flush(timeout=SILENCE)

    def run() -> None:
        seen = 0
        while seen < plan.messages:
            seen += len(subscription.next_chunk(timeout=SILENCE))
            progress(seen)

    return run


def _request(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    payload = os.urandom(plan.size)

    def run() -> None:
        for number in range(plan.messages):
            client.request(plan.subject, payload, timeout=SILENCE)
            if not number % STEP:
                progress(number)

    return run


def _store(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    js, payload = client.jetstream(**plan.jetstream), os.urandom(plan.size)

    def run() -> None:
        with js.publisher(max_in_flight=plan.batch) as publisher:
            for number in range(plan.messages):
                publisher.publish(plan.subject, payload)
                if not number % STEP:
                    progress(number)

    return run


def _direct(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    stream = client.jetstream(**plan.jetstream).stream(plan.stream)

    def run() -> None:
        seen = 0
        for chunk in stream.read_columns(start=plan.first, end=plan.first + plan.messages - 1):
            seen += len(chunk.seqs)
            progress(seen)

    return run


def _consume(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    consumer = client.jetstream(**plan.jetstream).stream(plan.stream).consumer(plan.consumer)

    def run() -> None:
        # Not more is prefetched than this client acknowledges: the rest is for those that share the consumer.
        messages = consumer.messages(max_messages=min(plan.batch, plan.messages), idle_timeout=SILENCE)
        for seen, message in enumerate(messages, 1):
            message.ack()
            if not seen % STEP:
                progress(seen)
            if seen == plan.messages:
                break
        client.flush(timeout=SILENCE)

    return run


def _ordered(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    consumer = client.jetstream(**plan.jetstream).stream(plan.stream).ordered_consumer()

    def run() -> None:
        seen = 0
        with consumer:
            while seen < plan.messages:
                seen += len(consumer.next_chunk(timeout=SILENCE))
                progress(seen)

    return run


def _put(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    kv, payload = client.jetstream(**plan.jetstream).key_value(plan.stream), os.urandom(plan.size)

    def run() -> None:
        for number in range(plan.messages):
            kv.put(f"key.{number % plan.keys}", payload)
            if not number % STEP:
                progress(number)

    return run


def _get(client: BlockingClient, plan: Plan, progress: Progress) -> Measured:
    kv = client.jetstream(**plan.jetstream).key_value(plan.stream, consistency="any")
    keys = sorted(kv.keys())

    def run() -> None:
        for number in range(plan.messages):
            kv.get(keys[number % len(keys)])
            if not number % STEP:
                progress(number)

    return run


WORK: dict[str, Callable[[BlockingClient, Plan, Progress], Measured]] = {
    "publish": _publish, "subscribe": _subscribe, "request": _request, "store": _store, "direct": _direct,
    "consume": _consume, "ordered": _ordered, "put": _put, "get": _get,
}  # fmt: skip
