"""The command line as a user runs it: with its own stdin, stdout, stderr and home; as a process, or in a terminal.

Most commands are run within the test's process: starting an interpreter for each would take most of the time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from slipstream.cli.main import main
from slipstream.errors import Error

COMMAND = (sys.executable, "-m", "slipstream")
WAIT = 60.0
# A program that runs as long as the command that started it; it must not keep that one's output open.
WAITING = ("sh", "-c", "exec >/dev/null 2>&1; while kill -0 $PPID; do sleep 0.05; done")


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

    def run(self, *arguments: str, stdin: bytes = b"", **env: str) -> Done:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
        with (
            mock.patch.dict(os.environ, self.env | env, clear=True),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8")),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                code = main(arguments)
            except SystemExit as exc:  # argparse says no, or shows help
                code = exc.code if isinstance(exc.code, int) else 1
            except Error:  # with --debug
                code = 1
                traceback.print_exc()
        return Done(code, _written(out), _written(err))

    def process(self, *arguments: str, stdin: bytes = b"") -> Done:
        """The same as a process of its own."""
        done = subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, env=self.env, timeout=WAIT, check=False
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *arguments: str, stdin: bytes = b"", **env: str) -> Done:
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


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
