"""Ports for servers that are told where to listen, or listen there again after they were killed."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from collections.abc import Iterator
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

LOWEST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
SLICE = 200  # ports that a process takes at once
_locks: list[int] = []  # files of the slices of this process, open until it ends


def _claimed() -> Iterator[int]:
    """The ports of one slice after the other that no other process has, of this run of tests or of another one."""
    highest = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    slices = range(LOWEST, highest - SLICE, SLICE)
    for first in random.sample(slices, len(slices)):
        lock = os.open(Path(tempfile.gettempdir()) / f"slipstream-tests-{first}.ports", os.O_CREAT | os.O_WRONLY)
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        _locks.append(lock)
        yield from range(first, first + SLICE)


_ports = _claimed()


def free_port() -> int:
    """A port on loopback where nobody listens, never the same twice.

    A port that the system picks is one that it may give to an outgoing connection a moment later, of another test or of
    the very client that tries to reach the server again. These lie below all of those, and no other process of tests
    takes them.
    """
    for port in _ports:
        if _is_free(port):
            return port
    raise RuntimeError(f"no free port from {LOWEST} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
