"""The grammar of Direct Get replies, and their decoder: stored messages, ends of a batch, or errors.

The server's own headers are the last ones of a reply: a stored message may carry the same names in front of them, and
even `Status: 204`. Only an inline status line is a status (DG-22), only the last headers are the server's.

Whole batches have a quicker way, `columns.py`, which leaves to this module whatever is unusual. Servers write their
headers in one order; replies with another order are read by name (`_unusual`).
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, overload

from msgspec.structs import replace

from slipstream.api import names
from slipstream.api.notebook import facts
from slipstream.api.times import parse_time, to_datetime
from slipstream.codecs.payloads import ANYTHING, JSON, Origin, decode_payload, decode_text
from slipstream.errors import (
    BadRequestError,
    DirectGetNotAllowedError,
    Error,
    MessageNotFoundError,
    RemoteProtocolError,
    StaleReadError,
    TooManyResultsError,
)
from slipstream.wire import Headers, Msg, Status, parse_status

T = TypeVar("T")

# The grammar: the headers that a server adds behind a message's own, in their order. The values are expressions.
SERVER_HEADERS = rb"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %b\r\nNats-Time-Stamp: %b\r\n"
BATCH_HEADERS = rb"Nats-Num-Pending: %b\r\nNats-Last-Sequence: %b\r\n"
_VALUE, _NUMBER = rb"([^\r]*)", rb"(\d{1,20})"
_MARK = b"\r\nNats-Stream: "
_TAIL = re.compile(
    rb"\r\n%b(?:%b)?\r\n" % (SERVER_HEADERS % (_VALUE, _VALUE, _NUMBER, _VALUE), BATCH_HEADERS % (_NUMBER, _NUMBER))
)
_END = re.compile(
    rb"NATS/1\.0 204 EOB\r\n%b(?:Nats-UpTo-Sequence: (\d{1,20})\r\n)?\r\n" % (BATCH_HEADERS % (_NUMBER, _NUMBER))
)
_STAMP = re.compile(
    rb"\r\n%b: ([^\r]*)\r\n%b: (\d{1,20})\r\n%b: (\d{1,20})\r\n\r\n\Z"
    % (names.RESPONDER.encode(), names.AS_OF.encode(), names.CREATED.encode())
)
_STATUS_LINE = len(b"NATS/1.0")
_MESSAGE_GONE = b"NATS/1.0 404 Message Not Found\r\n"  # "No Results" if a multi-subject get finds nothing
_UNKNOWN = -1


class StoredMessage(NamedTuple):
    """A stored message. `time` is nanoseconds since the epoch; `stream` names the responder (a mirror names itself)."""

    subject: str
    seq: int
    time: int
    header: bytes
    data: bytes
    stream: str

    @property
    def timestamp(self) -> datetime:
        """When it was stored, as a datetime in UTC."""
        return to_datetime(self.time)

    @property
    def headers(self) -> Headers:
        """The headers it was published with."""
        return Headers.parse(self.header)

    def _repr_html_(self) -> str:
        headers = "\n".join(f"{name}: {value}" for name, value in self.headers.items()) or None
        title = f"Message {self.seq:,} of {self.stream}"
        rows = (("Subject", self.subject), ("Time", self.timestamp), ("Headers", headers), ("Data", self.data))
        return facts(title, rows)

    def text(self) -> str:
        """The payload as text in UTF-8; raises MessageDecodeError if it is none."""
        return decode_text(self.data, origin=self._origin)

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[T]) -> T: ...
    @overload
    def json(self, kind: Any) -> Any: ...
    def json(self, kind: Any = ANYTHING) -> Any:
        """The payload as JSON, as a `kind` with its type checked; raises MessageDecodeError if it is not that."""
        return decode_payload(JSON, self.subject, self.data, kind=kind, header=self.header, origin=self._origin)

    def _origin(self) -> Origin:
        what = f"message on {self.subject!r} (stream {self.stream!r}, sequence {self.seq})"
        return Origin(what, self.subject, self.stream, self.seq)


class BatchItem(NamedTuple):
    """A message of a batch; `pending` says how many follow it in the stream, -1 if the server does not know batches."""

    message: StoredMessage
    pending: int


class EndOfBatch(NamedTuple):
    """The batch is over: how many messages are left, the last sequence sent, and the responder's own last sequence.

    The last one comes with a multi-subject get only; a number that the server did not send is -1.
    """

    pending: int
    last_seq: int
    up_to_seq: int


def decode(msg: Msg, *, asked: str, min_last_seq: int = 0) -> BatchItem | EndOfBatch:
    """Decode a reply; `asked` names the request in errors."""
    header = msg.header
    tail = match_tail(header)
    if tail is None and (end := _END.fullmatch(header)) is not None:
        pending, last, up_to = end.groups()
        return EndOfBatch(int(pending), int(last), _UNKNOWN if up_to is None else int(up_to))
    if tail is None:  # a message may have been stored with a status line: only what the server did not sign is a status
        status = parse_status(header)
        if status is not None and Headers.parse(header).last(names.SEQUENCE) is None:
            return _status(status, header, asked, min_last_seq)
        return _unusual(msg, asked)
    stream, subject, seq, time, left, _ = tail.groups()
    own = own_headers(header, tail) if tail.start() > _STATUS_LINE else b""  # most have none: a call saved
    message = StoredMessage(_text(subject), int(seq), time_of(time, asked), own, msg.payload, _stream_name(stream))
    return BatchItem(message, _UNKNOWN if left is None else int(left))


def match_tail(header: bytes) -> re.Match[bytes] | None:
    """The server's headers at the end of a reply: stream, subject, sequence, time, and of a batch two numbers more."""
    at = header.rfind(_MARK)
    return _TAIL.fullmatch(header, at) if at >= 0 else None


