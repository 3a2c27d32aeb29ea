"""The form of the package that runs: plain Python, or the hot modules compiled by mypyc from the same source.

Python imports a compiled module rather than the source beside it. In a wheel the two always belong together. In a
checkout they do only until a source is edited, so `make native` records what it compiled in `native.json`, and a source
that differs from its record sends the whole package back to the pure form, with a warning: one module alone cannot go
back, since compiled modules call one another past Python. `SLIPSTREAM_PURE=1` asks for the pure form.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
# Source, relative to the package's parent -> its time, size and SHA-256 when it was compiled.
RECORD = PACKAGE / "native.json"


class SourceFinder:
    """Finds the modules of this package by their sources alone."""

    def __init__(self) -> None:
        self._finders: dict[str, FileFinder] = {}

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("slipstream."):
            return None
        for entry in path:
            finder = self._finders.setdefault(entry, FileFinder(entry, (SourceFileLoader, SOURCE_SUFFIXES)))
            spec = finder.find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def choose() -> None:
    """Have modules imported from their sources from now on, if that is asked for or necessary."""
    if not _is_there():
        return
    if not os.environ.get("SLIPSTREAM_PURE"):
        changed = first_difference(RECORD) if RECORD.exists() else ""
        if not changed:
            return
        warnings.warn(
            f"{changed} has changed since it was compiled, so the pure form runs; "
            "`make native` compiles it again, `make pure` removes the compiled modules",
            RuntimeWarning,
            stacklevel=3,
        )
    sys.meta_path.insert(0, SourceFinder())


def first_difference(record: Path) -> str:
    """A source that is not as it was when it was compiled; empty if there is none."""
    src = record.parent.parent
    for name, (modified, size, digest) in json.loads(record.read_text("utf-8")).items():
        try:
            found = os.stat(src / name)
            if found.st_mtime_ns == modified and found.st_size == size:
                continue
            if hashlib.sha256((src / name).read_bytes()).hexdigest() != digest:
                return str(name)
        except OSError:
            return str(name)
    return ""


def _is_there() -> bool:
    """Whether there are compiled modules for this Python: all or none, so one is looked for."""
    return any((PACKAGE / "wire" / f"parser{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


choose()
COMPILED = _is_there() and not any(isinstance(finder, SourceFinder) for finder in sys.meta_path)
DESCRIPTION = "compiled" if COMPILED else "pure Python"
