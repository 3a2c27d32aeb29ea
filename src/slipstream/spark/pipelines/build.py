"""A checked pipeline becomes Spark's DataFrames: sources decoded into views, steps on them, outputs as queries.

A record that cannot be decoded is no row of its source; it goes to the dead-letter stream, with its bytes as they came
and the reason. Every output is a streaming query of its own with its own checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.core.context import Py4JError  # type: ignore[attr-defined]
from pyspark.errors import PySparkException

from slipstream.spark.options import JETSTREAM, JETSTREAM_KV
from slipstream.spark.pipelines.avro import avro_to_json, spark_schema
from slipstream.spark.pipelines.model import DEAD, Mistake, Output, Pipeline, PipelineError, Source
from slipstream.spark.pipelines.toml_positions import TomlPosition
from slipstream.spark.sink.foreach_batch import into_bucket, into_stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_BAD = "_not_decoded"
_STREAM_META = {
    "subject": "_subject",
    "sequence": "_sequence",
    "timestamp": "_timestamp",
    "headers": "_headers",
}
_BUCKET_META = {"key": "_key", "operation": "_operation", "revision": "_revision", "created": "_created"}


class Built:
    """The views of a pipeline in one session."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, connection: Mapping[str, str]) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._connection = dict(connection)
        self._bad: dict[str, DataFrame] = {}
        for source in pipeline.sources:
            with self.blamed(source.place, f"source {source.name!r}"):
                self._make_source(source)
        for step in pipeline.steps:
            with self.blamed(step.place, f"step {step.name!r}"):
                frame = spark.sql(step.sql)
                if step.watermark[0]:
                    frame = frame.withWatermark(*step.watermark)
                frame.createOrReplaceTempView(step.name)
        for output in pipeline.outputs:
            if output.kind in ("files", "table"):
                with self.blamed(output.place, f"output {output.name!r}"):
                    self._check_format(output.format)

    def _check_format(self, name: str) -> None:
        """Raise if Spark does not know it. By itself it would say so when the query starts, and others run by then."""
        known = self._spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
        known.lookupDataSource(name, self._spark._jsparkSession.sessionState().conf())

    @contextmanager
    def blamed(self, place: TomlPosition, what: str) -> Iterator[None]:
        """What Spark says of a part of the file is told with the place of that part."""
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise PipelineError(self._pipeline.file, [Mistake(place, f"{what}: {sentence(error)}")]) from error

    def query(self, output: Output) -> DataStreamWriter:
        """The query of an output, still without checkpoint and trigger."""
        with self.blamed(output.place, f"output {output.name!r}"):
            return self._query(output)

    def _query(self, output: Output) -> DataStreamWriter:
        frame = self._spark.table(output.view)
        if output.kind == "bucket":
            return self._into_bucket(frame, output)
        if output.kind == "stream":
            return self._into_stream(frame, output)
        writer = frame.writeStream.outputMode(output.mode).format(output.format)
        return writer.partitionBy(*output.partition_by) if output.partition_by else writer

    def dead_letters(self) -> dict[str, DataStreamWriter]:
        """A query per source that can have records which cannot be decoded."""
        if not self._pipeline.dead_letter:
            return {}
        return {
            DEAD + name: frame.writeStream.format(JETSTREAM)
            .options(**self._connection)
            .option("stream", self._pipeline.dead_letter)
            for name, frame in self._bad.items()
        }

    def _make_source(self, source: Source) -> None:
        format_ = JETSTREAM if source.stream else JETSTREAM_KV
        reader = self._spark.readStream.format(format_).options(**self._connection).options(**source.options)
        raw = reader.load(source.stream or source.bucket)
        if source.format == "raw":
            frame = raw
        else:
            frame, self._bad[source.name] = decode(source, raw, f"{self._pipeline.dead_letter}.{source.name}")
        if source.watermark[0]:
            frame = frame.withWatermark(*source.watermark)
        frame.createOrReplaceTempView(source.name)

    def _into_bucket(self, frame: DataFrame, output: Output) -> DataStreamWriter:
        from pyspark.sql import functions as f

        key = reduce(lambda one, other: f.concat(one, f.lit("."), other), [f.col(n).cast("string") for n in output.key])
        rest = [f.col(name) for name in frame.columns if name not in (*output.key, output.deleted)]
        value = _bytes(frame, output.value) if output.value else f.to_json(f.struct(*rest)).cast("binary")
        columns = [key.alias("key"), value.alias("value")]
        if output.deleted:
            columns.append(f.col(output.deleted).alias("deleted"))
        options = {**self._connection, "onlyChanged": str(output.only_changed).lower(), **self._rejects(output)}
        write = into_bucket(output.target, options)
        return frame.select(*columns).writeStream.outputMode(output.mode).foreachBatch(write)

    def _into_stream(self, frame: DataFrame, output: Output) -> DataStreamWriter:
        from pyspark.sql import functions as f

        value = _bytes(frame, output.value) if output.value else f.to_json(f.struct("*")).cast("binary")
        rows = frame.select(f.expr(output.subject).cast("string").alias("subject"), value.alias("data"))
        options = {**self._connection, **self._rejects(output)}
        if output.mode == "update":
            return rows.writeStream.outputMode("update").foreachBatch(into_stream(output.target, options))
        return rows.writeStream.format(JETSTREAM).options(**options).option("stream", output.target)

    def _rejects(self, output: Output) -> dict[str, str]:
        dead = self._pipeline.dead_letter
        return {"deadLetter": f"{dead}.{output.name}"} if dead else {}