def own_headers(header: bytes, tail: re.Match[bytes]) -> bytes:
    """The header block that a message was stored with: what stands before the server's headers; empty for none."""
    at = tail.start()
    return header[: at + 2] + b"\r\n" if at > _STATUS_LINE else b""


def decode_one(msg: Msg, *, asked: str, min_last_seq: int = 0) -> StoredMessage:
    """The message in the reply to a single get."""
    found = decode(msg, asked=asked, min_last_seq=min_last_seq)
    if isinstance(found, EndOfBatch):
        raise RemoteProtocolError(f"{asked}: a single get was answered with the end of a batch")
    return found.message


class Stamp(NamedTuple):
    """What our server says behind an answer if it was asked to: who gave it, as of which sequence, of which stream."""

    responder: str
    as_of: int
    created: int


def take_stamp(msg: Msg) -> tuple[Msg, Stamp | None]:
    """A reply without its stamp, and the stamp. It stands behind all other headers, so none can be taken for it."""
    found = _STAMP.search(msg.header)
    if found is None:
        return msg, None
    responder, as_of, created = found.groups()
    stamp = Stamp(_text(responder), int(as_of), int(created))
    return replace(msg, header=msg.header[: found.start()] + b"\r\n\r\n"), stamp


class Replies:
    """The replies to one request, message by message; a `ReplySink` of the client.

    For a handful of messages: whole batches have `columns.py`. A 404 is an answer too: `is_missing`.
    """

    __slots__ = (
        "_asked",
        "_has_stamp",
        "_min_last_seq",
        "end",
        "error",
        "is_broken_off",
        "is_missing",
        "items",
        "responder",
        "stamp",
    )

    def __init__(self, asked: str, *, min_last_seq: int = 0, has_stamp: bool = False) -> None:
        self._asked = asked
        self._min_last_seq = min_last_seq
        self.items: list[BatchItem] = []
        self.end: EndOfBatch | None = None
        self.is_missing: bool = False
        self.is_broken_off: bool = False  # of a multi-subject get: a message was removed before its turn came
        self.responder: str = ""  # the server that answered, where that is known
        self._has_stamp = has_stamp  # whether one was asked for
        self.stamp: Stamp | None = None
        self.error: Error | None = None

    def deliver(self, msg: Msg) -> bool:
        """Take a reply; True once it is the last."""
        if self._has_stamp:
            msg, stamp = take_stamp(msg)
            self.stamp = stamp or self.stamp
        try:
            found = decode(msg, asked=self._asked, min_last_seq=self._min_last_seq)
        except MessageNotFoundError:
            self.is_missing = True
            self.is_broken_off = msg.header.startswith(_MESSAGE_GONE)
            return True
        except Error as error:
            self.error = error
            return True
        if isinstance(found, EndOfBatch):
            self.end = found
            return True
        self.items.append(found)
        if found.pending < 0:  # a server without batches, or no batch was asked for: nothing follows
            self.end = EndOfBatch(_UNKNOWN, found.message.seq, _UNKNOWN)
            return True
        return False

    def fail(self, error: Error) -> None:
        """The connection is gone."""
        self.error = error

    def ready(self) -> bool:
        """Whether all replies have arrived."""
        return self.end is not None or self.is_missing or self.error is not None


