"""Codecs of values: round trips and rejected values."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import CodecError, UsageError
from slipstream.kv.codecs import Base64Values, Codec, Compressed, Json, MessagePack


@dataclass
class Order:
    id: int
    lines: list[str]


@pytest.mark.parametrize("codec", [Json(Order), MessagePack(Order)])
def test_values_have_the_type_of_their_codec(codec: Codec[Order]) -> None:
    order = Order(7, ["a", "b"])
    assert codec.decode_value("k", codec.encode_value("k", order)) == order
    with pytest.raises(CodecError, match="key 'k' is not the"):
        codec.decode_value("k", b"\xc1")
    with pytest.raises(UsageError, match="cannot be encoded"):
        codec.encode_value("k", object())  # type: ignore[arg-type]


def test_json_of_another_shape_is_rejected() -> None:
    with pytest.raises(CodecError, match="Expected"):
        Json(Order).decode_value("k", b'{"id":"x"}')
    assert Json().decode_value("k", b'{"a":[1]}') == {"a": [1]}


@given(st.binary(max_size=2000))
def test_compressed_values_round_trip(value: bytes) -> None:
    codec = Compressed()
    assert codec.decode_value("k", codec.encode_value("k", value)) == value


def test_compression_rejects_values_that_are_too_large_or_damaged() -> None:
    codec = Compressed(max_size=100)
    packed = Compressed().encode_value("k", b"x" * 10_000)
    assert len(packed) < 100
    with pytest.raises(CodecError, match="more than 100 bytes"):
        codec.decode_value("k", packed)
    with pytest.raises(UsageError, match="at most 100 bytes, got 101"):
        codec.encode_value("k", b"x" * 101)
    small = Compressed().encode_value("k", b"x" * 50)
    for bad in (b"", b"\x02abc", small[:-1], small + b"x", b"\x01abc"):
        with pytest.raises(CodecError):
            codec.decode_value("k", bad)
    with pytest.raises(UsageError, match="level"):
        Compressed(level=10)


def test_base64_values_are_compatible_with_other_clients() -> None:
    assert Base64Values().encode_value("k", b"\xff\xfe") == b"__4"
    assert Base64Values().decode_value("k", b"__4") == b"\xff\xfe"
