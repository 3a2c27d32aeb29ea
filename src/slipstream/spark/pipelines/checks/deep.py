"""Deep check: every source, step and output of a pipeline is built on Spark over empty input, and nothing is started.

Spark analyses SQL, columns, types and output modes without any data, so a stream that is always empty stands in for
each source: no server is contacted, no Python worker is started, no query runs. Checking goes on after a mistake; what
is built on a part that failed is left out, since its mistakes would only follow from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

from pyspark.core.context import Py4JError  # type: ignore[attr-defined]
from pyspark.errors import PySparkException

from slipstream.errors import UsageError
from slipstream.spark.pipelines import build
from slipstream.spark.pipelines.checks.columns import BUCKET_COLUMNS, STREAM_COLUMNS, named_columns, no_column
from slipstream.spark.pipelines.checks.spark_errors import explain, with_function
from slipstream.spark.pipelines.model import Mistake, Output, Pipeline, Source, Step
from slipstream.spark.pipelines.sql_tables import tables_in
from slipstream.spark.sink.merge import check_merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = ("parquet", "orc", "json", "csv", "text")


def deep_mistakes(spark: SparkSession, pipeline: Pipeline) -> list[Mistake]:
    """Every mistake that Spark finds in a pipeline, with its position."""
    session = spark.newSession()  # its views are not the caller's
    for name, value in pipeline.conf.items():
        with suppress(PySparkException):  # a setting of the JVM, which it has since its start
            session.conf.set(name, value)
    return _Check(session, pipeline).run()


def empty_source(spark: SparkSession, source: Source) -> DataFrame:
    """A stream without rows that has the columns of a source before decoding."""
    from pyspark.sql import functions as f

    columns = STREAM_COLUMNS if source.stream else BUCKET_COLUMNS
    nulls = [f.lit(None).cast(kind.lower()).alias(name) for name, kind in columns.items()]
    return spark.readStream.format("rate").load().where(f.lit(False)).select(*nulls)


class _Check:
    """One check; `frames` are the views that were built."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._views = pipeline.views()
        self._mistakes: list[Mistake] = []
        self._frames: dict[str, DataFrame] = {}
        self._is_unmarked = False  # whether a watermark was rejected
        self._functions: Callable[[], Sequence[str]] = cache(self._list_functions)

    def run(self) -> list[Mistake]:
        for source in self._pipeline.sources:
            self._source(source)
        for table in self._pipeline.tables:
            self._table(table)
        for step in self._pipeline.steps:
            self._step(step)
        for output in self._pipeline.outputs:
            if output.view in self._frames:
                self._output(output, self._frames[output.view])
        return sorted(self._mistakes)

    @contextmanager
    def _at(self, *path: str, what: str, sql: str = "") -> Iterator[None]:
        """What Spark rejects inside is a mistake at this key; `sql` is the key's value, if Spark reads it."""
        try:
            yield
        except (PySparkException, Py4JError) as error:
            found = with_function(explain(error, sql=sql, views=self._views), self._functions)
            text = f"{what}: {found.text}"
            self._mistakes.append(self._pipeline.mistake(path, text, sql if found.line else "", found.offset(sql)))
        except UsageError as error:
            self._mistakes.append(self._pipeline.mistake(path, f"{what}: {error}"))

    def _list_functions(self) -> Sequence[str]:
        return [row[0].rsplit(".", 1)[-1] for row in self._spark.sql("SHOW FUNCTIONS").collect()]

    def _source(self, source: Source) -> None:
        what = f"source {source.name!r}"
        rows = None
        with self._at("sources", source.name, "schema", what=what):
            raw = empty_source(self._spark, source)
            rows = raw if source.format == "raw" else build.decode(source, raw, "x")[0]
        if rows is not None:
            self._add(("sources", source.name), what, rows, source.watermark)

    def _table(self, table: Source) -> None:
        with self._at("tables", table.name, "schema", what=f"table {table.name!r}"):
            raw = self._spark.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in BUCKET_COLUMNS.items()))
            rows = raw if table.format == "raw" else build.decode(table, raw, "x")[0]
            rows.createOrReplaceTempView(table.name)
            self._frames[table.name] = rows

    def _step(self, step: Step) -> None:
        used = tables_in(step.sql, self._views)
        if any(name not in self._frames for name in used):
            return
        what = f"step {step.name!r}"
        rows = None
        with self._at("steps", step.name, "sql", what=what, sql=step.sql):
            rows = self._spark.sql(step.sql)
        if rows is not None:
            self._add(("steps", step.name), what, rows, step.watermark)

    def _add(self, path: tuple[str, str], what: str, rows: DataFrame, watermark: tuple[str, str]) -> None:
        before = self._is_unmarked
        with self._at(*path, "watermark", "column", what=what):
            rows.createOrReplaceTempView(path[1])
            self._frames[path[1]] = rows  # behind a bad watermark other mistakes may wait
            if watermark[0]:
                self._is_unmarked = True
                marked = rows.withWatermark(*watermark)
                marked.createOrReplaceTempView(path[1])
                self._frames[path[1]] = marked
                self._is_unmarked = before

    def _output(self, output: Output, frame: DataFrame) -> None:
        path, what = ("outputs", output.name), f"output {output.name!r}"
        before = len(self._mistakes)
        for key, names in named_columns(output):
            for name in names:
                with self._at(*path, key, what=what):
                    self._column(frame, name)
        if output.kind == "stream":
            with self._at(*path, "subject", what=what, sql=output.subject):
                frame.selectExpr(f"CAST(({output.subject}\n) AS STRING)")
        elif output.kind in ("files", "table") and not output.key:
            with self._at(*path, "format", what=what):
                build.check_format(self._spark, output.format)
        if len(self._mistakes) > before:
            return
        with self._at(*path, "from", what=what):
            rows = build.output_rows(frame, output) if output.kind in ("bucket", "stream") else frame
            self._check_rows(output, rows)
        if output.kind == "table" and output.key and len(self._mistakes) == before:
            with self._at(*path, "table", what=what):
                check_merge(frame, output.target, output.key, deleted=output.deleted)
        if self._is_unmarked:
            return  # whether a mode is possible depends on the watermark that is missing
        with self._at(*path, "mode", what=what):
            self._check_streaming(frame, output.mode)

    @staticmethod
    def _column(frame: DataFrame, name: str) -> None:
        try:
            frame.select(name)
        except PySparkException as error:
            if not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
                raise
            raise UsageError(no_column(name, frame.columns)) from error

    def _check_rows(self, output: Output, rows: DataFrame) -> None:
        """Raise UsageError for columns that the target cannot store."""
        if output.deleted:
            name = "deleted" if output.kind == "bucket" else output.deleted
            found = [one.dataType for one in rows.schema.fields if one.name.lower() == name.lower()]
            kind = found[0].simpleString() if found else "missing column"
            if kind != "boolean":
                raise UsageError(f"deleted must be a BOOLEAN column, got {output.deleted!r}, a {kind.upper()}")
        names = [name.lower() for name in rows.columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"column {twice[0]!r} is there twice: name one of them with AS")
        if output.kind in ("files", "table") and not output.key and output.format in ("csv", "text"):
            for field in rows.schema.fields:
                kind = field.dataType.typeName()
                if kind in ("struct", "array", "map", "variant") or (output.format == "text" and kind != "string"):
                    raise UsageError(
                        f"format {output.format} cannot store column {field.name!r}, a {kind.upper()}: leave it out in "
                        "a step, or use to_json"
                    )

    def _check_streaming(self, frame: DataFrame, mode: str) -> None:
        """Raise what Spark would raise when the query is started: it analyses modes only then."""
        jvm = self._spark._jvm
        assert jvm is not None, "a pipeline runs with its own JVM"
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        wanted = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), wanted)
