"""A failure while the machine stood still says nothing: such a test is run again, and the run tells which they were.

Every test but the soaks is watched: where its process was not run for a part of a second, and for a hundredth of the
test's time, and the test failed, it is repeated with new fixtures, a few times at most. Where the process kept going,
each failure counts. A test whose margins are short because the time that it is about has to be short carries
`@pytest.mark.steady`: then the servers that it talks to are watched too, and its own length does not matter.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Generator, Iterable
from typing import Self

import pytest
from _pytest.runner import runtestprotocol

STEP = 0.01  # seconds between two looks
STANDSTILL = 0.1  # seconds
PART = 0.01  # of a test's time: less says nothing about a long one
ATTEMPTS = 3
TIMEOUT = 30.0
REPEATED = "repeated"

_longest = pytest.StashKey[float]()  # standstill of this attempt, in seconds
_least = pytest.StashKey[float]()  # what it must be for the attempt to say nothing
_voided = pytest.StashKey[list[str]]()  # how the attempts before it failed


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
                servers = [server for server in servers if has_answered(server)]
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


def has_answered(server: socket.socket) -> bool:
    """Whether the server answers a PING."""
    try:
        server.sendall(b"PING\r\n")
        answer = b""
        while b"PONG\r\n" not in answer:  # a PING of the server may follow it at once
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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Watch this process during a test and, of one that measures time, its servers."""
    is_steady = pyfuncitem.get_closest_marker("steady") is not None
    values = pyfuncitem.funcargs.values() if is_steady else ()
    watch = Watch({url for value in values for url in _urls_of(value)})
    begin = time.monotonic()
    try:
        with watch:
            return (yield)
    finally:
        part = 0.0 if is_steady else PART * (time.monotonic() - begin)
        pyfuncitem.stash[_longest], pyfuncitem.stash[_least] = watch.longest, max(STANDSTILL, part)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test, once more if it fails while the machine stands still; only the last attempt is reported."""
    voided = item.stash.setdefault(_voided, [])
    if not voided:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    item.stash[_longest], item.stash[_least] = 0.0, STANDSTILL
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failures = [report.longreprtext for report in reports if report.failed]
    if failures and _is_void(item) and len(voided) < ATTEMPTS - 1:
        voided.append(f"It stood still for {item.stash[_longest]:.2f} s.\n\n" + "\n".join(failures))
        item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)  # again with all the time that a test may take
        return True
    for report in reports:
        if report.when == "call":
            report.user_properties += [(REPEATED, failure) for failure in voided]
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _is_void(item: pytest.Item) -> bool:
    return item.stash[_longest] >= item.stash[_least] and item.get_closest_marker("soak") is None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which tests failed while the machine stood still, and how."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    repeated = {
        report.nodeid: failures
        for report in reports
        if (failures := [failure for name, failure in report.user_properties if name == REPEATED])
    }
    if repeated:
        terminalreporter.section("failed while the machine stood still, and were run again")
        for nodeid, failures in sorted(repeated.items()):
            for failure in failures:
                terminalreporter.section(nodeid, "_")
                terminalreporter.line(failure)
        for nodeid, failures in sorted(repeated.items()):
            terminalreporter.line(f"REPEATED {nodeid} ({len(failures)})")
