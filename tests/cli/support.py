"""The command line as a user runs it: a process with its own stdin, stdout, stderr and home, or in a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

COMMAND = (sys.executable, "-m", "slipstream")
WAIT = 60.0


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Of JSON, one value each."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs commands against one server, with a home of their own."""

    def __init__(self, url: str, home: Path) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_"))}
        self.env = clean | {"HOME": str(home), "NATS_URL": url, "COLUMNS": "100", "TERM": "xterm"}

    def run(self, *arguments: str, stdin: bytes | None = b"", **env: str) -> Done:
        done = subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, env=self.env | env, timeout=WAIT, check=False
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *arguments: str, stdin: bytes | None = b"", **env: str) -> Done:
        """Run a command that must succeed."""
        done = self.run(*arguments, stdin=stdin, **env)
        assert done.code == 0, done
        return done

    @contextmanager
    def started(self, *arguments: str, until: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on; ready when `until` stands in a line of its stderr."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            text=True,
        )
        killer = threading.Timer(WAIT, process.kill)
        killer.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if until in line:
                    break
            yield process
        finally:
            process.kill()
            process.communicate(timeout=WAIT)
            killer.cancel()

    def in_terminal(self, *arguments: str, typed: bytes = b"") -> tuple[int, str]:
        """Run a command in a pseudo-terminal; what a person would see, and the exit code."""
        main, other = pty.openpty()
        process = subprocess.Popen([*COMMAND, *arguments], stdin=other, stdout=other, stderr=other, env=self.env)
        os.close(other)
        if typed:
            os.write(main, typed)
        shown = bytearray()
        killer = threading.Timer(WAIT, process.kill)
        killer.start()
        try:
            while piece := _read(main):
                shown += piece
            return process.wait(timeout=WAIT), shown.decode(errors="replace")
        finally:
            killer.cancel()
            os.close(main)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side was closed
        return b""
