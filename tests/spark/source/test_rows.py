"""Messages into record batches, record batches into changes of a bucket: no Spark session."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from slipstream.errors import UsageError
from slipstream.jetstream.reads.columns import Columns
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.spark.options import SinkOptions
from slipstream.spark.sink.entries import Change, Layout, layout_of
from slipstream.spark.source import rows, stream
from slipstream.wire import Headers

NOW = 1_700_000_000_123_456_789

names = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1)
values = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=5)
headers = st.lists(st.tuples(names, values), max_size=4)
messages = st.lists(st.tuples(st.text(max_size=8), st.integers(0, 2**62), headers, st.binary(max_size=40)), max_size=30)


def stored(seq: int, subject: str = "a", time: int = NOW, header: bytes = b"", data: bytes = b"") -> StoredMessage:
    return StoredMessage(subject, seq, time, header, data, "S")


def columns_of(messages: list[StoredMessage]) -> Columns:
    return Columns(
        [message.subject for message in messages],
        [message.seq for message in messages],
        [message.time for message in messages],
        [message.header for message in messages],
        [message.data for message in messages],
        "S",
    )


def table(batches: Iterable[pa.RecordBatch], columns: Iterable[str] = rows.COLUMNS) -> pa.Table:
    return pa.Table.from_batches(batches, rows.arrow_schema(list(columns)))


def test_the_types_are_exactly_those_spark_asks_for() -> None:
    spark = StructType([StructField(name, kind) for name, kind in stream.COLUMNS.items()])
    assert tuple(stream.COLUMNS) == rows.COLUMNS
    assert to_arrow_schema(spark, timezone="UTC").equals(rows.arrow_schema(rows.COLUMNS))


@settings(deadline=None)
@given(messages, st.integers(1, 7), st.integers(1, 5), st.integers(1, 100))
def test_every_message_becomes_one_row_with_all_it_had(
    given_: list[tuple[str, int, list[tuple[str, str]], bytes]], size: int, max_rows: int, max_bytes: int
) -> None:
    wanted = [
        stored(i + 1, subject, time, Headers(own).encode(), data) for i, (subject, time, own, data) in enumerate(given_)
    ]
    chunks = [columns_of(wanted[i : i + size]) for i in range(0, len(wanted), size)]
    batches = list(rows.batches(chunks, rows.COLUMNS, max_rows=max_rows, max_bytes=max_bytes))
    assert all(batch.schema.equals(rows.arrow_schema(rows.COLUMNS)) for batch in batches)
    assert all(batch.num_rows <= max_rows for batch in batches)
    assert all(batch.num_rows == 1 or sum(map(len, batch["data"].to_pylist())) <= max_bytes for batch in batches)
    got = table(batches)
    assert got["subject"].to_pylist() == [message.subject for message in wanted]
    assert got["sequence"].to_pylist() == [message.seq for message in wanted]
    assert got["timestamp_ns"].to_pylist() == [message.time for message in wanted]
    assert got["timestamp"].cast(pa.int64()).to_pylist() == [message.time // 1000 for message in wanted]
    assert got["data"].to_pylist() == [message.data for message in wanted]
    assert [dict(one) for one in got["headers"].to_pylist()] == [
        {name: message.headers.get_all(name) for name in message.headers} for message in wanted
    ]


def test_messages_without_headers_have_an_empty_map() -> None:
    batch = next(rows.batches([columns_of([stored(1), stored(2)])], ["headers"]))
    assert batch["headers"].to_pylist() == [[], []]


def test_header_values_that_are_not_utf_8_are_read_with_replacement_characters() -> None:
    """The column is a string. Bytes in `data` are kept."""
    message = stored(1, header=b"NATS/1.0\r\nA: x\xffy\r\n\r\n", data=b"x\xffy")
    batch = next(rows.batches([columns_of([message])], ["headers", "data"]))
    assert batch.to_pylist() == [{"headers": [("A", ["x\ufffdy"])], "data": b"x\xffy"}]


def test_only_the_columns_asked_for_are_made() -> None:
    batch = next(rows.batches([columns_of([stored(1, data=b"x")])], ["data", "sequence"]))
    assert batch.schema.names == ["data", "sequence"]
    assert batch.to_pylist() == [{"data": b"x", "sequence": 1}]


def test_small_chunks_are_put_together_and_none_is_held_back() -> None:
    chunks = [columns_of([stored(seq)]) for seq in range(1, 11)]
    assert [len(one.seqs) for one in rows.regroup(chunks, max_rows=4, max_bytes=1000)] == [4, 4, 2]
    assert list(rows.regroup([], max_rows=4, max_bytes=1000)) == []
    assert list(rows.regroup([columns_of([])], max_rows=4, max_bytes=1000)) == []


# The other way


LAYOUT = Layout("key", "value")


def test_rows_become_values_binary_or_text() -> None:
    for kind in (pa.binary(), pa.string()):
        batch = pa.record_batch({"key": ["a", "b"], "value": pa.array(["1", "ü"], pa.string()).cast(kind)})
        assert [change for _, change in LAYOUT.changes(batch)] == [Change("a", b"1"), Change("b", "ü".encode())]


def test_rows_become_deletes_by_a_boolean_or_a_word() -> None:
    batch = pa.record_batch(
        {
            "key": ["a", "b", "c", "d", "e"],
            "value": pa.array([b"1", None, b"3", None, None]),
            "deleted": [False, True, False, True, True],
            "operation": ["PUT", "del", "DELETE", "PURGE", "MaxAge"],
        }
    )
    by_flag, by_word = Layout("key", "value", deleted="deleted"), Layout("key", "value", operation="operation")
    gone = [Change("d", None), Change("e", None)]
    flagged = [Change("a", b"1"), Change("b", None), Change("c", b"3"), *gone]
    worded = [Change("a", b"1"), Change("b", None), Change("c", None), *gone]
    assert [change for _, change in by_flag.changes(batch)] == flagged
    assert [change for _, change in by_word.changes(batch)] == worded


def test_a_row_that_cannot_be_written_is_named() -> None:
    def changes(layout: Layout, **columns: object) -> None:
        list(layout.changes(pa.record_batch(columns)))

    with pytest.raises(UsageError, match="row 1: column 'key' must be a key, got null"):
        changes(LAYOUT, key=["a", None], value=pa.array([b"1", b"2"]))
    with pytest.raises(UsageError, match=r"row 1: key must .*, got 'b c'"):
        changes(LAYOUT, key=["a", "b c"], value=pa.array([b"1", b"2"]))
    with pytest.raises(UsageError, match=r"row 1: column 'value' of key 'b' must not be null; to delete a key"):
        changes(LAYOUT, key=["a", "b"], value=pa.array([b"1", None]))
    with pytest.raises(UsageError, match=r"row 0: column 'value' of key 'a' must not be null"):
        changes(
            Layout("key", "value", deleted="deleted"), key=["a"], value=pa.array([None], pa.binary()), deleted=[False]
        )
    with pytest.raises(UsageError, match="row 0: column 'gone' of key 'a' must be true or false, got null"):
        changes(
            Layout("key", "value", deleted="gone"), key=["a"], value=pa.array([b"1"]), gone=pa.array([None], pa.bool_())
        )
    layout = Layout("key", "value", operation="op")
    for word in ("GET", "", None):
        with pytest.raises(
            UsageError, match=r"row 0: column 'op' of key 'a' must be 'PUT', 'DEL', 'PURGE' or 'MaxAge' .*, got"
        ):
            changes(layout, key=["a"], value=pa.array([b"1"]), op=pa.array([word], pa.string()))


def test_rejected_rows_do_not_stop_the_others() -> None:
    batch = pa.record_batch({"key": ["a", None, "b..", "c"], "value": pa.array([b"1", b"2", b"3", None])})
    rejected: list[tuple[int, str | None, bytes | None]] = []
    found = LAYOUT.changes(batch, first=10, reject=lambda row, key, value, _: rejected.append((row, key, value)))
    assert list(found) == [(10, Change("a", b"1"))]
    assert rejected == [(11, None, b"2"), (12, "b..", b"3"), (13, "c", None)]


def test_the_layout_follows_the_columns_there_are() -> None:
    options = SinkOptions(bucket="b")
    assert layout_of({"value": "string", "key": "string"}, options) == LAYOUT
    assert layout_of({"key": "string", "value": "binary", "deleted": "boolean"}, options).deleted == "deleted"
    assert layout_of({"key": "string", "value": "binary", "operation": "string"}, options).operation == "operation"
    renamed = SinkOptions(bucket="b", key_column="k", value_column="v")
    assert layout_of({"k": "string", "v": "binary"}, renamed) == Layout("k", "v")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "needs a column 'key', got none"),
        ({"key": "string", "total": "bigint"}, "needs a column 'value', got key, total.*valueColumn"),
        ({"key": "bigint", "value": "string"}, "column 'key' must be string, got bigint"),
        ({"key": "string", "value": "struct<a:int>"}, r"column 'value' must be binary or string, got struct.*to_json"),
        ({"key": "string", "value": "string", "total": "int"}, r"got 'total'.*to_json\(struct"),
        ({"key": "string", "value": "string", "deleted": "int"}, "column 'deleted' must be boolean, got int"),
        (
            {"key": "string", "value": "string", "deleted": "boolean", "operation": "string"},
            "columns 'operation' and 'deleted' are mutually exclusive",
        ),
    ],
)
def test_dataframe_with_other_columns_is_rejected(columns: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        layout_of(columns, SinkOptions(bucket="b"))
