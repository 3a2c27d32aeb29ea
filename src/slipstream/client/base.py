"""Bases of the two drivers' classes: messages, and the parts of subscriptions and clients that never wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, overload

import msgspec

from slipstream.client.events import ClientEvent, EventKind, Stats
from slipstream.client.mailbox import Mailbox
from slipstream.client.reporter import Reporter
from slipstream.client.session import Session
from slipstream.codecs import Codec
from slipstream.codecs.payloads import ANYTHING, DEFAULT_CODEC, JSON, Origin, decode_payload, decode_text
from slipstream.errors import ConnectionClosedError, ConnectionLostError, Error, RequestTimeoutError, UsageError
from slipstream.wire import Headers, Msg, ServerInfo, Status, parse_status
from slipstream.wire.service_errors import error_of

HeadersLike = Headers | Mapping[str, str | Iterable[str]]
NO_RESPONDERS = 503
DRAIN_TIMEOUT = 30.0
SHOWN = 64  # bytes of a payload in a repr
FOREVER = 1e9  # seconds: a wait without end (asyncio and threads do not take an infinite one)
DRAIN_POLL = 0.005  # readers do not report what they take, which would slow down all of them: drain polls instead
T = TypeVar("T")


class HasCodec(Protocol):
    """What messages need of their client to be decoded."""

    @property
    def codec(self) -> Codec[Any]: ...


C = TypeVar("C", bound=HasCodec)


class BaseMessage(msgspec.Struct, Generic[C], eq=False):
    """One message. Everything but the bytes is decoded on access: most readers want the payload alone.

    A Struct because there are many: made in 0.1 µs, less than half of what a class written in Python takes. The cyclic
    garbage collector tracks it: a client refers to the user's callbacks, and what they belong to may keep messages.
    """

    _msg: Msg
    _client: C

    @property
    def subject(self) -> str:
        """The subject it was published to."""
        return self._msg.subject

    @property
    def reply(self) -> str:
        """The subject for an answer; empty if none is expected."""
        return self._msg.reply

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._msg.payload

    @property
    def headers(self) -> Headers:
        """The headers; empty when there are none."""
        return Headers.parse(self._msg.header)

    @property
    def status(self) -> Status | None:
        """The inline status (such as 503) of a message made by a server, None for all others."""
        return parse_status(self._msg.header)

    @property
    def raw(self) -> Msg:
        """The parser's event."""
        return self._msg

    def text(self) -> str:
        """The payload as text in UTF-8; raises MessageDecodeError if it is none."""
        return decode_text(self._msg.payload, origin=self._origin)

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[T]) -> T: ...
    @overload
    def json(self, kind: Any) -> Any: ...  # a union, which no type checker takes for a `type`
    def json(self, kind: Any = ANYTHING) -> Any:
        """The payload as JSON, as a `kind` with its type checked: a Struct, a dataclass, a pydantic model, a union.

        Raises MessageDecodeError if the payload is not that, or names a content type other than JSON.
        """
        return self._decoded(JSON, kind)

    @overload
    def decode(self) -> Any: ...
    @overload
    def decode(self, kind: type[T]) -> T: ...
    @overload
    def decode(self, kind: Any) -> Any: ...
    def decode(self, kind: Any = ANYTHING) -> Any:
        """As `json`, by the codec of the connection or of its `jetstream(codec=…)`."""
        return self._decoded(self._own_codec(), kind)

    def _decoded(self, codec: Codec[Any], kind: type[T]) -> T:
        msg = self._msg
        return decode_payload(codec, msg.subject, msg.payload, kind=kind, header=msg.header, origin=self._origin)

    def _own_codec(self) -> Codec[Any]:
        return self._client.codec

    def _origin(self) -> Origin:
        return Origin(f"message on {self.subject!r}", self.subject)

    def __repr__(self) -> str:
        reply = f", reply to {self.reply}" if self.reply else ""
        return f"<Message {self.subject}{reply}, {shown(self.data)}>"

    def _answer_to(self) -> str:
        if not self.reply:
            raise UsageError(f"the message on {self.subject!r} cannot be answered: it has no reply subject")
        return self.reply


class BaseSubscription:
    """What can be known of a subscription without waiting."""

    def __init__(self, box: Mailbox) -> None:
        self._box = box

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.subject!r}, {self.pending} pending{', ended' if self.is_ended else ''}>"

    @property
    def subject(self) -> str:
        """The subject or filter."""
        return self._box.subject

    @property
    def pending(self) -> int:
        """Messages that arrived and were not taken yet."""
        return self._box.pending

    @property
    def made_at(self) -> float:
        """When it was made, by `uptime`."""
        return self._box.made_at

    @property
    def dropped(self) -> int:
        """Messages that were dropped because too many were pending."""
        return self._box.dropped

    @property
    def is_ended(self) -> bool:
        """Whether no more messages will arrive; pending ones can still be taken."""
        return self._box.is_ended

    @property
    def is_over(self) -> bool:
        """Whether nothing is pending and no more messages will arrive."""
        return self._box.is_ended and not self._box.items