def _status(status: Status, header: bytes, asked: str, min_last_seq: int) -> EndOfBatch:
    said = f"{status.code} {status.description}".strip()
    if status.code == 204:
        headers = Headers.parse(header)
        pending = headers.last(names.NUM_PENDING) or headers.last(names.PENDING_MESSAGES)
        return EndOfBatch(
            _number(pending), _number(headers.last(names.LAST_SEQUENCE)), _number(headers.last(names.UP_TO_SEQUENCE))
        )
    if status.code == 404:
        raise MessageNotFoundError(f"{asked}: {said}")
    if status.code == 408:
        raise BadRequestError(f"{asked}: the server says {said}")
    if status.code == 412:
        raise StaleReadError(f"{asked}: {said}, wanted {min_last_seq}", min_last_seq=min_last_seq)
    if status.code == 413:
        raise TooManyResultsError(f"{asked}: {said}; a multi-subject get returns at most 1,024 subjects")
    if status.code == 503:
        hint = "set allow_direct on the stream, or read with from_leader=True; or there is no such stream"
        raise DirectGetNotAllowedError(asked, hint)
    raise RemoteProtocolError(f"{asked}: the server says {said}")


def _unusual(msg: Msg, asked: str) -> BatchItem:
    """The same by names: another order of the headers, or a server with fewer or more of them."""
    headers = Headers.parse(msg.header)
    subject, seq = headers.last(names.SUBJECT), headers.last(names.SEQUENCE)
    time, stream = headers.last(names.TIME_STAMP), headers.last(names.STREAM)
    if subject is None or seq is None or time is None:
        raise RemoteProtocolError(f"{asked}: the reply lacks {names.SUBJECT}, {names.SEQUENCE} or {names.TIME_STAMP}")
    server = {names.STREAM, names.SUBJECT, names.SEQUENCE, names.TIME_STAMP, names.NUM_PENDING, names.LAST_SEQUENCE}
    own = headers.items()
    for name in server:  # only the last of each is the server's
        at = next((i for i in range(len(own) - 1, -1, -1) if own[i][0] == name), None)
        if at is not None:
            del own[at]
    header = Headers.received(own).encode()
    message = StoredMessage(subject, _number(seq), _time(time, asked), header, msg.payload, stream or "")
    return BatchItem(message, _number(headers.last(names.NUM_PENDING)))


def _text(raw: bytes) -> str:
    """A server passes any bytes on, so a subject need not be UTF-8; that must not cost the other messages."""
    return raw.decode("utf-8", "replace")


_stream_name = lru_cache(maxsize=256)(_text)  # the messages of a connection come from few streams


@lru_cache(maxsize=256)
def _second(text: bytes) -> int:
    """Nanoseconds of a whole second; cached, because the messages of a stream share their seconds."""
    return parse_time(f"{text.decode()}Z")


def time_of(raw: bytes, asked: str) -> int:
    """The time of a message; the usual format is read without looking at its parts."""
    fraction = raw[20:-1]
    if raw[-1:] == b"Z" and raw[19:20] == b"." and len(fraction) <= 9 and fraction.isdigit():
        try:
            return _second(raw[:19]) + int(fraction.ljust(9, b"0"))
        except ValueError:
            pass
    return _time(_text(raw), asked)


def _time(text: str, asked: str) -> int:
    try:
        return parse_time(text)
    except ValueError as exc:
        raise RemoteProtocolError(f"{asked}: {exc}") from exc


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else _UNKNOWN
