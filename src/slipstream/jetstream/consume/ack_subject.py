"""Ack subjects: the reply subject of a consumer's message, its metadata and the bodies that acknowledge it.

It is parsed only when a program reads the metadata. Both formats are known: 9 tokens, and 11 or more with domain and
account hash in front.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from slipstream.api import encode_json
from slipstream.api.notebook import facts
from slipstream.api.times import Duration, nanoseconds, to_datetime
from slipstream.client.base import BaseMessage, HasCodec, shown
from slipstream.codecs import Codec
from slipstream.codecs.payloads import Origin
from slipstream.errors import NotJetStreamMessageError, UsageError
from slipstream.wire import Msg

C = TypeVar("C", bound=HasCodec)

ACK_PREFIX = "$JS.ACK."
ACK = b"+ACK"
NAK = b"-NAK"
TERM = b"+TERM"
IN_PROGRESS = b"+WPI"
NO_DOMAIN = "_"


class Metadata(NamedTuple):
    """The server's metadata of a message. `time` is nanoseconds since the epoch; an empty `domain` is none."""

    stream: str
    consumer: str
    num_delivered: int
    stream_seq: int
    consumer_seq: int
    time: int
    num_pending: int
    domain: str = ""

    @property
    def timestamp(self) -> datetime:
        """When the message was stored, as a datetime in UTC."""
        return to_datetime(self.time)


def split_reply(reply: str) -> list[str]:
    """The tokens of the 9-token format, from either; raises NotJetStreamMessageError.

    They are `$JS`, `ACK`, stream, consumer, delivered, stream sequence, consumer sequence, time, pending.
    """
    tokens = reply.split(".")
    if len(tokens) != 9:
        if len(tokens) < 11:
            raise _not_an_ack(reply, f"it must have 9 or at least 11 tokens, got {len(tokens)}")
        tokens = [*tokens[:2], *tokens[4:11]]
    if tokens[0] != "$JS" or tokens[1] != "ACK":
        raise _not_an_ack(reply, f"it must begin with {ACK_PREFIX}")
    numbers = "".join(tokens[4:])
    if not (numbers.isascii() and numbers.isdigit()) or not all(tokens[4:]):
        raise _not_an_ack(reply, "it must end with five numbers")
    return tokens


def parse_reply(reply: str) -> Metadata:
    """All metadata in a reply subject; raises NotJetStreamMessageError."""
    _, _, stream, consumer, delivered, stream_seq, consumer_seq, time, pending = split_reply(reply)
    parts = reply.split(".", 3)
    domain = "" if reply.count(".") == 8 or parts[2] == NO_DOMAIN else parts[2]
    return Metadata(
        stream, consumer, int(delivered), int(stream_seq), int(consumer_seq), int(time), int(pending), domain
    )


def num_delivered(msg: Msg) -> int:
    """How often a consumer's message was delivered, this time included."""
    return int(split_reply(msg.reply)[4])


def num_pending(msg: Msg) -> int:
    """How many messages the consumer had left when it delivered this one."""
    return int(split_reply(msg.reply)[8])


def _not_an_ack(reply: str, why: str) -> NotJetStreamMessageError:
    return NotJetStreamMessageError(
        f"reply subject {reply[:80]!r} is not the reply subject of a consumer's message: {why}"
    )


def nak_body(delay: Duration | None) -> bytes:
    """The body that asks for redelivery, not before `delay` (seconds) has passed."""
    if delay is None:
        return NAK
    nanos = nanoseconds(delay, "delay")
    if nanos < 0:
        raise UsageError(f"delay must be at least 0 seconds, got {delay!r}")
    return b"%b %b" % (NAK, encode_json({"delay": nanos})) if nanos else NAK


def term_body(reason: str) -> bytes:
    """The body that ends redelivery; the reason goes into the server's advisory."""
    if "\r" in reason or "\n" in reason:
        raise UsageError(f"reason must be a single line, got {reason!r}")
    return b"%b %b" % (TERM, reason.encode()) if reason else TERM


class BaseJsMessage(BaseMessage[C], Generic[C]):
    """A message of a consumer: its content, the server's metadata, and whether it was settled here.

    `is_settled`: a terminal ack was sent, or none is wanted; acks are ignored from then on.
    """

    is_settled: bool = False
    _codec: Codec[Any] | None = None  # that of its JetStream handle

    @property
    def metadata(self) -> Metadata:
        """Sequences, time, number of deliveries and of pending messages."""
        return parse_reply(self._msg.reply)

    @property
    def seq(self) -> int:
        """Its sequence in the stream."""
        return int(split_reply(self._msg.reply)[5])

    @property
    def time(self) -> int:
        """When it was stored, in nanoseconds since the epoch."""
        return int(split_reply(self._msg.reply)[7])

    @property
    def timestamp(self) -> datetime:
        """When it was stored, as a datetime in UTC."""
        return to_datetime(self.time)

    @property
    def num_delivered(self) -> int:
        """How often it was delivered, this time included."""
        return int(split_reply(self._msg.reply)[4])

    @property
    def num_pending(self) -> int:
        """How many messages the consumer had left to deliver after this one."""
        return int(split_reply(self._msg.reply)[8])

    def _own_codec(self) -> Codec[Any]:
        return self._codec or self._client.codec

    def _origin(self) -> Origin:
        try:
            at = self.metadata
        except NotJetStreamMessageError:
            return Origin(f"message on {self.describe()}", self.subject)
        return Origin(f"message on {self.describe()}", self.subject, at.stream, at.stream_seq)

    def describe(self) -> str:
        """Which message it is, for logs and errors."""
        try:
            at = self.metadata
        except NotJetStreamMessageError:
            return f"{self.subject!r} (not a message of a stream)"
        return f"{self.subject!r} (stream {at.stream!r}, sequence {at.stream_seq}, delivery {at.num_delivered})"

    def _repr_html_(self) -> str:
        headers = "\n".join(f"{name}: {value}" for name, value in (self.headers or {}).items()) or None
        rows: list[tuple[str, object]] = [("Subject", self.subject), ("Headers", headers), ("Data", self.data)]
        try:
            at = self.metadata
        except NotJetStreamMessageError:
            return facts("Message", rows)
        rows[1:1] = [
            ("Time", self.timestamp),
            ("Consumer", at.consumer),
            ("Delivery", at.num_delivered),
            ("Pending behind it", at.num_pending),
        ]
        return facts(f"Message {at.stream_seq:,} of {at.stream}", rows)

    def __repr__(self) -> str:
        try:
            at = self.metadata
        except NotJetStreamMessageError:
            return f"<JsMessage {self.subject}, {shown(self.data)}>"
        return f"<JsMessage {self.subject} #{at.stream_seq}, delivery {at.num_delivered}, {shown(self.data)}>"
