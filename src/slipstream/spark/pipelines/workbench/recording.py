"""Recording of a pipeline's sources: messages of live streams as the input of a test case. Streams are only read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from slipstream.api.times import parse_time
from slipstream.errors import StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.kv.entry import Operation, operation_of
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.model import Pipeline, Source
from slipstream.spark.pipelines.workbench.cases import ENDING, IN, cases_folder
from slipstream.spark.pipelines.workbench.records import Recorded, write_records


def record(
    js: JetStream,
    pipeline: Pipeline,
    case: str,
    *,
    sources: Sequence[str] = (),
    starting: str = "last",
    limit: int = 100,
    folder: str = "",
) -> dict[Path, int]:
    """Write the input of a case from what the sources (all, unless some are named) have; returns the files and how many
    messages each has. A file that exists is not replaced."""
    known = [one.name for one in pipeline.sources]
    if unknown := sorted(set(sources) - set(known)):
        raise UsageError(f"there is no source {unknown[0]!r}; {suggestion(unknown[0], known, 'the file has')}")
    if not case or case in (".", "..") or any(mark in case for mark in "/\\"):
        raise UsageError(f"a case must have a name that can be a folder's, got {case!r}")
    chosen = [one for one in pipeline.sources if not sources or one.name in sources]
    root = (Path(folder) if folder else cases_folder(pipeline)) / case / IN
    paths = {one.name: root / f"{one.name}{ENDING}" for one in chosen}
    if existing := [path for path in paths.values() if path.exists()]:
        raise UsageError(f"{existing[0]} already exists: name another case, or remove it")
    texts = {}
    for one in chosen:  # all are read before the first file is written
        found = list(_records(js, one, starting, limit))
        texts[one.name] = len(found), write_records(found, is_bucket=bool(one.bucket))
    root.mkdir(parents=True, exist_ok=True)
    for name, (_, text) in texts.items():
        paths[name].write_text(text, "utf-8")
    return {paths[name]: count for name, (count, _) in texts.items()}


def _records(js: JetStream, source: Source, starting: str, limit: int) -> Iterator[Recorded]:
    prefix = f"$KV.{source.bucket}." if source.bucket else ""
    for one in messages_of(js, source, starting, limit):
        operation = operation_of(one.header) if source.bucket and one.header else Operation.PUT
        headers: dict[str, list[str]] = {}
        if not source.bucket:
            for name, value in one.headers.items():
                headers.setdefault(name, []).append(value)
        yield Recorded(one.subject.removeprefix(prefix), one.data, one.time, one.seq, headers, operation.value, 1)


def messages_of(js: JetStream, source: Source, starting: str, limit: int) -> list[StoredMessage]:
    """At most `limit` messages of a source, from its first or last messages, a sequence or a time."""
    stream = js.stream(source.stream_name)
    try:
        state = stream.info().state
    except StreamNotFoundError as error:
        raise UsageError(f"there is no stream {source.stream_name!r} on this server") from error
    if not state.messages or limit < 1:
        return []
    key, prefix = ("keys", f"$KV.{source.bucket}.") if source.bucket else ("subjects", "")
    filters = [f"{prefix}{one.strip()}" for one in source.options.get(key, "").split(",") if one.strip()]
    is_last = starting == "last"
    start, start_time = _start(starting, state.first_seq)
    if is_last and not filters:
        start = max(state.first_seq, state.last_seq - limit + 1)
    found: dict[int, StoredMessage] = {}
    for subject in filters or [""]:
        if start > state.last_seq:
            break
        reading = stream.read(start=start, start_time=start_time, end=state.last_seq, subject=subject)
        chosen = deque(reading, maxlen=limit) if is_last else islice(reading, limit)
        found |= {one.seq: one for one in chosen}
    ordered = sorted(found.values(), key=lambda one: one.seq)
    return ordered[-limit:] if is_last else ordered[:limit]


def _start(starting: str, first: int) -> tuple[int, int | None]:
    """The sequence to begin with, or the time."""
    if starting in ("first", "last"):
        return max(first, 1), None
    if starting.isascii() and starting.isdigit():
        return max(int(starting), first, 1), None
    try:
        return 1, parse_time(starting)
    except ValueError as error:
        raise UsageError(
            f"--from must be first, last, a sequence or a time such as 2026-01-31T12:00:00Z, got {starting!r}"
        ) from error
