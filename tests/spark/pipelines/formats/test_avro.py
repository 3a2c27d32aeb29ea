"""Avro schemas and records."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipstream.spark.pipelines.formats.avro import AvroError, Decoder, fingerprint, spark_schema


def field(kind: str) -> str:
    """An Avro schema with one field."""
    return f'{{"type":"record","name":"R","fields":[{{"name":"a","type":{kind}}}]}}'


SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "sizes", "type": {"type": "map", "values": "int"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
            {"name": "ok", "type": "boolean"},
            {"name": "x", "type": "double"},
            {"name": "again", "type": "shop.Kind"},
        ],
    }
)
# id 150, note "hi", tags [a, b], sizes {k: -1}, kind B, price 12.34, at 1000 ms, raw 0102, ok, x 0.5, again A
DATA = bytes.fromhex("ac020204686904026102620002026b0100020404d2d00f010201000000000000e03f00")


def test_records_become_json_and_columns() -> None:
    assert spark_schema(SCHEMA) == (
        "`id` BIGINT, `note` STRING, `tags` ARRAY<STRING>, `sizes` MAP<STRING, INT>, `kind` STRING, "
        "`price` DECIMAL(9, 2), `at` TIMESTAMP, `raw` BINARY, `ok` BOOLEAN, `x` DOUBLE, `again` STRING"
    )
    expected = {
        **{"id": 150, "note": "hi", "tags": ["a", "b"], "sizes": {"k": -1}, "kind": "B", "price": "12.34"},
        **{"at": "1970-01-01T00:00:01+00:00", "raw": "AQI=", "ok": True, "x": 0.5, "again": "A"},
    }
    decoder = Decoder(SCHEMA)
    assert json.loads(decoder.to_json(DATA)) == expected
    header = b"\xc3\x01" + fingerprint(json.loads(SCHEMA))
    assert json.loads(decoder.to_json(header + DATA)) == expected
    with pytest.raises(AvroError):  # of another schema
        decoder.to_json(b"\xc3\x01" + b"\0" * 8 + DATA)


def test_a_plain_record_may_begin_as_a_header_does() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]
    decoder = Decoder(json.dumps({"type": "record", "name": "R", "fields": fields}))
    for size in (3, 8, 40):
        data = b"\xc3\x01" + bytes([2 * size]) + b"a" * size
        assert json.loads(decoder.to_json(data)) == {"id": -98, "s": "a" * size}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [  # of the Avro project's own tests
        ("null", 7195948357588979594),
        ({"type": "int", "doc": "x"}, 8247732601305521295),
        ({"fields": [], "type": "record", "name": "foo"}, -4824392279771201922),
        ({"fields": [], "type": "record", "name": "foo", "namespace": "x.y"}, 5916914534497305771),
        (
            {"type": "record", "name": "foo", "fields": [{"name": "f1", "type": {"type": "boolean"}, "doc": "x"}]},
            7843277075252814651,
        ),
    ],
)
def test_the_fingerprint_of_a_schema(schema: object, expected: int) -> None:
    assert int.from_bytes(fingerprint(schema), "little", signed=True) == expected


def test_the_fingerprint_does_not_depend_on_how_a_schema_is_written() -> None:
    plain = json.loads(SCHEMA)
    other = {**plain, "name": "shop.Order", "namespace": "ignored", "doc": "An order.", "aliases": ["Bestellung"]}
    assert fingerprint(other) == fingerprint(plain)
    assert fingerprint({**plain, "name": "Other"}) != fingerprint(plain)


@given(st.integers(-(10**39), 10**39), st.integers(0, 38))
@example(12345678901234567890123456789012345678, 2)
@example(1, 10)
def test_decimals_are_exact(number: int, scale: int) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": scale}
    decoder = Decoder(json.dumps({"type": "record", "name": "R", "fields": [{"name": "d", "type": decimal}]}))
    data = number.to_bytes(17, "big", signed=True)
    if len(str(abs(number))) > 38:
        with pytest.raises(AvroError, match="not a record of the schema"):
            decoder.to_json(bytes([34]) + data)
        return
    found = json.loads(decoder.to_json(bytes([34]) + data))["d"]
    assert Fraction(found) * 10**scale == number
    assert "E" not in found


@given(st.binary(max_size=60))
def test_other_bytes_are_an_error_and_nothing_else(data: bytes) -> None:
    decoder = Decoder(SCHEMA)
    try:
        decoder.to_json(data)
    except AvroError:
        return


def test_every_cut_of_a_record_is_an_error() -> None:
    decoder = Decoder(SCHEMA)
    for end in range(len(DATA)):
        with pytest.raises(AvroError):
            decoder.to_json(DATA[:end])
    with pytest.raises(AvroError, match="1 bytes are left"):
        decoder.to_json(DATA + b"\0")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "must be JSON"),
        ('"string"', "must be a record"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":["int","string"]}]}',
            "must be one type, with or without null",
        ),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"Other"}]}', "unknown Avro type 'Other'"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"R"}]}', "contains itself"),
        ('{"type":"record","name":"R"}', "needs fields, a list"),
        ('{"type":"record","name":"R","fields":"x"}', "needs fields, a list"),
        ('{"type":"record","name":5,"fields":[]}', "name and namespace of an Avro type must be strings"),
        ('{"type":"record","name":"R","fields":[5]}', "needs name, a string, and type: 5"),
        ('{"type":"record","name":"R","fields":[{"name":"a"}]}', "needs name, a string, and type"),
        (field('{"type":"bytes","logicalType":"decimal"}'), "precision must be between 1 and 38, got none"),
        (
            field('{"type":"bytes","logicalType":"decimal","precision":39}'),
            "precision must be between 1 and 38, got 39",
        ),
        (
            field('{"type":"bytes","logicalType":"decimal","precision":9,"scale":10}'),
            "scale must be between 0 and 9, got 10",
        ),
        (field('{"type":"long","logicalType":"decimal","precision":9}'), "must be bytes or fixed"),
        (field('{"type":"long","logicalType":[]}') + "}", "must be JSON"),
        (field('{"type":"array"}'), "an Avro array needs items"),
        (field('{"type":"map"}'), "an Avro map needs values"),
        (field('{"type":"enum","name":"E"}'), "an Avro enum needs symbols"),
        (field('{"type":"fixed","name":"F"}'), "size must be between"),
        (field("5"), "5 is not an Avro type"),
        ("[" * 100_000, "must be JSON"),
    ],
)
def test_invalid_schema_is_rejected(schema: str, said: str) -> None:
    with pytest.raises(AvroError, match=said):
        spark_schema(schema)
