"""What a pipeline leaves on disk becomes its status, and what `reset` may remove of it.

The truth about progress is in Spark's checkpoints, one folder per output; beside them lies a small file with what the
last run has seen (rows, times, the address of its server). Files are replaced whole, so that a reader never sees half.
Of the files of an output only those are removed that Spark's sink has noted: a folder may hold files of others, and a
path may be mistaken.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from posixpath import normpath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from slipstream.errors import Error
from slipstream.spark.pipelines.lock import Lock
from slipstream.spark.pipelines.model import DEAD, Output, Pipeline, Source
from slipstream.spark.pipelines.sql_tables import mentioned

WAREHOUSE = "spark.sql.warehouse.dir"
NOTES = "_spark_metadata"
_NOTE = re.compile(r"\d+(?:\.compact)?")
_CATALOGS = "spark.sql.catalog."
_CATALOG = "spark.sql.catalog.spark_catalog"  # something else than Spark's own
_TABLE = re.compile(r"(?:(?:spark_catalog\.)?default\.)?([A-Za-z0-9_]+)", re.IGNORECASE)
_LOCAL = re.compile(r"file:(?://(?:localhost)?(?=/))?")


@dataclass(slots=True)
class QueryState:
    """One output, as a run has seen it."""

    rows: int = 0
    batch: int = -1
    rate: float = 0.0
    at: str = ""
    sequences: dict[str, int] = field(default_factory=dict)  # source or place among the sources -> last sequence read
    skipped: int = 0
    error: str = ""

    def after(self, earlier: QueryState) -> QueryState:
        """This run together with those before it: a run without news does not make them forgotten."""
        return QueryState(
            rows=earlier.rows + self.rows,
            batch=self.batch if self.at else earlier.batch,
            rate=self.rate if self.at else earlier.rate,
            at=self.at or earlier.at,
            sequences=self.sequences or earlier.sequences,
            skipped=max(self.skipped, earlier.skipped),
            error=self.error,
        )


class StateFolder:
    """Where a pipeline keeps what it must not forget."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.base = Path(pipeline.file).resolve().parent  # relative paths in the file begin here
        self.path = self.base / (pipeline.state or f"{pipeline.name}-state")
        self.lock = Lock(self.path / "run.lock")
        self._run = self.path / "run.json"

    def checkpoint(self, output: str) -> Path:
        """The checkpoint of an output."""
        return self.path / "checkpoints" / output

    @property
    def server(self) -> Path:
        """The data of the embedded server."""
        data = self._pipeline.server.get("data")
        return self.base / data if data else self.path / "server"

    @property
    def warehouse(self) -> str | Path:
        """Where tables lie whose catalog is Spark's own."""
        given = self._pipeline.conf.get(WAREHOUSE, "")
        return _local(given, Path.cwd()) if given else self.path / "warehouse"

    @property
    def has_other_catalogs(self) -> bool:
        """Whether tables may lie elsewhere than Spark itself would put them."""
        return any(name.startswith(_CATALOGS) for name in self._pipeline.conf)

    def path_of(self, output: Output) -> str | Path | None:
        """Where the files of an output go: relative to the file, or wherever a URL says; a table lies in the warehouse.
        None for what is no folder, and for tables of another catalog."""
        if output.kind == "files":
            return _local(output.target, self.base)
        found = _TABLE.fullmatch(output.target) if output.kind == "table" else None
        if found is None or _CATALOG in self._pipeline.conf:
            return None
        name, warehouse = found[1].lower(), self.warehouse  # in lower case, as Spark has it
        return f"{warehouse.rstrip('/')}/{name}" if isinstance(warehouse, str) else warehouse / name

    def write_run(self, url: str, queries: dict[str, QueryState]) -> None:
        """Note what a run has seen so far."""
        self.path.mkdir(parents=True, exist_ok=True)
        found = {
            "url": url,
            "queries": {
                name: {slot: getattr(one, slot) for slot in QueryState.__slots__} for name, one in queries.items()
            },
        }
        fresh = self._run.with_suffix(".new")
        fresh.write_text(json.dumps(found, indent=1), "utf-8")
        fresh.replace(self._run)

    def read_run(self) -> tuple[int, str, dict[str, QueryState]]:
        """The process that runs the pipeline (0: none), the address of its server, and what it has seen."""
        pid = self.lock.holder()
        try:
            found: dict[str, Any] = json.loads(self._run.read_text("utf-8"))
        except (OSError, ValueError):
            return pid, "", {}
        queries = {name: QueryState(**one) for name, one in found.get("queries", {}).items()}
        return pid, found.get("url", ""), queries

    def committed(self, output: str) -> tuple[int, list[dict[str, Any]]]:
        """The last batch that an output has committed (-1: none) and the offsets of its sources behind it."""
        folder = self.checkpoint(output)
        batches = [int(file.name) for file in folder.glob("commits/*") if file.name.isdigit()]
        if not batches:
            return -1, []
        lines = (folder / "offsets" / str(max(batches))).read_text("utf-8").splitlines()
        return max(batches), [json.loads(line) for line in lines[2:] if line.startswith("{")]

    def dead_letters(self) -> list[str]:
        """The queries for dead letters that have a checkpoint."""
        names = [DEAD + one.name for one in self._pipeline.sources]
        return [name for name in names if self.checkpoint(name).exists()]

    def reset(self, outputs: list[str]) -> list[Path]:
        """Forget how far these outputs have come; gives what was removed."""
        gone = [folder for output in outputs if (folder := self.checkpoint(output)).exists()]
        for folder in gone:
            shutil.rmtree(folder)
        _, url, queries = self.read_run()
        if queries:
            self.write_run(url, {name: one for name, one in queries.items() if name not in outputs})
        return gone


