"""Events of a run: a log of JSON lines in the state of the pipeline, one line for each thing that happened.

Queries start, finish batches, fail, are restarted or given up, and end. A line is written whole and at once, so that a
reader that follows the file never sees a part of one (except at its very end, after a crash). The log is bounded: when
it is full it becomes `events.1.jsonl`, in place of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_BYTES = 4 * 1024 * 1024
LOG, OLDER = "events.jsonl", "events.1.jsonl"

Event = dict[str, Any]


class EventLog:
    """The log in a folder. `also` is called with each event, after it has been written."""

    def __init__(
        self, folder: Path, also: Callable[[Event], None] | None = None, *, max_bytes: int = MAX_BYTES
    ) -> None:
        self._path, self._older = folder / LOG, folder / OLDER
        self._also = also
        self._max_bytes = max_bytes

    def add(self, kind: str, at: str, **details: Any) -> None:
        """Write an event; `at` is its time."""
        event = {"at": at, "event": kind, **details}
        line = json.dumps(event, default=str) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
            self._path.replace(self._older)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
        if self._also is not None:
            self._also(event)


def progress_details(progress: Any) -> Event:
    """What Spark reports of a batch, without the texts of plans: durations, sources with their offsets, state."""
    event_time = progress.get("eventTime") or {}
    return {
        "query_id": progress["id"],
        "run_id": progress["runId"],
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "rows_per_second": progress["processedRowsPerSecond"] or 0.0,
        "durations_ms": dict(progress.get("durationMs") or {}),
        "watermark": event_time.get("watermark", ""),
        "state_rows": sum(one.get("numRowsTotal", 0) for one in progress.get("stateOperators") or ()),
        "late_rows": late_rows(progress),
        "sources": [
            {
                "start": _offset(one.get("startOffset")),
                "end": _offset(one.get("endOffset")),
                "rows": one["numInputRows"],
            }
            for one in progress["sources"]
        ],
    }


def late_rows(progress: Any) -> int:
    """How many rows of a batch arrived behind the watermark, and were dropped."""
    return sum(one.get("numRowsDroppedByWatermark", 0) for one in progress.get("stateOperators") or ())


def _offset(found: Any) -> Any:
    """An offset as JSON; Spark has it as text in some versions."""
    try:
        return json.loads(found) if isinstance(found, str) else found
    except ValueError:
        return found
