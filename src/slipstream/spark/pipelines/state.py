"""State of a pipeline on disk: Spark's checkpoints, the record of the last run, and the lock.

Progress is what Spark's checkpoints say, one folder per output. Beside them lies `run.json` with what the last run has
seen (rows, times, the address of its server), which is replaced atomically, so that a reader never sees half of it.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from slipstream.spark.pipelines.lock import Lock
from slipstream.spark.pipelines.model import Output, Pipeline

WAREHOUSE = "spark.sql.warehouse.dir"
_CATALOGS = "spark.sql.catalog."
_SESSION_CATALOG = "spark.sql.catalog.spark_catalog"  # set: Spark's own catalog is replaced
_TABLE = re.compile(r"(?:(?:spark_catalog\.)?default\.)?([A-Za-z0-9_]+)", re.IGNORECASE)
_LOCAL = re.compile(r"file:(?://(?:localhost)?(?=/))?")


@dataclass(slots=True)
class QueryState:
    """Progress of one query, as a run has seen it."""

    rows: int = 0
    batch: int = -1
    rate: float = 0.0
    at: str = ""
    sequences: dict[str, int] = field(
        default_factory=dict
    )  # source, or its index among the sources -> last sequence read
    skipped: int = 0
    error: str = ""  # the last failure of this run
    error_at: str = ""
    is_recovered: bool = False  # whether the query has made progress since that failure
    is_failed: bool = False  # whether it failed for good, and is not restarted
    batch_rows: int = 0  # of the last batch
    batch_seconds: float = 0.0
    written: int = -1  # rows for the target, of all batches; -1 if unknown
    dead: int = 0  # dead letters in their stream, of this output or source
    lag_seconds: float = 0.0  # the age of the oldest message that is still to be read
    batches: int = 0  # with rows, of this run
    failures: int = 0  # of this run
    late: int = 0  # rows that were dropped since they arrived behind the watermark
    state_rows: int = 0  # in the state of the query after its last batch
    watermark: str = ""

    def after(self, earlier: QueryState) -> QueryState:
        """This run added to the runs before it; a run without batches keeps what they have seen."""
        return QueryState(
            rows=earlier.rows + self.rows,
            batch=self.batch if self.at else earlier.batch,
            rate=self.rate if self.at else earlier.rate,
            at=self.at or earlier.at,
            sequences=self.sequences or earlier.sequences,
            skipped=max(self.skipped, earlier.skipped),
            error=self.error,
            error_at=self.error_at,
            is_recovered=self.is_recovered,
            is_failed=self.is_failed,
            batch_rows=self.batch_rows if self.at else earlier.batch_rows,
            batch_seconds=self.batch_seconds if self.at else earlier.batch_seconds,
            written=max(self.written, 0) + max(earlier.written, 0) if max(self.written, earlier.written) >= 0 else -1,
            dead=self.dead,
            lag_seconds=self.lag_seconds,
            batches=self.batches,
            failures=self.failures,
            late=earlier.late + self.late,
            state_rows=self.state_rows if self.at else earlier.state_rows,
            watermark=self.watermark or earlier.watermark,
        )


def now_text() -> str:
    """The time, as status and displays show it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class StateFolder:
    """The folder in which a pipeline keeps its state, and the paths that its file leaves open."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.base: Path = Path(pipeline.file).resolve().parent  # relative paths in the file begin here
        self.path: Path = self.base / (pipeline.state or f"{pipeline.name}-state")
        self.lock: Lock = Lock(self.path / "run.lock")
        self._run = self.path / "run.json"

    def checkpoint(self, output: str) -> Path:
        """The checkpoint of an output."""
        return self.path / "checkpoints" / output

    def shared(self, source: str) -> Path:
        """The checkpoint of the query that reads a source for several outputs."""
        return self.path / "shared" / source

    def query_id(self, output: str) -> str:
        """The id of an output's query; empty if it has none yet."""
        return _query_id(self.checkpoint(output))

    @property
    def tables(self) -> Path:
        """The states of lookup tables that micro-batches have seen."""
        return self.path / "tables"

    @property
    def spark_log(self) -> Path:
        """What the JVM and the Python workers of the last run have printed."""
        return self.path / "spark.log"

    @property
    def server(self) -> Path:
        """The data of the embedded server."""
        data = self._pipeline.server.get("data")
        return self.base / data if data else self.path / "server"

    @property
    def warehouse(self) -> str | Path:
        """The folder of tables in Spark's own catalog."""
        setting = self._pipeline.conf.get(WAREHOUSE, "")
        return _local(setting, Path.cwd()) if setting else self.path / "warehouse"

    @property
    def has_other_catalogs(self) -> bool:
        """Whether other catalogs are configured, whose tables may lie anywhere."""
        return any(name.startswith(_CATALOGS) for name in self._pipeline.conf)

    def output_path(self, output: Output) -> str | Path | None:
        """The folder of an output's files: relative to the pipeline file, or a URL; for a table, in the warehouse.

        None for outputs that are not folders, for tables that rows are merged into, and for tables of another catalog.
        """
        if output.kind == "files":
            return _local(output.target, self.base)
        found = _TABLE.fullmatch(output.target) if output.kind == "table" and not output.key else None
        if found is None or _SESSION_CATALOG in self._pipeline.conf:
            return None
        name, warehouse = found[1].lower(), self.warehouse  # Spark stores names in lower case
        return f"{warehouse.rstrip('/')}/{name}" if isinstance(warehouse, str) else warehouse / name

    def write_run(self, url: str, queries: dict[str, QueryState]) -> None:
        """Record what the run has seen so far."""
        self.path.mkdir(parents=True, exist_ok=True)
        found = {
            "url": url,
            "at": now_text(),
            "queries": {
                name: {slot: getattr(one, slot) for slot in QueryState.__slots__} for name, one in queries.items()
            },
        }
        fresh = self._run.with_suffix(".new")
        fresh.write_text(json.dumps(found, indent=1), "utf-8")
        fresh.replace(self._run)

    def read_run(self) -> tuple[int, str, dict[str, QueryState]]:
        """The pid that runs the pipeline (0: none), the address of its server, and what the last run has seen."""
        pid = self.lock.holder()
        try:
            found: dict[str, Any] = json.loads(self._run.read_text("utf-8"))
        except (OSError, ValueError):
            return pid, "", {}
        known = QueryState.__slots__  # of another version there may be others
        queries = {
            name: QueryState(**{slot: value for slot, value in one.items() if slot in known})
            for name, one in found.get("queries", {}).items()
        }
        return pid, found.get("url", ""), queries

    def saved_at(self) -> str:
        """When a run has last recorded what it has seen; empty if none has."""
        try:
            return str(json.loads(self._run.read_text("utf-8")).get("at", ""))
        except (OSError, ValueError):
            return ""

    def committed(self, output: str) -> tuple[int, list[dict[str, Any]]]:
        """The last batch that an output has committed (-1: none) and the offsets of its sources after it."""
        folder = self.checkpoint(output)
        batches = [int(file.name) for file in folder.glob("commits/*") if file.name.isdigit()]
        if not batches:
            return -1, []
        lines = (folder / "offsets" / str(max(batches))).read_text("utf-8").splitlines()
        return max(batches), [json.loads(line) for line in lines[2:] if line.startswith("{")]

    def checkpoints(self) -> list[str]:
        """The queries that have a checkpoint, also those that the file no longer has."""
        return sorted(one.name for one in (self.path / "checkpoints").glob("*"))

    def reset(self, outputs: list[str]) -> list[Path]:
        """Remove the checkpoints and the progress of these outputs; returns the removed folders."""
        removed = [folder for output in outputs if (folder := self.checkpoint(output)).exists()]
        for folder in removed:
            if query := _query_id(folder):
                for states in self.tables.glob(f"*/{query}"):
                    shutil.rmtree(states)
            shutil.rmtree(folder)
        if not self.checkpoints() and (self.path / "shared").exists():
            shutil.rmtree(self.path / "shared")
        _, url, queries = self.read_run()
        if queries:
            self.write_run(url, {name: one for name, one in queries.items() if name not in outputs})
        return removed


