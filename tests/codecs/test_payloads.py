"""Payloads of messages: what cannot be encoded or decoded is refused with the reason, whatever a codec raises."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from slipstream.codecs import Base64Values, Codec, Compressed, Json, MessagePack, Text
from slipstream.codecs.payloads import DEFAULT_CODEC, JSON, Origin, check_codec, decode_payload, encode_payload
from slipstream.errors import CodecError, MessageDecodeError, UsageError
from slipstream.wire import Headers


class Order(msgspec.Struct):
    id: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: int


class Shape(msgspec.Struct, tag=True):
    pass


class Circle(Shape):
    radius: float


class Square(Shape):
    side: float


class Special(Order):
    note: str = ""


@dataclass
class Everything:
    at: datetime
    price: Decimal
    id: UUID
    raw: bytes
    tags: set[str]


class Odd(Codec[Any]):
    """A codec that raises what codecs should not."""

    content_type = "application/x-odd"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def encode_value(self, key: str, value: Any) -> bytes:
        del key, value
        raise self.error

    def decode_value(self, key: str, data: bytes) -> Any:
        del key, data
        raise self.error


class NoBytes(Codec[Any]):
    content_type = "application/x-text"

    def encode_value(self, key: str, value: Any) -> bytes:
        return f"{key} {value}"  # type: ignore[return-value]


def decoded(data: bytes, kind: Any, codec: Codec[Any] = JSON, **headers: str) -> Any:
    header = Headers({name.replace("_", "-"): value for name, value in headers.items()}).encode()
    return decode_payload(
        codec, "a.b", data, kind=kind, header=header, origin=lambda: Origin("message on 'a.b'", "a.b")
    )


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        pytest.param(b"", Order, "the payload is empty", id="empty"),
        pytest.param(b"", Any, "the payload is empty", id="empty, any"),
        pytest.param(b"null", Order, "Expected `object`, got `null`", id="null"),
        pytest.param(b"{", Order, "Input data was truncated", id="truncated"),
        pytest.param(b'{"id":1} x', Order, "JSON is malformed: trailing characters", id="trailing"),
        pytest.param(b'{"id":"\xff"}', dict[str, str], "'utf-8' codec can't decode byte 0xff", id="no utf-8"),
        pytest.param(b'{"id":1.5}', Order, "Expected `int`, got `float`", id="float for int"),
        pytest.param(b'{"id":1,"more":2}', Strict, "Object contains unknown field `more`", id="unknown field"),
        pytest.param(b"[" * 100_000, Any, "recursion", id="deep"),
        pytest.param(b'{"type":"Hexagon"}', Circle | Square, "Invalid value 'Hexagon'", id="no such tag"),
        pytest.param(b'{"x":1}', Odd, "objects of type Odd are not supported", id="no such type"),
    ],
)
def test_json_that_is_not_what_its_reader_expects_is_refused(data: bytes, kind: Any, reason: str) -> None:
    with pytest.raises(MessageDecodeError, match=r"^message on 'a\.b' cannot be decoded as ") as caught:
        decoded(data, kind)
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, CodecError)


def test_the_error_names_the_whole_type() -> None:
    for kind, name in [(Order, "Order"), (list[int], "list[int]"), (int | None, "int | None"), (Any, "an object")]:
        with pytest.raises(MessageDecodeError) as caught:
            decoded(b"{", kind)
        assert (caught.value.kind, f"cannot be decoded as {name}: " in str(caught.value)) == (name, True)


def test_json_is_decoded_to_the_types_of_python() -> None:
    assert decoded(b'{"id":1,"more":2}', Order) == Order(1)
    assert decoded(b"null", Any) is None
    assert decoded(b"null", Order | None) is None
    assert decoded(b'{"type":"Square","side":2}', Circle | Square) == Square(2)
    assert decoded(b'{"id":1,"note":"x"}', Special) == Special(1, "x")
    assert decoded(b"123456789012345678901234567890", Any) == 123456789012345678901234567890


@pytest.mark.parametrize("codec", [Json(), MessagePack()], ids=["json", "msgpack"])
def test_fields_of_every_type_come_back(codec: Codec[Any]) -> None:
    value = Everything(datetime(2026, 1, 2, 3, 4, 5, 6, UTC), Decimal("1.10"), UUID(int=7), b"\xff\x00", {"a"})
    data, headers = encode_payload(codec, "a.b", value, None)
    assert isinstance(headers, Headers)
    assert decoded(data, Everything, codec, **dict(headers.items())) == value
    data, _ = encode_payload(codec, "a.b", Special(1, "x"), None)
    assert decoded(data, Special, codec) == Special(1, "x")


def test_numbers_too_large_for_a_format_are_refused() -> None:
    assert encode_payload(JSON, "a.b", [2**80], None)[0] == b"[1208925819614629174706176]"
    with pytest.raises(UsageError, match=r"payload of type list for 'a\.b' cannot be encoded: "):
        encode_payload(MessagePack(), "a.b", [2**80], None)


@pytest.mark.parametrize(
    ("codec", "named", "is_read"),
    [
        (Json(), "application/json", True),
        (Json(), "Application/JSON; charset=utf-8", True),
        (Json(), "application/problem+json", True),
        (Json(), "text/plain", True),
        (Json(), "application/octet-stream", True),
        (Json(), "application/msgpack", False),
        (Json(), "text/html", False),
        (MessagePack(), "application/x-msgpack", True),
        (MessagePack(), "application/json", False),
        (Text(), "text/html; charset=utf-8", True),
        (Text(), "application/json", False),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("name", ["Content_Type", "content_type", "CONTENT_TYPE"])
def test_a_message_of_another_content_type_is_not_decoded(
    codec: Codec[Any], named: str, is_read: bool, name: str
) -> None:
    """The byte 0x35 is the number 5 in JSON, 53 in MessagePack, a digit in text: only the content type says which."""
    if is_read:
        decoded(b"5", Any, codec, **{name: named})
        return
    with pytest.raises(MessageDecodeError, match="its content type is ") as caught:
        decoded(b"5", Any, codec, **{name: named})
    assert repr(named) in str(caught.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(KeyError("id"), "KeyError: 'id'", id="KeyError"),
        pytest.param(RuntimeError("two\nlines"), "RuntimeError: two lines", id="RuntimeError"),
        pytest.param(CodecError("damaged"), "damaged", id="CodecError"),
        pytest.param(ValueError("x" * 600), "x" * 499 + "…", id="long"),
    ],
)
def test_whatever_a_codec_raises_becomes_one_error(error: Exception, reason: str) -> None:
    with pytest.raises(MessageDecodeError) as caught:
        decoded(b"x", Order, Odd(error))
    assert str(caught.value) == f"message on 'a.b' cannot be decoded as Order: {reason}"
    assert caught.value.__cause__ is error
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.kind, again.subject) == (str(caught.value), "Order", "a.b")
    with pytest.raises(UsageError) as refused:
        encode_payload(Odd(error), "a.b", Order(1), None)
    assert str(refused.value) == f"payload of type Order for 'a.b' cannot be encoded: {reason}"


def test_a_codec_must_encode_to_bytes() -> None:
    with pytest.raises(UsageError, match="codec NoBytes must encode to bytes, got str"):
        encode_payload(NoBytes(), "a.b", Order(1), None)


@pytest.mark.parametrize("kind", [5, "Order", Circle | Order, dict[Order]], ids=str)  # type: ignore[misc]
def test_what_is_no_type_is_a_mistake_of_the_program_and_not_of_the_message(kind: Any) -> None:
    with pytest.raises(UsageError, match="kind must be a type that can be decoded to"):
        decoded(b"1", kind)


@pytest.mark.parametrize("codec", [Compressed(), Base64Values(), Codec()], ids=lambda codec: type(codec).__name__)
def test_a_codec_of_bytes_is_not_for_messages(codec: Codec[Any]) -> None:
    """Bytes are sent as they are: with Compressed or Encrypted they would pass it by."""
    with pytest.raises(UsageError, match="codec must have a content type to encode messages"):
        check_codec(codec)


def test_a_content_type_cannot_smuggle_in_a_header() -> None:
    codec = Odd(ValueError())
    codec.content_type = "application/json\r\nNats-Msg-Id: 1"
    with pytest.raises(UsageError, match="without line breaks"):
        check_codec(codec)
    with pytest.raises(UsageError, match="codec must be a Codec, such as Json\\(\\), got <class"):
        check_codec(Json)  # type: ignore[arg-type]
    assert check_codec(None) is None


def test_headers_of_the_program_are_not_changed() -> None:
    own = Headers({"A": "1"})
    data, headers = encode_payload(DEFAULT_CODEC, "a.b", {"a": 1}, own)
    assert (data, own.items()) == (b'{"a":1}', [("A", "1")])
    assert isinstance(headers, Headers)
    assert headers.items() == [("A", "1"), ("Content-Type", "application/json")]
    with pytest.raises(UsageError, match="without line breaks"):
        encode_payload(DEFAULT_CODEC, "a.b", {"a": 1}, {"A": "1\r\nB: 2"})
