"""The commands of `slipstream bench`: what is prepared, measured, removed and reported for each kind of work."""

from __future__ import annotations

import argparse
import csv
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from slipstream import BlockingJetStream, StreamConfig
from slipstream.cli import values
from slipstream.cli.bench.clients import run_clients
from slipstream.cli.bench.work import Plan
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.values import show_size
from slipstream.errors import UsageError

_TEXTS = {
    "pub": "publish core messages",
    "sub": "publish core messages to subscribers",
    "req": "send requests to one responder, one at a time",
    "js": "publish to a stream with acks, then read all of it by batched Direct Get",
    "consume": "read a stream by pull consumers and acknowledge each message",
    "ordered": "read a stream by ordered consumers",
    "kv": "put values into a bucket, then get them",
}
_DEFAULTS = {"req": 10_000, "kv": 10_000}


class Result(NamedTuple):
    """One measurement."""

    what: str
    clients: int
    size: int
    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0


def add(commands: Commands) -> None:
    """Declare the commands."""
    group = commands.group("bench", "measure the throughput of a server")
    for name, text in _TEXTS.items():
        examples = f"  slipstream bench {name} --size 128,1KB --clients 4 --csv out.csv"
        parser = group.add(name, partial(_bench, name), text, examples=examples)
        _options(parser, name)


def _options(parser: Parser, name: str) -> None:
    messages = _DEFAULTS.get(name, 100_000)
    parser.add_argument(
        "--msgs", type=values.count, default=messages, metavar="N", help=f"number of messages (default: {messages})"
    )
    parser.add_argument(
        "--size", type=_sizes, default=[128], metavar="SIZES", help="payload sizes, separated by commas (default: 128)"
    )
    parser.add_argument(
        "--clients", type=values.count, default=1, metavar="N", help="processes that share the work (default: 1)"
    )
    parser.add_argument("--csv", metavar="FILE", help="append the results to this file")
    if name in ("js", "consume", "ordered", "kv"):
        parser.add_argument(
            "--storage", type=values.choice("file", "memory"), default="file", metavar="{file,memory}",
            help="storage of the stream (default: file)",
        )  # fmt: skip
        parser.add_argument("--replicas", type=values.count, default=1, metavar="N", help="replicas (default: 1)")
    if name in ("js", "consume", "ordered"):
        parser.add_argument(
            "--in-flight", type=values.count, default=4096, metavar="N",
            help="maximum unacknowledged publishes (default: 4096)",
        )  # fmt: skip
    if name == "consume":
        parser.add_argument(
            "--consumers",
            type=values.count,
            default=1,
            metavar="N",
            help="consumers that the clients read (default: 1)",
        )
        parser.add_argument("--batch", type=values.count, default=500, metavar="N", help="prefetch (default: 500)")
    if name == "kv":
        parser.add_argument(
            "--keys", type=values.count, default=1000, metavar="N", help="number of keys (default: 1000)"
        )


def _sizes(text: str) -> list[int]:
    found = [values.payload(each) for each in values.names(text)]
    if not found:
        raise argparse.ArgumentTypeError("must be one or more sizes, for example 128,1KB")
    return found


def _bench(name: str, shell: Shell) -> None:
    options = shell.options
    if name == "consume" and options.consumers > options.clients:
        raise UsageError(f"--consumers must be at most --clients ({options.clients}), got {options.consumers}")
    if options.clients > options.msgs:
        raise UsageError(f"--clients must be at most --msgs ({options.msgs}), got {options.clients}")
    file = _csv_file(options.csv)  # before the work: a file that cannot be written is found out at once
    results: list[Result] = []
    for size in options.size:
        for result in _RUNS[name](shell, size):
            results.append(result)
            _report(shell, result, is_only=len(options.size) == 1)
            if file is not None:
                _append(file, name, result)
    if len(options.size) > 1 and not shell.out.is_json:
        rows = [
            (each.what, show_size(each.size), f"{each.rate:,.0f}", f"{show_size(int(each.rate * each.size))}/s",
             each.clients, f"{each.seconds:.2f} s")
            for each in results
        ]  # fmt: skip
        shell.out.table(("Work", "Size#", "Messages/s#", "Bytes/s#", "Clients#", "Time#"), rows)


def _report(shell: Shell, result: Result, *, is_only: bool) -> None:
    if shell.out.is_json:
        shell.out.json({"what": result.what, "messages": result.messages, "size": result.size,
                        "clients": result.clients, "seconds": result.seconds, "per_second": result.rate})  # fmt: skip
    elif is_only:
        clients = f" by {result.clients} clients" if result.clients > 1 else ""
        shell.out.text(
            f"{result.what}{clients}: {result.rate:,.0f} messages/s, {show_size(int(result.rate * result.size))}/s "
            f"({result.messages:,} in {result.seconds:.2f} s)"
        )


_COLUMNS = ("time", "work", "what", "clients", "size", "messages", "seconds", "per_second")


