"""Reports of a query's batches, each read once: Spark keeps a hundred, and takes some milliseconds of CPU to write all
of them as text, at every look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def reports_since(query: StreamingQuery, newest: str) -> tuple[Sequence[Any], str]:
    """The reports after the one that `newest` names, as far as Spark still has them, and the name of the last one."""
    java: Any = getattr(query, "_jsq", None)  # missing in Spark Connect, whose reports are text already
    if java is None:
        return query.recentProgress, ""
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    reports = java.recentProgress()
    found: list[Any] = []
    last = newest
    for index in range(len(reports) - 1, -1, -1):
        report = reports[index]
        name = f"{report.runId()} {report.timestamp()} {report.batchId()}"
        if name == newest:
            break
        if not found:
            last = name
        found.append(StreamingQueryProgress.fromJson(json.loads(report.json())))
    return found[::-1], last
