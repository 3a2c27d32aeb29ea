"""The `worker` command: a Python function as the handler of a consumer's messages, until a signal ends it.

A coroutine function runs on an event loop with asyncio messages; a plain function runs in threads with blocking ones,
so that it may block.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from slipstream import (
    Attempts,
    BlockingConsuming,
    BlockingJsMessage,
    ConsumerConfig,
    Consuming,
    DeadLetter,
    JsMessage,
    Term,
    WorkerStats,
    connect,
)
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.errors import UsageError

logger: logging.Logger = logging.getLogger("slipstream.worker")

ON_ERROR = ("nak", "term", "leave")
ATTEMPTS = 5  # before a message becomes a dead letter


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "worker",
        _run,
        "handle the messages of a consumer with a Python function",
        examples=(
            "  slipstream worker jobs:resize --stream JOBS --consumer w --concurrency 10\n"
            "  slipstream worker jobs:resize --stream JOBS --consumer w --create\n"
            "  slipstream worker jobs:resize --stream JOBS --consumer w --dead-letter dead"
        ),
    )
    parser.add_argument("handler", metavar="MODULE:FUNCTION", help="takes one message; plain, or a coroutine function")
    parser.add_argument("--stream", required=True, metavar="NAME", help="stream to read")
    parser.add_argument("--consumer", required=True, metavar="NAME", help="durable pull consumer to read with")
    parser.add_argument("--create", action="store_true", help="create the consumer if it does not exist")
    parser.add_argument("--filter", metavar="SUBJECT", help="with --create: only messages matching SUBJECT")
    parser.add_argument(
        "--ack-wait", type=values.duration, metavar="DURATION", help="with --create: time until redelivery"
    )
    parser.add_argument(
        "--concurrency", type=values.count, default=1, metavar="N", help="handlers at once (default: 1)"
    )
    parser.add_argument("--ordered", action="store_true", help="keep the order of the messages of each subject")
    parser.add_argument(
        "--on-error",
        choices=ON_ERROR,
        default="nak",
        help="when a handler fails: nak (redeliver after 1, 5, 30, 120 s), term, leave (default: nak)",
    )
    parser.add_argument(
        "--attempts",
        type=values.count,
        metavar="N",
        help=f"terminate a message that failed N times (default with --dead-letter: {ATTEMPTS}, else unlimited)",
    )
    parser.add_argument("--dead-letter", metavar="SUBJECT", help="and store it on SUBJECT with the reason")
    parser.add_argument("--no-ack", action="store_true", help="the function acknowledges the messages itself")
    parser.add_argument("--count", type=values.count, metavar="N", help="exit after this number of messages")
    parser.add_argument(
        "--drain-timeout",
        type=values.seconds,
        default=30.0,
        metavar="DURATION",
        help="time for running handlers after SIGTERM or SIGINT (default: 30s)",
    )


def _run(shell: Shell) -> None:
    options = shell.options
    handler = load(options.handler)
    arguments = {
        "concurrency": options.concurrency,
        "ordered_by": "subject" if options.ordered else None,
        "on_error": policy(options),
        "auto_ack": not options.no_ack,
    }
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    limit = Limit(options.count or sys.maxsize)
    if _is_coroutine_function(handler):
        stats = asyncio.run(_work(shell, handler, limit, arguments))
    else:
        stats = _work_blocking(shell, handler, limit, arguments)
    shell.out.note(
        f"handled {stats.handled - limit.refused:,} messages, {stats.failed:,} failures, "
        f"{stats.dead_lettered:,} dead letters, {stats.returned + limit.refused:,} given back"
    )


class Limit:
    """The number of messages that may be handled; the handler of the last one stops the worker."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()
        self.refused: int = 0  # those that other handlers took at the same time

    def take(self) -> tuple[bool, bool]:
        """Whether one more may be handled, and whether it is the last one."""
        with self._lock:
            self._left -= 1
            self.refused += self._left < 0
            return self._left >= 0, self._left == 0


def load(name: str) -> Callable[[Any], Any]:
    """The function that `module:function` names; modules of the current directory are found."""
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise UsageError(f"the handler must be MODULE:FUNCTION such as jobs:resize, got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"module {module!r} of the handler cannot be imported: {error}") from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise UsageError(f"module {module!r} has no {path!r}")
        found = getattr(found, attribute)
    if not callable(found):
        raise UsageError(f"the handler must be a function, got {found!r}")
    handler: Callable[[Any], Any] = found
    return handler


def _is_coroutine_function(handler: Callable[[Any], Any]) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004 -- of an object that is called
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def policy(options: argparse.Namespace) -> str | Attempts | DeadLetter:
    """What becomes of messages whose handler fails."""
    last = DeadLetter(options.dead_letter) if options.dead_letter else Term()
    if options.attempts:
        if options.on_error != "nak":
            raise UsageError(f"--attempts needs --on-error nak, got {options.on_error}")
        return Attempts(options.attempts, then=last)
    if not options.dead_letter:
        on_error: str = options.on_error
        return on_error
    return Attempts(ATTEMPTS, then=last) if options.on_error == "nak" else DeadLetter(options.dead_letter)


def _config(options: argparse.Namespace) -> ConsumerConfig:
    fields = {"durable_name": options.consumer, "filter_subject": options.filter, "ack_wait": options.ack_wait}
    return ConsumerConfig(**{name: value for name, value in fields.items() if value})


def _say_start(options: argparse.Namespace, server: str) -> None:
    logger.info(
        "%s handles messages of consumer %r of stream %r on %s, up to %d at once",
        options.handler,
        options.consumer,
        options.stream,
        server,
        options.concurrency,
    )


def _work_blocking(shell: Shell, handler: Callable[[Any], Any], limit: Limit, arguments: dict[str, Any]) -> WorkerStats:
    options = shell.options
    begun: Future[BlockingConsuming] = Future()

    def handle(message: BlockingJsMessage) -> Any:
        may_handle, is_last = limit.take()
        if not may_handle:
            return message.nak()
        if is_last:
            begun.result(options.drain_timeout).stop(give_back=True)
        return handler(message)

    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.stream)
        consumer = stream.create_consumer(_config(options)) if options.create else stream.consumer(options.consumer)
        consuming = consumer.consume(handle, **arguments)
        begun.set_result(consuming)
        _say_start(options, client.server_info.server_name)
        with consuming.drain_on_signals(timeout=options.drain_timeout):
            consuming.wait()
        return consuming.stats


async def _work(shell: Shell, handler: Callable[[Any], Any], limit: Limit, arguments: dict[str, Any]) -> WorkerStats:
    options = shell.options
    begun: asyncio.Future[Consuming] = asyncio.get_running_loop().create_future()

    async def handle(message: JsMessage) -> None:
        may_handle, is_last = limit.take()
        if not may_handle:
            await message.nak()
            return
        if is_last:
            await (await begun).stop(give_back=True)
        await handler(message)

    async with connect(**shell.connect_arguments()) as client:
        stream = client.jetstream(**shell.jetstream_arguments()).stream(options.stream)
        found = stream.create_consumer(_config(options)) if options.create else stream.consumer(options.consumer)
        consuming = await (await found).consume(handle, **arguments)
        begun.set_result(consuming)
        _say_start(options, client.server_info.server_name)
        with consuming.drain_on_signals(timeout=options.drain_timeout):
            await consuming.wait()
        return consuming.stats
