"""Preview of a pipeline: the rows of a source or step over some messages, as a batch. Nothing is written anywhere.

Sources are read once, from the first or the last messages of their streams, instead of as a stream; the steps are the
same. So an aggregate is that of the messages that were read, and watermarks drop nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from slipstream.errors import StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.spark.options import JETSTREAM, JETSTREAM_KV
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.connection import connection_options, open_connection
from slipstream.spark.pipelines.model import Pipeline, PipelineError, Source
from slipstream.spark.pipelines.state import StateFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 1_000  # that are read of each source
FROM = ("first", "last")


class _Part(NamedTuple):
    """The part of a source that is read."""

    options: dict[str, str]
    text: str


class Preview(NamedTuple):
    """Rows as texts, below the names of their columns."""

    columns: list[str]
    rows: list[list[str]]
    read: tuple[str, ...] = ()  # per source, which messages they follow from


def preview(
    pipeline: Pipeline,
    *,
    view: str = "",
    starting: str = "last",
    limit: int = 20,
    servers: str = "",
    verbose: bool = False,
) -> Preview:
    """The rows of a source or step (the first output's, if none is named) over the first or last messages."""
    view = view or pipeline.outputs[0].view
    if view not in pipeline.views():
        raise UsageError(f"there is no source or step {view!r}; {suggestion(view, pipeline.views(), 'the file has')}")
    from slipstream.spark.pipelines.spark_session import start_spark

    state = StateFolder(pipeline)
    pid, url, _ = state.read_run()
    is_embedded = not (servers or pipeline.connection.get("servers") or pipeline.connection.get("context") or pid)
    if is_embedded and not state.server.exists():
        raise UsageError("the embedded server of this pipeline has no data yet: there is nothing to preview")
    with (
        connection_options(pipeline, state, servers or (url if pid else "")) as connection,
        open_connection(connection) as js,
        tempfile.TemporaryDirectory(prefix="slipstream-", ignore_cleanup_errors=True) as folder,
    ):
        parts = {one.name: _part(js, one, starting) for one in pipeline.sources}
        ranges = {name: part.options for name, part in parts.items()}
        spark = start_spark(pipeline, "local[2]", StateFolder(replace(pipeline, state=folder)), verbose=verbose)
        try:
            found = rows_of(spark, pipeline, view, connection, ranges, limit)
            sources = pipeline.sources_behind(view)
            return found._replace(read=tuple(part.text for name, part in parts.items() if name in sources))
        finally:
            spark.stop()


def _part(js: JetStream, source: Source, starting: str) -> _Part:
    """Which messages of a stream are read, of all that match its `subjects`; of a bucket the history is."""
    if source.bucket:
        return _Part({"history": "true"}, f"the history of bucket {source.bucket}")
    try:
        state = js.stream(source.stream).info().state
    except StreamNotFoundError as error:
        raise UsageError(f"there is no stream {source.stream!r} on this server") from error
    if starting not in FROM:
        return _Part({"starting": starting}, f"messages of stream {source.stream} from {starting}")
    if state.messages <= MESSAGES:
        return _Part({}, f"all messages of stream {source.stream}")
    text = f"the {starting} {MESSAGES:,} sequences of stream {source.stream}"
    if starting == "first":
        return _Part({"ending": str(max(state.first_seq, 1) + MESSAGES - 1)}, text)
    return _Part({"starting": str(max(state.last_seq - MESSAGES + 1, 1))}, text)


def rows_of(
    spark: SparkSession,
    pipeline: Pipeline,
    view: str,
    connection: Mapping[str, str],
    ranges: Mapping[str, Mapping[str, str]],
    limit: int,
) -> Preview:
    """The rows of a view, with sources that are read as batches; `ranges` are further options of each source."""
    from slipstream.spark.pipelines.build import create_views
    from slipstream.spark.pipelines.checks.deep import deep_mistakes

    if mistakes := deep_mistakes(spark, pipeline):
        raise PipelineError(pipeline.file, mistakes)

    def read(source: Source) -> DataFrame:
        options = {name: value for name, value in source.options.items() if name in ("subjects", "keys")}
        reader = spark.read.format(JETSTREAM if source.stream else JETSTREAM_KV).options(**connection)
        return reader.options(**options).options(**ranges.get(source.name, {})).load(source.stream or source.bucket)

    create_views(spark, pipeline, connection, read)
    frame = spark.table(view)
    return Preview(frame.columns, [[_text(value) for value in row] for row in frame.limit(limit).collect()])


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return str(value)
