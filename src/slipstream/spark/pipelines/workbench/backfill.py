"""Backfill: the rows of a range of messages, written into the outputs of a pipeline once more, so that they are right.

A backfill may be repeated, or stopped and begun again: what is right already is not written. What "right" means depends
on the target.

- A bucket. The range chooses keys, those of its rows. The value of such a key is what *all* messages say that the
  output has read: an aggregate over them, or the newest row of the key. So a total never shrinks to that of the range,
  and an old row never replaces a newer one.
- A stream. The rows of the range that the stream lacks are published; rows are the same if subject and data are, and
  equal ones are counted, those of later messages included. Messages that the stream stored before the first message of
  the range do not count.

The range ends where the output has read to, since the next run reads the rest; the pipeline must not run meanwhile.
What a range cannot decide is refused before anything is written: changes of an aggregate as messages, joins of sources,
and files, whose rows only the log of Spark's sink knows.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from slipstream.errors import MessageNotFoundError, StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.kv.bucket import STREAM_PREFIX
from slipstream.spark.options import JETSTREAM, JETSTREAM_KV, At, batch_options, stream_options
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.connection import connection_options, open_connection
from slipstream.spark.pipelines.model import Output, Pipeline, PipelineError, Source
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.source.plan import first_seq, resolve
from slipstream.spark.source.stream import find_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_GROUPED = frozenset(("Aggregate", "Deduplicate", "Distinct", "Window", "GroupingSets", "Expand"))
_NODE = re.compile(r"^[ :+\-!|]*'?([A-Z]\w+)", re.MULTILINE)
_ORDER = ("_sequence", "_revision", "sequence", "revision")  # columns that tell which row of a key is the newest
_AT = "_slipstream_at"
_COPY = "_slipstream_copy"


class Work(NamedTuple):
    """What one output's backfill reads: messages `first` to `last` of its source. It has read up to `read`."""

    output: Output
    source: Source
    first: int
    last: int
    read: int

    def __str__(self) -> str:
        what = "revisions" if self.source.bucket else "messages"
        name = self.source.bucket or self.source.stream
        return f"{self.output.name}: {what} {self.first:,} to {self.last:,} of {name}"


class Filled(NamedTuple):
    """The result for one output."""

    output: str
    rows: int  # of the range: keys, or rows for a stream
    written: int  # those that were not right already


def backfill(
    pipeline: Pipeline,
    *,
    starting: str,
    ending: str = "",
    outputs: Sequence[str] = (),
    servers: str = "",
    master: str = "",
    verbose: bool = False,
    say: Callable[[str], None] = print,
) -> list[Filled]:
    """Fill the named outputs, or all, from a range of messages; `starting` and `ending` are sequences or times."""
    from slipstream.spark.pipelines.spark_session import start_spark

    chosen = _chosen(pipeline, outputs)
    state = StateFolder(pipeline)
    with (
        state.lock.held(f"the pipeline {pipeline.name!r}"),
        connection_options(pipeline, state, servers) as connection,
        open_connection(connection) as js,
        tempfile.TemporaryDirectory(prefix="slipstream-", ignore_cleanup_errors=True) as folder,
    ):
        works = [_work(js, pipeline, state, one, starting, ending) for one in chosen]
        spark = start_spark(
            pipeline, master or pipeline.master, StateFolder(replace(pipeline, state=folder)), verbose=verbose
        )
        try:
            return fill(spark, pipeline, connection, works, js, say)
        finally:
            spark.stop()


def _chosen(pipeline: Pipeline, names: Sequence[str]) -> list[Output]:
    """The outputs with these names, or all; raises UsageError for those that cannot be filled."""
    known = {one.name: one for one in pipeline.outputs}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no output {name!r}; {suggestion(name, known, 'the outputs are')}")
    chosen = [one for one in pipeline.outputs if not names or one.name in names]
    for one in chosen:
        if one.kind in ("files", "table"):
            what = "files" if one.kind == "files" else "a table"
            raise UsageError(
                f"output {one.name!r} writes {what}, which a backfill cannot compare with the range: `reset --output "
                f"{one.name}` writes all of it again{_others(known, chosen)}"
            )
        if len(pipeline.sources_of(one.name)) != 1:
            raise UsageError(
                f"output {one.name!r} joins several sources, and a range of one of them does not tell which messages "
                f"of the others belong to it: `reset --output {one.name}` writes all of it "
                f"again{_others(known, chosen)}"
            )
    return chosen


