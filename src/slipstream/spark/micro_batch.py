"""The micro-batch that a task belongs to, as Spark tells its workers."""

from __future__ import annotations

from pyspark import TaskContext

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


def micro_batch(context: TaskContext | None) -> tuple[str, int] | None:
    """The id of the streaming query and the number of the batch; None outside of streaming queries."""
    if context is None:
        return None
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    return (query, int(batch)) if query and batch else None
