"""Snapshots of a bucket for the micro-batches of a streaming query that joins it.

Spark replays a micro-batch that did not finish, and sinks recognise rows that they have written by their content: a
replay that looked values up again could give other rows, which would be written beside the first ones. So the state
that a micro-batch has read is kept in a folder, under the query's id and the batch's number, before it is used.
Every other task, attempt and replay of the batch reads that file, so that all of them see one state of the bucket.

A file is created by a hard link, which only one of several attempts can make. Two batches are kept. A bucket that has
not changed since the batch before is not read again.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from slipstream.api import StreamInfo

_ENDING = ".arrow"
_STATE = b"slipstream.state"
KEPT = 2  # batches: the one that runs, and the one before, with which it may be compared


def state_of(info: StreamInfo) -> str:
    """A text that is another one whenever the content of a bucket is: values may also expire, without a new entry."""
    state = info.state
    return f"{info.created} {state.first_seq} {state.last_seq} {state.messages} {state.num_deleted}"


def snapshot_folder(root: str, query: str, what: str) -> Path:
    """The folder of one query and one read (`what` it reads) below the folder that the option names."""
    return Path(root) / query / blake2b(what.encode(), digest_size=8).hexdigest()


def snapshot(
    folder: Path, batch: int, state: Callable[[], str], read: Callable[[], Iterable[pa.RecordBatch]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows that a micro-batch sees: those that another attempt has kept, else what `read` gives now.

    `state` is asked before the bucket is read: if it changes in between, the next batch reads again.
    """
    target = folder / f"{batch}{_ENDING}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        now = state()
        before = _before(folder, batch)
        if before is not None and _state_in(before) == now:
            _link(before, target)
        else:
            _keep(target, now, read(), schema)
        _remove_old(folder, batch)
    with pa.memory_map(str(target)) as file, pa.ipc.open_file(file) as reader:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def _keep(target: Path, state: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    part = target.with_name(f"{uuid.uuid4().hex}.part")
    try:
        whole = schema.with_metadata({_STATE: state.encode()})
        with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, whole) as writer:
            for batch in batches:
                writer.write_batch(batch)
        with part.open("rb") as stored:
            os.fsync(stored.fileno())
        _link(part, target)
    finally:
        part.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    """Give a file the name of the batch, unless another attempt has."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links: two attempts at the same time could then both have their own
        if not target.exists():
            copy = target.with_name(f"{uuid.uuid4().hex}.part")
            copy.write_bytes(source.read_bytes())
            copy.replace(target)


def _before(folder: Path, batch: int) -> Path | None:
    """The snapshot of the newest earlier batch."""
    found = [number for number in _batches(folder) if number < batch]
    return folder / f"{max(found)}{_ENDING}" if found else None


def _batches(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob(f"*{_ENDING}") if path.stem.isdigit()]


def _state_in(path: Path) -> str:
    with suppress(OSError, pa.ArrowInvalid), pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        found: bytes = (reader.schema.metadata or {}).get(_STATE, b"")
        return found.decode()
    return ""


def _remove_old(folder: Path, batch: int) -> None:
    for number in _batches(folder):
        if number <= batch - KEPT:
            (folder / f"{number}{_ENDING}").unlink(missing_ok=True)
