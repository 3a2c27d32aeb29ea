"""Plan of the shared reads of a pipeline: per source, the outputs that can be written from one read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.core.context import Py4JError  # type: ignore[attr-defined]

from slipstream.spark.pipelines.build import (
    QueryPlan,
    dead_letters_of,
    output_rows,
    parse_once,
    read_stream,
    rows_of,
    sequence_column,
    sink_settings,
)
from slipstream.spark.pipelines.fan_out.checkpoints import Checkpoint
from slipstream.spark.pipelines.fan_out.eligible import is_row_by_row
from slipstream.spark.pipelines.fan_out.file_sink import file_format, write_files
from slipstream.spark.pipelines.fan_out.grouping import choose
from slipstream.spark.pipelines.fan_out.shared_read import Rows, SharedRead, SharingOutput, Views
from slipstream.spark.pipelines.model import DEAD_LETTERS, Output, Pipeline, Source, Step
from slipstream.spark.pipelines.sql_tables import tables_in
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.sink.foreach_batch import waiting, write_to_bucket, write_to_stream
from slipstream.spark.source.plan import Range, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def shared_reads(
    spark: SparkSession, pipeline: Pipeline, plans: Sequence[QueryPlan], connection: Mapping[str, str]
) -> list[SharedRead]:
    """The shared reads of a run, ready to start; every output that is in none of them has a query of its own.

    The views of the pipeline must be in the session.
    """
    if not pipeline.share_reads:
        return []
    state = StateFolder(pipeline)
    found = []
    for source in pipeline.sources:
        able = [one for one in plans if _can_share(spark, pipeline, source, one)]
        positions = {one.name: Checkpoint(state.checkpoint(one.name)).position() for one in able}
        checkpoint = Checkpoint(state.shared(source.name))
        group = choose({name: one for name, one in positions.items() if one is not None}, checkpoint.position())
        members = [one for one in able if one.name in group.names]
        if not members:
            continue
        raw = read_stream(spark, source, connection)
        frame = raw if source.format == "raw" else parse_once(source, raw)
        outputs = [_sharing_output(pipeline, source, one, connection, state) for one in members]
        views = _views(pipeline, source, [one.output for one in members if one.output])
        read = SharedRead(source.name, frame, views, outputs, checkpoint)
        read.prepare(group)
        found.append(read)
    return found


def _can_share(spark: SparkSession, pipeline: Pipeline, source: Source, plan: QueryPlan) -> bool:
    """Whether an output can be written from a read that it shares."""
    output = plan.output
    if output is None:
        return plan.name == DEAD_LETTERS + source.name
    if output.kind == "table" or pipeline.sources_of(output.name) != {source.name}:
        return False
    rows = spark.table(output.view)
    if output.kind == "files":
        try:
            file_format(spark, output.format)
        except Py4JError:  # not one of Spark's own formats, whose sink is the one that can be given single batches
            return False
    else:
        rows = output_rows(rows, output)
    return is_row_by_row(rows)


def _sharing_output(
    pipeline: Pipeline, source: Source, plan: QueryPlan, connection: Mapping[str, str], state: StateFolder
) -> SharingOutput:
    checkpoint = Checkpoint(state.checkpoint(plan.name))
    output = plan.output
    if output is None:
        subject = f"{pipeline.dead_letter}.{source.name}"
        settings = waiting(connection, stream=pipeline.dead_letter)
        return SharingOutput(
            plan.name,
            lambda batch: dead_letters_of(source, batch, subject),
            lambda rows, batch: write_to_stream(rows, {**settings, "batchId": str(batch)}),
            checkpoint,
        )
    if output.kind == "files":
        path = str(state.output_path(output))
        return SharingOutput(
            plan.name,
            lambda batch: batch.sparkSession.table(output.view),
            lambda rows, batch: write_files(rows, output, path, batch),
            checkpoint,
        )
    options = waiting(sink_settings(pipeline, output, connection), **{output.kind: output.target})
    if output.kind == "bucket":
        return SharingOutput(plan.name, _rows_for(output), lambda rows, _: write_to_bucket(rows, options), checkpoint)
    return SharingOutput(
        plan.name,
        _rows_for(output),
        lambda rows, batch: write_to_stream(rows, {**options, "batchId": str(batch)}),
        checkpoint,
    )


def _rows_for(output: Output) -> Rows:
    return lambda batch: output_rows(batch.sparkSession.table(output.view), output)


def _views(pipeline: Pipeline, source: Source, outputs: Sequence[Output]) -> Views:
    """A function that makes the views of a batch in its session: the source, and the steps between it and outputs."""
    steps = _steps_for(pipeline, outputs)
    pieces = int(source.options.get("partitions", 0))

    def make(batch: DataFrame, part: Range | None) -> DataFrame:
        if part is not None:
            ranges = split(part.start, part.end, partitions=pieces)
            batch = in_partitions(batch, sequence_column(source), ranges)
        rows = batch if source.format == "raw" else rows_of(source, batch)
        rows.createOrReplaceTempView(source.name)
        for step in steps:
            batch.sparkSession.sql(step.sql).createOrReplaceTempView(step.name)
        return batch

    return make


def in_partitions(batch: DataFrame, column: str, parts: Sequence[Range]) -> DataFrame:
    """The messages from the first range on, each range in a partition of its number, in the order of the stream."""
    from pyspark.sql import functions as f

    sequence, starts = f.col(column), f.lit([one.start for one in parts])
    number = f.size(f.filter(starts, lambda start: start <= sequence)) - 1
    rows = batch.where(sequence >= parts[0].start).repartitionById(len(parts), number)
    return rows.sortWithinPartitions(column)


def _steps_for(pipeline: Pipeline, outputs: Sequence[Output]) -> list[Step]:
    """The steps behind these outputs, in the order in which they depend on each other."""
    steps = {one.name: one for one in pipeline.steps}
    wanted, views = set(), [one.view for one in outputs]
    while views:
        name = views.pop()
        if name in steps and name not in wanted:
            wanted.add(name)
            views += tables_in(steps[name].sql, steps)
    return [one for one in pipeline.steps if one.name in wanted]
