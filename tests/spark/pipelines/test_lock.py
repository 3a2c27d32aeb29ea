"""The lock of a pipeline: held by one process at a time, and released when that process ends."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from slipstream.errors import UsageError
from slipstream.spark.pipelines.lock import UNKNOWN, Lock

HOLD = """
import fcntl, os, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(os.getpid(), file=file, flush=True)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "run.lock"


def test_lock_is_held_once(path: Path) -> None:
    lock, other = Lock(path), Lock(path)
    assert other.holder() == 0
    for _ in range(2):
        with lock.held("it"):
            assert other.holder() == os.getpid()
            with pytest.raises(UsageError, match=f"^it is already running, as process {os.getpid()}: stop it first$"):
                other.held("it").__enter__()
        assert other.holder() == 0


def test_killed_process_releases_the_lock(path: Path) -> None:
    path.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert Lock(path).holder() == process.pid
        with pytest.raises(UsageError, match=f"as process {process.pid}"):
            Lock(path).held("it").__enter__()
        process.kill()
    assert path.read_text() == f"{process.pid}\n"
    assert Lock(path).holder() == 0
    with Lock(path).held("it"):
        assert Lock(path).holder() == os.getpid()


def test_pid_in_the_file_does_not_hold_the_lock(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(f"{os.getppid()}\n")
    assert Lock(path).holder() == 0
    with Lock(path).held("it"):
        assert Lock(path).holder() == os.getpid()


@pytest.mark.parametrize("fcntl", [None, mock.Mock(flock=mock.Mock(side_effect=OSError(errno.ENOLCK, "no locks")))])
def test_pid_decides_where_there_are_no_locks(path: Path, fcntl: object, monkeypatch: pytest.MonkeyPatch) -> None:
    if fcntl is not None:
        fcntl.LOCK_NB = fcntl.LOCK_SH = fcntl.LOCK_EX = 0  # type: ignore[attr-defined]
    monkeypatch.setattr("slipstream.spark.pipelines.lock.fcntl", fcntl)
    with Lock(path).held("it"):
        assert int(path.read_text()) == os.getpid()
        assert Lock(path).holder() == 0  # it is us
    assert path.read_text() == ""
    path.write_text(f"{os.getppid()}\n")
    assert Lock(path).holder() == os.getppid()
    with pytest.raises(UsageError, match=f"as process {os.getppid()}"):
        Lock(path).held("it").__enter__()
    path.write_text(f"{2**22 + 1}\n")  # more than Linux gives
    assert Lock(path).holder() == 0
    with Lock(path).held("it"):
        pass


def test_wait_for_the_pid_of_the_holder_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.spark.pipelines.lock.PID_TIMEOUT", 0.05)
    path.parent.mkdir()
    with path.open("w") as silent:
        fcntl.flock(silent, fcntl.LOCK_EX)
        assert Lock(path).holder() == UNKNOWN
        with pytest.raises(UsageError, match=r"^it is already running: stop it first$"):
            Lock(path).held("it").__enter__()
