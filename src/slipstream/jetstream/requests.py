"""Requests of the JetStream API: subject, body and decoder of each. Pure: the drivers only send them and wait."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from slipstream.api import (
    AccountInfo,
    GetRequest,
    PubAck,
    StoredBody,
    StreamConfig,
    StreamInfo,
    decode_pub_ack,
    decode_response,
    encode_json,
    names,
)
from slipstream.api.times import Duration, duration
from slipstream.errors import (
    ApiError,
    BadRequestError,
    Error,
    ErrorCode,
    MessageNotFoundApiError,
    MessageNotFoundError,
    MinLastSequenceError,
    NoRespondersError,
    NoStreamError,
    RemoteProtocolError,
    StreamNotMatchError,
    UsageError,
    WrongLastMsgIdError,
    WrongLastSequenceError,
)
from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one
from slipstream.jetstream.reads.evidence import leader_word
from slipstream.wire import Headers, Msg, check_filter, check_subject, parse_status
from slipstream.wire.arguments import check_text
from slipstream.wire.headers import HeaderValues

T = TypeVar("T")
Ready = Callable[[], bool]

MAX_SEQ = 2**64 - 1
_BUCKET = re.compile(r"[a-zA-Z0-9_-]+")
_BAD_NAME = frozenset(" \t\r\n\f.*>/\\\0")
_NO_SUCH_MESSAGE = ("stream store EOF", "no message found")  # of a message that is to be deleted


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request: where it goes, what it carries, and what its answer means (`decode` returns it or raises)."""

    subject: str
    payload: bytes
    decode: Callable[[Msg], T]
    header: bytes = b""
    what: str = ""  # in the error of an answer that does not arrive

    @property
    def awaited(self) -> str:
        """What is waited for, in words."""
        return self.what or f"an answer on {self.subject!r}"


class Page(NamedTuple, Generic[T]):
    """A part of a list, and how long the whole list is."""

    items: list[T]
    total: int


AskPage = Callable[..., Call[Page[T]]]  # takes `offset`, the number of items of the pages before


class SubjectsPage(NamedTuple):
    """Some of a stream's subjects, how many there are in all, and the last sequence of the responder."""

    subjects: tuple[str, ...]
    total: int
    last_seq: int
    is_leader: bool  # the responder leads the stream, or did so a moment ago


class Answer:
    """The one reply to a request; a `ReplySink` of the client."""

    __slots__ = ("_error", "_msg")

    def __init__(self) -> None:
        self._msg: Msg | None = None
        self._error: Error | None = None

    def deliver(self, msg: Msg) -> bool:
        """Take the reply; there is no second one."""
        self._msg = msg
        return True

    def fail(self, error: Error) -> None:
        """The connection is gone."""
        self._error = error

    def ready(self) -> bool:
        """Whether the reply or an error is there."""
        return self._msg is not None or self._error is not None

    def take(self) -> Msg:
        """The reply; raises if the connection was lost instead."""
        if self._msg is None:
            raise self._error or RemoteProtocolError("the result was requested before it arrived")
        return self._msg


def check_seq(seq: int, what: str, *, least: int = 0) -> int:
    """Return `seq`; raises UsageError if it is not a sequence of at least `least`."""
    if not isinstance(seq, int) or isinstance(seq, bool) or not least <= seq <= MAX_SEQ:
        raise UsageError(f"{what} must be an integer from {least} to {MAX_SEQ}, got {seq!r}")
    return seq


def check_type(config: object, model: type) -> None:
    """Reject what is no configuration of that kind: a dict, for example."""
    if not isinstance(config, model):
        raise UsageError(f"config must be a {model.__name__}, got {type(config).__name__}")


def check_bucket(bucket: str) -> str:
    """Return `bucket`; raises UsageError if it is not a name for a bucket."""
    if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
        raise UsageError(f"bucket name must consist of letters, digits, '_' and '-', got {bucket!r}")
    return bucket


