"""Tests are run again where the machine stood still, and nowhere else."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.steady import ATTEMPTS, STANDSTILL, has_answered

ROOT = Path(__file__).parents[1]


class SlowServer:
    """Answers the first PING of each connection when `delay` seconds have passed."""

    def __init__(self) -> None:
        self.delay = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            client.sendall(b"INFO {}\r\n")
            delay = self.delay
            while received := client.recv(100):
                time.sleep(delay)
                delay = 0.0
                client.sendall(b"PONG\r\n" * received.count(b"PING"))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[SlowServer]:
    server = SlowServer()
    yield server
    server.close()


SUITE = """
import pathlib
import time

import pytest

@pytest.fixture
def fixture():
    yield pathlib.Path("attempts")
    with open("torn down", "a") as file:
        file.write("x")

{mark}
@pytest.mark.parametrize("url", ["{url}"])
def test_it(fixture, url):
    with fixture.open("a") as file:
        file.write("x")
    time.sleep({pause})
    assert len(fixture.read_text()) > {failures}, "too early"
"""
STEADY = "@pytest.mark.steady"


class Suite:
    """A run of one test in a process of its own, which passes only after some failures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = ""

    def run(self, *, failures: int, url: str = "", mark: str = "", frozen: bool = False) -> bool:
        """Whether it passed. `frozen`: the process stands still for a moment during each attempt."""
        (self.folder / "test_suite.py").write_text(SUITE.format(failures=failures, url=url, mark=mark, pause=0.3))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.steady",
            "-p",
            "no:cacheprovider",
            "-q",
            "test_suite.py",
        ]
        process = subprocess.Popen(
            [*command, "--rootdir", "."],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            seen = 0
            while frozen and process.poll() is None:
                if self.attempts > seen:
                    seen = self.attempts
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(2 * STANDSTILL)
                    process.send_signal(signal.SIGCONT)
                time.sleep(0.01)
            self.output, _ = process.communicate(timeout=60)
        return process.returncode == 0

    @property
    def attempts(self) -> int:
        return self._count("attempts")

    @property
    def torn_down(self) -> int:
        return self._count("torn down")

    def _count(self, name: str) -> int:
        path = self.folder / name
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_a_failure_while_the_process_stood_still_is_tried_again_and_told(suite: Suite) -> None:
    assert suite.run(failures=1, frozen=True)
    assert suite.attempts == suite.torn_down == 2
    assert "failed while the machine stood still" in suite.output
    assert re.search(r"It stood still for \d+\.\d\d s\.\n(.*\n)*E +AssertionError: too early", suite.output)
    assert re.search(r"^REPEATED test_suite.py::test_it.* \(1\)$", suite.output, re.MULTILINE)
    assert "1 passed" in suite.output


def test_a_test_that_measures_time_is_tried_again_if_its_server_stood_still(suite: Suite, server: SlowServer) -> None:
    server.delay = 10 * STANDSTILL
    assert suite.run(failures=2, url=server.url, mark=STEADY)
    assert suite.attempts == 3


def test_a_failure_in_every_attempt_is_one(suite: Suite) -> None:
    assert not suite.run(failures=100, frozen=True)
    assert suite.attempts == ATTEMPTS
    assert "1 failed" in suite.output


def test_a_failure_of_a_long_run_counts_whatever_the_machine_did(suite: Suite) -> None:
    assert not suite.run(failures=1, mark="@pytest.mark.soak", frozen=True)
    assert suite.attempts == 1


def test_a_failure_of_a_test_that_takes_long_counts_if_it_stood_still_for_a_small_part_of_it(suite: Suite) -> None:
    (suite.folder / "conftest.py").write_text("import tests.steady\ntests.steady.PART = 1.0\n")
    assert not suite.run(failures=1, frozen=True)
    assert suite.attempts == 1


def test_a_failure_on_a_machine_that_kept_going_counts(suite: Suite, server: SlowServer) -> None:
    (suite.folder / "conftest.py").write_text("import tests.steady\ntests.steady.STANDSTILL = 100.0\n")
    assert not suite.run(failures=1, url=server.url, mark=STEADY)
    assert suite.attempts == 1
    assert "stood still" not in suite.output


def test_server_that_sends_a_ping_right_behind_its_answer_does_not_stand_still() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        ours.settimeout(5)
        its.sendall(b"INFO {}\r\nPONG\r\nPING\r\n")
        assert has_answered(ours)
        its.sendall(b"PO")
        its.sendall(b"NG\r\n")
        assert has_answered(ours)