def _others(known: Mapping[str, Output], chosen: Sequence[Output]) -> str:
    return "; name the others by --output" if len(chosen) > 1 or len(known) == len(chosen) > 1 else ""


def _work(js: JetStream, pipeline: Pipeline, state: StateFolder, output: Output, starting: str, ending: str) -> Work:
    """The range of an output in sequences, so that every part of the backfill reads the same messages."""
    (name,) = pipeline.sources_of(output.name)
    source = next(one for one in pipeline.sources if one.name == name)
    batch, offsets = state.committed(output.name)
    read = max((int(one.get("seq", 0)) for one in offsets), default=0)
    if batch < 0 or not read:
        raise UsageError(
            f"output {output.name!r} has not run yet, and its first run reads its source from the beginning (or from "
            "`starting`): run the pipeline once before you backfill it"
        )
    try:
        stream = js.stream(source.stream_name)
        info = stream.info()
    except StreamNotFoundError as error:
        raise UsageError(f"there is no stream {source.stream_name!r} on this server") from error
    wanted = batch_options({"stream": "x", "starting": starting, **({"ending": ending} if ending else {})})

    def at_time(time: int) -> int:
        return find_time(stream, info, time)

    first = max(resolve(wanted.starting, info, at_time=at_time), first_seq(info))
    end = wanted.ending.value if wanted.ending.at is At.SEQUENCE else resolve(wanted.ending, info, at_time=at_time) - 1
    return Work(output, source, first, min(end, read, info.state.last_seq), read)


def fill(
    spark: SparkSession,
    pipeline: Pipeline,
    connection: Mapping[str, str],
    works: Iterable[Work],
    js: JetStream,
    say: Callable[[str], None],
) -> list[Filled]:
    """Fill each output; every one is checked before the first is written."""
    from slipstream.spark.pipelines.checks.deep import deep_mistakes

    if mistakes := deep_mistakes(spark, pipeline):
        raise PipelineError(pipeline.file, mistakes)
    filling = [_Filling(spark, pipeline, connection, work) for work in works]
    for one in filling:
        one.check()
    found = []
    for one in filling:
        work = one.work
        if work.first > work.last:
            say(f"{work.output.name}: it has read no message of this range")
            found.append(Filled(work.output.name, 0, 0))
            continue
        say(str(work))
        with _errors_of(work.output):
            found.append(one.into_bucket(js) if work.output.kind == "bucket" else one.into_stream(js))
    return found


@contextmanager
def _errors_of(output: Output) -> Iterator[None]:
    """What Spark raises inside, as one line with the output's name."""
    from pyspark.errors import PySparkException

    from slipstream.spark.failures import reason_of

    try:
        yield
    except PySparkException as error:
        raise UsageError(f"output {output.name!r}: {reason_of(str(error))}") from error


