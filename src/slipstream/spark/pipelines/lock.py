"""Lock of a pipeline: one process at a time runs or resets it.

It is a kernel lock (`flock`), which is released however the process ends. A pid in a file alone would not do: the
process may have been killed and its pid reused, which is the rule where a container restarts. The file holds the pid
for messages, and the pid decides only on systems and file systems without locks.
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


UNKNOWN = -1  # a process that holds the lock and has not written its pid
PID_TIMEOUT = 2.0  # seconds for the holder to write its pid


class Lock:
    """The exclusive right to change the state of a pipeline on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Hold the lock; raises UsageError if another process has it. `what` names it in the error."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+", encoding="ascii") as file:
            if pid := _holder(file, is_shared=False):
                process = f", as process {pid}" if pid != UNKNOWN else ""
                raise UsageError(f"{what} is already running{process}: stop it first")
            file.truncate(0)
            print(os.getpid(), file=file, flush=True)
            try:
                yield
            finally:
                file.truncate(0)

    def holder(self) -> int:
        """The pid of the process that has the lock, UNKNOWN if it does not tell; 0 if the lock is free."""
        try:
            file = self._path.open(encoding="ascii")
        except FileNotFoundError:
            return 0
        with file:
            return _holder(file, is_shared=True)


def _holder(file: TextIO, *, is_shared: bool) -> int:
    """Try to take the lock. 0 if this process has it now, else the pid of the holder, or UNKNOWN."""
    deadline = time.monotonic() + PID_TIMEOUT
    while not (is_ours := _take(file, is_shared=is_shared)):
        file.seek(0)
        pid = int(file.read() or 0)
        if is_ours is None:
            return pid if pid != os.getpid() and _is_alive(pid) else 0
        if pid or time.monotonic() > deadline:
            return pid or UNKNOWN
        time.sleep(0.01)  # it has just taken the lock, and writes its pid next
    return 0


def _take(file: TextIO, *, is_shared: bool) -> bool | None:
    """Whether the lock was taken; None where the system or the file system has no locks."""
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
