"""`slipstream worker`: a function of a module handles messages until a signal ends it."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream import Attempts, DeadLetter, Headers, StreamConfig, connect_blocking
from slipstream.cli import worker
from tests.cli.support import COMMAND, WAIT, Cli

JOBS = """
import asyncio
import time
from pathlib import Path


def plain(message):
    time.sleep(0.01)
    if message.data == b"3":
        raise KeyError("order_id")
    with Path("done").open("a") as file:
        file.write(message.data.decode() + "\\\\n")


async def coroutine(message):
    await asyncio.sleep(0.01)
    if message.data == b"3":
        raise KeyError("order_id")
    with Path("done").open("a") as file:
        file.write(message.data.decode() + "\\\\n")


def leave(message):
    raise SystemExit(7)
"""


def wait_for(path: Path, lines: int) -> list[str]:
    deadline = time.monotonic() + WAIT
    while not path.exists() or len(path.read_text().splitlines()) < lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return sorted(path.read_text().splitlines())


def eventually(check: Callable[[], bool]) -> None:
    """Wait for what a server does when the process is over."""
    deadline = time.monotonic() + WAIT
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(cli: Cli, folder: Path, function: str, stream: str, *more: str) -> subprocess.Popen[str]:
    (folder / "jobs.py").write_text(JOBS.replace("\\\\n", "\\n"))
    command = [*COMMAND, "worker", f"jobs:{function}", "--stream", stream, "--consumer", "w", "--create", *more]
    return subprocess.Popen(command, env=cli.env, cwd=folder, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("function", ["plain", "coroutine"])
def test_a_worker_handles_messages_until_it_is_terminated(
    cli: Cli, any_server: str, fresh: str, tmp_path: Path, function: str
) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        dead = js.create_stream(StreamConfig(name=f"{fresh}dead", subjects=(f"dead.{fresh}",)))
        for number in range(6):
            js.publish(f"{fresh}.job", b"%d" % number)
        letters = ("--attempts", "1", "--dead-letter", f"dead.{fresh}")
        process = start(cli, tmp_path, function, fresh, "--concurrency", "3", *letters)
        try:
            assert wait_for(tmp_path / "done", 5) == ["0", "1", "2", "4", "5"]
            letter = dead.create_consumer("reader").next(timeout=WAIT)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=WAIT)
        finally:
            process.kill()
        assert process.returncode == 0
        assert (letter.data, letter.headers["Dead-Letter-Error"]) == (b"3", "KeyError")
        assert isinstance(letter.headers, Headers)
        assert re.search(rf"INFO jobs:{function} handles messages of consumer 'w' of stream '{fresh}'", err)
        assert f"ERROR the callback of consumer 'w' for '{fresh}.job' (stream '{fresh}', sequence 4, delivery 1)" in err
        assert "KeyError: 'order_id'" in err
        assert "SIGTERM, stopping" in err
        assert "handled 5 messages, 1 failures, 1 dead letters, 0 given back" in err
        eventually(lambda: js.stream(fresh).consumer("w").info().num_ack_pending == 0)


@pytest.mark.parametrize("concurrency", ["1", "4"])
@pytest.mark.parametrize("function", ["plain", "coroutine"])
def test_a_worker_handles_no_more_messages_than_it_is_told(
    cli: Cli, any_server: str, fresh: str, tmp_path: Path, function: str, concurrency: str
) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        with js.publisher() as publisher:
            for number in range(300):
                publisher.publish(f"{fresh}.job", b"%d" % (number + 10))
        process = start(cli, tmp_path, function, fresh, "--count", "3", "--concurrency", concurrency)
        _, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0, err
        assert len((tmp_path / "done").read_text().splitlines()) == 3
        assert "handled 3 messages, 0 failures, 0 dead letters" in err

        def left() -> int:
            info = js.stream(fresh).consumer("w").info()
            return info.num_pending + info.num_ack_pending

        eventually(lambda: left() <= 297)  # the last acks are on their way
        assert left() == 297


def test_an_exit_of_the_function_is_that_of_the_command(our_cli: Cli, our_url: str, fresh: str, tmp_path: Path) -> None:
    with connect_blocking(our_url) as nc:
        nc.jetstream().create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        nc.jetstream().publish(f"{fresh}.job", b"0")
    process = start(our_cli, tmp_path, "leave", fresh)
    process.communicate(timeout=WAIT)
    assert process.returncode == 7


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        ("jobs", "the handler must be MODULE:FUNCTION such as jobs:resize, got 'jobs'"),
        ("no_such_module:run", "module 'no_such_module' of the handler cannot be imported"),
        ("json:nothing", "module 'json' has no 'nothing'"),
        ("json:__name__", "the handler must be a function, got 'json'"),
    ],
    ids=["no function", "no module", "no attribute", "no callable"],
)
def test_a_handler_that_cannot_be_called_is_rejected(our_cli: Cli, handler: str, error: str) -> None:
    done = our_cli.run("worker", handler, "--stream", "S", "--consumer", "w")
    assert done.code == 2
    assert error in done.err


def test_a_consumer_that_does_not_exist_is_not_found(our_cli: Cli, our_url: str, fresh: str) -> None:
    with connect_blocking(our_url) as nc:
        nc.jetstream().create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    assert our_cli.run("worker", "json:dumps", "--stream", fresh, "--consumer", "w").code == 3


def test_option_for_dead_letters_needs_no_number_of_attempts() -> None:
    options = argparse.Namespace(dead_letter="dead", attempts=None, on_error="nak")
    assert worker.policy(options) == Attempts(worker.ATTEMPTS, then=DeadLetter("dead"))
