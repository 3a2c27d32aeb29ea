"""What a pipeline leaves on disk becomes its status: how far each output has come, and how far each source is ahead.

The truth about progress is in Spark's checkpoints, one folder per output; beside them lies a small file with what the
last run has seen (rows, times, the address of its server). Files are replaced whole, so that a reader never sees half.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.spark.pipelines.config import Pipeline


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


class StateFolder:
    """Where a pipeline keeps what it must not forget."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.path = pipeline.state_folder
        self._run = self.path / "run.json"

    def checkpoint(self, output: str) -> Path:
        """The checkpoint of an output."""
        return self.path / "checkpoints" / output

    @property
    def server(self) -> Path:
        """The data of the embedded server."""
        return self.path / "server"

    def write_run(self, url: str, queries: dict[str, QueryState], *, is_running: bool) -> None:
        """Note what a run has seen so far."""
        self.path.mkdir(parents=True, exist_ok=True)
        found = {
            "pid": os.getpid() if is_running else 0,
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
        try:
            found: dict[str, Any] = json.loads(self._run.read_text("utf-8"))
        except (OSError, ValueError):
            return 0, "", {}
        queries = {name: QueryState(**one) for name, one in found.get("queries", {}).items()}
        return (found["pid"] if _is_alive(found.get("pid", 0)) else 0), found.get("url", ""), queries

    def committed(self, output: str) -> tuple[int, list[dict[str, Any]]]:
        """The last batch that an output has committed (-1: none) and the offsets of its sources behind it."""
        folder = self.checkpoint(output)
        batches = [int(file.name) for file in folder.glob("commits/*") if file.name.isdigit()]
        if not batches:
            return -1, []
        lines = (folder / "offsets" / str(max(batches))).read_text("utf-8").splitlines()
        return max(batches), [json.loads(line) for line in lines[2:] if line.startswith("{")]

    def reset(self, outputs: list[str]) -> list[Path]:
        """Forget how far these outputs have come; gives what was removed."""
        gone = [folder for output in outputs if (folder := self.checkpoint(output)).exists()]
        for folder in gone:
            shutil.rmtree(folder)
        return gone


def lag_of(pipeline: Pipeline, offsets: list[dict[str, Any]], last: dict[str, int]) -> int | None:
    """How far behind an output is. Which source an offset is of is not written down: where there are several, the
    sum of all is compared."""
    if not offsets:
        return sum(last.values()) if last else None
    if len(offsets) == 1 and len(last) == 1:
        return max(next(iter(last.values())) - int(offsets[0].get("seq", 0)), 0)
    if len(offsets) == len(pipeline.sources) == len(last):
        return max(sum(last.values()) - sum(int(offset.get("seq", 0)) for offset in offsets), 0)
    return None


def _is_alive(pid: int) -> bool:
    if not pid:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