class BaseClient:
    """What can be known of a client without waiting."""

    def __init__(self, session: Session, reporter: Reporter) -> None:
        self._session = session
        self._reporter = reporter
        self._codec = session.options.codec or DEFAULT_CODEC
        # For the hot paths: a look-up less for each message.
        self._outgoing = session.outgoing
        self._requests = session.requests
        self._shared: dict[object, object] = {}

    def shared(self, kind: Callable[[], T]) -> T:
        """The one object that `kind` makes for this client: made by the first call, returned by the others.

        For layers above that keep state per client, as JetStream does with its read statistics.
        """
        found = self._shared.get(kind)
        if found is None:  # `setdefault` is one step: two threads get the same object
            found = self._shared.setdefault(kind, kind())
        return cast("T", found)

    @property
    def codec(self) -> Codec[Any]:
        """The codec for payloads that are not bytes, and for `message.decode()`."""
        return self._codec

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._session.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed for good, by `close` or by an error."""
        return self._session.error is not None

    @property
    def end_error(self) -> Error | None:
        """The error that closed the client for good; None while it is open, or when `close` was called."""
        error = self._session.error
        return None if isinstance(error, ConnectionClosedError) else error

    @property
    def is_draining(self) -> bool:
        """Whether `drain` was called."""
        return self._session.subscriptions.is_draining

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that may be tried, including those learned from INFO; without credentials."""
        return tuple(str(server) for server in self._session.servers)

    @property
    def server_info(self) -> ServerInfo:
        """The server's last INFO."""
        return self._session.info

    @property
    def max_payload(self) -> int:
        """The most bytes of headers and payload that a message may have."""
        return self._outgoing.max_payload

    @property
    def stats(self) -> Stats:
        """Messages and bytes in and out, and reconnects."""
        return self._session.stats

    @property
    def last_error(self) -> Exception | None:
        """The last error that no call could raise; `on_event` gets each of them."""
        return self._session.effects.last_error

    @property
    def epoch(self) -> int:
        """The number of connections lost so far: it changes when what depends on one connection is void."""
        return self._session.epoch

    @property
    def sent_after(self) -> float:
        """A time by `uptime`: what is delivered to a subscription from now on was sent after it. See `Session.mark`."""
        return self._session.subscriptions.sent_after

    @property
    def round_trip(self) -> float:
        """Seconds from a PING to its PONG on this connection, of late and at best; 0 where it is not known."""
        return self._session.round_trip

    def report(self, error: Exception) -> None:
        """Report an error that no call can raise."""
        self._session.effects.last_error = error
        self._reporter.report(ClientEvent(EventKind.ERROR, str(self._session.server), error))

    def callback_failed(self, what: str, error: Exception) -> None:
        """Report an exception of the user's code: in the log with its traceback, and to `on_event`."""
        self._session.effects.last_error = error
        self._reporter.callback_failed(str(self._session.server), what, error)

    def new_inbox(self) -> str:
        """A unique subject for replies, to be subscribed to by `subscribe`."""
        return self._session.new_inbox()

    def __repr__(self) -> str:
        return f"<Client {self._session.server} {self._session.state.name}>"


def shown(payload: bytes) -> str:
    """A payload for a person: its first bytes, and how many there are if that is not all."""
    return repr(payload) if len(payload) <= SHOWN else f"{payload[:SHOWN]!r}… ({len(payload)} bytes)"


def encode_headers(headers: HeadersLike | None) -> bytes:
    """The header block of a message; empty for none."""
    if not headers:
        return b""
    return (headers if isinstance(headers, Headers) else Headers(headers)).encode()


def decode_reply(codec: Codec[Any], subject: str, msg: Msg, kind: type[T]) -> T:
    """The payload of a reply to a request on `subject` as a `kind`; an error that a service sent instead is raised."""
    if msg.header and (error := error_of(subject, Headers.parse(msg.header), msg.payload)) is not None:
        raise error

    def origin() -> Origin:
        return Origin(f"the reply to the request on {subject!r}", subject)

    return decode_payload(codec, subject, msg.payload, kind=kind, header=msg.header, origin=origin)


def is_no_responders(msg: Msg) -> bool:
    """Whether a reply is the server's status 503: the subject has no subscribers."""
    if msg.payload or not msg.header:
        return False
    status = parse_status(msg.header)
    return status is not None and status.code == NO_RESPONDERS


def drain_timeout(boxes: Sequence[Mailbox], timeout: float) -> RequestTimeoutError:
    """The error of a drain that took too long."""
    left = (
        ", ".join(f"{box.pending} of {box.subject!r}" for box in boxes if box.pending) or "a callback is still running"
    )
    return RequestTimeoutError(f"drain: not all messages were consumed within {timeout:g} s: {left}")


def connection_lost(session: Session) -> ConnectionLostError:
    """The error of a wait that depends on one connection."""
    return ConnectionLostError(f"the connection to {session.server} was lost: {session.effects.last_error}")


def timed_out(what: str, timeout: float) -> RequestTimeoutError:
    """The error of a wait that took too long."""
    return RequestTimeoutError(f"timed out after {round(timeout, 3):g} s waiting for {what}")
