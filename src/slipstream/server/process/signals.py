"""`--signal NAME=PID`: a signal to a running server, by nats-server's names; the pid may be that of a pid file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from slipstream.errors import UsageError

SIGNALS = {
    "stop": "SIGKILL",
    "quit": "SIGINT",
    "term": "SIGTERM",
    "reopen": "SIGUSR1",
    "reload": "SIGHUP",
    "ldm": "SIGUSR2",
}


def send_signal(text: str) -> None:
    """Send a signal; a UsageError says what is wrong with the words, or why it could not be sent."""
    name, _, target = text.partition("=")
    number = getattr(signal, SIGNALS.get(name, ""), None)
    if number is None:
        raise UsageError(f"--signal must be one of {', '.join(SIGNALS)}, got {name!r}")
    if not target:
        raise UsageError(f"--signal needs the process id of the server, or its pid file: --signal {name}=PID")
    pid = _pid(target)
    try:
        os.kill(pid, number)
    except OSError as exc:
        raise UsageError(f"cannot signal process {pid}: {exc.strerror}") from exc


def _pid(target: str) -> int:
    try:
        pid = int(target if target.isdecimal() else Path(target).read_text().strip())
    except (OSError, ValueError) as exc:
        raise UsageError(f"--signal needs a process id or a pid file, got {target!r}: {exc}") from exc
    if pid < 2:  # 0 is this process group, 1 is init
        raise UsageError(f"--signal needs the process id of a server, got {pid}")
    return pid
