"""Pydantic models beside the types that msgspec knows, and programs without pydantic."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from slipstream.codecs import Codec, Json, MessagePack
from slipstream.codecs.kinds import is_pydantic
from slipstream.errors import CodecError, UsageError

pydantic: Any = pytest.importorskip("pydantic")

Line: Any = pydantic.create_model("Line", amount=(int, pydantic.Field(alias="howMany", gt=0)))
Order: Any = pydantic.create_model("Order", id=(int, ...), at=(datetime, ...), lines=(list[Line], []))
NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Envelope(msgspec.Struct):
    order: Any


Envelope.__annotations__["order"] = Order
both = pytest.mark.parametrize("codec", [Json(), MessagePack()], ids=["json", "msgpack"])


@both
def test_models_come_back_as_they_were(codec: Codec[Any]) -> None:
    order = Order(id=1, at=NOW, lines=[Line(howMany=2)])
    for value, kind in [(order, Order), ([order], list[Order]), ({"a": order}, dict[str, Order])]:
        data = codec.encode_value("k", value)
        assert b"howMany" in data  # by the name that it is validated by
        assert codec.decode_as("k", data, kind) == value
    assert codec.decode_as("k", codec.encode_value("k", order), Order | None) == order
    assert codec.decode_as("k", codec.encode_value("k", Envelope(order)), Envelope) == Envelope(order)


@both
def test_a_value_that_a_model_refuses_is_refused(codec: Codec[Any]) -> None:
    order = {"id": 1, "at": NOW, "lines": [{"howMany": 0}]}
    for kind in (Order, Order | None):
        with pytest.raises(CodecError, match="greater than 0"):
            codec.decode_as("k", codec.encode_value("k", order), kind)
    with pytest.raises(CodecError, match="greater than 0"):
        codec.decode_as(
            "k", codec.encode_value("k", {"order": {"id": 1, "at": NOW, "lines": [{"howMany": 0}]}}), Envelope
        )


def test_a_codec_of_a_bucket_takes_models() -> None:
    codec = Json(Order)
    assert codec.decode_value("k", b'{"id": 1, "at": "2026-01-02T00:00:00Z"}') == Order(id=1, at=NOW)


def test_only_types_of_pydantic_are_left_to_it() -> None:
    assert is_pydantic(list[Order] | None)
    assert not is_pydantic(list[Envelope])
    with pytest.raises(UsageError, match="kind must be a type"):
        Json(list[Order] | Envelope)  # type: ignore[arg-type]


def test_pydantic_is_not_imported_by_programs_without_it() -> None:
    code = """
import sys
sys.modules["pydantic"] = None  # an import raises
from slipstream.codecs import Json, MessagePack
from dataclasses import dataclass
@dataclass
class Order:
    id: int
for codec in (Json(), MessagePack()):
    assert codec.decode_as("k", codec.encode_value("k", Order(1)), Order) == Order(1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
