"""`slipstream get`: Direct Get in all its forms, with read-after-write."""

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
        "read messages of a stream by Direct Get",
        examples=(
            "  slipstream get ORDERS 17                      # by sequence\n"
            "  slipstream get ORDERS --last orders.7         # the newest of a subject\n"
            "  slipstream get ORDERS --next 'orders.*' --seq 100\n"
            "  slipstream get ORDERS --from 1 --to 1000      # a range, complete\n"
            "  slipstream get ORDERS --last orders.7 --min-last-seq 4711   # at least as new as that write"
        ),
    )
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("seq", nargs="?", type=values.count, help="the message with that sequence")
    parser.add_argument("--last", metavar="SUBJECT", help="the newest message of a subject or filter")
    parser.add_argument("--next", metavar="SUBJECT", help="the first of a subject or filter, from --seq on")
    parser.add_argument("--seq", dest="start_seq", type=values.count, default=1, help="with --next (1)")
    parser.add_argument("--from", dest="start", type=values.count, help="a range, from this sequence on")
    parser.add_argument("--to", dest="end", type=values.count, default=0, help="to this one; without it: to the last")
    parser.add_argument("--subject", default="", metavar="FILTER", help="of the range only those")
    parser.add_argument("--min-last-seq", type=values.whole, default=0, metavar="SEQ", help="read after this write")
    parser.add_argument("--raw", action="store_true", help="show the bodies only")


def _get(shell: Shell) -> None:
    options = shell.options
    ways = [way for way in ("seq", "last", "next", "start") if getattr(options, way) is not None]
    if len(ways) != 1:
        raise UsageError("one of a sequence, --last, --next and --from is needed")
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
    """One message of a stream, in the form that was asked for."""
    out = shell.out
    if shell.options.raw:
        out.data(message.data + b"\n")
        return
    if out.is_json:
        headers: dict[str, list[str]] = {}
        for name, value in message.headers.items():
            headers.setdefault(name, []).append(value)
        fields: dict[str, object] = {
            "stream": message.stream, "subject": message.subject, "seq": message.seq, "time": message.time,
        }  # fmt: skip
        out.json(fields | ({"headers": headers} if headers else {}) | payload(message.data))
        return
    out.text(f"[{message.seq}] {message.subject} at {show_time(message.time)}")
    for name, value in message.headers.items():
        out.text(f"{name}: {value}")
    out.text(("\n" if message.headers else "") + readable(message.data) + "\n")
