"""Reset of a pipeline: discards the progress of its outputs and the files they have written.

Spark's file sink keeps in the output folder which batches it has written, and would skip them after a reset: so these
files go with the checkpoints. Messages and rows elsewhere are not touched, and `description` says so beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from slipstream.errors import StreamNotFoundError, UsageError
from slipstream.spark.options import DEFAULT_PROGRESS
from slipstream.spark.pipelines.connection import NotReachedError, existing_server
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.sink_files import SINK_LOG, clear
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.sink.progress import Progress

SHOWN = 5  # names of files in a message


class Reset:
    """A reset of some outputs, or of all. Raises UsageError if the pipeline is running."""

    def __init__(self, pipeline: Pipeline, names: Sequence[str] = (), servers: str = "") -> None:
        """`servers` take precedence over those of the file."""
        self._pipeline, self._servers = pipeline, servers
        self._state = state = StateFolder(pipeline)
        self._what = f"the pipeline {pipeline.name!r}"
        with state.lock.held(self._what):  # before the user is asked anything
            pass
        self._outputs = [one for one in pipeline.outputs if not names or one.name in names]
        known = [one.name for one in pipeline.outputs]
        if unknown := sorted(set(names) - set(known)):
            raise UsageError(f"there is no output {unknown[0]!r}; the pipeline has {', '.join(known)}")
        self._queries = [one.name for one in self._outputs]
        if not names:
            self._queries += pipeline.dead_letter_queries()
            # and those that the file has no longer
            self._queries += [name for name in state.checkpoints() if name not in self._queries]

    def description(self) -> Iterator[str]:
        """Lines that say what will be removed, and what will not."""
        yield "the next run starts from the beginning of the sources, for " + ", ".join(self._queries)
        for output in self._outputs:
            path = self._state.output_path(output)
            if isinstance(path, Path):
                yield f"removes the files that it has written in {path}"
            elif path is not None:
                yield f"does not reach {path}: remove {SINK_LOG} and the files there, or the next run skips them"
        for output in self._outputs:
            if output.kind == "table" and self._state.output_path(output) is None:
                yield f"does not reach the table {output.target}, which keeps its rows"
        if any(output.kind == "stream" for output in self._outputs):
            yield "messages in output streams stay, and are published again"

    def apply(self) -> Iterator[str]:
        """Do it; yields a line per folder in which files of others are left."""
        with self._state.lock.held(self._what):
            writers = self._writers()
            self._state.reset(self._queries)
            if note := self._forget(writers):
                yield note
            for folder in self._folders():
                if left := clear(folder).left:
                    yield f"leaves what it has not written in {folder}: {_some(left)}"

    def _writers(self) -> list[tuple[str, str]]:
        """The queries that have published to streams, each with its stream."""
        targets = {one.name: one.target for one in self._outputs if one.kind == "stream"}
        outputs = [one.name for one in self._outputs]
        targets |= {name: self._pipeline.dead_letter for name in self._queries if name not in outputs}
        found = [(self._state.query_id(name), target) for name, target in targets.items()]
        return [(query, target) for query, target in found if query and target]

    def _forget(self, writers: list[tuple[str, str]]) -> str:
        """Purge what the server keeps of these queries for retries, which no query needs any more. Returns a line if
        the server cannot be reached; a few records then stay there."""
        if not writers:
            return ""
        try:
            with existing_server(self._pipeline, self._state, self._servers) as js:
                if js is None:
                    return ""
                for query, target in writers:
                    with suppress(StreamNotFoundError):
                        Progress(js, DEFAULT_PROGRESS, target).forget(query)
        except NotReachedError as error:
            return f"leaves the records of retries on the server: {error}"
        return ""

    def _folders(self) -> Iterator[Path]:
        paths = map(self._state.output_path, self._outputs)
        return (path for path in paths if isinstance(path, Path))


def _some(paths: tuple[Path, ...]) -> str:
    names = ", ".join(path.name for path in paths[:SHOWN])
    return names if len(paths) <= SHOWN else f"{names} and {len(paths) - SHOWN} more"
