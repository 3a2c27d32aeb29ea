"""`slipstream stream view` and `get`: messages of a stream, by Direct Get, without a consumer.

Nothing is acknowledged and no state is left on the server, so that a work queue can be looked at as well.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator

from slipstream import BlockingStream, StoredMessage
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.get import show_stored
from slipstream.cli.stream.manage import named
from slipstream.errors import DirectGetNotAllowedError, UsageError

POLL = 0.25  # seconds between two looks at a stream that is followed


def add(group: Commands) -> None:
    """Declare the commands."""
    view = named(group.add(
        "view",
        _view,
        "print messages of a stream",
        examples=(
            "  slipstream stream view ORDERS 10              # the first ten\n"
            "  slipstream stream view ORDERS --last 10       # the newest ten\n"
            "  slipstream stream view ORDERS --since 1h --subject 'orders.eu.>'\n"
            "  slipstream stream view ORDERS --last 10 --follow"
        ),
    ))  # fmt: skip
    view.add_argument("count", nargs="?", type=values.count, metavar="N", help="number of messages (default: 25)")
    start = view.add_mutually_exclusive_group()
    start.add_argument("--seq", type=values.count, metavar="N", help="first sequence (default: 1)")
    start.add_argument(
        "--since",
        type=values.past,
        metavar="TIME",
        help="begin at a time: 10m (ten minutes ago) or 2026-01-31T10:00Z",
    )
    start.add_argument("--last", type=values.count, metavar="N", help="the newest N messages")
    view.add_argument("--subject", default="", metavar="FILTER", help="only messages that match")
    view.add_argument("-F", "--follow", action="store_true", help="keep printing messages as they are stored")
    view.add_argument("--raw", action="store_true", help="print payloads only")
    get = named(group.add("get", _get, "print one message of a stream"))
    get.add_argument("seq", nargs="?", type=values.count, metavar="SEQ", help="sequence of the message")
    get.add_argument("-S", "--last-for", metavar="SUBJECT", help="the last message of a subject")
    get.add_argument("--raw", action="store_true", help="print the payload only")


def _view(shell: Shell) -> None:
    options = shell.options
    if options.last is not None and options.count is not None:
        raise UsageError("a number of messages and --last are mutually exclusive")
    # With a start in time or --follow, the messages are bounded by that; else a page is what fits a terminal.
    is_bounded = options.follow or options.since is not None or options.last is not None
    most = options.count or (0 if is_bounded else 25)
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.name)
        # What is stored while the first messages are printed must not be lost behind them.
        start = max(stream.info().state.last_seq + 1, options.seq or 1) if options.follow else 0
        number = 0
        for number, message in enumerate(_messages(shell, stream), 1):
            show_stored(shell, message)
            start = message.seq + 1
            if number == most:
                return
        if options.follow:
            _follow(shell, stream, start, most - number)


def _messages(shell: Shell, stream: BlockingStream) -> Iterator[StoredMessage]:
    """The messages that are stored now and that the options name."""
    options = shell.options
    if options.last is not None:
        yield from _newest(stream, options.subject, options.last)
    elif options.since is not None:
        yield from _since(stream, options.subject, options.since)
    else:
        yield from stream.read(start=options.seq or 1, subject=options.subject)


def _newest(stream: BlockingStream, subject: str, count: int) -> list[StoredMessage]:
    """The newest messages that match, found from the end backwards in spans that grow."""
    state = stream.info().state
    span, last = count, state.last_seq
    while True:
        start = max(state.first_seq, last - span + 1, 1)
        found = deque(stream.read(start=start, end=last, subject=subject) if last else (), maxlen=count)
        if len(found) == count or start <= max(state.first_seq, 1):
            return list(found)
        span *= 8


def _since(stream: BlockingStream, subject: str, since: int) -> Iterator[StoredMessage]:
    """The messages from a time on. The leader, which answers where Direct Get is disabled, cannot search by time."""
    try:
        yield from stream.read(start_time=since, subject=subject)
    except DirectGetNotAllowedError:
        yield from (each for each in stream.read(subject=subject, from_leader=True) if each.time >= since)


def _follow(shell: Shell, stream: BlockingStream, start: int, most: int) -> None:
    """Print what is stored from a sequence on, until interrupted or `most` messages were printed (below 1: all)."""
    number = 0
    while True:
        sys.stdout.flush()
        for message in stream.read(start=start, subject=shell.options.subject):
            show_stored(shell, message)
            start, number = message.seq + 1, number + 1
            if number == most:
                return
        time.sleep(POLL)


def _get(shell: Shell) -> None:
    options = shell.options
    if (options.seq is None) == (options.last_for is None):
        raise UsageError("exactly one of a sequence and --last-for is required")
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.name)
        found = stream.get(options.seq) if options.seq is not None else stream.get_last(options.last_for)
    show_stored(shell, found)