def misplaced(pipeline: Pipeline) -> Iterator[tuple[tuple[str, ...], str]]:
    """Outputs without a place of their own, by their keys. Others read all that is in a folder as rows, and Spark notes
    in it which batches are written: of two outputs in one folder each would leave out the other's."""
    state = StateFolder(pipeline)
    kept = {"pipeline's file": state.base, "pipeline's state": state.path, "server's data": state.server}
    taken: dict[str, PurePath] = {}
    for output in pipeline.outputs:
        place = _place(state, output)
        if place is None:
            continue
        found = [(f"folder of the {what}", folder.resolve()) for what, folder in kept.items()]
        wrong = [f"{_relation(place, folder)} the {what}" for what, folder in found if folder.is_relative_to(place)]
        for name, other in taken.items():
            if other.is_relative_to(place) or place.is_relative_to(other):
                wrong.append(f"{_relation(place, other)} the place of output {name!r}")
        taken[output.name] = place
        if wrong:
            key, own = ("path", "a folder") if output.kind == "files" else ("table", "a table")
            yield (
                ("outputs", output.name, key),
                f"{key} is {output.target!r}, which {wrong[0]}: {own} of its own is allowed",
            )


def _place(state: StateFolder, output: Output) -> PurePath | None:
    """Where the rows of an output lie, to be compared with others; a table in an unknown place has its name for it.
    None where there is nothing to compare: tables of other catalogs may take the rows of many queries."""
    path = state.path_of(output)
    if isinstance(path, Path):
        return path.resolve()
    if path is not None:
        return PurePosixPath(normpath(path))
    if output.kind != "table" or state.has_other_catalogs:
        return None
    return PurePosixPath("table:" + output.target.replace("`", "").lower())


def _relation(place: PurePath, other: PurePath) -> str:
    if place == other:
        return "is"
    return "contains" if other.is_relative_to(place) else "lies in"


def _local(target: str, base: Path) -> str | Path:
    """A folder of this machine, or a URL of another place as it is."""
    if found := _LOCAL.match(target):
        return base / unquote(target[found.end() :])
    return target if "://" in target else base / target


