"""Tests that measure time: run again if they fail while the machine stands still.

A test with `@pytest.mark.steady` has margins of less than a second or two, since the time that it is about has to be
short. Where this process, or the server that it talks to, was not run for a part of that, its failure says nothing: the
test is repeated, under another name. On a machine that kept going each failure counts.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

import pytest

STEP = 0.01  # seconds between two looks
STANDSTILL = 0.1  # seconds
ATTEMPTS = 5
TIMEOUT = 30.0


class Watch:
    """Measures for how long nothing happened, here and on servers of which the URLs are known."""

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self._urls = tuple(urls)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady", daemon=True)
        self.longest = 0.0  # seconds

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look once more: it may stand still at this moment."""
        self._done.set()
        self._thread.join(2 * TIMEOUT)

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            is_done, before = False, time.monotonic()
            servers = [stack.enter_context(server) for url in self._urls if (server := _connected(url)) is not None]
            while not is_done:
                is_done = self._done.wait(STEP)
                servers = [server for server in servers if _has_answered(server)]
                now = time.monotonic()
                self.longest, before = max(self.longest, now - before - STEP), now


def _connected(url: str) -> socket.socket | None:
    host, _, port = url.removeprefix("nats://").rpartition(":")
    try:
        server = socket.create_connection((host, int(port)), TIMEOUT)
        server.sendall(b"CONNECT {}\r\n")
    except OSError:
        return None
    return server


def _has_answered(server: socket.socket) -> bool:
    """Whether the server answers a PING."""
    try:
        server.sendall(b"PING\r\n")
        answer = b""
        while not answer.endswith(b"PONG\r\n"):
            received = server.recv(65536)
            answer += received
            if not received:
                return False
    except OSError:
        return False
    return True


def _urls_of(value: object) -> list[str]:
    """The URLs of an argument: a URL, several, or a server or cluster that has them."""
    named = [getattr(value, name, None) for name in ("url", "urls")]
    return re.findall(r"nats://[\w.]+:\d+", repr([value, *named]))


def run_steadily(run: Callable[..., None], arguments: dict[str, Any], new_name: Callable[[], str]) -> None:
    """Run a test, again if it fails while the machine stands still."""
    urls = {url for value in arguments.values() for url in _urls_of(value)}
    for left in reversed(range(ATTEMPTS)):
        watch = Watch(urls)
        try:
            with watch:
                run(**arguments)
        except (Exception, pytest.fail.Exception):
            if not left or watch.longest < STANDSTILL:
                raise
        else:
            return
        if "fresh" in arguments:
            arguments["fresh"] = new_name()
        if "caplog" in arguments:
            arguments["caplog"].clear()
