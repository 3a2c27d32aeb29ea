"""Ports for servers that are told where to listen, or listen there again after they were killed."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

LOWEST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()


def free_port() -> int:
    """A port on loopback where nobody listens, never the same twice.

    A port that the system picks is one that it may give to an outgoing connection a moment later, of another test or of
    the very client that tries to reach the server again. These lie below all of those, and each process of a parallel
    run has its own part of them.
    """
    highest = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32_768
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    part = (highest - LOWEST) // workers
    for _ in range(1_000):
        port = LOWEST + worker * part + random.randrange(part)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no free port of {part} from {LOWEST + worker * part} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