def check_name(name: str, what: str = "stream") -> str:
    """Return `name`; raises UsageError if it is not a single token of a subject and of a path, as servers demand."""
    if not isinstance(name, str) or not name or len(name) > 255 or not _BAD_NAME.isdisjoint(name):
        raise UsageError(f"{what} name must be 1 to 255 characters without white space and . * > / \\, got {name!r}")
    return check_text(name, f"{what} name")


@dataclass(frozen=True, slots=True)
class Api:
    """The requests of the JetStream API below one subject prefix."""

    prefix: str = names.API_PREFIX

    def create_stream(self, config: StreamConfig) -> Call[StreamInfo]:
        """Create a stream; one with the same configuration may exist."""
        check_type(config, StreamConfig)
        return self._stream_call("CREATE", check_name(config.name), config.to_json(), decode_stream_info)

    def update_stream(self, config: StreamConfig) -> Call[StreamInfo]:
        """Change a stream's configuration."""
        check_type(config, StreamConfig)
        return self._stream_call("UPDATE", check_name(config.name), config.to_json(), decode_stream_info)

    def stream_info(self, name: str, *, subjects_filter: str = "", deleted_details: bool = False) -> Call[StreamInfo]:
        """Configuration and state; with the subjects that match a filter, with the deleted sequences."""
        body: dict[str, Any] = {}
        if subjects_filter:
            body["subjects_filter"] = check_filter(subjects_filter)
        if deleted_details:
            body["deleted_details"] = True
        return self._stream_call("INFO", check_name(name), encode_json(body) if body else b"", decode_stream_info)

    def subjects(self, name: str, pattern: str, *, offset: int = 0) -> Call[SubjectsPage]:
        """The subjects that have messages and match, page by page."""
        body = {"subjects_filter": check_filter(pattern), "offset": offset}
        return self._stream_call("INFO", check_name(name), encode_json(body), _subjects)

    def subject_names(self, name: str, pattern: str, *, offset: int = 0) -> Call[Page[str]]:
        """The same as a page of a list."""
        call = self.subjects(name, pattern, offset=offset)

        def decode(msg: Msg) -> Page[str]:
            found = call.decode(msg)
            return Page(list(found.subjects), found.total)

        return Call(call.subject, call.payload, decode)

    def delete_stream(self, name: str) -> Call[None]:
        """Remove a stream and all its messages."""
        return self._stream_call("DELETE", check_name(name), b"", decode_success)

    def purge_stream(
        self, name: str, *, subject: str = "", below: int | None = None, keep: int = 0
    ) -> Call[int] | None:
        """Remove messages: all, those of a filter, those below a sequence, or all but the newest `keep`.

        None where no message can be below: there is nothing to ask for, and a server would take 0 for no bound.
        """
        if below is not None and keep:
            raise UsageError(f"below and keep are mutually exclusive, got below={below} and keep={keep}")
        body: dict[str, Any] = {"filter": check_filter(subject)} if subject else {}
        if below is not None:
            body["seq"] = check_seq(below, "below")
            if below <= 1:
                return None
        body |= {"keep": check_seq(keep, "keep")} if keep else {}

        def decode(msg: Msg) -> int:
            return _checked(lambda value: msgspec.convert(value, int), api_body(msg).get("purged"))

        return self._stream_call("PURGE", check_name(name), encode_json(body) if body else b"", decode)

    def step_down(self, name: str, *, preferred: str = "") -> Call[None]:
        """Have the leader of a stream hand over to another replica; to the server of that name, if one is preferred."""
        body = encode_json({"placement": {"preferred": preferred}}) if check_text(preferred, "preferred") else b""
        return self._stream_call("LEADER.STEPDOWN", check_name(name), body, decode_success)

    def remove_peer(self, name: str, peer: str) -> Call[None]:
        """Move the replica of a stream on that server to another one."""
        if not check_text(peer, "peer"):
            raise UsageError("peer must be the name of a server, got ''")
        return self._stream_call("PEER.REMOVE", check_name(name), encode_json({"peer": peer}), decode_success)

    def delete_message(self, name: str, seq: int, *, erase: bool = True) -> Call[None]:
        """Remove one message; with `erase` its bytes are overwritten where the server's store does that."""
        body: dict[str, Any] = {"seq": check_seq(seq, "seq", least=1)}
        if not erase:
            body["no_erase"] = True

        def decode(msg: Msg) -> None:
            try:
                decode_success(msg)
            except ApiError as error:
                if error.err_code == ErrorCode.STREAM_MSG_DELETE_FAILED and error.description in _NO_SUCH_MESSAGE:
                    text = describe_missing(name, GetRequest(seq=seq))
                    raise MessageNotFoundApiError.like(error).about(stream=name, text=text) from None
                raise

        return self._stream_call("MSG.DELETE", check_name(name), encode_json(body), decode)

    def stream_names(self, *, subject: str = "", offset: int = 0) -> Call[Page[str]]:
        """A page of the names of all streams, or of those that listen on a subject."""
        return Call(
            f"{self.prefix}.STREAM.NAMES",
            page_body(subject, offset),
            _streams(to_text),
        )

    def stream_list(self, *, subject: str = "", offset: int = 0) -> Call[Page[StreamInfo]]:
        """A page of the infos of all streams, or of those that listen on a subject."""
        return Call(
            f"{self.prefix}.STREAM.LIST",
            page_body(subject, offset),
            _streams(StreamInfo.from_dict),
        )

    def account_info(self) -> Call[AccountInfo]:
        """What the account uses and what it may use."""

        def decode(msg: Msg) -> AccountInfo:
            body = api_body(msg)
            body.pop("type", None)
            return _checked(AccountInfo.from_dict, body)

        return Call(f"{self.prefix}.INFO", b"", decode)

    def message_get(self, name: str, request: GetRequest) -> Call[StoredMessage]:
        """One message, by the stream's leader."""

        def decode(msg: Msg) -> StoredMessage:
            try:
                return _stored(name, api_body(msg))
            except MessageNotFoundApiError as error:
                error.about(stream=name, text=describe_missing(name, request))
                raise
            except MinLastSequenceError as error:
                error.about(stream=name, text=describe_behind(name, request.min_last_seq))
                error.min_last_seq = request.min_last_seq
                raise

        return self._stream_call("MSG.GET", check_name(name), encode_json(request), decode)

    def direct_subject(self, name: str, subject: str = "") -> str:
        """Where Direct Gets go; with a subject, those for its last message alone."""
        base = f"{self.prefix}.DIRECT.GET.{check_name(name)}"
        return f"{base}.{check_subject(subject)}" if subject else base

    def probe_min_last_seq(self, name: str) -> Call[bool]:
        """Whether servers here know `min_last_seq`: those that do reject a value that is not a number.

        (The document's way, a sequence far beyond the last, is answered only after the delay of a rejection.)
        """

        subject = self.direct_subject(name)
        body = b'{"last_by_subj":"_probe","min_last_seq":"?"}'
        return Call(subject, body, lambda msg: is_bad_request(msg, subject))

    def _stream_call(self, verb: str, name: str, payload: bytes, decode: Callable[[Msg], T]) -> Call[T]:
        subject = f"{self.prefix}.STREAM.{verb}.{name}"
        return Call(subject, payload, naming(decode, subject, stream=name))


