"""The small JSON bodies that travel once per message: publish acks, get requests, error objects. msgspec at C speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from slipstream.api.times import parse_time
from slipstream.errors import ApiError, RemoteProtocolError

T = TypeVar("T")


class PubAck(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ack of a stored message; `duplicate`: the stream had it already, by its message id."""

    stream: str
    seq: int
    domain: str = ""
    duplicate: bool = False
    batch: str = ""
    count: int = 0


class GetRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a Message Get or Direct Get."""

    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: int = 0
    max_bytes: int = 0
    start_time: str | None = None
    multi_last: tuple[str, ...] = ()
    up_to_seq: int = 0
    up_to_time: str | None = None
    no_hdr: bool = False
    min_last_seq: int = 0
    as_of: bool = False  # ours: the answer says who gave it, and as of which sequence (`names.AS_OF`)


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error object of an API response."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    def exception(self) -> ApiError:
        """The exception for it."""
        return ApiError.of(self.code, self.err_code, self.description)


class _PubReply(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    domain: str = ""
    duplicate: bool = False
    batch: str = ""
    count: int = 0
    error: ErrorBody | None = None


class StoredBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message inside a Message Get response; `hdrs` and `data` are base64 on the wire."""

    subject: str
    seq: int
    hdrs: bytes = b""
    data: bytes = b""
    time: str = ""

    @property
    def time_ns(self) -> int:
        """When it was stored, in nanoseconds since the epoch."""
        return parse_time(self.time)


# What msgspec raises for bytes that are not the JSON they should be; ValueError is for text that is not UTF-8.
NOT_JSON = (msgspec.DecodeError, ValueError, RecursionError)

_decode_pub_reply = msgspec.json.Decoder(_PubReply).decode
# Without the reading of nulls as absent fields: a request that it refuses may still be one for `decode_get_request`.
decode_plain_get_request = msgspec.json.Decoder(GetRequest).decode
encode_json: Callable[[object], bytes] = msgspec.json.Encoder().encode


def read_json(data: bytes, kind: type[T]) -> T:
    """JSON as Go reads it: a null is an absent field. Raises what is in NOT_JSON."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        if b"null" not in data:
            raise
    return msgspec.convert(_without_nulls(msgspec.json.decode(data)), kind)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def decode_get_request(data: bytes) -> GetRequest:
    """The request; raises msgspec.DecodeError (a ValidationError where JSON has the wrong types), and nothing else."""
    try:
        return read_json(data, GetRequest)
    except (ValueError, RecursionError) as exc:
        raise msgspec.DecodeError(str(exc)) from exc


def decode_pub_ack(data: bytes) -> PubAck:
    """The ack in a stream's reply; an error in it is raised.

    Raises RemoteProtocolError for anything else: the responder on the subject need not be a stream.
    """
    try:
        reply = _decode_pub_reply(data)
    except NOT_JSON as exc:
        raise RemoteProtocolError(f"expected a publish ack, got {data[:64]!r}: {exc}") from exc
    if reply.error is not None:
        raise reply.error.exception()
    if not reply.stream:
        raise RemoteProtocolError(f"expected a publish ack that names its stream, got {data[:64]!r}")
    return PubAck(reply.stream, reply.seq, reply.domain, reply.duplicate, reply.batch, reply.count)


def decode_response(data: bytes) -> dict[str, Any]:
    """The object of any other API response; an error in it is raised, RemoteProtocolError if it is no response."""
    try:
        body: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        error = body.get("error")
        refusal = None if error is None else msgspec.convert(error, ErrorBody)
    except NOT_JSON as exc:
        raise RemoteProtocolError(f"expected a JetStream API response, got {data[:64]!r}: {exc}") from exc
    if refusal is not None:
        raise refusal.exception()
    return body
