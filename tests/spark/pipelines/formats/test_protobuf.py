"""Protobuf sources: columns of a message type, messages as JSON, and descriptors that cannot be used."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession

from slipstream.errors import UsageError
from slipstream.spark.pipelines import PipelineError, parse
from slipstream.spark.pipelines.build import decode
from slipstream.spark.pipelines.formats.protobuf import ProtobufError, _message_type, message_to_json, spark_schema

F = descriptor_pb2.FieldDescriptorProto
COLUMNS = "subject STRING, sequence BIGINT, timestamp TIMESTAMP, headers MAP<STRING, ARRAY<STRING>>, data BINARY"


def field(name: str, number: int, kind: int, *, many: bool = False, of: str = "", optional: bool = False) -> Any:
    found = F(name=name, number=number, type=kind, label=F.LABEL_REPEATED if many else F.LABEL_OPTIONAL)
    if of:
        found.type_name = of
    if optional:
        found.proto3_optional, found.oneof_index = True, 0
    return found


def descriptors(*, complete: bool = True) -> bytes:
    """What protoc writes for a file with an order, its items and its state."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    wanted = (timestamp_pb2, duration_pb2, wrappers_pb2)
    file.dependency.extend(one.DESCRIPTOR.name for one in wanted)
    state = file.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    state.value.add(name="PAID", number=1)
    item = file.message_type.add(name="Item")
    item.field.extend([field("sku", 1, F.TYPE_STRING), field("weights", 2, F.TYPE_DOUBLE, many=True)])
    order = file.message_type.add(name="Order")
    order.oneof_decl.add(name="_note")
    entry = order.nested_type.add(name="TagsEntry")
    entry.field.extend([field("key", 1, F.TYPE_INT32), field("value", 2, F.TYPE_STRING)])
    entry.options.map_entry = True
    order.field.extend(
        [
            field("id", 1, F.TYPE_INT64),
            field("big", 2, F.TYPE_UINT64),
            field("note", 3, F.TYPE_STRING, optional=True),
            field("state", 4, F.TYPE_ENUM, of=".shop.State"),
            field("items", 5, F.TYPE_MESSAGE, many=True, of=".shop.Item"),
            field("tags", 6, F.TYPE_MESSAGE, many=True, of=".shop.Order.TagsEntry"),
            field("placed", 7, F.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
            field("took", 8, F.TYPE_MESSAGE, of=".google.protobuf.Duration"),
            field("score", 9, F.TYPE_MESSAGE, of=".google.protobuf.Int64Value"),
            field("blob", 10, F.TYPE_BYTES),
            field("first", 11, F.TYPE_MESSAGE, of=".shop.Item"),
        ]
    )
    loop = file.message_type.add(name="Loop")
    loop.field.append(field("next", 1, F.TYPE_MESSAGE, of=".shop.Loop"))
    file.message_type.add(name="Nothing")
    found = descriptor_pb2.FileDescriptorSet(file=[file])
    for one in wanted if complete else ():
        one.DESCRIPTOR.CopyToProto(found.file.add())
    data: bytes = found.SerializeToString()
    return data


SET = descriptors()


def order(**values: Any) -> Any:
    return GetMessageClass(_message_type(SET, "shop.Order"))(**values)


def full() -> Any:
    found = order(id=-7, big=2**64 - 1, note="", state=1, tags={5: "x"}, blob=b"\xff\x00")
    found.items.add(sku="lamp", weights=[1.5, float("nan")])
    found.placed.FromJsonString("2026-01-31T09:00:00.123456Z")
    found.took.FromMilliseconds(1500)
    found.score.value = 0
    return found


def test_columns_of_a_message_type() -> None:
    item = "STRUCT<`sku`: STRING, `weights`: ARRAY<DOUBLE>>"
    assert spark_schema(SET, "shop.Order") == (
        "`id` BIGINT, `big` DECIMAL(20, 0), `note` STRING, `state` STRING, "
        f"`items` ARRAY<{item}>, `tags` MAP<STRING, STRING>, `placed` TIMESTAMP, `took` DOUBLE, `score` BIGINT, "
        f"`blob` BINARY, `first` {item}"
    )


def test_messages_become_json() -> None:
    found = json.loads(message_to_json(SET, "shop.Order", full().SerializeToString()))
    assert found == {
        "id": -7, "big": 2**64 - 1, "note": "", "state": "PAID", "tags": {"5": "x"}, "blob": "/wA=", "took": 1.5,
        "items": [{"sku": "lamp", "weights": [1.5, "NaN"]}], "placed": "2026-01-31T09:00:00.123456Z", "score": 0,
        "first": None,
    }  # fmt: skip
    empty = json.loads(message_to_json(SET, "shop.Order", b""))  # a message of defaults
    assert (empty["id"], empty["note"], empty["state"], empty["items"], empty["placed"]) == (0, None, "OPEN", [], None)
    newer = order(state=9).SerializeToString() + b"\x98\x06\x01"  # another state, and field 99
    assert json.loads(message_to_json(SET, "shop.Order", newer))["state"] == "9"


@pytest.mark.parametrize("data", [b"\x08", b"\xff\xff\xff", b'{"id": 5}', b"\x1a\x02\xff\xfe", b"\x0b"])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(ProtobufError, match=r"not a message of type shop\.Order"):
        message_to_json(SET, "shop.Order", data)


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"", "shop.Order", "descriptor must be a descriptor set, as `protoc --include_imports"),
        (b"syntax = 'proto3';", "shop.Order", "descriptor must be a descriptor set"),
        (
            descriptors(complete=False),
            "shop.Order",
            "descriptor is not complete, it lacks google/protobuf/duration.proto, google/",
        ),
        (SET, "shop.Ordr", r"descriptor has no message type 'shop\.Ordr'; did you mean shop\.Order"),
        (SET, "shop.Loop", r"message type shop\.Loop contains itself"),
        (SET, "shop.Nothing", r"message type shop\.Nothing has no fields"),
    ],
)
def test_descriptors_that_cannot_be_used(content: bytes, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        spark_schema(content, name)


def source(**keys: str) -> str:
    lines = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    return f'[sources.orders]\nstream = "S"\n{lines}[outputs.o]\nfrom = "orders"\npath = "o"\n'


def test_descriptor_is_a_file_beside_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(SET)
    file = str(tmp_path / "p.toml")
    good = {"format": "protobuf", "descriptor": "shop.desc", "message": "shop.Order"}
    found = parse(source(**good), file=file).sources[0]
    assert (found.message, found.descriptor) == ("shop.Order", SET)
    for changes, said in (
        ({"message": "shop.Ordr"}, "descriptor has no message type 'shop.Ordr'; did you mean shop.Order?"),
        ({"descriptor": "none.desc"}, "descriptor 'none.desc' cannot be read: No such file or directory"),
        ({"schema": "a INT"}, "format protobuf takes no schema"),
        ({"format": "json", "schema": "a INT"}, "message is for format protobuf, got 'json'"),
    ):
        with pytest.raises(PipelineError) as caught:
            parse(source(**good | changes), file=file)
        assert said in str(caught.value)
    with pytest.raises(PipelineError, match="format protobuf needs descriptor, a file that"):
        parse(source(format="protobuf"), file=file)
    with pytest.raises(PipelineError, match=r"there is no column 'ids'"):
        parse(source(**good).replace('path = "o"', 'bucket = "o"\nkey = "ids"'), file=file)


def test_spark_reads_rows_and_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(SET)
    keys = {"format": "protobuf", "descriptor": "shop.desc", "message": "shop.Order"}
    found = parse(source(**keys), file=str(tmp_path / "p.toml")).sources[0]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    messages: list[bytes] = [full().SerializeToString(), b"", b"\xff\xff"]
    headers: dict[str, list[str]] = {}
    rows = [("s", number, now, headers, data) for number, data in enumerate(messages)]
    good, bad = decode(found, spark.createDataFrame(rows, COLUMNS), "DEAD.s")
    first, second = sorted(good.collect(), key=lambda row: row["_sequence"])
    assert (first["id"], first["big"], first["note"], first["state"]) == (-7, Decimal(2**64 - 1), "", "PAID")
    assert (first["tags"], bytes(first["blob"]), first["first"], first["took"]) == ({"5": "x"}, b"\xff\x00", None, 1.5)
    assert first["items"][0]["sku"] == "lamp"
    assert first["placed"].astimezone(UTC) == datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=UTC)
    assert (second["id"], second["note"]) == (0, None)
    assert [row["headers"]["Slipstream-Reason"] for row in bad.collect()] == ["not Protobuf of the schema"]
