"""Tests that measure time are run again where the machine stood still, and nowhere else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.steady import ATTEMPTS, STANDSTILL, run_steadily

Names = Callable[[], str]


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


class Attempts:
    """A test that passes on its last attempt only."""

    def __init__(self, failures: int) -> None:
        self.names: list[str] = []
        self._failures = failures

    def run(self, *, url: str, fresh: str) -> None:
        assert url
        self.names.append(fresh)
        assert len(self.names) > self._failures, "too early"

    def new_name(self) -> str:
        return f"name{len(self.names)}"


def test_a_failure_while_the_server_stood_still_is_tried_again_under_another_name(server: SlowServer) -> None:
    server.delay = 2 * STANDSTILL
    attempts = Attempts(failures=2)
    run_steadily(attempts.run, {"url": server.url, "fresh": "name0"}, attempts.new_name)
    assert attempts.names == ["name0", "name1", "name2"]


def test_a_failure_in_every_attempt_is_one(server: SlowServer) -> None:
    server.delay = 2 * STANDSTILL
    attempts = Attempts(failures=100)
    with pytest.raises(AssertionError, match="too early"):
        run_steadily(attempts.run, {"url": server.url, "fresh": "name0"}, attempts.new_name)
    assert len(attempts.names) == ATTEMPTS


def test_a_failure_on_a_machine_that_kept_going_counts(monkeypatch: pytest.MonkeyPatch, server: SlowServer) -> None:
    monkeypatch.setattr("tests.steady.STANDSTILL", 100.0)  # this one may stand still for a moment
    attempts = Attempts(failures=1)
    with pytest.raises(AssertionError, match="too early"):
        run_steadily(attempts.run, {"url": server.url, "fresh": "name0"}, attempts.new_name)
    assert attempts.names == ["name0"]
