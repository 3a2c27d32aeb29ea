"""Users who may do what docs/spark.md lists, and nothing else, can read and write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from slipstream import BucketConfig, Server, StreamConfig, connect_blocking
from slipstream.server import Permissions, User
from slipstream.spark.micro_batch import BATCH_ID, QUERY_ID
from slipstream.spark.option_reader import Connection
from slipstream.spark.options import SourceOptions
from slipstream.spark.sink import kv as kv_sink
from slipstream.spark.sink.kv import key_value_task
from slipstream.spark.sink.progress import Task
from slipstream.spark.sink.stream import stream_task
from slipstream.spark.source.kv import KeyValueDataSource
from slipstream.spark.source.stream import BatchReader, read_range
from tests.servers import real_server

DOCS = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
PASSWORD = "secret"
MESSAGES = StructType([StructField("subject", StringType()), StructField("data", BinaryType())])
ENTRIES = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def documented() -> dict[str, list[str]]:
    """The table of docs/spark.md: which user may publish to what."""
    text = DOCS.read_text("utf-8").partition("## Permissions")[2].partition("## Pipelines")[0]
    rows = {row[1].strip(): row[2] for row in map(re.compile(r"\|([^|]*)\|([^|]*)\|").match, text.splitlines()) if row}
    names = {key: re.findall(r"`([^`]+)`", value) for key, value in rows.items()}
    reads = names["reads a stream"]
    names["reads a bucket"] = [re.sub(r"\.S(?=\.|$)", ".KV_b", one) for one in reads]
    names["writes to a stream"].append("s.>")  # "its subjects"
    return {key: value for key, value in names.items() if key.startswith(("reads", "writes"))}


def user_name(kind: str) -> str:
    return kind.replace(" ", "-")


@contextmanager
def server_with_users(kind: str) -> Iterator[str]:
    allowed = documented()
    if kind == "ours":
        users = [User(name="admin", password=PASSWORD)]
        users += [
            User(
                name=user_name(name),
                password=PASSWORD,
                permissions=Permissions(publish=tuple(subjects), subscribe=("_INBOX.>",)),
            )
            for name, subjects in allowed.items()
        ]
        with Server(users=users) as server:
            yield server.url
        return
    lines = [f"{{user: admin, password: {PASSWORD}}}"]
    for name, subjects in allowed.items():
        listed = ", ".join(f'"{one}"' for one in subjects)
        rights = f'{{publish: [{listed}], subscribe: ["_INBOX.>"]}}'
        lines.append(f"{{user: {user_name(name)}, password: {PASSWORD}, permissions: {rights}}}")
    with real_server(config="authorization { users: [" + ", ".join(lines) + "] }") as url:
        yield url


@pytest.fixture(params=["ours", "real"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with server_with_users(request.param) as found:
        with connect_blocking(found, user="admin", password=PASSWORD) as client:
            js = client.jetstream()
            js.create_stream(StreamConfig(name="S", subjects=("s.>",)))
            js.create_key_value(BucketConfig(bucket="b"))
            js.create_key_value(BucketConfig(bucket="slipstream-progress"))
            for n in range(5):
                js.publish("s.x", b"%d" % n)
            js.key_value("b").put("k", b"v")
        yield found


def log_in(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("NATS_USER", user_name(kind))
    monkeypatch.setenv("NATS_PASSWORD", PASSWORD)


def stored(url: str, name: str) -> list[bytes]:
    with connect_blocking(url, user="admin", password=PASSWORD) as client:
        return [message.data for message in client.jetstream().stream(name).read()]


def test_every_kind_of_user_is_documented() -> None:
    kinds = ["reads a stream", "reads a bucket", "writes to a stream", "writes to a bucket"]
    assert list(documented()) == kinds
    assert all(len(subjects) >= 4 for subjects in documented().values())


def test_reader_of_a_stream(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(monkeypatch, "reads a stream")
    for subjects in ((), ("s.x", "s.y")):
        options = SourceOptions(stream="S", connection=Connection(servers=(url,)), subjects=subjects)
        found = [
            value
            for part in BatchReader(options, ("data",)).partitions()
            for batch in read_range(options, ("data",), part)
            for value in batch.column("data").to_pylist()
        ]
        assert found == [b"%d" % n for n in range(5)]


def test_reader_of_a_bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(monkeypatch, "reads a bucket")
    for more in ({}, {"history": "true"}):
        source = KeyValueDataSource({"bucket": "b", "servers": url, **more})
        reader = source.reader(source.schema())
        batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [(row["key"], row["value"]) for row in rows] == [("k", b"v")]


def test_writer_to_a_stream(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(monkeypatch, "writes to a stream")
    task = stream_task({"stream": "S", "servers": url}, MESSAGES)

    def rows(numbers: range) -> Iterator[pa.RecordBatch]:
        data = [b"%d" % n for n in numbers]
        yield pa.RecordBatch.from_pydict({"subject": ["s.y"] * len(data), "data": data})

    def torn() -> Iterator[pa.RecordBatch]:
        yield from rows(range(5, 7))
        raise KeyboardInterrupt  # the worker is killed

    with pytest.raises(KeyboardInterrupt):
        task.run(torn(), Task("q", 0, 0))
    task.run(rows(range(5, 10)), Task("q", 0, 0))  # a second attempt looks at what the first one has stored
    assert sorted(stored(url, "S")) == [b"%d" % n for n in range(10)]


def test_writer_to_a_bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(monkeypatch, "writes to a bucket")
    properties = {QUERY_ID: "q", BATCH_ID: "3"}
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=properties.get)
    monkeypatch.setattr(kv_sink, "current_task", lambda: context)
    for value in (b"1", b"2"):
        task = key_value_task({"bucket": "b", "servers": url, "onlyChanged": "true"}, ENTRIES)
        task.run(iter([pa.RecordBatch.from_pydict({"key": ["k", "n"], "value": [value, value]})]))
        properties[BATCH_ID] = "4"
    assert stored(url, "KV_b") == [b"2", b"2"]
