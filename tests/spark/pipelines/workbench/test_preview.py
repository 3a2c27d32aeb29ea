"""Previews: rows of sources and steps over some messages, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slipstream import BlockingJetStream, StreamConfig
from slipstream.errors import UsageError
from slipstream.spark.pipelines import parse
from slipstream.spark.pipelines.workbench.preview import _part, preview, rows_of

FILE = """
[sources.numbers]
stream = "{0}"
format = "json"
schema = "n BIGINT, word STRING"
watermark = {{ column = "_timestamp", delay = "1 minute" }}
[steps.sums]
sql = "SELECT word, sum(n) AS total, count(*) AS rows FROM numbers GROUP BY word ORDER BY word"
[outputs.sums]
from = "sums"
bucket = "sums"
key = "word"
"""


@pytest.mark.parametrize("any_server", ["ours"], indirect=True)
def test_rows_of_the_first_and_last_messages(
    spark: SparkSession,
    js: BlockingJetStream,
    any_server: str,
    fresh: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    for n in range(30):
        js.publish(f"{fresh}.x", b'{"n": %d, "word": "%s"}' % (n, (b"one", b"two")[n % 2]) if n != 7 else b"broken")
    monkeypatch.setattr("slipstream.spark.pipelines.workbench.preview.MESSAGES", 10)
    text = FILE.format(fresh).replace(" ORDER BY word", "")
    pipeline = parse(text, file=str(tmp_path / "p.toml"))
    before = list(js.stream_names())

    def rows(view: str, starting: str, limit: int = 20) -> list[list[str]]:
        ranges = {"numbers": _part(js, pipeline.sources[0], starting).options}
        return sorted(rows_of(spark, pipeline, view, {"servers": any_server}, ranges, limit).rows)

    assert rows("sums", "first") == [["one", "20", "5"], ["two", "18", "4"]]
    assert rows("sums", "last") == [["one", "120", "5"], ["two", "125", "5"]]
    assert [row[:2] for row in rows("numbers", "30")] == [["29", "two"]]
    assert len(rows("numbers", "first", 3)) == 3
    assert [_part(js, pipeline.sources[0], starting).text for starting in ("first", "last", "30")] == [
        f"the first 10 sequences of stream {fresh}",
        f"the last 10 sequences of stream {fresh}",
        f"messages of stream {fresh} from 30",
    ]
    monkeypatch.setattr("slipstream.spark.pipelines.workbench.preview.MESSAGES", 30)
    assert _part(js, pipeline.sources[0], "last") == ({}, f"all messages of stream {fresh}")
    assert list(js.stream_names()) == before
    assert list(tmp_path.iterdir()) == []


def test_unknown_step_is_rejected_before_spark_starts(tmp_path: Path) -> None:
    pipeline = parse(FILE.format("S"), file=str(tmp_path / "p.toml"))
    with pytest.raises(UsageError, match="there is no source or step 'sumz'; did you mean sums"):
        preview(pipeline, view="sumz")
    with pytest.raises(UsageError, match="has no data yet"):
        preview(pipeline)
    assert list(tmp_path.iterdir()) == []