class _Filling:
    """The backfill of one output."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, connection: Mapping[str, str], work: Work) -> None:
        self._spark, self._pipeline, self._connection = spark, pipeline, connection
        self.work = work
        self._nodes: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raise UsageError if a range does not tell what the target must have."""
        output = self.work.output
        frame = self._frame(self.work.first, max(self.work.first, self.work.last))
        plan = frame._jdf.queryExecution().analyzed().toString()  # no public API tells what a plan consists of
        self._nodes = frozenset(_NODE.findall(plan))
        if output.kind == "stream" and self._is_grouped:
            raise UsageError(
                f"output {output.name!r} publishes the changes of an aggregate, which depend on how messages were cut "
                f"into batches: a range does not tell them. `reset --output {output.name}` publishes all of it again"
            )
        if output.kind == "bucket" and not self._is_grouped and self._order(frame) is None:
            raise UsageError(
                f"output {output.name!r} joins its source with a table, so that the newest row of a key cannot be "
                f"told: add _sequence to the columns of {output.view!r}"
            )

    @property
    def _is_grouped(self) -> bool:
        return not self._nodes.isdisjoint(_GROUPED)

    def into_bucket(self, js: JetStream) -> Filled:
        """Put the keys that the range has rows for, with the values of all messages that the output has read."""
        from pyspark.sql import functions as f

        from slipstream.spark.pipelines.build import output_rows

        work = self.work
        touched = output_rows(self._frame(work.first, work.last), work.output).select("key").distinct()
        if self._is_grouped:
            rows = output_rows(self._frame(self._begin(), work.read), work.output)
        else:
            frame = self._frame(work.first, work.read)
            order = self._order(frame)
            assert order is not None, "check comes first"
            ordered = output_rows(frame.withColumn(_AT, order), work.output, beside=_AT)
            names = [name for name in ordered.columns if name not in ("key", _AT)]
            newest = f.max_by(f.struct(*names), _AT).alias("newest")
            rows = ordered.groupBy("key").agg(newest).select("key", *(f.col(f"newest.{name}") for name in names))
        rows = rows.join(touched, rows["key"].eqNullSafe(touched["key"]), "left_semi")
        bucket = js.stream(STREAM_PREFIX + work.output.target)
        before = bucket.info().state.last_seq
        found = self._write(rows, JETSTREAM_KV, {"bucket": work.output.target, "onlyChanged": "true"})
        return Filled(work.output.name, found, bucket.info().state.last_seq - before)

    def into_stream(self, js: JetStream) -> Filled:
        """Publish the rows of the range that the stream lacks."""
        from pyspark.sql import functions as f
        from pyspark.sql.window import Window

        from slipstream.spark.pipelines.build import output_rows

        work = self.work
        chosen = output_rows(self._frame(work.first, work.last), work.output)
        # Later rows count as well: else an equal row behind the range would pass for the one that is missing in it.
        rows = output_rows(self._frame(work.first, work.read), work.output)
        there = self._spark.read.format(JETSTREAM).options(**self._connection)
        there = there.options(columns="subject,data", failOnDataLoss="false")
        if since := self._time_of(js, work.first):
            there = there.option("starting", since)
        copies = Window.partitionBy("subject", "data").orderBy(f.lit(1))
        wanted = rows.withColumn(_COPY, f.row_number().over(copies))
        present = there.load(work.output.target).withColumn(_COPY, f.row_number().over(copies))
        same = [wanted[name].eqNullSafe(present[name]) for name in ("subject", "data", _COPY)]
        missing = wanted.join(present, same, "left_anti").drop(_COPY)
        equal = [missing[name].eqNullSafe(chosen[name]) for name in ("subject", "data")]
        written = self._write(missing.join(chosen, equal, "left_semi"), JETSTREAM, {"stream": work.output.target})
        return Filled(work.output.name, chosen.count(), written)

    def _time_of(self, js: JetStream, sequence: int) -> str:
        """The time of the first message of the range: no row of it can have been published before."""
        from slipstream.api import format_time

        try:
            message = js.stream(self.work.source.stream_name).get_next(">", seq=sequence)
        except MessageNotFoundError:
            return ""
        return format_time(message.time)

    def _write(self, rows: DataFrame, format_: str, options: Mapping[str, str]) -> int:
        """Write the rows; returns how many there were."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        output = self.work.output
        counted = Observation()
        dead = {"deadLetter": f"{self._pipeline.dead_letter}.{output.name}"} if self._pipeline.dead_letter else {}
        writer = rows.observe(counted, f.count(f.lit(1)).alias("rows")).write.format(format_).mode("append")
        writer.options(**self._connection).options(**options).options(**dead).save()
        return int(counted.get["rows"])

    def _order(self, frame: DataFrame) -> Column | None:
        """What tells which of two rows is the newer one; None if nothing does."""
        from pyspark.sql import functions as f

        if known := [name for name in _ORDER if name in frame.columns]:
            return f.col(known[0])
        # Read by one task, rows are in the order of their messages, and a filter or projection keeps it.
        return None if "Join" in self._nodes else f.monotonically_increasing_id()

    def _begin(self) -> int:
        """The first message that an aggregate counts: where the source starts, unless the range begins before."""
        starting = stream_options({"stream": "x", "starting": self.work.source.options.get("starting", "earliest")})
        if starting.starting.at is At.SEQUENCE:
            return min(starting.starting.value, self.work.first)
        return 1

    def _frame(self, first: int, last: int) -> DataFrame:
        """The rows of the output's view over a range of messages."""
        from slipstream.spark.pipelines.build import create_views

        wanted = self.work.source.name

        def read(source: Source) -> DataFrame:
            options = {name: value for name, value in source.options.items() if name in ("subjects", "keys")}
            if source.bucket:
                options["history"] = "true"
            options |= {"failOnDataLoss": "false"}
            if source.name == wanted:
                options |= {"starting": str(max(first, 1)), "ending": str(last), "partitions": "1"}
            reader = self._spark.read.format(JETSTREAM if source.stream else JETSTREAM_KV).options(**self._connection)
            return reader.options(**options).load(source.stream or source.bucket)

        create_views(self._spark, self._pipeline, self._connection, read)
        return self._spark.table(self.work.output.view)
