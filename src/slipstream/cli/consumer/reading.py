"""`slipstream consumer next` and `sub`: messages of a pull consumer."""

from __future__ import annotations

from datetime import timedelta

from slipstream import BlockingJsMessage
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.consumer.manage import named
from slipstream.cli.messages.show import show
from slipstream.errors import RequestTimeoutError


def add(group: Commands) -> None:
    """Declare the commands."""
    taking = named(
        group.add(
            "next",
            _next,
            "fetch messages from a pull consumer and acknowledge them",
            examples=(
                "  slipstream consumer next ORDERS worker\n"
                "  slipstream consumer next ORDERS worker --nak=30s      # redeliver it in 30 s\n"
                "  slipstream consumer next ORDERS worker --term=broken  # never redeliver it"
            ),
        )
    )
    taking.add_argument("--count", type=values.count, default=1, metavar="N", help="number of messages (default: 1)")
    reading = named(group.add("sub", _read, "read messages from a pull consumer as they arrive"))
    reading.add_argument("--count", type=values.count, metavar="N", help="exit after this number of messages")
    for parser in (taking, reading):
        answer = parser.add_mutually_exclusive_group()
        answer.add_argument("--no-ack", action="store_true", help="do not acknowledge messages")
        if parser is taking:
            answer.add_argument(
                "--nak", nargs="?", type=values.duration, const=timedelta(0), metavar="DURATION",
                help="ask for redelivery instead, at once or after a time",
            )  # fmt: skip
            answer.add_argument(
                "--term",
                nargs="?",
                const="",
                metavar="REASON",
                help="never redeliver it instead; the reason is published",
            )
        parser.add_argument("--raw", action="store_true", help="print payloads only")
        parser.add_argument(
            "--wait", type=values.seconds, default=None, metavar="DURATION", help="maximum wait for the next message"
        )


def _answer(shell: Shell, message: BlockingJsMessage) -> None:
    """Acknowledge a message as the options say, and wait until the server has seen it."""
    options = shell.options
    if options.nak is not None:
        message.nak(options.nak or None)
    elif options.term is not None:
        message.term(options.term)
    elif not options.no_ack:
        message.ack_sync(timeout=shell.timeout)


def _next(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        consumer = shell.jetstream(client).stream(options.stream).consumer(options.name)
        messages = consumer.fetch(options.count, timeout=options.wait or shell.timeout)
        for number, message in enumerate(messages, 1):
            show(shell, message, number)
            _answer(shell, message)
        client.flush(timeout=shell.timeout)
    if not messages:
        raise RequestTimeoutError(f"consumer {options.name!r} of stream {options.stream!r}: no message arrived in time")


def _read(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client:
        consumer = shell.jetstream(client).stream(options.stream).consumer(options.name)
        shell.out.note(f"reading from {options.stream} > {options.name}")
        messages = consumer.messages(idle_timeout=options.wait, max_messages=options.count or 500)
        for number, message in enumerate(messages, 1):
            show(shell, message, number)
            if not options.no_ack:
                message.ack()
            if number == options.count:
                break
        client.flush(timeout=shell.timeout)
