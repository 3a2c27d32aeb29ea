"""`pub --schedule`, `sub --translate` and `sub --dump`."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pytest

from slipstream.cli.messages.publish import schedule
from tests.cli.support import Cli


def test_a_scheduled_message_is_published_later(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>", "--allow-schedules", "--allow-msg-ttl")
    cli.ok(
        "pub", "-J", f"{fresh}.later", "hello", "--schedule", "1s", "--schedule-target", f"{fresh}.now",
        "--schedule-ttl", "1h",
    )  # fmt: skip
    done = cli.ok("sub", "--stream", fresh, f"{fresh}.now", "--count", "1", "--wait", "30s", "--json")
    (message,) = done.lines
    assert message["data"] == "hello"
    assert message["headers"]["Nats-Scheduler"] == [f"{fresh}.later"]
    assert message["headers"]["Nats-TTL"] == ["3600s"]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--schedule", "1s", "--schedule-target", "x"),
        ("-J", "--schedule", "1s"),
        ("-J", "--schedule-target", "x"),
        ("-J", "--schedule", "soon", "--schedule-target", "x"),
    ],
)
def test_schedules_that_do_not_fit_together_are_usage_errors(our_cli: Cli, fresh: str, wrong: tuple[str, ...]) -> None:
    done = our_cli.run("pub", fresh, "x", *wrong)
    assert done.code == 2, done
    assert len(done.err.splitlines()) == 1


def test_a_schedule_is_what_the_server_reads() -> None:
    assert schedule("@every 1h") == "@every 1h"
    assert schedule("0 0 * * * *") == "0 0 * * * *"
    assert schedule("2030-01-31T10:00:00+01:00") == "@at 2030-01-31T09:00:00Z"
    before = time.time_ns()
    when = schedule("90s").removeprefix("@at ")
    assert "T" in when
    assert when.endswith("Z")
    assert time.time_ns() - before < 60 * 10**9
    with pytest.raises(argparse.ArgumentTypeError):
        schedule("soon")


def test_payloads_are_translated_by_a_program_without_a_shell(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    cli.ok("pub", "-J", f"{fresh}.$(id)", "abc")
    read = ("sub", "--stream", fresh, "--count", "1", "--wait", "30s")
    assert cli.ok(*read, "--raw", "--translate", "tr a-z A-Z").out == "ABC\n"
    assert cli.ok(*read, "--raw", "--translate", "echo {{Subject}}").out == f"{fresh}.$(id)\n"
    assert "ABC" in cli.ok(*read, "--translate", "tr a-z A-Z").out
    for wrong in ("/nonexistent/program", "false"):
        done = cli.run(*read, "--translate", wrong)
        assert done.code == 2
        assert "--translate" in done.err


def test_messages_are_dumped_to_files(cli: Cli, fresh: str, tmp_path: Path) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    cli.ok("pub", "-J", f"{fresh}.a", "one", "-H", "A:b")
    cli.ok("pub", "-J", f"{fresh}.b", "two")
    folder = tmp_path / "new" / "dump"
    read = ("sub", "--stream", fresh, "--count", "2", "--wait", "30s", "--dump", str(folder))
    assert cli.ok(*read).out == ""
    first, second = sorted(folder.iterdir())
    message = json.loads(first.read_text())
    assert (first.name, message["subject"], message["data"], message["headers"]) == (
        "00000001.json", f"{fresh}.a", "one", {"A": ["b"]},
    )  # fmt: skip
    assert json.loads(second.read_text())["seq"] == 2
    assert "without JSON files" in cli.run(*read).err  # what is there is not overwritten
    assert cli.run(*read, "--raw").code == 2
