"""Messages for users and programs: the form in which `sub`, `req` and `consumer next` print them."""

from __future__ import annotations

import json
import time
from typing import NamedTuple, Protocol

from slipstream import BlockingJsMessage, Headers
from slipstream.cli import values
from slipstream.cli.common import Shell
from slipstream.cli.output import payload, readable


class Shown(Protocol):
    @property
    def subject(self) -> str: ...
    @property
    def reply(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Headers: ...


class Translated(NamedTuple):
    """A message whose payload was replaced."""

    subject: str
    reply: str
    data: bytes
    headers: Headers


def show(shell: Shell, message: Shown, number: int) -> None:
    """Print a message in the form that the options choose."""
    options, out = shell.options, shell.out
    if getattr(options, "raw", False):
        out.data(message.data + b"\n")
        return
    bare = getattr(options, "headers_only", False)
    arrived = time.time_ns() if getattr(options, "timestamp", False) else 0
    if out.is_json:
        out.json(_fields(message, arrived, bare=bare))
        return
    out.text(f"[#{number}] {_origin(message)}" + (f", arrived {values.show_time(arrived)}" if arrived else ""))
    for name, value in message.headers.items():
        out.text(f"{name}: {value}")
    if not bare:
        out.text(("\n" if message.headers else "") + readable(message.data) + "\n")


def json_of(message: Shown) -> str:
    """A message as JSON."""
    return json.dumps(_fields(message), ensure_ascii=False)


def _fields(message: Shown, arrived: int = 0, *, bare: bool = False) -> dict[str, object]:
    fields: dict[str, object] = {"subject": message.subject}
    if isinstance(message, BlockingJsMessage):
        origin = message.metadata
        fields |= {"stream": origin.stream, "consumer": origin.consumer, "seq": message.seq}
        fields |= {"time": values.rfc3339(message.time), "delivery": message.num_delivered}
    if message.reply:
        fields["reply"] = message.reply
    if arrived:
        fields["arrived"] = values.rfc3339(arrived)
    headers: dict[str, list[str]] = {}
    for name, value in message.headers.items():
        headers.setdefault(name, []).append(value)
    return fields | ({"headers": headers} if headers else {}) | ({} if bare else payload(message.data))


def _origin(message: Shown) -> str:
    if isinstance(message, BlockingJsMessage):
        again = f", delivery {message.num_delivered}" if message.num_delivered > 1 else ""
        when = values.show_time(message.time)
        return f"{message.metadata.stream} sequence {message.seq:,} on {message.subject!r} at {when}{again}"
    return f"Received on {message.subject!r}" + (f" with reply {message.reply!r}" if message.reply else "")
