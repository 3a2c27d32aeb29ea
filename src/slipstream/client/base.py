"""What both drivers share and what needs no socket: the message as the user sees it, figures, events, headers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar, cast

import msgspec

from slipstream.client.events import ClientEvent, EventHandler, EventKind, Stats
from slipstream.client.mailbox import Mailbox
from slipstream.client.session import Session
from slipstream.errors import ConnectionLostError, RequestTimeoutError, UsageError
from slipstream.wire import Headers, Msg, ServerInfo, Status, parse_status

log = logging.getLogger("slipstream.client")

HeadersLike = Headers | Mapping[str, str | Iterable[str]]
NO_RESPONDERS = 503
DRAIN_TIMEOUT = 30.0
FOREVER = 1e9  # seconds: a wait without end. (asyncio and threads do not take an infinite one.)
DRAIN_LOOK = 0.005  # readers do not report what they take, which would cost all of them: drain looks that often
_WARNINGS = (EventKind.DISCONNECTED, EventKind.LAME_DUCK, EventKind.SERVER_SHUTDOWN, EventKind.ERROR)
C = TypeVar("C")
T = TypeVar("T")


class BaseMessage(msgspec.Struct, Generic[C], eq=False):
    """One message. Everything but the bytes is made when it is asked for: most readers want the payload alone.

    A Struct because there are many: made in 0.1 µs, less than half of what a class written in Python takes.
    """

    _msg: Msg
    _client: C

    @property
    def subject(self) -> str:
        """Where it was published."""
        return self._msg[0]

    @property
    def reply(self) -> str:
        """Where an answer is awaited; empty for nowhere."""
        return self._msg[2]

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._msg[4]

    @property
    def headers(self) -> Headers:
        """The headers; empty when there are none."""
        return Headers.parse(self._msg[3])

    @property
    def status(self) -> Status | None:
        """The inline status of a message that a server made, None for all others."""
        return parse_status(self._msg[3])

    @property
    def raw(self) -> Msg:
        """The event as the parser made it."""
        return self._msg

    def __repr__(self) -> str:
        reply = f", reply={self.reply!r}" if self.reply else ""
        return f"<Message subject={self.subject!r}{reply}, {len(self.data)} bytes>"

    def _answer_to(self) -> str:
        if not self.reply:
            raise UsageError(f"the message on {self.subject!r} asks for no answer: it has no reply subject")
        return self.reply


class BaseClient:
    """What can be known of a client without waiting."""

    _core: Session
    _on_event: EventHandler | None

    def __init__(self) -> None:
        self._shared: dict[object, object] = {}

    def shared(self, kind: Callable[[], T]) -> T:
        """The one object that `kind` makes for this connection: made by the first call, returned by the others.

        For layers above that keep state per connection, as JetStream does with its read statistics.
        """
        found = self._shared.get(kind)
        if found is None:  # `setdefault` is one step: two threads get the same object
            found = self._shared.setdefault(kind, kind())
        return cast("T", found)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._core.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed for good, by order or by an error."""
        return self._core.error is not None

    @property
    def is_draining(self) -> bool:
        """Whether `drain` was called."""
        return self._core.is_draining

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that may be tried, those learned from INFO too; without credentials."""
        return tuple(str(server) for server in self._core.servers)

    @property
    def server_info(self) -> ServerInfo:
        """What the server said of itself last."""
        return self._core.info

    @property
    def max_payload(self) -> int:
        """How many bytes of headers and payload a message may have."""
        return self._core.max_payload

    @property
    def stats(self) -> Stats:
        """Messages and bytes in and out, and reconnects."""
        return self._core.stats

    @property
    def last_error(self) -> Exception | None:
        """The last error that no call could raise; `on_event` gets each of them."""
        return self._core.last_error

    @property
    def epoch(self) -> int:
        """How many connections were lost so far: whoever depends on one sees by it that it is not the same any more."""
        return self._core.epoch

    def report(self, error: Exception) -> None:
        """Tell the user of an error that no call can raise."""
        self._core.last_error = error
        self._tell(ClientEvent(EventKind.ERROR, str(self._core.server), error))

    def new_inbox(self) -> str:
        """A subject that nobody else has, to be subscribed to by `subscribe`."""
        return self._core.new_inbox()

    def __repr__(self) -> str:
        return f"<Client {self._core.server} {self._core.state.name}>"

    def _tell(self, event: ClientEvent) -> None:
        """Hand an event to the user; a handler that raises must not harm the connection."""
        if self._on_event is None:
            level = logging.WARNING if event.kind in _WARNINGS else logging.INFO
            log.log(level, "%s: %s%s", event.server, event.kind, f": {event.error}" if event.error else "")
            return
        try:
            self._on_event(event)
        except Exception:  # the top of the user's code
            log.exception("on_event failed for %s", event.kind)

    def _callback_failed(self, subject: str, error: Exception) -> None:
        log.error("the callback of the subscription of %r failed", subject, exc_info=error)
        if self._on_event is not None:
            self._tell(ClientEvent(EventKind.ERROR, str(self._core.server), error))


def encode_headers(headers: HeadersLike | None) -> bytes:
    """The header block of a message; empty for none."""
    if not headers:
        return b""
    return (headers if isinstance(headers, Headers) else Headers(headers)).encode()


def is_no_responders(msg: Msg) -> bool:
    """Whether the server says that nobody listens."""
    if msg[4] or not msg[3]:
        return False
    status = parse_status(msg[3])
    return status is not None and status.code == NO_RESPONDERS


def not_taken(boxes: Sequence[Mailbox], timeout: float) -> RequestTimeoutError:
    """The error of a drain that took too long."""
    left = ", ".join(f"{box.pending} of {box.subject!r}" for box in boxes if box.pending) or "a callback still runs"
    return RequestTimeoutError(f"drain: not everything was handed over within {timeout:g} s: {left}")


def lost_meanwhile(core: Session) -> ConnectionLostError:
    """The error of a wait that was for one connection only."""
    return ConnectionLostError(f"the connection to {core.server} was lost: {core.last_error}")


def timed_out(what: str, timeout: float) -> RequestTimeoutError:
    """The error of a wait that took too long."""
    return RequestTimeoutError(f"{what}: nothing within {timeout:g} s")
