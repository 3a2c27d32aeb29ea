"""`slipstream bench …`: throughput and latency of a server, measured with this client."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from slipstream import BlockingClient, StreamConfig
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.values import show_size


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("bench", "measure the throughput of a server")
    for name, run, text in (
        ("pub", _publish, "publish core messages"),
        ("sub", _subscribe, "publish core messages to one subscriber"),
        ("req", _request, "send requests to one responder, one at a time"),
        ("js", _jetstream, "publish to a stream with acks, then read all of it by batched Direct Get"),
    ):
        parser = group.add(name, run, text, examples=f"  slipstream bench {name} --msgs 100000 --size 128")
        _options(parser, 10_000 if name == "req" else 100_000)
        if name == "js":
            parser.add_argument(
                "--storage", choices=("file", "memory"), default="file", help="storage of the stream (default: file)"
            )
            parser.add_argument(
                "--in-flight", type=values.count, default=4096, help="maximum unacknowledged publishes (default: 4096)"
            )


def _options(parser: Parser, messages: int) -> None:
    parser.add_argument("--msgs", type=values.count, default=messages, help=f"number of messages (default: {messages})")
    parser.add_argument("--size", type=values.payload, default=128, help="payload size in bytes (default: 128)")


def _report(shell: Shell, what: str, seconds: float, messages: int) -> None:
    size = shell.options.size
    rate = messages / seconds
    if shell.out.is_json:
        shell.out.json({"what": what, "messages": messages, "size": size, "seconds": seconds, "per_second": rate})
    else:
        shell.out.text(
            f"{what}: {rate:,.0f} messages/s, {show_size(int(rate * size))}/s ({messages:,} in {seconds:.2f} s)"
        )


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _subject() -> str:
    return f"_SLIPSTREAM.BENCH.{os.urandom(6).hex()}"


def _flood(client: BlockingClient, subject: str, shell: Shell) -> None:
    payload = os.urandom(shell.options.size)
    for _ in range(shell.options.msgs):
        client.publish(subject, payload)
    client.flush(timeout=60.0)


def _publish(shell: Shell) -> None:
    with shell.connect() as client:
        _report(shell, "published", _timed(lambda: _flood(client, _subject(), shell)), shell.options.msgs)


def _subscribe(shell: Shell) -> None:
    wanted, subject = shell.options.msgs, _subject()
    with shell.connect() as reader, shell.connect() as writer:
        unlimited = 1 << 40  # no message may be dropped, since all of them are counted
        subscription = reader.subscribe(subject, max_pending_msgs=unlimited, max_pending_bytes=unlimited)
        reader.flush(timeout=shell.timeout)

        def read() -> None:
            seen = 0
            while seen < wanted:
                seen += len(subscription.next_chunk(timeout=30.0))

        flood = threading.Thread(target=_flood, args=(writer, subject, shell))
        flood.start()
        seconds = _timed(read)
        flood.join()
    _report(shell, "received", seconds, wanted)


def _request(shell: Shell) -> None:
    subject, payload = _subject(), os.urandom(shell.options.size)
    with shell.connect() as requester, shell.connect() as responder:
        responder.subscribe(subject, callback=lambda message: message.respond(message.data))
        responder.flush(timeout=shell.timeout)

        def request() -> None:
            for _ in range(shell.options.msgs):
                requester.request(subject, payload, timeout=shell.timeout)

        _report(shell, "requests answered", _timed(request), shell.options.msgs)


def _jetstream(shell: Shell) -> None:
    options = shell.options
    subject, payload = _subject(), os.urandom(options.size)
    config = StreamConfig(
        name=subject.replace(".", "_"), subjects=(subject,), storage=options.storage, allow_direct=True
    )  # fmt: skip
    with shell.connect() as client:
        js = shell.jetstream(client)
        stream = js.create_stream(config)
        try:

            def write() -> None:
                with js.publisher(max_in_flight=options.in_flight) as publisher:
                    for _ in range(options.msgs):
                        publisher.publish(subject, payload)

            _report(shell, "stored and acknowledged", _timed(write), options.msgs)
            read = _timed(lambda: sum(len(chunk.seqs) for chunk in stream.read_columns(end=options.msgs)))
            _report(shell, "read by batched Direct Get", read, options.msgs)
        finally:
            stream.delete()
