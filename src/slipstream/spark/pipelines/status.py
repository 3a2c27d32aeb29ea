"""Status of a pipeline: how far each output has come, from its checkpoints, its last run and its servers.

Nothing is changed or created. Where no server can be reached, what the last run has recorded is shown, with its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slipstream.facade._sync.client import JetStream
from slipstream.spark.pipelines.connection import (
    NotReachedError,
    connection_options,
    existing_server,
    last_sequences,
    open_connection,
)
from slipstream.spark.pipelines.display import failure
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.state import QueryState, StateFolder, lag_of


def status_of(pipeline: Pipeline, servers: str = "") -> dict[str, Any]:
    """The last batch, the rows and the lag of each output, in the form that `status --json` prints."""
    state = StateFolder(pipeline)
    pid, _, queries = state.read_run()
    last: dict[str, int] = {}
    away = ""
    try:
        with _server(pipeline, state, servers) as js:
            if js is not None:
                last = last_sequences(js, pipeline)
    except NotReachedError as error:
        away = str(error)
    outputs: dict[str, Any] = {}
    for name in (*(one.name for one in pipeline.outputs), *pipeline.dead_letter_queries()):
        batch, offsets = state.committed(name)
        seen = queries.get(name, QueryState())
        outputs[name] = {
            "batch": batch,
            "rows": seen.rows,
            "written": seen.written if seen.written >= 0 else None,
            "dead": seen.dead,
            "at": seen.at,
            "lag": lag_of(pipeline, name, offsets, last),
            "read": sum(offset.get("seq", 0) for offset in offsets),
            "late": seen.late,
            "state_rows": seen.state_rows,
            "watermark": seen.watermark,
            "error": failure(seen),
        }
    saved = state.saved_at()
    return {"pipeline": pipeline.name, "pid": pid, "at": saved, "away": away, "sources": last, "outputs": outputs}


@contextmanager
def _server(pipeline: Pipeline, state: StateFolder, servers: str) -> Iterator[JetStream | None]:
    """The server that runs. The data of an embedded server that does not run is opened here, if there is any."""
    try:
        with existing_server(pipeline, state, servers) as js:
            yield js
            return
    except NotReachedError:
        if servers or pipeline.connection.get("servers") or pipeline.connection.get("context"):
            raise
        if state.read_run()[0] or not state.server.exists():
            raise
    with connection_options(pipeline, state) as connection, open_connection(connection) as js:
        yield js
