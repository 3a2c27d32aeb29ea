"""Checkpoints of outputs that share a read, in the form that Spark gives to the checkpoint of a query.

An output keeps a checkpoint of its own, whether a query of its own or a shared one writes it: which offsets belong to
which of its batches, and which of these are committed. So it can leave a shared read and return to it between two runs,
and a version that knows no shared reads continues from the same files. The checkpoint of the shared query itself holds
nothing that is not in those of its outputs, but for the end of a batch that some of them have not begun yet.
"""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

from slipstream.spark.source.offsets import Offset, offset_of

KEPT = 100  # batches, as Spark keeps them
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'  # of a query without state


class CheckpointPosition(NamedTuple):
    """How far a query has come. Before the first batch, `batch` is -1 and `end` is None."""

    batch: int  # the last one that is committed,
    end: Offset | None  # and the offset behind it
    pending: Offset | None  # the end of the batch after it, if that was begun


class Checkpoint:
    """The checkpoint of a query that reads one source, in a local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets, self._commits = folder / "offsets", folder / "commits"

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder

    def query_id(self) -> str:
        """The id of the query; created if there is none."""
        file = self._folder / "metadata"
        if not file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(file, json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")))
        return str(json.loads(file.read_text("utf-8"))["id"])

    def position(self) -> CheckpointPosition | None:
        """How far it has come; None if the files are not those of a query with one source of ours."""
        try:
            commits, offsets = _batches(self._commits), _batches(self._offsets)
            batch = max(commits, default=-1)
            end = self.end_of(batch) if batch >= 0 else None
            pending = self.end_of(batch + 1) if batch + 1 in offsets else None
        except (OSError, ValueError):  # UsageError is a ValueError
            return None
        return CheckpointPosition(batch, end, pending)

    def end_of(self, batch: int) -> Offset:
        """The offset behind a batch; raises ValueError if it is not that of one source of ours."""
        lines = self.offsets_text(batch).splitlines()
        if len(lines) != 3 or lines[0] != "v1":
            raise ValueError(f"{self._offsets / str(batch)} is not of one source")
        found = json.loads(lines[2])
        if not isinstance(found, dict):
            raise ValueError(f"{self._offsets / str(batch)} has an offset of another kind of source")
        return offset_of(found)

    def offsets_text(self, batch: int) -> str:
        """What Spark has written before it began a batch."""
        return (self._offsets / str(batch)).read_text("utf-8")

    def begin(self, batch: int, offsets: str) -> None:
        """Write where a batch ends, before its rows are written. A batch that was begun before keeps its end."""
        self.query_id()
        if not (self._offsets / str(batch)).exists():
            _write(self._offsets / str(batch), offsets)

    def commit(self, batch: int) -> None:
        """Write that all rows of a batch are in the target."""
        _write(self._commits / str(batch), _COMMIT)
        for folder in (self._offsets, self._commits):
            for name in (str(batch - KEPT), f".{batch - KEPT}.crc"):
                (folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove it."""
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def start_behind(self, other: Checkpoint, batch: int) -> None:
        """Become the checkpoint of a new query whose first batch begins where a batch of another query ends."""
        self.clear()
        self.begin(0, other.offsets_text(batch))
        self.commit(0)


def has_all_before(at: Offset | None, begin: Offset | None, end: Offset) -> bool:
    """Whether a query that has read to `at` has everything before the batch from `begin` to `end`.

    Offsets of different streams cannot be compared: a batch whose stream was deleted and recreated before it, which the
    user accepts, ends in the new stream, and consists of all of that up to its end.
    """
    if begin is None:  # from the beginning of the source
        return at is None or at.created == end.created
    if at is None:
        return False
    if at.created == begin.created:
        return at.seq >= begin.seq
    return at.created == end.created


def _batches(folder: Path) -> set[int]:
    return {int(file.name) for file in folder.glob("*") if file.name.isdigit()}


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all. Hadoop's checksum of an earlier one would not fit."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    fresh.write_text(text, "utf-8")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    fresh.replace(file)
