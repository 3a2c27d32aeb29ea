"""Lag of a pipeline in seconds, and its dead letters, as the server tells them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from slipstream.errors import MessageNotFoundError, StreamNotFoundError
from slipstream.facade._sync.client import JetStream
from slipstream.spark.pipelines.model import DEAD_LETTERS, Pipeline


def lag_seconds(js: JetStream, pipeline: Pipeline, query: str, sequences: Mapping[str, int]) -> float:
    """The age of the oldest message that a query has still to read, by the clocks of server and client; 0 if there is
    none. Of a query with several sources, that of the one which is furthest behind."""
    names = pipeline.sources_of(query)
    read = min(sequences.values(), default=0)  # Spark does not tell which sequence is of which source
    oldest = 0.0
    for source in pipeline.sources:
        if source.name not in names:
            continue
        prefix = f"$KV.{source.bucket}." if source.bucket else ""
        filters = source.options.get("keys" if source.bucket else "subjects", "")
        for one in filters.split(",") if filters else [">"]:
            pattern = one.strip() if one.strip() == ">" and not prefix else f"{prefix}{one.strip()}"
            try:
                message = js.stream(source.stream_name).get_next(pattern, seq=read + 1)
            except MessageNotFoundError:
                continue
            oldest = max(oldest, time.time() - message.time / 1e9)
    return oldest


def letter_counts(js: JetStream, pipeline: Pipeline) -> dict[str, int]:
    """How many dead letters there are of each output, and of each source by the name of its query."""
    if not pipeline.dead_letter:
        return {}
    prefix = f"{pipeline.dead_letter}."
    try:
        subjects = js.stream(pipeline.dead_letter).info(subjects_filter=f"{prefix}>").state.subjects
    except StreamNotFoundError:
        return {}
    found = {name.removeprefix(prefix): count for name, count in subjects.items()}
    queries = {DEAD_LETTERS + one.name: found[one.name] for one in pipeline.sources if one.name in found}
    return found | queries
