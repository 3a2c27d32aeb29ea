"""Data frames of messages and entries: what is in them is what reads return, in every form they are made of."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import duckdb
import msgspec
import pyarrow as pa
import pytest

import slipstream
from slipstream.errors import MessageDecodeError, UsageError
from slipstream.frames import arrow, to_arrow, to_pandas, to_polars
from slipstream.jetstream.reads.columns import Columns


class Kind(enum.Enum):
    LAMP = "lamp"
    TABLE = "table"


class Item(msgspec.Struct):
    kind: Kind
    price: float


class Order(msgspec.Struct):
    id: int
    who: str
    subject: str = "none"  # the name of a column
    items: list[Item] = []
    at: datetime.datetime | None = None
    notes: dict[str, str] = {}


@dataclass
class Plain:
    id: int


class Loose(TypedDict, total=False):
    id: int
    gone: str


@pytest.fixture(scope="module")
def js() -> Iterator[slipstream.BlockingJetStream]:
    with slipstream.Server() as server, slipstream.connect_blocking(server.url) as client:
        yield client.jetstream()


@pytest.fixture(scope="module")
def stream(js: slipstream.BlockingJetStream) -> slipstream.BlockingStream:
    made = js.create_stream("ORDERS", subjects=["orders.>"])
    items = [Item(Kind.LAMP, 9.5)]
    for number in range(1, 6):
        order = Order(number, "ada", items=items * number, at=datetime.datetime(2026, 1, number, tzinfo=datetime.UTC))
        js.publish(f"orders.{number % 2}", msgspec.json.encode(order), headers={"N": [str(number), "x"]})
    made.delete_message(3)
    return made


def test_table_has_what_reads_return(stream: slipstream.BlockingStream) -> None:
    table, messages = stream.to_arrow(), list(stream.read())
    assert table.column_names == ["subject", "sequence", "timestamp", "headers", "data"]
    assert table["sequence"].to_pylist() == [1, 2, 4, 5] == [message.seq for message in messages]
    assert table["subject"].to_pylist() == [message.subject for message in messages]
    assert table["data"].to_pylist() == [message.data for message in messages]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [message.time for message in messages]
    assert table["timestamp"].type == pa.timestamp("ns", tz="UTC")
    assert table["headers"].to_pylist()[0] == [("N", ["1", "x"])]
    assert table.equals(to_arrow(messages))
    assert table.equals(to_arrow(list(stream.read_columns())))
    (columns,) = stream.read_columns(start=4)
    assert columns.to_arrow(columns=["sequence"]).to_pydict() == {"sequence": [4, 5]}


def test_ranges_and_columns_are_chosen(stream: slipstream.BlockingStream) -> None:
    assert stream.to_arrow(start=2, end=4, columns=["sequence"])["sequence"].to_pylist() == [2, 4]
    only = stream.to_arrow(subject="orders.1", columns=("data", "sequence"))
    assert only.column_names == ["data", "sequence"]
    assert only["sequence"].to_pylist() == [1, 5]
    assert stream.to_arrow(start=99).num_rows == 0
    assert stream.to_arrow(start=99).schema == stream.to_arrow().schema
    with pytest.raises(UsageError, match="columns must be different ones of subject"):
        stream.to_arrow(columns=["sequence", "sequence"])
    with pytest.raises(UsageError, match="columns must be different ones of subject"):
        stream.to_arrow(columns=["value"])


def test_a_type_makes_columns_of_json(stream: slipstream.BlockingStream) -> None:
    table = stream.to_arrow(schema=Order)
    assert table.column_names == [
        "subject", "sequence", "timestamp", "id", "who", "data_subject", "items", "at", "notes",
    ]  # fmt: skip
    assert table["id"].to_pylist() == [1, 2, 4, 5]
    assert table["data_subject"].to_pylist() == ["none"] * 4
    assert table["items"].to_pylist()[1] == [{"kind": "lamp", "price": 9.5}] * 2
    assert table["at"].to_pylist()[0] == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert table["at"].type == pa.timestamp("us", tz="UTC")
    for schema in (Plain, Loose, pa.schema([("id", pa.int64()), ("gone", pa.string())])):
        assert stream.to_arrow(schema=schema)["id"].to_pylist() == [1, 2, 4, 5]
    assert stream.to_arrow(schema=Loose)["gone"].to_pylist() == [None] * 4


def test_a_consumer_s_fetch_becomes_a_table(stream: slipstream.BlockingStream) -> None:
    messages = stream.create_consumer("frames").fetch(10, timeout=5)
    table = to_arrow(messages)
    assert table.equals(stream.to_arrow())
    assert to_arrow(messages, schema=Order)["id"].to_pylist() == [1, 2, 4, 5]
    stream.delete_consumer("frames")


def test_pandas_polars_and_duckdb_read_it(stream: slipstream.BlockingStream) -> None:
    frame = stream.to_pandas(schema=Order)
    assert list(frame["id"]) == [1, 2, 4, 5]
    assert frame["sequence"].sum() == 12
    assert len(to_pandas(list(stream.read()))) == 4
    polar = stream.to_polars(schema=Order)
    assert polar["id"].to_list() == [1, 2, 4, 5]
    assert stream.to_polars()["data"].to_list() == stream.to_arrow()["data"].to_pylist()
    assert to_polars(list(stream.read())).height == 4
    orders = stream.to_arrow(schema=Order)  # DuckDB finds it by its name
    assert orders.num_rows == 4
    query = "select who, sum(id), sum(i.price) from (select who, id, unnest(items) as i from orders) group by who"
    rows: list[Any] = duckdb.execute(query).fetchall()
    assert rows == [("ada", 1 + 2 * 2 + 4 * 4 + 5 * 5, 9.5 * 12)]


def test_a_bucket_s_snapshot_becomes_a_table(js: slipstream.BlockingJetStream) -> None:
    kv = js.create_key_value("frames", history=3)
    kv.put("a", b'{"id": 1}')
    kv.put("b", b'{"id": 2}')
    kv.put("a", b'{"id": 3}')
    kv.delete("b")
    table = kv.to_arrow()
    assert table.column_names == ["key", "value", "revision", "created", "operation"]
    assert table.to_pylist()[0]["key"] == "a"
    assert table["value"].to_pylist() == [b'{"id": 3}']
    assert sorted(kv.to_arrow(revision=2, schema=Plain)["id"].to_pylist()) == [1, 2]
    assert kv.to_arrow("b").num_rows == 0
    assert list(kv.to_pandas(schema=Plain)["id"]) == [3]
    assert kv.to_polars(columns=["key"])["key"].to_list() == ["a"]
    assert to_arrow(kv.snapshot()).equals(table)
    assert to_arrow(kv.snapshot("b")).equals(kv.to_arrow("b"))  # the same columns without a row
    with pytest.raises(UsageError, match="must be bytes, got dict"):
        kv.with_codec(slipstream.Json()).to_arrow()


BAD = {
    "no object": b"[1]",
    "two values": b'{"id":1}{"id":2}',
    "two values with a comma": b'{"id":1},{"id":2}',
    "half a value": b'{"id":',
    "a number too large": b'{"id":99999999999999999999}',
    "empty": b"",
    "no text": b'{"id":"\xff"}',
}


@pytest.mark.parametrize("payload", BAD.values(), ids=BAD)
@pytest.mark.parametrize("schema", [Plain, pa.schema([("id", pa.int64())])], ids=["type", "schema"])
def test_a_bad_payload_is_an_error_of_its_own_row(payload: bytes, schema: Any) -> None:
    message = slipstream.StoredMessage("s", 1, 1, b"", b'{"id":7}', "S")
    rows = [message, message._replace(seq=2, data=payload), message._replace(seq=3, data=b'{"id":8}')]
    with pytest.raises(MessageDecodeError, match="message 2 on 's' cannot be decoded") as failed:
        to_arrow(rows, schema=schema)
    assert failed.value.seq == 2
    table = to_arrow(rows, schema=schema, errors="null")
    assert table["id"].to_pylist() == [7, None, 8]
    assert table["sequence"].to_pylist() == [1, 2, 3]


def test_bad_options_are_rejected() -> None:
    for schema in (int, "text", list[int], 7):
        with pytest.raises(UsageError, match="schema must be a type of fields"):
            to_arrow([], schema=schema)

    class Odd(msgspec.Struct):
        what: Any

    with pytest.raises(UsageError, match="field 'what' has no Arrow type"):
        to_arrow([], schema=Odd)
    with pytest.raises(UsageError, match="errors must be 'raise' or 'null'"):
        to_arrow([], errors="ignore")
    with pytest.raises(UsageError, match="rows must be messages, entries or columns, got int"):
        to_arrow([1, 2])


def test_large_payloads_are_split_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BATCH_BYTES", 1000)
    message = slipstream.StoredMessage("s", 1, 1, b"", b"x" * 300, "S")
    rows = [message._replace(seq=number) for number in range(1, 21)]
    by_row = to_arrow(rows)
    for table in (by_row, to_arrow([Columns.of(rows, "S")])):
        assert table["sequence"].to_pylist() == list(range(1, 21))
        assert max(batch.num_rows for batch in table.to_batches()) <= 4


class Node(msgspec.Struct):
    id: int
    children: list[Node] = []


@pytest.mark.parametrize("schema", [Plain, pa.schema([("id", pa.int64())])])
def test_a_deeply_nested_payload_is_an_error_of_its_own_row(schema: Any) -> None:
    deep = b'{"id":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    message = slipstream.StoredMessage("s", 1, 1, b"", deep, "S")
    rows = [message, message._replace(seq=2, data=b'{"id":2}')]
    with pytest.raises(MessageDecodeError, match="recursion depth") as failed:
        to_arrow(rows, schema=schema)
    assert failed.value.seq == 1
    assert to_arrow(rows, schema=schema, errors="null")["id"].to_pylist() == [None, 2]


def test_a_type_that_contains_itself_is_rejected() -> None:
    with pytest.raises(UsageError, match="field 'children' must not contain its own type Node"):
        to_arrow([], schema=Node)


class Sparse(msgspec.Struct, omit_defaults=True, rename={"count": "n"}):
    id: int = 7
    count: int = 1
    kind: Kind = Kind.LAMP


class Basket(msgspec.Struct):
    items: dict[str, list[Sparse]]


@dataclass
class Defaulted:
    id: int = 7
    who: str = "ada"


def test_fields_with_their_default_are_not_null() -> None:
    message = slipstream.StoredMessage("s", 1, 1, b"", b"{}", "S")
    assert to_arrow([message], schema=Sparse, columns=[]).to_pylist() == [{"id": 7, "n": 1, "kind": "lamp"}]
    assert to_arrow([message], schema=Defaulted, columns=[]).to_pylist() == [{"id": 7, "who": "ada"}]
    basket = to_arrow([message._replace(data=b'{"items":{"a":[{"n":2}]}}')], schema=Basket, columns=[])
    assert basket["items"].to_pylist() == [[("a", [{"id": 7, "n": 2, "kind": "lamp"}])]]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (pa.int64(), b'{"id":1.5}'),
        (pa.uint8(), b'{"id":-0.1}'),
        (pa.timestamp("us"), b'{"id":1.5}'),
        (pa.list_(pa.int32()), b'{"id":[1,2.5]}'),
        (pa.map_(pa.string(), pa.int32()), b'{"id":{"a":2.5}}'),
        (pa.struct([("deep", pa.int32())]), b'{"id":{"deep":2.5}}'),
    ],
)
def test_a_fraction_is_not_cut_off_for_a_whole_number(kind: Any, payload: bytes) -> None:
    schema, message = pa.schema([("id", kind)]), slipstream.StoredMessage("s", 1, 1, b"", payload, "S")
    with pytest.raises(MessageDecodeError, match="value must be a whole number, got"):
        to_arrow([message], schema=schema)
    assert to_arrow([message], schema=schema, errors="null")["id"].to_pylist() == [None]
    whole = message._replace(data=payload.replace(b".5", b".0").replace(b"-0.1", b"1.0"))
    assert to_arrow([whole], schema=schema)["id"].null_count == 0
