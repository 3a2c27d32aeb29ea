"""Report about the process around an engine: what `/varz` and the system account's services add to the engine's own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.server.engine.engine import Engine
from slipstream.server.engine.monitoring import endpoints
from slipstream.server.engine.monitoring.metrics import CommitReport
from slipstream.server.loop.committer import Committer
from slipstream.server.loop.memory import PendingBytes
from slipstream.server.options import ServerOptions
from slipstream.wire.arguments import check_seconds


class ListenPorts(NamedTuple):
    """The ports that a server listens on beside the one for clients; 0 for none."""

    http: int
    websocket: int


class ServerReport:
    """The server with its options, its ports, and the memory and CPU of its process."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], int],
        options: ServerOptions,
        ports: Callable[[], ListenPorts],
        pending: PendingBytes,
        committers: Sequence[Committer] = (),
    ) -> None:
        """`ports` are known only once all listeners are open."""
        self.options: ServerOptions = options
        self._pending = pending
        self._committers = committers
        self._engine, self._clock, self._ports = engine, clock, ports
        self._last_cpu = (time.monotonic(), time.process_time())
        self.requests: dict[str, int] = {}  # by path of the endpoint

    def varz(self) -> dict[str, Any]:
        options, ports, usage = self.options, self._ports(), self.usage()
        return endpoints.varz(self._engine, self._clock()) | {
            "max_connections": options.max_connections,
            "max_control_line": options.max_control_line,
            "max_pending_total": self._pending.limit,
            "pending_bytes": self._pending.total,
            "pending_bytes_peak": max(self._pending.peak, self._pending.total),
            "pending_cut_off": self._pending.cut_off,
            "auth_timeout": options.auth_timeout,
            "tls_timeout": options.tls_timeout if options.has_tls else 0,
            "write_deadline": round(check_seconds(options.write_deadline) * 1e9),
            "http_host": options.http_host or options.host,
            "http_port": ports.http,
            "http_base_path": options.http_base_path,
            "https_port": 0,
            "mem": usage["mem"],
            "cores": usage["cores"],
            "gomaxprocs": usage["cores"],
            "cpu": usage["cpu"],
            "http_req_stats": self.requests,
            "cluster": {}, "gateway": {}, "leaf": {}, "mqtt": {},
            "websocket": {"port": ports.websocket} if options.websocket is not None else {},
        }  # fmt: skip

    def commits(self) -> list[CommitReport]:
        """The commits of each store: that of file streams comes first, and may be the only one."""
        return [one.report(storage) for storage, one in zip(("file", "memory"), self._committers, strict=False)]

    def usage(self) -> dict[str, Any]:
        return {"mem": _memory(), "cores": os.cpu_count() or 1, "cpu": self._cpu()}

    def _cpu(self) -> float:
        """Percent of one core since the last report."""
        now, used = time.monotonic(), time.process_time()
        (then, before), self._last_cpu = self._last_cpu, (now, used)
        return round(100 * (used - before) / max(now - then, 1e-3), 1)


def _memory() -> int:
    """Resident bytes of this process; where that is not known, their peak."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource  # not on every platform

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
