"""`slipstream console` as a process: it prints one address, serves it, logs no token, and ends by a signal."""

from __future__ import annotations

import os
import signal
import subprocess

import httpx

from tests.cli.support import COMMAND, Cli


def test_the_address_is_printed_and_served_until_a_signal(our_cli: Cli) -> None:
    process = subprocess.Popen(
        [*COMMAND, "console"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=our_cli.env | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        base, _, token = address.partition("/?token=")
        assert base.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=base, timeout=30) as browser:
            assert browser.get("/api/about").status_code == 401
            assert browser.get("/", params={"token": token}).status_code == 303
            assert browser.get("/api/about").json()["write"] is False
            assert browser.get("/nothing").status_code == 404
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert token not in out + err
    assert "Traceback" not in err


def test_a_server_that_is_not_there_is_an_error_before_an_address(our_cli: Cli) -> None:
    done = our_cli.run("console", "-s", "nats://127.0.0.1:1", "--timeout", "1s")
    assert done.code != 0
    assert "token" not in done.out
