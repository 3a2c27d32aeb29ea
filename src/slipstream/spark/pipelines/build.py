"""Builder of a pipeline's Spark queries: sources decoded into views, SQL steps over them, one query per output.

A record that cannot be decoded is not a row of its source: a second query per source writes it to the dead-letter
stream, with its bytes unchanged and the reason. Every query has a checkpoint of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.core.context import Py4JError  # type: ignore[attr-defined]
from pyspark.errors import PySparkException

from slipstream.spark.option_reader import DEFAULT_RETRY_FOR
from slipstream.spark.options import JETSTREAM, JETSTREAM_KV
from slipstream.spark.pipelines.checks.columns import BUCKET_META, STREAM_META
from slipstream.spark.pipelines.checks.spark_errors import spark_message
from slipstream.spark.pipelines.formats.records import BINARY, record_to_json, spark_schema
from slipstream.spark.pipelines.model import (
    DEAD_LETTERS,
    FIRST,
    Mistake,
    Output,
    Pipeline,
    PipelineError,
    Source,
)
from slipstream.spark.pipelines.toml_positions import TomlPosition
from slipstream.spark.sink.foreach_batch import into_bucket, into_stream
from slipstream.spark.sink.merge import into_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

METRICS = "slipstream"  # in the progress of a query: `observedMetrics`
_CORRUPT = "_not_decoded"
_IS_BAD = "_is_bad"
# Values keep microseconds, which Spark cuts to milliseconds by default, and nulls, which it leaves out.
JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


class QueryPlan(NamedTuple):
    """A streaming query to start. Each start, also after a failure, needs a new writer, so it has a factory of them."""

    name: str
    output: Output | None  # None for dead letters
    writer: Callable[[], DataStreamWriter]  # without checkpoint and trigger
    checkpoint: str = ""  # its folder; empty: that of the output

    @property
    def position(self) -> TomlPosition:
        """The position in the file that an error of this query is reported at."""
        return self.output.position if self.output else FIRST


def plan_queries(
    spark: SparkSession,
    pipeline: Pipeline,
    connection: Mapping[str, str],
    read: Callable[[Source], DataFrame] | None = None,
    *,
    snapshots: str = "",
) -> list[QueryPlan]:
    """Create the views of a pipeline in the session, and plan the queries over them; nothing is started.

    `connection` are options of the Spark formats; `read` reads a source in another way; `snapshots` is the folder for
    the states of tables that micro-batches have seen. Raises PipelineError, with a position, for what Spark rejects.
    """
    undecoded = create_views(spark, pipeline, connection, read, snapshots=snapshots)
    plans = []
    for output in pipeline.outputs:
        if output.kind in ("files", "table") and not output.key:
            with errors_at(pipeline, output.position, f"output {output.name!r}"):
                check_format(spark, output.format)
        plans.append(QueryPlan(output.name, output, partial(output_writer, spark, pipeline, output, connection)))
    if pipeline.dead_letter:
        for name, frame in undecoded.items():
            writer = partial(dead_letter_writer, frame, pipeline.dead_letter, connection)
            plans.append(QueryPlan(DEAD_LETTERS + name, None, writer))
    return plans


def create_views(
    spark: SparkSession,
    pipeline: Pipeline,
    connection: Mapping[str, str],
    read: Callable[[Source], DataFrame] | None = None,
    *,
    snapshots: str = "",
) -> dict[str, DataFrame]:
    """Create a view per source, table and step; returns the records that cannot be decoded, by source.

    `read` reads a source, as a stream unless it is set.
    """
    undecoded: dict[str, DataFrame] = {}
    for source in pipeline.sources:
        with errors_at(pipeline, source.position, f"source {source.name!r}"):
            raw = read(source) if read else read_stream(spark, source, connection)
            rows, rejected = _decoded(pipeline, source, raw)
            rows.createOrReplaceTempView(source.name)
        if rejected is not None:
            undecoded[source.name] = rejected
    for table in pipeline.tables:
        with errors_at(pipeline, table.position, f"table {table.name!r}"):
            raw = _read_table(spark, table, connection, snapshots)
            rows = raw if table.format == "raw" else decode(table, raw, "")[0]
            rows.createOrReplaceTempView(table.name)
    for step in pipeline.steps:
        with errors_at(pipeline, step.position, f"step {step.name!r}"):
            frame = spark.sql(step.sql)
            if step.watermark[0]:
                frame = frame.withWatermark(*step.watermark)
            frame.createOrReplaceTempView(step.name)
    return undecoded


def output_writer(
    spark: SparkSession, pipeline: Pipeline, output: Output, connection: Mapping[str, str]
) -> DataStreamWriter:
    """A writer of an output's rows, still without checkpoint and trigger."""
    frame = spark.table(output.view)
    if output.kind == "bucket":
        return _bucket_writer(frame, output, sink_settings(pipeline, output, connection))
    if output.kind == "stream":
        return _stream_writer(frame, output, sink_settings(pipeline, output, connection))
    if output.key:
        merge = into_table(output.target, output.key, deleted=output.deleted)
        return counted(frame).writeStream.outputMode(output.mode).foreachBatch(merge)
    writer = counted(frame).writeStream.outputMode(output.mode).format(output.format)
    return writer.partitionBy(*output.partition_by) if output.partition_by else writer


