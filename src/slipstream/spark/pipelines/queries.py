"""Start of a pipeline's queries: each with its checkpoint in the state, and with the folder or table of its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.spark.pipelines.build import errors_at
from slipstream.spark.pipelines.model import Output, Pipeline
from slipstream.spark.pipelines.state import StateFolder

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from slipstream.spark.pipelines.build import QueryPlan

_CATALOG_KIND = "spark.sql.catalogImplementation"


def start_query(plan: QueryPlan, pipeline: Pipeline, state: StateFolder, *, once: bool) -> StreamingQuery:
    """Start a query, for everything available now (`once`) or with the trigger of the pipeline."""
    with errors_at(pipeline, plan.position, f"output {plan.name!r}"):
        writer = plan.writer().queryName(f"{pipeline.name}-{plan.name}")
        writer = writer.option("checkpointLocation", str(plan.checkpoint or state.checkpoint(plan.name)))
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=pipeline.trigger)
        return _start_writer(writer, pipeline, state, plan.output)


def _start_writer(
    writer: DataStreamWriter, pipeline: Pipeline, state: StateFolder, output: Output | None
) -> StreamingQuery:
    path = state.output_path(output) if output is not None else None
    if output is not None and output.kind == "table" and not output.key:
        # Spark's own catalog is in memory and forgets the table, but the folder stays: with the path set, the table
        # is created again over the files of earlier runs.
        if path is not None and pipeline.conf.get(_CATALOG_KIND, "in-memory") == "in-memory":
            writer = writer.option("path", str(path))
        return writer.toTable(output.target)
    return writer.start(str(path)) if path is not None else writer.start()
