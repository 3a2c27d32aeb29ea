"""Ports of servers in tests: processes that run side by side, also of two runs, never take the same one."""

from __future__ import annotations

import subprocess
import sys

from tests import ports

PROGRAM = "from tests.ports import free_port\nprint(*[free_port() for _ in range(300)], flush=True)\ninput()"


def test_no_two_processes_get_the_same_port() -> None:
    command = [sys.executable, "-c", PROGRAM]
    others = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(3)
    ]
    try:
        taken = [int(port) for other in others for port in _line(other).split()]
        taken += [ports.free_port() for _ in range(2 * ports.SLICE)]
    finally:
        for other in others:
            other.communicate("\n", timeout=60)
    assert len(set(taken)) == len(taken) == 3 * 300 + 2 * ports.SLICE
    assert max(taken) < 32_768


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
