"""`slipstream sub`: messages as they arrive, of a subject or of a stream."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.messages.show import Shown, Translated, json_of, show
from slipstream.errors import RequestTimeoutError, UsageError

if TYPE_CHECKING:
    from slipstream import BlockingClient, BlockingOrderedConsumer

FOREVER = 3600.0  # seconds of one wait; then it waits again
_STARTS = ("all", "new", "last", "last_per_subject", "since", "start_sequence")


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "sub",
        _subscribe,
        "print messages as they arrive, or those of a stream",
        aliases=("subscribe",),
        examples=(
            "  slipstream sub 'orders.>'\n"
            "  slipstream sub --queue workers --count 10 jobs\n"
            "  slipstream sub --raw log >> log.txt\n"
            "  slipstream sub 'orders.>' --translate 'jq .id'\n"
            "  slipstream sub --stream ORDERS --since 1h\n"
            "  slipstream sub --stream ORDERS 'orders.eu.>' --last-per-subject"
        ),
    )
    parser.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="subject, or filter of a stream")
    parser.add_argument("--queue", default="", metavar="NAME", help="queue group to join")
    parser.add_argument("--count", type=values.count, metavar="N", help="exit after this number of messages")
    parser.add_argument(
        "--wait", type=values.seconds, metavar="DURATION", help="exit after this time without a message"
    )
    parser.add_argument("--raw", action="store_true", help="print payloads only")
    parser.add_argument("--headers-only", action="store_true", help="do not print payloads")
    parser.add_argument(
        "--translate", type=shlex.split, default=(), metavar="COMMAND",
        help="print what a program makes of each payload, such as 'jq .id'; {{Subject}} is the subject",
    )  # fmt: skip
    parser.add_argument(
        "--dump", default="", metavar="DIR", help="write each message as a JSON file into DIR instead of printing it"
    )
    parser.add_argument("--timestamp", action="store_true", help="print when each message arrived")
    group = parser.add_argument_group("messages of a stream")
    group.add_argument(
        "--stream", default="", metavar="STREAM", help="read from this stream, without a lasting consumer"
    )
    start = group.add_mutually_exclusive_group()
    start.add_argument("--all", action="store_true", help="begin with the first message (the default)")
    start.add_argument("--new", action="store_true", help="only messages from now on")
    start.add_argument("--last", action="store_true", help="begin with the last message")
    start.add_argument("--last-per-subject", action="store_true", help="begin with the last message of each subject")
    start.add_argument(
        "--since", type=values.past, metavar="TIME", help="begin at a time: 10m (ten minutes ago) or 2026-01-31T10:00Z"
    )
    start.add_argument("--start-sequence", type=values.count, metavar="N", help="begin with this sequence")


def _subscribe(shell: Shell) -> None:
    options = shell.options
    if options.dump and (options.raw or options.translate):
        raise UsageError("--dump cannot be combined with --raw or --translate")
    if options.stream:
        if options.queue:
            raise UsageError(
                "--queue and --stream are mutually exclusive; use consumer sub to share the messages of a stream"
            )
        with shell.connect() as client:
            _read_stream(shell, client)
        return
    if not options.subject:
        raise UsageError("a subject or --stream is required")
    named = [name for name in _STARTS if getattr(options, name)]
    if named:
        raise UsageError(f"--{named[0].replace('_', '-')} requires --stream")
    with shell.connect() as client, client.subscribe(options.subject, queue=options.queue) as subscription:
        client.flush(timeout=shell.timeout)
        shell.out.note(f"subscribed to {options.subject}" + (f" in group {options.queue}" if options.queue else ""))
        if options.count:
            subscription.unsubscribe(options.count)
        _print(shell, lambda timeout: subscription.next(timeout=timeout))


def _read_stream(shell: Shell, client: BlockingClient) -> None:
    options = shell.options
    stream = shell.jetstream(client).stream(options.stream)
    stream.info()  # an ordered consumer waits for a stream that is away; one that is not there is an error here
    policy = (
        "new" if options.new else "last" if options.last else "last_per_subject" if options.last_per_subject else ""
    )
    consumer: BlockingOrderedConsumer = stream.ordered_consumer(
        options.subject or (),
        deliver_policy=policy,
        start_time=options.since,
        start_seq=options.start_sequence or 0,
        headers_only=options.headers_only,
    )
    with consumer:
        shell.out.note(f"reading from {options.stream}" + (f", {options.subject}" if options.subject else ""))
        _print(shell, lambda timeout: consumer.next(timeout=timeout, idle=timeout))


def _print(shell: Shell, receive: Callable[[float], Shown]) -> None:
    """Print messages until there are enough, or none arrived for long enough."""
    options = shell.options
    folder = _dump_directory(options.dump)
    number = 0
    while not options.count or number < options.count:
        try:
            message = receive(options.wait or FOREVER)
        except RequestTimeoutError:
            if options.wait:
                return
            continue
        number += 1
        if folder is not None:
            (folder / f"{number:08}.json").write_text(json_of(message) + "\n")
            continue
        if options.translate:
            message = Translated(message.subject, message.reply, translate(options.translate, message), message.headers)
        show(shell, message, number)
        sys.stdout.flush()


def _dump_directory(name: str) -> Path | None:
    """The directory for messages, which is made; files of an earlier dump are not overwritten."""
    if not name:
        return None
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.json")):
        raise UsageError(f"--dump must be a directory without JSON files, got {name}")
    return folder


def translate(command: Sequence[str], message: Shown) -> bytes:
    """What a program writes for the payload of a message; it is run without a shell, since others write subjects."""
    words = [word.replace("{{Subject}}", message.subject) for word in command]
    try:
        done = subprocess.run(words, input=message.data, stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise UsageError(f"--translate must be a program: {words[0]}: {error.strerror}") from error
    if done.returncode:
        raise UsageError(f"--translate: {words[0]} failed with exit code {done.returncode} on {message.subject!r}")
    return done.stdout.removesuffix(b"\n")