def _csv_file(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    with path.open("a", newline="") as file:
        if not file.tell():
            csv.writer(file).writerow(_COLUMNS)
    return path


def _append(path: Path, name: str, result: Result) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row = (now, name, result.what, result.clients, result.size, result.messages,
           f"{result.seconds:.6f}", f"{result.rate:.1f}")  # fmt: skip
    with path.open("a", newline="") as file:
        csv.writer(file).writerow(row)


# The kinds of work


def _subject() -> str:
    return f"_SLIPSTREAM.BENCH.{os.urandom(6).hex()}"


def _plan(shell: Shell, work: str, size: int, **fields: Any) -> Plan:
    return Plan(
        work=work, size=size, connect=shell.connect_arguments(), jetstream=shell.jetstream_arguments(), **fields
    )


def _shares(total: int, clients: int) -> list[int]:
    """The messages of each client; they are as equal as can be, and none are lost."""
    return [total // clients + (at < total % clients) for at in range(clients)]


def _measured(shell: Shell, what: str, plans: list[Plan], before: Callable[[], None] | None = None) -> Result:
    total = sum(plan.messages for plan in plans)
    with shell.out.count(what, total) as meter:
        seconds = run_clients(plans, meter, before)
    return Result(what, len(plans), plans[0].size, total, seconds)


def _publish(shell: Shell, size: int) -> Iterator[Result]:
    plan, options = _plan(shell, "publish", size, subject=_subject()), shell.options
    yield _measured(shell, "published", [plan._replace(messages=n) for n in _shares(options.msgs, options.clients)])


def _subscribe(shell: Shell, size: int) -> Iterator[Result]:
    options, subject = shell.options, _subject()
    plan = _plan(shell, "subscribe", size, subject=subject, messages=options.msgs)
    flood = threading.Thread(target=_flood, args=(shell, subject, size), daemon=True)
    yield _measured(shell, "received", [plan] * options.clients, before=flood.start)
    flood.join(timeout=60.0)


def _flood(shell: Shell, subject: str, size: int) -> None:
    from slipstream.cli.bench.work import WORK, no_progress

    with shell.connect() as client:
        plan = _plan(shell, "publish", size, subject=subject, messages=shell.options.msgs)
        WORK["publish"](client, plan, no_progress)()


def _request(shell: Shell, size: int) -> Iterator[Result]:
    options, subject = shell.options, _subject()
    with shell.connect() as responder:
        responder.subscribe(subject, callback=lambda message: message.respond(message.data))
        responder.flush(timeout=shell.timeout)
        plan = _plan(shell, "request", size, subject=subject)
        plans = [plan._replace(messages=n) for n in _shares(options.msgs, options.clients)]
        yield _measured(shell, "requests answered", plans)


@contextmanager
def _stream(shell: Shell) -> Iterator[tuple[BlockingJetStream, str, str]]:
    """A new stream, its name and its subject; it is deleted in the end."""
    options, subject = shell.options, _subject()
    name = subject.replace(".", "_")
    with shell.connect() as client:
        js = shell.jetstream(client)
        js.create_stream(
            StreamConfig(
                name, subjects=(subject,), storage=options.storage, num_replicas=options.replicas, allow_direct=True
            )
        )
        try:
            yield js, name, subject
        finally:
            js.delete_stream(name)


def _jetstream(shell: Shell, size: int) -> Iterator[Result]:
    options = shell.options
    with _stream(shell) as (_, name, subject):
        plan = _plan(shell, "store", size, subject=subject, stream=name, batch=options.in_flight)
        shares = _shares(options.msgs, options.clients)
        yield _measured(shell, "stored and acknowledged", [plan._replace(messages=n) for n in shares])
        starts = [1 + sum(shares[:at]) for at in range(len(shares))]
        plans = [plan._replace(work="direct", messages=n, first=at) for n, at in zip(shares, starts, strict=True)]
        yield _measured(shell, "read by batched Direct Get", plans)


@contextmanager
def _filled(shell: Shell, size: int) -> Iterator[tuple[BlockingJetStream, str]]:
    with _stream(shell) as (js, name, subject):
        payload = os.urandom(size)
        with (
            js.publisher(max_in_flight=shell.options.in_flight) as publisher,
            shell.out.count("filling", shell.options.msgs) as meter,
        ):
            for number in range(shell.options.msgs):
                publisher.publish(subject, payload)
                if meter is not None and number % 1000 == 0:
                    meter(number)
        yield js, name


def _consume(shell: Shell, size: int) -> Iterator[Result]:
    options = shell.options
    with _filled(shell, size) as (js, name):
        names = [f"c{at}" for at in range(options.consumers)]
        for each in names:
            js.stream(name).create_consumer(each, max_ack_pending=-1)
        clients = [names[at % len(names)] for at in range(options.clients)]
        shares = {each: _shares(options.msgs, clients.count(each)) for each in names}
        plan = _plan(shell, "consume", size, stream=name, batch=options.batch)
        plans = [plan._replace(consumer=each, messages=shares[each].pop()) for each in clients]
        yield _measured(shell, "consumed and acknowledged", plans)


def _ordered(shell: Shell, size: int) -> Iterator[Result]:
    options = shell.options
    with _filled(shell, size) as (_, name):
        plan = _plan(shell, "ordered", size, stream=name, messages=options.msgs)
        yield _measured(shell, "read in order", [plan] * options.clients)


def _key_value(shell: Shell, size: int) -> Iterator[Result]:
    options = shell.options
    bucket = f"bench-{os.urandom(6).hex()}"
    with shell.connect() as client:
        js = shell.jetstream(client)
        js.create_key_value(bucket, storage=options.storage, replicas=options.replicas)
        try:
            plan = _plan(shell, "put", size, stream=bucket, keys=min(options.keys, options.msgs))
            shares = _shares(options.msgs, options.clients)
            for work, what in (("put", "values put"), ("get", "values read")):
                yield _measured(shell, what, [plan._replace(work=work, messages=n) for n in shares])
        finally:
            js.delete_key_value(bucket)


_RUNS: dict[str, Callable[[Shell, int], Iterator[Result]]] = {
    "pub": _publish, "sub": _subscribe, "req": _request, "js": _jetstream, "consume": _consume, "ordered": _ordered,
    "kv": _key_value,
}  # fmt: skip
