"""Status of a pipeline: how far each output has come, from its checkpoints, its last run and its servers."""

from __future__ import annotations

from typing import Any

from slipstream.spark.pipelines.connection import connection_options, last_sequences, open_connection
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.state import QueryState, StateFolder, lag_of


def status_of(pipeline: Pipeline, servers: str = "") -> dict[str, Any]:
    """The last batch, the rows and the lag of each output, in the form that `status --json` prints."""
    state = StateFolder(pipeline)
    pid, url, queries = state.read_run()
    # The embedded server of a run is reached at its address; without a run, its data is opened here.
    with (
        connection_options(pipeline, state, servers or (url if pid else "")) as connection,
        open_connection(connection) as js,
    ):
        last = last_sequences(js, pipeline)
    outputs: dict[str, Any] = {}
    for name in (*(one.name for one in pipeline.outputs), *pipeline.dead_letter_queries()):
        batch, offsets = state.committed(name)
        seen = queries.get(name, QueryState())
        outputs[name] = {
            "batch": batch,
            "rows": seen.rows,
            "at": seen.at,
            "lag": lag_of(pipeline, name, offsets, last),
            "read": sum(offset.get("seq", 0) for offset in offsets),
            "error": seen.error,
        }
    return {"pipeline": pipeline.name, "pid": pid, "sources": last, "outputs": outputs}