def naming(decode: Callable[[Msg], T], subject: str, *, stream: str, consumer: str = "") -> Callable[[Msg], T]:
    """The same decoder for the answer to a request on that subject: its errors name the stream and the consumer."""

    def read(msg: Msg) -> T:
        try:
            return decode(msg)
        except NoRespondersError as error:  # older servers do not repeat the subject
            raise type(error)(subject, error.hint) from None
        except ApiError as error:
            if not error.stream:
                error.about(stream=stream, consumer=consumer)
            raise

    return read


def describe_missing(stream: str, request: GetRequest) -> str:
    """What a get did not find."""
    if request.last_by_subj:
        return f"stream {stream!r} has no message on {request.last_by_subj!r}"
    if request.next_by_subj:
        first = f" at or after sequence {request.seq}" if request.seq > 1 else ""
        return f"stream {stream!r} has no message on {request.next_by_subj!r}{first}"
    return f"stream {stream!r} has no message with sequence {request.seq}"


def missing(stream: str, request: GetRequest) -> MessageNotFoundError:
    """The error of a get that found nothing."""
    error = MessageNotFoundError(describe_missing(stream, request))
    error.stream = stream
    return error


def describe_behind(stream: str, wanted: int, reached: int = 0) -> str:
    """Why an answer cannot be used: its replica has less than the read needs; `reached`, where that is known."""
    if reached:
        return f"stream {stream!r}: the replica that answered was at {reached}, the read needs {wanted}"
    return f"stream {stream!r}: the replica that answered does not have sequence {wanted} yet, which the read needs"


