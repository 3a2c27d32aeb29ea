"""What Spark's file sink has noted in a folder becomes what may be removed there.

Nothing is removed that the sink has not written: a folder may hold files of others, and a path may be mistaken.
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

NOTES = "_spark_metadata"
_NOTE = re.compile(r"\d+(?:\.compact)?")


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
