"""Message tracing: which server answered a Direct Get, by the event that our own server sends about the request."""

from __future__ import annotations

import msgspec

from slipstream.errors import Error
from slipstream.wire import Headers, Msg

TRACE_DEST = "Nats-Trace-Dest"
_CLIENT, _ROUTE = 0, 1
_ELSEWHERE = frozenset({2, 4})  # a gateway, a leaf node: who is behind it is not said


class _Server(msgspec.Struct):
    name: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    kind: int = -1
    name: str = ""


class _Trace(msgspec.Struct):
    server: _Server
    events: tuple[_Event, ...] = ()


class TraceSink:
    """Takes the events of one request; a `ReplySink` of the client. `responder` is empty while it is unknown."""

    __slots__ = ("is_done", "responder")

    def __init__(self) -> None:
        self.responder: str = ""
        self.is_done: bool = False

    def deliver(self, msg: Msg) -> bool:
        """Take an event; True once it was that of the server that got the request from us."""
        try:
            trace = msgspec.json.decode(msg.payload, type=_Trace)
        except msgspec.MsgspecError:
            return False
        if not any(event.type == "in" and event.kind == _CLIENT for event in trace.events):
            return False  # by the server that it was sent on to
        self.responder = _responder(trace)
        self.is_done = True
        return True

    def fail(self, error: Error) -> None:  # noqa: ARG002 - the request itself fails too
        """The connection is gone."""
        self.is_done = True

    def ready(self) -> bool:
        """Whether nothing more will be learned."""
        return self.is_done


def _responder(trace: _Trace) -> str:
    """The server that the request was routed to; our own if it went nowhere else, empty if that cannot be told."""
    egress = [event for event in trace.events if event.type == "eg"]
    routes = [event.name for event in egress if event.kind == _ROUTE]
    if len(routes) == 1 and len(egress) == 1:
        return routes[0]
    return "" if routes or any(event.kind in _ELSEWHERE for event in egress) else trace.server.name


def trace_header(subject: str) -> bytes:
    """The header block of a request whose events go to `subject`."""
    return Headers([(TRACE_DEST, subject)]).encode()
