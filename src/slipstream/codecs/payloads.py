"""Codec of payloads: objects to bytes with a content type, and bytes to objects of the reader's type.

Bytes are sent as they are, without a content type. A message that names a content type is decoded by a codec for that
one or not at all, so that no payload is taken for another format's. Whatever a codec raises becomes one error that says
which message it was: MessageDecodeError for a reader, UsageError for a writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from slipstream.codecs.base import Codec, media_type
from slipstream.codecs.values import Json
from slipstream.errors import CodecError, MessageDecodeError, UsageError
from slipstream.wire import Headers
from slipstream.wire.headers import HeaderValues

T = TypeVar("T")
H = TypeVar("H", bound=HeaderValues | None)

CONTENT_TYPE = "Content-Type"
ANYTHING = cast("type[Any]", Any)  # the type of a payload whose reader names none
_UNSPECIFIC = ("", "text/plain", "application/octet-stream")  # they say nothing about the format
_REASON = 500  # characters: errors of pydantic repeat the input


class Origin(NamedTuple):
    """Where a payload comes from, for errors: in words, and in parts."""

    text: str
    subject: str
    stream: str = ""
    seq: int = 0


class _JsonObjects(Json[Any]):
    """JSON, as long as a program names no codec: str and None are more likely mistakes than values."""

    def encode_value(self, key: str, value: Any) -> bytes:
        if value is None or isinstance(value, str):
            hint = " (encode it, or choose the codec Text or Json)" if value is not None else ""
            raise UsageError(f"payload must be bytes, not {type(value).__name__}{hint}")
        return super().encode_value(key, value)


DEFAULT_CODEC: Codec[Any] = _JsonObjects()
JSON: Codec[Any] = Json()


def check_codec(codec: Codec[Any] | None) -> Codec[Any] | None:
    """Return a codec for messages; raises UsageError if it is none. None stands for the default."""
    if codec is None:
        return None
    if not isinstance(codec, Codec):
        raise UsageError(f"codec must be a Codec, such as Json(), got {codec!r}")
    if not codec.content_type:
        raise UsageError(
            f"codec must have a content type to encode messages, as Json, MessagePack and Text have, got "
            f"{type(codec).__name__}"
        )
    Headers([(CONTENT_TYPE, codec.content_type)])  # raises if it cannot be a header
    return codec


def encode_payload(codec: Codec[Any], subject: str, payload: object, headers: H) -> tuple[bytes, H | Headers]:
    """What is sent for a payload that is not of the type bytes, and its headers."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), headers
    try:
        data = codec.encode_value(subject, payload)
    except Exception as error:  # of a program's codec, or of an object that it encodes
        if isinstance(error, UsageError) and error.__cause__ is None:
            raise
        raise UsageError(
            f"payload of type {type(payload).__name__} for {subject!r} cannot be encoded: {_reason(error)}"
        ) from error
    if not isinstance(data, bytes):
        raise UsageError(f"codec {type(codec).__name__} must encode to bytes, got {type(data).__name__}")
    own = Headers(headers)
    if not any(name.lower() == "content-type" for name in own):
        own.add(CONTENT_TYPE, codec.content_type)
    return data, own


def decode_payload(
    codec: Codec[Any], subject: str, data: bytes, *, kind: type[T], header: bytes, origin: Callable[[], Origin]
) -> T:
    """A payload as a `kind` (Any: as the codec has it); `header` is the header block of its message."""
    if header and b"\r\nContent-Type: %b\r\n" % codec.content_type.encode() not in header:  # nearly always it is
        named = content_type_of(header)
        media = media_type(named)
        if media not in _UNSPECIFIC and not codec.reads(media):
            raise _not_decoded(kind, f"its content type is {named!r}, not {codec.content_type!r}", origin())
    try:
        if kind is Any:
            return cast("T", codec.decode_value(subject, data))
        return codec.decode_as(subject, data, kind)
    except UsageError:  # the type, not the message
        raise
    except Exception as error:
        reason = "the payload is empty" if not data else _reason(error)
        raise _not_decoded(kind, reason, origin()) from error


def decode_text(data: bytes, *, origin: Callable[[], Origin]) -> str:
    """A payload that is text in UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _not_decoded(str, str(error), origin()) from error


def content_type_of(header: bytes) -> str:
    """The content type that a header block names; other clients write the header's name in other cases."""
    if b"content-type" not in header.lower():
        return ""
    found = (value for name, value in Headers.parse(header).items() if name.lower() == "content-type")
    return next(found, "")


def _not_decoded(kind: Any, reason: str, origin: Origin) -> MessageDecodeError:
    name = "an object" if kind is Any else kind.__name__ if isinstance(kind, type) else str(kind)
    return MessageDecodeError(
        f"{origin.text} cannot be decoded as {name}: {reason}",
        subject=origin.subject,
        stream=origin.stream,
        seq=origin.seq,
        kind=name,
        reason=reason,
    )


def _reason(error: Exception) -> str:
    """An error in one line: that of the decoder, where a codec has put its own around it."""
    cause = error.__cause__ if isinstance(error, CodecError | UsageError) else None
    inner = cause or error
    text = " ".join(str(inner).split())
    if not isinstance(inner, ValueError) and not type(inner).__module__.startswith(("msgspec", "slipstream")):
        text = f"{type(inner).__name__}: {text}"  # such as KeyError, which has a name for a text
    return text if len(text) <= _REASON else text[: _REASON - 1] + "…"
