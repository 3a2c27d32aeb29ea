"""One process at a time runs or resets a pipeline: it has a lock, which the kernel takes back however the process ends.

The number of a process in a file is no such thing: the process may have been killed, and its number be another's now,
which is the rule where a container starts again. It is kept to be shown, and decides only where there are no locks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from slipstream.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


UNKNOWN = -1
PATIENCE = 2.0  # seconds


class Lock:
    """The right to change what a pipeline has on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Have the lock, or raise if another process has it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+", encoding="ascii") as file:
            if pid := _holder(file, is_shared=False):
                who = f", as process {pid}" if pid != UNKNOWN else ""
                raise UsageError(f"{what} is running already{who}: stop it first")
            file.truncate(0)
            print(os.getpid(), file=file, flush=True)
            try:
                yield
            finally:
                file.truncate(0)

    def holder(self) -> int:
        """The process that has the lock, UNKNOWN if it does not say who it is; 0 if none has."""
        try:
            file = self._path.open(encoding="ascii")
        except FileNotFoundError:
            return 0
        with file:
            return _holder(file, is_shared=True)


def _holder(file: TextIO, *, is_shared: bool) -> int:
    """The process that keeps us from the lock, UNKNOWN if it does not say who it is; 0 if it is ours now."""
    deadline = time.monotonic() + PATIENCE
    while not (is_ours := _take(file, is_shared=is_shared)):
        file.seek(0)
        pid = int(file.read() or 0)
        if is_ours is None:
            return pid if pid != os.getpid() and _is_alive(pid) else 0
        if pid or time.monotonic() > deadline:
            return pid or UNKNOWN
        time.sleep(0.01)  # it has the lock, and is about to say who it is
    return 0


def _take(file: TextIO, *, is_shared: bool) -> bool | None:
    """Whether the lock could be taken; None where there are none: another system, or a file system without them."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_NB | (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


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
