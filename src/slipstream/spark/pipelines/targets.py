"""Check that every output of a pipeline has a target of its own.

Readers take every file in an output's folder for rows, and Spark's file sink keeps in it the log of the batches that
were written: of two outputs in one folder, each would skip the batches of the other. So no target may equal, contain
or lie in another output's target, and none may contain the pipeline's own files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath
from posixpath import normpath

from slipstream.spark.pipelines.model import Output, Pipeline
from slipstream.spark.pipelines.state import StateFolder


def target_conflicts(pipeline: Pipeline) -> Iterator[tuple[tuple[str, ...], str]]:
    """Outputs whose target is not theirs alone: the key in the file, and the mistake."""
    state = StateFolder(pipeline)
    folders = {"pipeline's file": state.base, "pipeline's state": state.path, "server's data": state.server}
    own = {f"folder of the {what}": folder.resolve() for what, folder in folders.items()}
    taken: dict[str, PurePath] = {}
    for output in pipeline.outputs:
        target = _comparable(state, output)
        if target is None:
            continue
        conflicts = [
            f"{_relation(target, folder)} the {what}" for what, folder in own.items() if folder.is_relative_to(target)
        ]
        conflicts += [
            f"{_relation(target, other)} the target of output {name!r}"
            for name, other in taken.items()
            if other.is_relative_to(target) or target.is_relative_to(other)
        ]
        taken[output.name] = target
        if conflicts:
            key, what = ("path", "folder") if output.kind == "files" else ("table", "table")
            message = f"{key} must be a separate {what}, got {output.target!r}, which {conflicts[0]}"
            yield ("outputs", output.name, key), message


def _comparable(state: StateFolder, output: Output) -> PurePath | None:
    """The target as a path that can be compared with others; a table at an unknown location is compared by name.

    None if there is nothing to compare: tables of other catalogs may take the rows of several queries.
    """
    path = state.output_path(output)
    if isinstance(path, Path):
        return path.resolve()
    if path is not None:
        return PurePosixPath(normpath(path))
    if output.kind != "table" or state.has_other_catalogs:
        return None
    return PurePosixPath("table:" + output.target.replace("`", "").lower())


def _relation(target: PurePath, other: PurePath) -> str:
    if target == other:
        return "is"
    return "contains" if other.is_relative_to(target) else "lies in"
