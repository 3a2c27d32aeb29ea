"""`slipstream console` as a process: it prints one address, serves it, logs no token, and ends by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from slipstream import UsageError
from slipstream.console.serving import read_token
from tests.cli.support import COMMAND, Cli


def test_the_address_is_printed_and_served_until_a_signal(our_cli: Cli) -> None:
    process = started(our_cli, "console")
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


def started(our_cli: Cli, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=our_cli.env | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )


@pytest.mark.parametrize("login", [[], ["--user", "ada", "--pass", "hopper-1906"], ["--auth", "secret-token"]])
def test_a_server_brings_its_console_along_with_its_login(our_cli: Cli, login: list[str]) -> None:
    process = started(our_cli, "server", "-p", "-1", "--console", "--console_write", "-m", "-1", *login)
    try:
        assert process.stdout is not None
        base, _, token = process.stdout.readline().strip().removeprefix("Console: ").partition("/?token=")
        with httpx.Client(base_url=base, timeout=30) as browser:
            assert browser.get("/", params={"token": token}).status_code == 303
            deadline = time.monotonic() + 30
            while (about := browser.get("/api/about")).status_code == 503 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert about.json()["write"] is True
            for word in login:
                assert word not in about.text
            assert browser.get("/api/connections").json()["scope"] == "servers"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert token not in out + err
    assert "Traceback" not in err, err


def test_flags_of_the_console_need_it_and_are_checked(our_cli: Cli) -> None:
    for words in (["--console_port", "9000"], ["--console_write"], ["--console", "--console_port", "x"],
                  ["--console", "--console_port", "70000"]):  # fmt: skip
        done = our_cli.run("server", "-p", "-1", *words)
        assert done.code != 0, words
        assert "--console" in done.err
    assert "--console" in our_cli.run("server", "--help").out


def test_a_token_file_is_private_kept_and_checked(our_cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = read_token(str(file))
    assert read_token(str(file)) == token
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_token(str(file))
    file.chmod(0o600)
    file.write_text("short\n", "utf-8")
    with pytest.raises(UsageError, match="at least 20"):
        read_token(str(file))
    assert "short" not in our_cli.run("console", "--token-file", str(file)).err


def test_codecs_keyrings_and_pipelines_are_checked_before_an_address(our_cli: Cli, tmp_path: Path) -> None:
    ring = tmp_path / "ring.json"
    ring.write_text('{"keys": {"a": "not a key, but a secret"}, "primary": "a", "tokens": ["a"]}', "utf-8")
    ring.chmod(0o600)
    for words in (
        ["--codec", "b=nonsense"], ["--codec", "b"], ["--codec", "b=encrypted"], ["--keyring", f"b={ring}"],
        ["--keyring", "b=/nowhere"], ["--pipeline", "/nowhere.toml"], ["--monitor", "ftp://x"],
    ):  # fmt: skip
        done = our_cli.run("console", *words)
        assert done.code != 0, words
        assert "token" not in done.out
        assert "but a secret" not in done.err