def sink_settings(pipeline: Pipeline, output: Output, connection: Mapping[str, str]) -> dict[str, str]:
    """The options of the sink of an output into a bucket or stream, but for its target."""
    found = dict(connection)
    if pipeline.dead_letter:
        found["deadLetter"] = f"{pipeline.dead_letter}.{output.name}"
    if output.kind == "bucket":
        found["onlyChanged"] = str(output.only_changed).lower()
    return found


def dead_letter_writer(frame: DataFrame, stream: str, connection: Mapping[str, str]) -> DataStreamWriter:
    """A writer of the records of a source that cannot be decoded."""
    return counted(frame).writeStream.foreachBatch(into_stream(stream, connection))


def counted(rows: DataFrame) -> DataFrame:
    """The same rows; `observedMetrics` in the progress of the query has their number."""
    from pyspark.sql import functions as f

    return rows.observe(METRICS, f.count(f.lit(1)).alias("rows"))


@contextmanager
def errors_at(pipeline: Pipeline, position: TomlPosition, what: str) -> Iterator[None]:
    """What Spark raises inside becomes a PipelineError at this position of the file."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(pipeline.file, [Mistake(position, f"{what}: {spark_message(error)}")]) from error


def check_format(spark: SparkSession, name: str) -> None:
    """Raise if Spark does not know the format. Spark itself notices only when the query starts, while others run."""
    # No public API tells; PySpark itself reaches the JVM this way.
    sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
    sources.lookupDataSource(name, spark._jsparkSession.sessionState().conf())


def read_stream(spark: SparkSession, source: Source, connection: Mapping[str, str]) -> DataFrame:
    """The messages of a source, as they are."""
    format_ = JETSTREAM if source.stream else JETSTREAM_KV
    reader = spark.readStream.format(format_).options(**connection).options(**source.options)
    return reader.load(source.stream or source.bucket)


def _read_table(spark: SparkSession, table: Source, connection: Mapping[str, str], snapshots: str) -> DataFrame:
    """The current state of a bucket; each micro-batch of a streaming query sees one state, also when it is replayed."""
    options = {"retryFor": str(DEFAULT_RETRY_FOR), **connection, **table.options}
    if snapshots:
        options["snapshots"] = f"{snapshots}/{table.name}"
    return spark.read.format(JETSTREAM_KV).options(**options).load(table.bucket)


def _decoded(pipeline: Pipeline, source: Source, rows: DataFrame) -> tuple[DataFrame, DataFrame | None]:
    """The rows of a source, and the dead letters of one that is decoded."""
    rejected = None
    if source.format != "raw":
        rows, rejected = decode(source, rows, f"{pipeline.dead_letter}.{source.name}")
    if source.watermark[0]:
        rows = rows.withWatermark(*source.watermark)
    return rows, rejected


def output_rows(frame: DataFrame, output: Output, *, beside: str = "") -> DataFrame:
    """The rows of an output in the columns of the sink: key, value and deleted, or subject and data.

    The column `beside` of an output into a bucket is kept as it is, and is not part of the value.
    """
    from pyspark.sql import functions as f

    if output.kind == "stream":
        value = _bytes(frame, output.value) if output.value else f.to_json(f.struct("*"), JSON_OPTIONS).cast("binary")
        return frame.select(f.expr(output.subject).cast("string").alias("subject"), value.alias("data"))
    key = reduce(lambda one, other: f.concat(one, f.lit("."), other), [f.col(n).cast("string") for n in output.key])
    if output.key_codec == "base64":
        key = _base64_key(key)
    rest = [f.col(_quoted(name)) for name in frame.columns if name not in (*output.key, output.deleted, beside)]
    value = _bytes(frame, output.value) if output.value else f.to_json(f.struct(*rest), JSON_OPTIONS).cast("binary")
    columns = [key.alias("key"), value.alias("value")]
    if output.deleted:
        columns.append(f.col(output.deleted).alias("deleted"))
    if beside:
        columns.append(f.col(beside))
    return frame.select(*columns)


def _base64_key(key: Column) -> Column:
    """A key as `Base64Keys` stores it: each token in URL-safe base64 without padding."""
    from pyspark.sql import functions as f

    def encoded(token: Column) -> Column:
        return f.translate(f.base64(token), "+/=\r\n", "-_")  # without padding, and the ends of lines of MIME

    return f.array_join(f.transform(f.split(key, "[.]"), encoded), ".")


def _bucket_writer(frame: DataFrame, output: Output, options: Mapping[str, str]) -> DataStreamWriter:
    write = into_bucket(output.target, options)
    return counted(output_rows(frame, output)).writeStream.outputMode(output.mode).foreachBatch(write)


def _stream_writer(frame: DataFrame, output: Output, options: Mapping[str, str]) -> DataStreamWriter:
    # In append mode the sink `jetstream` would do as well, but Spark runs two more Python processes for each batch.
    write = into_stream(output.target, options)
    return counted(output_rows(frame, output)).writeStream.outputMode(output.mode).foreachBatch(write)


def decode(source: Source, raw: DataFrame, dead_letter: str) -> tuple[DataFrame, DataFrame]:
    """The rows of a source, and the messages that cannot be decoded as dead letters on a subject."""
    frame, is_bad = _parsed(source, raw)
    return _good_rows(source, frame.where(~is_bad)), _dead_letters(source, frame.where(is_bad), dead_letter)


def parse_once(source: Source, raw: DataFrame) -> DataFrame:
    """The messages of a source, parsed: what `rows_of` and `dead_letters_of` need, without parsing them again."""
    frame, is_bad = _parsed(source, raw)
    return frame.withColumn(_IS_BAD, is_bad)


def rows_of(source: Source, parsed: DataFrame) -> DataFrame:
    """The rows of a source, of messages that `parse_once` has parsed."""
    from pyspark.sql import functions as f

    return _good_rows(source, parsed.where(~f.col(_IS_BAD)))


def dead_letters_of(source: Source, parsed: DataFrame, subject: str) -> DataFrame:
    """The dead letters of messages that `parse_once` has parsed."""
    return _dead_letters(source, parsed.where(_IS_BAD), subject)


def sequence_column(source: Source) -> str:
    """The column that has the sequence of a message, of `parse_once` or as it is read."""
    if source.format == "raw":
        return "sequence" if source.stream else "revision"
    return STREAM_META["sequence"] if source.stream else BUCKET_META["revision"]


def _parsed(source: Source, raw: DataFrame) -> tuple[DataFrame, Column]:
    """Messages with what was read from them, and whether one cannot be decoded."""
    from pyspark.sql import functions as f

    meta, body = (STREAM_META, "data") if source.stream else (BUCKET_META, "value")
    text = f.expr(f"try_validate_utf8(CAST({body} AS STRING))")
    if source.format in BINARY:
        text = record_to_json(source)(f.col(body))
    elif source.format == "csv":
        text = f.regexp_replace(text, r"\r?\n\z", "")  # a line end, which is not part of the last column
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **source.parse}
    wanted = f"{spark_schema(source)}, {_CORRUPT} STRING"
    read = f.from_csv if source.format == "csv" else f.from_json
    kept = [f.col(name).alias(alias) for name, alias in meta.items()]
    frame = raw.select(*kept, f.col(body).alias("_data"), text.alias("_text"))
    frame = frame.withColumn("_row", read(f.col("_text"), wanted, options))
    is_bad = f.col("_row").isNull() | f.col(f"_row.{_CORRUPT}").isNotNull() | (f.trim("_text") == "")
    if source.format == "json":
        is_bad = is_bad | ~_is_one_value(f.col("_text"), options)
    is_bad = f.coalesce(is_bad, f.lit(True))
    if source.bucket:
        is_bad = is_bad & (f.col("_operation") == "PUT")
    return frame, is_bad


def _good_rows(source: Source, good: DataFrame) -> DataFrame:
    meta = STREAM_META if source.stream else BUCKET_META
    return good.select("_row.*", *meta.values()).drop(_CORRUPT)


def _dead_letters(source: Source, bad: DataFrame, subject: str) -> DataFrame:
    """The records that were not decoded, as messages for the dead-letter stream."""
    from pyspark.sql import functions as f

    schema = spark_schema(source)
    reason = f.when(f.col("_data").isNull() | (f.length("_data") == 0), "empty")
    if source.format in BINARY:
        reason = reason.when(f.col("_text").isNull(), f"not {BINARY[source.format]} of the schema")
    else:
        reason = reason.when(f.col("_text").isNull(), "not UTF-8")
    if source.format == "json":
        is_decoded = f.col("_row").isNotNull() & f.col(f"_row.{_CORRUPT}").isNull()
        reason = reason.when(is_decoded, "trailing data after the JSON value")
        reason = reason.when(f.expr("try_parse_json(_text)").isNull(), "not JSON")
    reason = reason.otherwise(f"does not fit the schema {' '.join(schema.split())}")
    location = {"Slipstream-Subject": "_subject", "Slipstream-Sequence": "_sequence"}
    if source.bucket:
        location = {"Slipstream-Key": "_key", "Slipstream-Revision": "_revision"}
    headers: list[Column] = [f.lit("Slipstream-Reason"), reason]
    headers += [f.lit("Slipstream-Source"), f.lit(source.stream or source.bucket)]
    for header, column in location.items():
        headers += [f.lit(header), f.col(column).cast("string")]
    return bad.select(
        f.lit(subject).alias("subject"),
        f.coalesce(f.col("_data"), f.lit(b"")).alias("data"),
        f.create_map(*headers).alias("headers"),
    )


def _is_one_value(text: Column, options: Mapping[str, str]) -> Column:
    """Whether a text is one JSON value and nothing else; null where it is not JSON.

    `from_json` stops after the first value and ignores the rest, and so does `try_parse_json`, which takes no options
    either. So the text is parsed once more as the first item of a list, before an item with the text's digest: the
    value must then be followed by the comma, and a text that closes the list itself cannot contain its own digest.
    No column of the items is selected, so this pass only skips through them.
    """
    from pyspark.sql import functions as f

    digest = f.md5(text)
    both = f.concat(
        f.lit("["), text, f.lit(f'\n,{{"{_CORRUPT}":"'), digest, f.lit('"}]')
    )  # a new line ends a // comment
    return f.get(f.from_json(both, f"ARRAY<STRUCT<{_CORRUPT}: STRING>>", dict(options)), f.lit(1))[_CORRUPT] == digest


def _quoted(name: str) -> str:
    """A column's name that Spark does not take for a path of fields."""
    return f"`{name.replace('`', '``')}`"


def _bytes(frame: DataFrame, name: str) -> Column:
    """A column as bytes: as it is, or its text."""
    column = frame[name]
    return column if frame.schema[name].dataType.typeName() == "binary" else column.cast("string").cast("binary")
