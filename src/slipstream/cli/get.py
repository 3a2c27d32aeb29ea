"""`slipstream get`: Direct Get in all its forms, with read-your-writes."""

from __future__ import annotations

from typing import Protocol

from slipstream import Headers
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.output import payload, readable
from slipstream.cli.values import show_time
from slipstream.errors import UsageError


class _Stored(Protocol):
    @property
    def subject(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def time(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def stream(self) -> str: ...
    @property
    def headers(self) -> Headers: ...


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "get",
        _get,
        "read messages from a stream by Direct Get",
        examples=(
            "  slipstream get ORDERS 17                      # by sequence\n"
            "  slipstream get ORDERS --last orders.7         # the last of a subject\n"
            "  slipstream get ORDERS --next 'orders.*' --seq 100\n"
            "  slipstream get ORDERS --from 1 --to 1000      # a complete range\n"
            "  slipstream get ORDERS --last orders.7 --min-last-seq 4711   # not older"
        ),
    )
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("seq", nargs="?", type=values.count, help="sequence of the message")
    parser.add_argument("--last", metavar="SUBJECT", help="the last message of a subject or filter")
    parser.add_argument("--next", metavar="SUBJECT", help="the first message of a subject or filter at or after --seq")
    parser.add_argument(
        "--seq", dest="start_seq", type=values.count, default=1, help="with --next: first sequence (default: 1)"
    )
    parser.add_argument("--from", dest="start", type=values.count, help="read a range that starts at this sequence")
    parser.add_argument(
        "--to", dest="end", type=values.count, default=0, help="end of the range (default: the last message)"
    )
    parser.add_argument("--subject", default="", metavar="FILTER", help="only messages of the range that match")
    parser.add_argument(
        "--min-last-seq",
        type=values.whole,
        default=0,
        metavar="SEQ",
        help="require a read at least as new as this sequence",
    )
    parser.add_argument("--raw", action="store_true", help="print payloads only")


def _get(shell: Shell) -> None:
    options = shell.options
    ways = [way for way in ("seq", "last", "next", "start") if getattr(options, way) is not None]
    if len(ways) != 1:
        raise UsageError("exactly one of a sequence, --last, --next and --from is required")
    fresh = options.min_last_seq
    with shell.connect() as client:
        stream = shell.jetstream(client).stream(options.stream)
        if options.start is not None:
            messages = stream.read(start=options.start, end=options.end, subject=options.subject, min_last_seq=fresh)
            for message in messages:
                show_stored(shell, message)
            return
        if options.seq is not None:
            found = stream.get(options.seq, min_last_seq=fresh)
        elif options.last is not None:
            found = stream.get_last(options.last, min_last_seq=fresh)
        else:
            found = stream.get_next(options.next, seq=options.start_seq, min_last_seq=fresh)
    show_stored(shell, found)


def show_stored(shell: Shell, message: _Stored) -> None:
    """Print a stored message in the form that the options choose."""
    out = shell.out
    if shell.options.raw:
        out.data(message.data + b"\n")
        return
    if out.is_json:
        headers: dict[str, list[str]] = {}
        for name, value in message.headers.items():
            headers.setdefault(name, []).append(value)
        fields: dict[str, object] = {
            "stream": message.stream, "subject": message.subject, "seq": message.seq,
            "time": values.rfc3339(message.time),
        }  # fmt: skip
        out.json(fields | ({"headers": headers} if headers else {}) | payload(message.data))
        return
    out.text(f"[{message.seq}] {message.subject} at {show_time(message.time)}")
    for name, value in message.headers.items():
        out.text(f"{name}: {value}")
    out.text(("\n" if message.headers else "") + readable(message.data) + "\n")
