"""Test cases of a pipeline: recorded input, expected output, and the pipeline itself in between.

A case is a folder of JSON lines: `in/SOURCE.jsonl` for each source and `expected/OUTPUT.jsonl` for each output that is
compared. Beside `orders.toml` the cases are the folders in `orders-tests`.

Sources are read from files instead of a server, so that the times of messages are those of the records, not of the
test: windows and watermarks come out the same in every run. The steps, the state between micro-batches, the sinks and
the dead letters are those of a run; sinks write to an embedded server in memory, and files to a temporary folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from slipstream.errors import Error, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream.reads.columns import Columns
from slipstream.kv.keys import any_of
from slipstream.spark.failures import failure_of, reason_of
from slipstream.spark.pipelines.checks.columns import BUCKET_COLUMNS, STREAM_COLUMNS
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.connection import connection_options, create_declared, open_connection
from slipstream.spark.pipelines.model import BucketSpec, Output, Pipeline, PipelineError, Source
from slipstream.spark.pipelines.reader import load
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.pipelines.workbench.comparison import Difference, compare, difference_table
from slipstream.spark.pipelines.workbench.records import (
    Recorded,
    payload_fields,
    read_records,
    read_rows,
    write_rows,
)
from slipstream.spark.source import kv_rows, rows
from slipstream.wire import Headers
from slipstream.wire.subjects import matches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

IN, EXPECTED, ENDING = "in", "expected", ".jsonl"
DEAD_LETTERS = "dead-letters"  # the name of their file in `expected`
TIMEOUT = 300  # seconds for one query of one micro-batch
_CONF = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}
Rows = list[dict[str, Any]]


class PipelineCase(NamedTuple):
    """One test case of a pipeline. In a test: `case.check()`."""

    name: str
    folder: Path
    pipeline: Pipeline

    def __str__(self) -> str:
        return self.name

    def check(self, spark: SparkSession | None = None) -> None:
        """Run the case; raises AssertionError with the differences. The Spark session of the process is used, if it has
        one, else one is started and kept for the other cases."""
        result = run_case(spark or _shared_session(self.pipeline), self)
        if result.differences:
            raise AssertionError("\n".join([f"case {self.name!r}:", *result.lines()]))


class CaseResult(NamedTuple):
    """The rows of each output, and how those that were compared differ from the expected ones."""

    rows: Mapping[str, Rows]
    differences: Mapping[str, list[Difference]]
    compared: Sequence[str]

    def lines(self) -> Iterator[str]:
        """A table of differences per output."""
        for name, found in self.differences.items():
            what = name if name == DEAD_LETTERS else f"output {name}"
            yield f"  {what}: {len(found)} difference{'s' if len(found) > 1 else ''}"
            yield from (f"    {line}" for line in difference_table(found))

    def as_json(self, name: str) -> dict[str, Any]:
        """The result for programs."""
        found = {output: [one._asdict() for one in different] for output, different in self.differences.items()}
        rows = {output: len(rows) for output, rows in self.rows.items()}
        return {"case": name, "ok": not found, "rows": rows, "compared": list(self.compared), "differences": found}

    def summary(self) -> str:
        """What was compared, and what was not."""
        names = [f"{name} {len(self.rows[name])} rows" for name in self.compared if name != DEAD_LETTERS]
        other = [name for name in self.rows if name not in self.compared]
        return ", ".join(names) + (f"; not compared: {', '.join(other)}" if other else "")


def cases_folder(pipeline: Pipeline) -> Path:
    """Where the cases of a pipeline are, unless another folder is named."""
    path = Path(pipeline.file)
    return path.with_name(f"{path.stem}-tests")


def pipeline_cases(file: str | Path, folder: str | Path = "", names: Sequence[str] = ()) -> list[PipelineCase]:
    """The test cases of a pipeline file, for `pytest.mark.parametrize("case", pipeline_cases("orders.toml"), ids=str)`.

    All, unless some are named; raises UsageError if there are none.
    """
    pipeline = load(str(file))
    root = Path(folder) if folder else cases_folder(pipeline)
    found = sorted(path for path in root.glob("*") if (path / IN).is_dir()) if root.is_dir() else []
    if not found:
        raise UsageError(
            f"there are no test cases in {root}: a case is a folder with {IN}/SOURCE{ENDING}, which "
            "slipstream pipeline record makes from a stream"
        )
    known = [path.name for path in found]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no case {unknown[0]!r}; {suggestion(unknown[0], known, 'there is')}")
    return [PipelineCase(path.name, path, pipeline) for path in found if not names or path.name in names]


def run_cases(
    cases: Sequence[PipelineCase], *, verbose: bool = False, update: bool = False
) -> Iterator[tuple[PipelineCase, CaseResult]]:
    """Run cases, one after the other, on a Spark of their own; with `update`, what comes out is written to their
    folders as expected, and nothing differs."""
    for case in cases:  # a mistake in a line is told before Spark starts
        _input(case), _expected(case)
    with tempfile.TemporaryDirectory(prefix="slipstream-", ignore_cleanup_errors=True) as folder:
        spark = start_session(cases[0].pipeline, Path(folder), verbose=verbose)
        try:
            for case in cases:
                result = run_case(spark, case)
                if update:
                    write_expected(case, result)
                    result = CaseResult(result.rows, {}, list(result.rows))
                elif not (case.folder / EXPECTED).is_dir():
                    raise UsageError(
                        f"case {case.name!r} expects nothing: add {case.folder / EXPECTED}/OUTPUT{ENDING}, or run it "
                        "with --update and review what it writes"
                    )
                yield case, result
        finally:
            spark.stop()


def run_case(spark: SparkSession, case: PipelineCase) -> CaseResult:
    """Run a case and compare; raises an error if it cannot be run."""
    records, _ = _input(case), _expected(case)  # whose mistakes are told first
    return compare_case(case, _run(spark, case.pipeline, records))


def compare_case(case: PipelineCase, found: Mapping[str, Rows]) -> CaseResult:
    """Compare what came out with what the case expects."""
    expected = _expected(case)
    keys = {one.name: "key" for one in case.pipeline.outputs if one.kind == "bucket"}
    differences = {}
    for name, wanted in expected.items():
        if different := compare(wanted, found.get(name, []), keys.get(name, "")):
            differences[name] = different
    return CaseResult(found, differences, list(expected))


def write_expected(case: PipelineCase, result: CaseResult) -> None:
    """Take the rows of a result as those that the case expects."""
    folder = case.folder / EXPECTED
    folder.mkdir(exist_ok=True)
    for name, found in result.rows.items():
        if found or name != DEAD_LETTERS:
            (folder / f"{name}{ENDING}").write_text(write_rows(found), "utf-8")
        else:
            (folder / f"{name}{ENDING}").unlink(missing_ok=True)


def _input(case: PipelineCase) -> dict[str, list[Recorded]]:
    sources = {one.name: one for one in (*case.pipeline.sources, *case.pipeline.tables)}
    found = {}
    for path in _files(case.folder / IN, list(sources), "source or table"):
        source = sources[path.stem]
        found[path.stem] = _wanted(source, read_records(_read(path), str(path), is_bucket=bool(source.bucket)))
    return found


def _expected(case: PipelineCase) -> dict[str, Rows]:
    """The rows that the case expects, by output; no dead letters, unless it names some."""
    outputs = [one.name for one in case.pipeline.outputs]
    if DEAD_LETTERS in outputs:
        raise UsageError(f"an output of a pipeline with test cases must not be called {DEAD_LETTERS!r}")
    found: dict[str, Rows] = {DEAD_LETTERS: []} if case.pipeline.dead_letter else {}
    for path in _files(case.folder / EXPECTED, [*outputs, DEAD_LETTERS], "output"):
        found[path.stem] = read_rows(_read(path), str(path))
    return found


def _files(folder: Path, names: list[str], what: str) -> list[Path]:
    files = sorted(folder.glob(f"*{ENDING}")) if folder.is_dir() else []
    for path in files:
        if path.stem not in names:
            raise UsageError(f"{path}: there is no {what} {path.stem!r}; {suggestion(path.stem, names, 'there is')}")
    return files


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _wanted(source: Source, records: list[Recorded]) -> list[Recorded]:
    """The records that the source reads: those that its subjects or keys match."""
    filters = [one.strip() for one in source.options.get("keys" if source.bucket else "subjects", "").split(",") if one]
    if not filters:
        return records
    if source.bucket:
        is_wanted = any_of(filters)
        return [one for one in records if is_wanted(one.name)]
    return [one for one in records if any(matches(pattern, one.name) for pattern in filters)]


def _run(spark: SparkSession, pipeline: Pipeline, records: Mapping[str, list[Recorded]]) -> dict[str, Rows]:
    """Run the pipeline over the records, one micro-batch after the other; returns the rows of its outputs."""
    from slipstream.spark.pipelines.build import plan_queries
    from slipstream.spark.pipelines.checks.deep import deep_mistakes
    from slipstream.spark.pipelines.queries import start_query

    session = spark.newSession()
    for name, value in {**_CONF, **pipeline.conf}.items():
        if name.startswith("spark.sql.") and session.conf.isModifiable(name):
            session.conf.set(name, value)
    if mistakes := deep_mistakes(session, pipeline):
        raise PipelineError(pipeline.file, mistakes)
    with tempfile.TemporaryDirectory(prefix="slipstream-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        local = _redirected(pipeline, folder)
        state = StateFolder(local)
        for source in pipeline.sources:
            (folder / IN / source.name).mkdir(parents=True)

        def read(source: Source) -> DataFrame:
            columns = STREAM_COLUMNS if source.stream else BUCKET_COLUMNS
            ddl = ", ".join(f"{column} {kind}" for column, kind in columns.items())
            return session.readStream.schema(ddl).parquet(str(folder / IN / source.name))

        with connection_options(local, state, in_memory=True) as connection, open_connection(connection) as js:
            create_declared(js, local)
            plans = plan_queries(session, local, connection, read, snapshots=str(state.tables))
            for batch in sorted({one.batch for found in records.values() for one in found}) or [1]:
                for table in pipeline.tables:
                    _put_batch(js, table, records.get(table.name, []), batch)
                for source in pipeline.sources:
                    _write_batch(source, records.get(source.name, []), batch, folder / IN / source.name)
                for plan in plans:
                    _finish(start_query(plan, local, state, once=True), f"{plan.name}, micro-batch {batch}")
            return {
                **{one.name: _rows_of(session, js, state, one) for one in local.outputs},
                **({DEAD_LETTERS: _dead_letters(js, local.dead_letter)} if local.dead_letter else {}),
            }


def _finish(query: StreamingQuery, what: str) -> None:
    """Wait until a query has read everything; raises an error with the reason if it fails."""
    from pyspark.errors import PySparkException

    try:
        is_done = query.awaitTermination(TIMEOUT)
    except PySparkException as error:
        raise Error(f"{what}: {reason_of(failure_of(query))}") from error
    if not is_done:
        query.stop()
        raise Error(f"{what}: not done within {TIMEOUT:g} s")


def _redirected(pipeline: Pipeline, folder: Path) -> Pipeline:
    """The pipeline with a server of its own and its files in a folder. Buckets of outputs are created; for a stream
    the subjects must be known."""
    declared = {one.name for one in pipeline.streams}
    buckets = {one.name: one for one in pipeline.buckets}
    for table in pipeline.tables:
        buckets.setdefault(table.bucket, BucketSpec(name=table.bucket))
    outputs = []
    for one in pipeline.outputs:
        if one.kind == "stream" and one.target not in declared:
            raise UsageError(
                f"output {one.name!r}: stream {one.target!r} must be declared for a test, such as "
                f'[streams.{one.target}] with subjects = ["…"]; a stream that exists is not changed by it'
            )
        if one.kind == "bucket":
            buckets.setdefault(one.target, BucketSpec(name=one.target))
        if one.kind in ("files", "table"):
            one = replace(one, kind="files", target=f"files/{one.name}")
        outputs.append(one)
    return replace(
        pipeline,
        file=str(folder / "pipeline.toml"),
        state="",
        connection={},
        server={},
        buckets=tuple(buckets.values()),
        outputs=tuple(outputs),
    )


def _write_batch(source: Source, records: list[Recorded], batch: int, folder: Path) -> None:
    """The records of a micro-batch as a file of the columns that the source has before decoding."""
    chosen = [one for one in records if one.batch == batch]
    if not chosen:
        return
    if source.bucket:
        entries = [kv_rows.Row(one.name, one.data, one.operation, one.sequence, one.time, 0) for one in chosen]
        found = [kv_rows.record_batch(entries, list(BUCKET_COLUMNS))]
    else:
        columns = Columns(
            subjects=[one.name for one in chosen],
            seqs=[one.sequence for one in chosen],
            times=[one.time for one in chosen],
            headers=[_header_block(one) for one in chosen],
            data=[one.data for one in chosen],
            stream=source.stream,
        )
        found = list(rows.batches([columns], list(STREAM_COLUMNS)))
    part = folder.with_name(f"{folder.name}.part")
    with pq.ParquetWriter(part, found[0].schema) as writer:
        for one in found:
            writer.write_batch(one)
    part.replace(folder / f"{batch:06}.parquet")


def _put_batch(js: JetStream, table: Source, records: list[Recorded], batch: int) -> None:
    """Change the bucket of a lookup table as the case says, before a micro-batch begins."""
    bucket = js.key_value(table.bucket)
    for one in records:
        if one.batch == batch and one.operation == "PUT":
            bucket.put(one.name, one.data)
        elif one.batch == batch:
            bucket.delete(one.name)


def _header_block(record: Recorded) -> bytes:
    headers = Headers()
    for name, values in record.headers.items():
        for value in values:
            headers.add(name, value)
    return headers.encode() if record.headers else b""


def _rows_of(spark: SparkSession, js: JetStream, state: StateFolder, output: Output) -> Rows:
    """What an output has written."""
    if output.kind == "bucket":
        entries = js.key_value(output.target).snapshot()
        return [{"key": key, **payload_fields(entry.value, "value")} for key, entry in sorted(entries.items())]
    if output.kind == "stream":
        messages = js.stream(output.target).read()
        return _sorted({"subject": one.subject, **payload_fields(one.data, "data")} for one in messages)
    from pyspark.sql import functions as f

    from slipstream.spark.pipelines.build import JSON_OPTIONS

    path = state.output_path(output)
    if not isinstance(path, Path) or not path.exists():
        return []
    frame = spark.read.schema(spark.table(output.view).schema).format(output.format).load(str(path))
    found = frame.select(f.to_json(f.struct("*"), JSON_OPTIONS)).collect()
    return _sorted(json.loads(row[0]) for row in found)


def _dead_letters(js: JetStream, stream: str) -> Rows:
    found = []
    for message in js.stream(stream).read():
        reason = message.headers.get("Slipstream-Reason") or ""
        origin = message.subject.removeprefix(f"{stream}.")
        found.append({"from": origin, "reason": reason, **payload_fields(message.data, "data")})
    return _sorted(found)


def _sorted(found: Iterator[dict[str, Any]] | Rows) -> Rows:
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))


_sessions: dict[str, Any] = {}  # the folder and the session that this process has started


def _shared_session(pipeline: Pipeline) -> SparkSession:
    from pyspark.sql import SparkSession

    if active := SparkSession.getActiveSession():
        return active
    if "session" not in _sessions:
        _sessions["session"] = start_session(pipeline, _folder())
    session: SparkSession = _sessions["session"]
    return session


def _folder() -> Path:
    folder = _sessions.setdefault(
        "folder", tempfile.TemporaryDirectory(prefix="slipstream-", ignore_cleanup_errors=True)
    )
    return Path(folder.name)


def start_session(pipeline: Pipeline, folder: Path, *, verbose: bool = False) -> SparkSession:
    """Spark on two cores of this machine, with the settings of the pipeline and its logs in a folder."""
    from slipstream.spark.pipelines.spark_session import start_spark

    state = StateFolder(replace(pipeline, state=str(folder)))
    return start_spark(pipeline, "local[2]", state, verbose=verbose)