def sentence(error: PySparkException | Py4JError) -> str:
    """What Spark says, without where it says it."""
    java = getattr(error, "java_exception", None)  # has the text without the trace
    text = str(error if java is None else java.getMessage())
    return " ".join(text.split("SQLSTATE")[0].split("JVM stacktrace")[0].split())


def decode(source: Source, raw: DataFrame, dead: str) -> tuple[DataFrame, DataFrame]:
    """The rows of a source, and what the subject `dead` gets: messages that cannot be decoded."""
    from pyspark.sql import functions as f

    meta, body = (_STREAM_META, "data") if source.stream else (_BUCKET_META, "value")
    text = f.expr(f"try_validate_utf8(CAST({body} AS STRING))")
    schema = source.schema
    if source.format == "avro":
        text, schema = avro_to_json(source.schema)(f.col(body)), spark_schema(source.schema)
    elif source.format == "csv":
        text = f.regexp_replace(text, r"\r?\n\z", "")  # the end of the line, not of its last column
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD, **source.parse}
    wanted = f"{schema}, {_BAD} STRING"
    read = f.from_csv if source.format == "csv" else f.from_json
    kept = [f.col(name).alias(alias) for name, alias in meta.items()]
    frame = raw.select(*kept, f.col(body).alias("_data"), text.alias("_text"))
    frame = frame.withColumn("_row", read(f.col("_text"), wanted, options))
    is_bad = f.col("_row").isNull() | f.col(f"_row.{_BAD}").isNotNull() | (f.trim("_text") == "")
    if source.format == "json":
        is_bad = is_bad | ~_is_one_value(f.col("_text"), options)
    is_bad = f.coalesce(is_bad, f.lit(True))
    if source.bucket:
        is_bad = is_bad & (f.col("_operation") == "PUT")
    good = frame.where(~is_bad).select("_row.*", *meta.values()).drop(_BAD)
    return good, _dead(source, frame.where(is_bad), schema, dead)


def _dead(source: Source, bad: DataFrame, schema: str, dead: str) -> DataFrame:
    """What the dead-letter stream gets of the records that were not decoded."""
    from pyspark.sql import functions as f

    reason = f.when(f.col("_data").isNull() | (f.length("_data") == 0), "empty")
    if source.format == "avro":
        reason = reason.when(f.col("_text").isNull(), "not Avro of the schema")
    else:
        reason = reason.when(f.col("_text").isNull(), "not UTF-8")
    if source.format == "json":
        is_decoded = f.col("_row").isNotNull() & f.col(f"_row.{_BAD}").isNull()
        reason = reason.when(is_decoded, "not one JSON value: more stands behind it")
        reason = reason.when(f.expr("try_parse_json(_text)").isNull(), "not JSON")
    reason = reason.otherwise(f"does not fit the schema {' '.join(schema.split())}")
    place = {"Slipstream-Subject": "_subject", "Slipstream-Sequence": "_sequence"}
    if source.bucket:
        place = {"Slipstream-Key": "_key", "Slipstream-Revision": "_revision"}
    headers: list[Column] = [f.lit("Slipstream-Reason"), reason]
    headers += [f.lit("Slipstream-Source"), f.lit(source.stream or source.bucket)]
    for header, column in place.items():
        headers += [f.lit(header), f.col(column).cast("string")]
    return bad.select(
        f.lit(dead).alias("subject"),
        f.coalesce(f.col("_data"), f.lit(b"")).alias("data"),
        f.create_map(*headers).alias("headers"),
    )


def _is_one_value(text: Column, options: Mapping[str, str]) -> Column:
    """Whether a text is one JSON value and nothing else; null where it is none.

    `from_json` stops behind the first value and says nothing of the rest, and so does `try_parse_json`, which takes no
    options besides. As the first item of a list, before one with the text's digest, a value must be followed by the
    comma; a text that closes the list itself cannot have its own digest in it. The items have no columns that are
    asked for, so this pass only skips through them.
    """
    from pyspark.sql import functions as f

    digest = f.md5(text)
    both = f.concat(f.lit("["), text, f.lit(f'\n,{{"{_BAD}":"'), digest, f.lit('"}]'))  # a line: behind a // comment
    return f.get(f.from_json(both, f"ARRAY<STRUCT<{_BAD}: STRING>>", dict(options)), f.lit(1))[_BAD] == digest


def _bytes(frame: DataFrame, name: str) -> Column:
    """A column as bytes: as it is, or its text."""
    column = frame[name]
    return column if frame.schema[name].dataType.typeName() == "binary" else column.cast("string").cast("binary")