def is_bad_request(msg: Msg, asked: str) -> bool:
    """Whether a Direct Get was rejected as malformed; a message, or "not found", is no rejection."""
    try:
        decode_one(msg, asked=asked)
    except BadRequestError:
        return True
    except MessageNotFoundError:
        pass
    return False


def publish(
    subject: str,
    payload: bytes,
    *,
    headers: Headers | HeaderValues | None = None,
    msg_id: str | None = None,
    expected_stream: str | None = None,
    expected_last_seq: int | None = None,
    expected_last_subject_seq: int | None = None,
    expected_last_msg_id: str | None = None,
    ttl: Duration | None = None,
    rollup: str | None = None,
) -> Call[PubAck]:
    """Store one message. Expectations of the stream, and the message id, travel as headers."""
    wanted = {
        names.MSG_ID: _not_empty(msg_id, "msg_id"),
        names.EXPECTED_STREAM: expected_stream,
        names.EXPECTED_LAST_SEQ: _seq_or_none(expected_last_seq, "expected_last_seq"),
        names.EXPECTED_LAST_SUBJECT_SEQ: _seq_or_none(expected_last_subject_seq, "expected_last_subject_seq"),
        names.EXPECTED_LAST_MSG_ID: expected_last_msg_id,
        names.TTL: None if ttl is None else _ttl(ttl),
        names.ROLLUP: rollup,
    }
    header = _header(headers, wanted)
    decode = partial(decode_publish, subject=subject, header=header)
    return Call(check_subject(subject), payload, decode, header, f"the ack of the publish to {subject!r}")


def decode_publish(msg: Msg, *, subject: str = "", header: bytes = b"") -> PubAck:
    """The ack of a publish; raises the error that came instead, which names the subject and what was expected."""
    if msg.header:
        _raise_status(msg, NoStreamError, subject=subject)
    try:
        return decode_pub_ack(msg.payload)
    except ApiError as error:
        if subject:
            error.about(text=_describe_rejected(error, subject, Headers.parse(header)))
        raise


def _describe_rejected(error: ApiError, subject: str, expected: Headers) -> str:
    """Why a message was not stored, with what it expected of the stream: the server says only what it found."""
    in_stream, in_subject = expected.get(names.EXPECTED_LAST_SEQ), expected.get(names.EXPECTED_LAST_SUBJECT_SEQ)
    if isinstance(error, WrongLastSequenceError) and bool(in_stream) != bool(in_subject):
        of = expected.get(names.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT) or subject
        where = f"subject {of!r}" if in_subject else f"the stream of subject {subject!r}"
        wanted = in_subject or in_stream
        if error.last_seq is None:
            return f"{where} is not at sequence {wanted}"
        return f"{where} is at sequence {error.last_seq}, not {wanted}"
    if isinstance(error, WrongLastMsgIdError) and (wanted_id := expected.get(names.EXPECTED_LAST_MSG_ID)):
        return f"the last message id in the stream of subject {subject!r} is not {wanted_id!r}: {error.description}"
    if isinstance(error, StreamNotMatchError) and (stream := expected.get(names.EXPECTED_STREAM)):
        return f"subject {subject!r} belongs to another stream than {stream!r}"
    return f"publish to {subject!r}: {error}"


def decode_batch_start(msg: Msg, *, subject: str) -> None:
    """The answer to the first message of an atomic batch: empty, or an error, which is raised."""
    if msg.header:
        _raise_status(msg, NoStreamError, subject=subject)
    if msg.payload:
        decode_publish(msg, subject=subject)
        raise RemoteProtocolError(
            "the stream stored the first message of an atomic batch as a single message: it does not support batches"
        )


