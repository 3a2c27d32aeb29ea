"""Reset of a pipeline: discards the progress of its outputs and the files they have written.

Spark's file sink keeps in the output folder which batches it has written, and would skip them after a reset: so these
files go with the checkpoints. Messages and rows elsewhere are not touched, and `description` says so beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from slipstream.errors import UsageError
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.sink_files import SINK_LOG, clear
from slipstream.spark.pipelines.state import StateFolder

SHOWN = 5  # names of files in a message


class Reset:
    """A reset of some outputs, or of all. Raises UsageError if the pipeline is running."""

    def __init__(self, pipeline: Pipeline, names: Sequence[str] = ()) -> None:
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
            self._queries += [name for name in state.dead_letter_queries() if name not in self._queries]

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
            self._state.reset(self._queries)
            for folder in self._folders():
                if left := clear(folder).left:
                    yield f"leaves what it has not written in {folder}: {_some(left)}"

    def _folders(self) -> Iterator[Path]:
        paths = map(self._state.output_path, self._outputs)
        return (path for path in paths if isinstance(path, Path))


def _some(paths: tuple[Path, ...]) -> str:
    names = ", ".join(path.name for path in paths[:SHOWN])
    return names if len(paths) <= SHOWN else f"{names} and {len(paths) - SHOWN} more"
