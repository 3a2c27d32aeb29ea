"""Protocol trace: each frame as a line of the log, as nats-server writes it with `-V`; secrets are left out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slipstream.wire import Connect, Event, Info, Msg, Parser, Pub, Side, Sub, Unsub, Violation

if TYPE_CHECKING:
    from slipstream.server.loop.connection import Connection

TRACE = 5  # below logging.DEBUG
SHOWN = 64  # bytes of a payload

log: logging.Logger = logging.getLogger("slipstream.server")


class Trace:
    """Traces both directions of every client."""

    def __init__(self) -> None:
        self._parsers: dict[int, Parser] = {}

    def received(self, connection: Connection, events: Iterable[Event]) -> None:
        for event in events:
            log.log(TRACE, "%s - <<- [%s]", connection.label, describe(event))

    def sent(self, connection: Connection, data: bytes) -> None:
        parser = self._parsers.setdefault(connection.cid, Parser(Side.SERVER, max_payload=1 << 31))
        for event in parser.feed(data):
            log.log(TRACE, "%s - ->> [%s]", connection.label, describe(event))

    def forget(self, connection: Connection) -> None:
        self._parsers.pop(connection.cid, None)


def describe(event: Event) -> str:
    """An event as its protocol line, without secrets, and with the beginning of its payload."""
    if isinstance(event, Connect):
        return f"CONNECT {event.options!r}"
    if isinstance(event, Info):
        return f"INFO {event.info.server_name}"
    if isinstance(event, Sub):
        return " ".join(
            ["SUB", event.subject, *([event.queue] if event.queue else []), event.sid.decode(errors="replace")]
        )
    if isinstance(event, Unsub):
        return f"UNSUB {event.sid.decode(errors='replace')}" + (f" {event.max_msgs}" if event.max_msgs else "")
    if isinstance(event, Pub | Msg):
        sid = [event.sid.decode(errors="replace")] if isinstance(event, Msg) else []
        words = [type(event).__name__.upper(), event.subject, *sid, *([event.reply] if event.reply else [])]
        return f"{' '.join(words)} {len(event.header) + len(event.payload)}] [{event.payload[:SHOWN]!r}"
    if isinstance(event, Violation):
        return f"protocol violation: {event.reason}"
    return type(event).__name__.upper()