def api_body(msg: Msg) -> dict[str, Any]:
    """The JSON object of an API answer; an error that the server answered with is raised."""
    if msg.header:
        _raise_status(msg, NoRespondersError, "JetStream is not enabled, or the API prefix is wrong")
    return decode_response(msg.payload)


def _raise_status(msg: Msg, no_responders: type[NoRespondersError], hint: str = "", *, subject: str = "") -> None:
    """Raise if the answer is a status line of the server, most often 503: no responders on that subject."""
    status = parse_status(msg.header)
    if status is None:
        return
    if status.code == 503:
        raise no_responders(subject or _asked_subject(msg), hint)
    raise RemoteProtocolError(f"the request was answered with status {status.code} {status.description}")


def _asked_subject(msg: Msg) -> str:
    """The subject of the request: newer servers name it in the 503 itself."""
    return Headers.parse(msg.header).get(names.SUBJECT) or msg.subject


def _header(headers: Headers | HeaderValues | None, wanted: Mapping[str, str | int | None]) -> bytes:
    extra = [(name, str(value)) for name, value in wanted.items() if value is not None]
    if headers is None and not extra:
        return b""
    own = headers if isinstance(headers, Headers) else Headers(headers)
    return Headers([*own.items(), *extra]).encode()


def _seq_or_none(seq: int | None, what: str) -> int | None:
    return None if seq is None else check_seq(seq, what)


def _not_empty(value: str | None, what: str) -> str | None:
    if value == "":
        raise UsageError(f"{what} must not be empty; pass None for no {what}")
    return value


def _ttl(ttl: Duration) -> str:
    ttl = duration(ttl, "ttl")
    if ttl < timedelta(seconds=1):
        raise UsageError(f"ttl must be at least 1 second, got {ttl}")
    return f"{ttl // timedelta(milliseconds=1)}ms"


def decode_stream_info(msg: Msg) -> StreamInfo:
    """The stream info in the answer to a create, an update or an info request."""
    body = api_body(msg)
    for name in ("type", "did_create", "total", "offset", "limit"):  # of the response, not of the stream
        body.pop(name, None)
    return _checked(StreamInfo.from_dict, body)


def page_body(subject: str, offset: int) -> bytes:
    """The body of a request for a part of a list."""
    body: dict[str, Any] = {"subject": check_filter(subject)} if subject else {}
    return encode_json(body | ({"offset": offset} if offset else {})) if body or offset else b""


def decode_page(msg: Msg, *, field: str, convert: Callable[[Any], T]) -> Page[T]:
    """A part of the list that an answer has under `field`."""
    body = api_body(msg)
    items = _checked(lambda value: msgspec.convert(value, list[Any] | None), body.get(field)) or []
    total = _checked(lambda value: msgspec.convert(value, int), body.get("total", 0))
    return Page([_checked(convert, item) for item in items], total)


def _streams(convert: Callable[[Any], T]) -> Callable[[Msg], Page[T]]:
    return partial(decode_page, field="streams", convert=convert)


def to_text(value: Any) -> str:
    """A text of an answer."""
    return msgspec.convert(value, str)


def _subjects(msg: Msg) -> SubjectsPage:
    body = api_body(msg)
    total = body.get("total", 0)
    info = decode_stream_info(msg)
    state, is_leader = info.state, leader_word(info) is not None
    return SubjectsPage(tuple(state.subjects), total if isinstance(total, int) else 0, state.last_seq, is_leader)


def decode_success(msg: Msg) -> None:
    """Check that the server reports success."""
    if not api_body(msg).get("success"):
        raise RemoteProtocolError(f"the API answered {msg.payload[:64]!r}, expected success")


def _stored(stream: str, body: dict[str, Any]) -> StoredMessage:
    found = _checked(lambda value: msgspec.convert(value, StoredBody), body.get("message"))
    return StoredMessage(found.subject, found.seq, found.time_ns, found.hdrs, found.data, stream)


def _checked(read: Callable[[Any], T], value: Any) -> T:
    try:
        return read(value)
    except (ValueError, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(f"malformed API response: {exc}") from exc