class Removed(NamedTuple):
    """What came of clearing a folder."""

    files: int
    left: tuple[Path, ...]  # what the sink has not written


def clear(folder: Path) -> Removed:
    """Remove the files that Spark's sink has noted in a folder, its notes, and the folder if nothing else is in it.

    The notes go last, so that what was interrupted can be done again.
    """
    if not folder.is_dir():
        return Removed(0, ())
    count = 0
    try:
        for file in noted(folder):
            count += file.exists()
            file.unlink(missing_ok=True)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of it
            _remove_empty(file.parent, folder)
        if (folder / NOTES).is_dir():
            shutil.rmtree(folder / NOTES)
        left = tuple(sorted(folder.iterdir()))
        if not left and not folder.is_symlink():
            folder.rmdir()
    except OSError as error:
        raise Error(f"{folder} was not cleared, so reset it again: {error}") from error
    return Removed(count, left)


def noted(folder: Path) -> Iterator[Path]:
    """The files in a folder that the sink's notes name; names of files elsewhere are left out."""
    whole = folder.resolve()
    found: dict[Path, None] = {}
    notes = [note for note in (folder / NOTES).glob("*") if _NOTE.fullmatch(note.name)]
    for note in sorted(notes):
        for line in note.read_text("utf-8").splitlines()[1:]:  # the first one is the version
            path = _path(line)
            if path is not None and path.is_relative_to(whole) and path != whole:
                found[path] = None
    return iter(found)


def _path(line: str) -> Path | None:
    try:
        url = urlsplit(str(json.loads(line)["path"]))
    except (ValueError, KeyError, TypeError):
        return None  # cut off by a crash: Spark does not count it either
    path = Path(unquote(url.path))
    # The folder is taken as it is, but not the file: a link in it is removed, not what it points to.
    return path.parent.resolve() / path.name if url.scheme in ("", "file") and path.name not in ("", "..") else None


def _remove_empty(folder: Path, stop: Path) -> None:
    """Folders of partitions, from the inside out."""
    stop = stop.resolve()
    while folder != stop and folder.is_relative_to(stop) and folder.is_dir() and not os.listdir(folder):
        folder.rmdir()
        folder = folder.parent


def lag_of(pipeline: Pipeline, query: str, offsets: list[dict[str, Any]], last: dict[str, int]) -> int | None:
    """How far behind a query is; None if that cannot be told. Which of its sources an offset is of is not written down:
    there must be one of each, or all of one stream."""
    names = sources_of(pipeline, query)
    if not names or any(name not in last for name in names):
        return None
    ends = [last[name] for name in sorted(names)]
    if offsets and len(offsets) != len(ends):
        if len({_stream_of(one) for one in pipeline.sources if one.name in names}) > 1:
            return None
        ends = ends[:1] * len(offsets)
    return max(sum(ends) - sum(int(offset.get("seq", 0)) for offset in offsets), 0)


def sources_of(pipeline: Pipeline, query: str) -> set[str]:
    """The sources that a query reads: those its view is made of, or the one whose dead letters it writes."""
    sources, steps = {one.name for one in pipeline.sources}, {one.name: one.sql for one in pipeline.steps}
    views = [one.view for one in pipeline.outputs if one.name == query] or [query.removeprefix(DEAD)]
    found: set[str] = set()
    while views:
        name = views.pop()
        if name not in found:
            found.add(name)
            views += mentioned(steps.get(name, ""), {*sources, *steps})
    return found & sources


def dead_letters(pipeline: Pipeline) -> list[str]:
    """The queries that write dead letters, one per source whose messages are decoded."""
    return [DEAD + one.name for one in pipeline.sources if one.format != "raw"] if pipeline.dead_letter else []


def _stream_of(source: Source) -> str:
    return source.stream or f"KV_{source.bucket}"
