"""Files that Spark's file sink has written to an output folder, found by the sink's own log, and their removal.

Only files that the log names are removed: the folder may hold files of others, and its path may be a typo.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from slipstream.errors import Error

SINK_LOG = "_spark_metadata"
_BATCH = re.compile(r"\d+(?:\.compact)?")


class Removed(NamedTuple):
    """The result of clearing a folder."""

    files: int
    left: tuple[Path, ...]  # not written by the sink


def clear(folder: Path) -> Removed:
    """Remove the files that the sink's log in a folder names, then the log, then the folder if it is empty.

    The log goes after the files, so that an interrupted removal can be repeated.
    """
    if not folder.is_dir():
        return Removed(0, ())
    count = 0
    try:
        for file in logged_files(folder):
            count += file.exists()
            file.unlink(missing_ok=True)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of it
            _remove_empty(file.parent, folder)
        if (folder / SINK_LOG).is_dir():
            shutil.rmtree(folder / SINK_LOG)
        left = tuple(sorted(folder.iterdir()))
        if not left and not folder.is_symlink():
            folder.rmdir()
    except OSError as error:
        raise Error(f"{folder} was not cleared: {error}; run reset again") from error
    return Removed(count, left)


def logged_files(folder: Path) -> Iterator[Path]:
    """The files in a folder that the sink's log names; entries that point elsewhere are ignored."""
    root = folder.resolve()
    found: dict[Path, None] = {}
    batches = [file for file in (folder / SINK_LOG).glob("*") if _BATCH.fullmatch(file.name)]
    for batch in sorted(batches):
        for line in batch.read_text("utf-8").splitlines()[1:]:  # the first line is the version
            path = _logged_path(line)
            if path is not None and path.is_relative_to(root) and path != root:
                found[path] = None
    return iter(found)


def _logged_path(line: str) -> Path | None:
    try:
        url = urlsplit(str(json.loads(line)["path"]))
    except (ValueError, KeyError, TypeError):
        return None  # truncated by a crash: Spark ignores it as well
    path = Path(unquote(url.path))
    # Links are resolved in the folder but not in the file name: a link is removed, not the file it points to.
    return path.parent.resolve() / path.name if url.scheme in ("", "file") and path.name not in ("", "..") else None


def _remove_empty(folder: Path, stop: Path) -> None:
    """Remove empty partition folders, innermost first."""
    stop = stop.resolve()
    while folder != stop and folder.is_relative_to(stop) and folder.is_dir() and not os.listdir(folder):
        folder.rmdir()
        folder = folder.parent
