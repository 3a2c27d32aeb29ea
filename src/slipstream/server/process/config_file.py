"""Configuration files on disk: the file itself, its includes and the environment, read for the pure parser."""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.errors import UsageError
from slipstream.server.process.conf.load import load
from slipstream.server.process.conf.tree import parse
from slipstream.server.process.options import ProcessOptions

MAX_SIZE = 64 * 1024 * 1024


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file that is no larger than a configuration can be."""
    file = Path(path)
    if file.stat().st_size > MAX_SIZE:
        raise ValueError(f"it is larger than {MAX_SIZE} bytes")
    return file.read_text("utf-8")


def read_config(path: str | os.PathLike[str]) -> ProcessOptions:
    """The options in a file; a UsageError names what cannot be used, with file, line and column."""
    name = os.fspath(path)
    try:
        text = read_text(name)
    except (OSError, ValueError) as exc:
        raise UsageError(f"cannot read the configuration {name!r}: {exc}") from exc
    return load(parse(text, name, read=read_text, environment=os.environ.get), read_text)