def _query_id(checkpoint: Path) -> str:
    """The id of the query that a checkpoint belongs to; empty if it has none yet."""
    try:
        found = str(json.loads((checkpoint / "metadata").read_text("utf-8")).get("id", ""))
    except (OSError, ValueError):
        return ""
    return found if re.fullmatch(r"[0-9a-f-]+", found) else ""


def _local(target: str, base: Path) -> str | Path:
    """A local folder as a path, any other URL unchanged."""
    if found := _LOCAL.match(target):
        return base / unquote(target[found.end() :])
    return target if "://" in target else base / target


def lag_of(pipeline: Pipeline, query: str, offsets: list[dict[str, Any]], last: dict[str, int]) -> int | None:
    """How many messages a query has still to read; None if that is unknown.

    Spark does not record which source an offset belongs to, so there must be one offset per source, or all sources
    must read one stream.
    """
    names = pipeline.sources_of(query)
    if not names or any(name not in last for name in names):
        return None
    ends = [last[name] for name in sorted(names)]
    if offsets and len(offsets) != len(ends):
        if len({one.stream_name for one in pipeline.sources if one.name in names}) > 1:
            return None
        ends = ends[:1] * len(offsets)
    return max(sum(ends) - sum(int(offset.get("seq", 0)) for offset in offsets), 0)
