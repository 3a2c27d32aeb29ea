"""`server check`: verdicts, their lines and the exit codes of monitoring plug-ins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.support import Cli


def check(cli: Cli, *arguments: str) -> tuple[int, str]:
    done = cli.run("server", "check", *arguments)
    assert (done.out.count("\n"), done.err) == (1, ""), done
    return done.code, done.out


def test_a_connection_is_probed(cli: Cli) -> None:
    code, line = check(
        cli,
        "connection",
        "--rtt-critical",
        "1h",
        "--rtt-warn",
        "1h",
        "--connect-warn",
        "1h",
        "--connect-critical",
        "1h",
    )
    assert code == 0
    assert re.fullmatch(
        r"OK connection: connected to \S+; [\d.]+ ms connect; [\d.]+ ms rtt \| connect=\S+ rtt=\S+\n", line
    )
    assert check(cli, "connection", "--rtt-critical", "1ns")[0] == 2
    assert (
        check(
            cli,
            "connection",
            "--rtt-warn",
            "1ns",
            "--rtt-critical",
            "1h",
            "--connect-warn",
            "1h",
            "--connect-critical",
            "1h",
        )[0]
        == 1
    )
    code, line = check(cli, "connection", "-s", "nats://127.0.0.1:9", "--timeout", "1s")
    assert (code, line.startswith("CRITICAL connection: ")) == (2, True)


def test_a_stream_and_its_consumer_are_probed(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "tick 7", "--count", "5")
    cli.ok("consumer", "add", fresh, "w")
    cli.ok("consumer", "next", fresh, "w", "--no-ack")
    for arguments, code in (
        (("stream", fresh), 0),
        (("stream", fresh, "--messages-warn", "6", "--messages-critical", "5"), 1),
        (("stream", fresh, "--messages-critical", "6"), 2),
        (("stream", fresh, "--idle-critical", "1h"), 0),
        (("stream", fresh, "--idle-critical", "1ns"), 2),
        (("stream", fresh, "--replicas", "1"), 0),
        (("stream", fresh, "--replicas", "2"), 2),
        (("stream", f"{fresh}-none"), 2),
        (("consumer", fresh, "w", "--pending-critical", "4", "--unacked-critical", "1"), 0),
        (("consumer", fresh, "w", "--pending-warn", "3"), 1),
        (("consumer", fresh, "w", "--unacked-critical", "0"), 2),
        (("consumer", fresh, "w", "--delivery-critical", "1h", "--ack-critical", "1h"), 0),
        (("consumer", fresh, "w", "--ack-critical", "1ns"), 2),
        (("consumer", fresh, "none"), 2),
        (("message", fresh, fresh, "--age-critical", "1h", "--content", r"^tick \d"), 0),
        (("message", fresh, fresh, "--content", "tock"), 2),
        (("message", fresh, fresh, "--content", "("), 3),
        (("message", fresh, f"{fresh}.none"), 2),
        (("jetstream",), 0),
    ):
        assert check(cli, *arguments)[0] == code, arguments
    cli.ok("consumer", "pause", fresh, "w", "10m")
    assert check(cli, "consumer", fresh, "w")[0] == 1
    found = cli.run("server", "check", "stream", fresh, "--json").json
    assert (found["status"], found["metrics"]["messages"]) == ("OK", 5)


def test_a_bucket_is_probed(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh)
    cli.ok("kv", "put", fresh, "theme", "dark")
    for arguments, code in (
        (("kv", fresh, "--key", "theme"), 0),
        (("kv", fresh, "--key", "none"), 2),
        (("kv", fresh, "--values-warn", "2"), 1),
        (("kv", f"{fresh}-none"), 2),
    ):
        assert check(cli, *arguments)[0] == code, arguments


@pytest.mark.parametrize("words", [("stream",), ("stream", "S", "--lag-critical", "x"), ("connection", "--wat")])
def test_a_mistake_is_unknown_and_not_critical(our_cli: Cli, words: tuple[str, ...]) -> None:
    done = our_cli.run("server", "check", *words)
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)


def test_stores_are_checked_by_their_directory_and_by_name(our_cli: Cli, tmp_path: Path) -> None:
    for words in ((str(tmp_path),), ("store", str(tmp_path))):
        done = our_cli.run("server", "check", *words)
        assert (done.code, done.out, "Traceback" in done.err) == (2, "", False), done
    wrong = our_cli.run("server", "check", "conection")
    assert (wrong.code, "did you mean 'connection'?" in wrong.err) == (2, True), wrong
    assert "store" in our_cli.ok("server", "check", "--help").out
    assert our_cli.run("server", "check").code == 2


def test_the_server_is_shown(cli: Cli) -> None:
    found = cli.ok("server", "info", "--json").json
    assert (found["jetstream"], found["headers"]) == (True, True)
    assert found["jetstream_account"]["limits"]
    assert "Round trip" in cli.ok("server", "info").out
    for monitor, code in (("nonsense", 2), ("http://127.0.0.1:9", 4)):
        done = cli.run("server", "info", "--monitor", monitor)
        assert (done.code, done.err.count("\n")) == (code, 1), done
