"""`sub --stream`: messages of a stream from where they are wanted, without a consumer that stays."""

from __future__ import annotations

import time

import pytest

from tests.cli.support import Cli


def read(cli: Cli, stream: str, *options: str) -> list[str]:
    done = cli.ok("sub", "--stream", stream, *options, "--json", "--wait", "500ms")
    return [each["data"] for each in done.lines]


def test_a_stream_is_read_from_where_it_is_wanted(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    for subject, data in (("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")):
        cli.ok("pub", "-J", f"{fresh}.{subject}", data)
    assert read(cli, fresh) == read(cli, fresh, "--all") == read(cli, fresh, "--since", "1h") == ["1", "2", "3", "4"]
    assert read(cli, fresh, "--last") == ["4"]
    assert read(cli, fresh, "--last-per-subject") == ["3", "4"]
    assert read(cli, fresh, "--start-sequence", "3") == ["3", "4"]
    assert read(cli, fresh, f"{fresh}.a") == ["1", "3"]
    assert read(cli, fresh, "--since", "2100-01-01T00:00:00Z", "--count", "1") == []
    assert read(cli, fresh, "--count", "2") == ["1", "2"]
    assert cli.ok("sub", "--stream", fresh, "--raw", "--count", "1").out == "1\n"
    shown = cli.ok("sub", "--stream", fresh, "--count", "1").out
    assert shown.startswith(f"[#1] {fresh} sequence 1 on '{fresh}.a' at 20")
    assert cli.ok("stream", "info", fresh, "--json").json["state"]["messages"] == 4
    deadline = time.monotonic() + 30
    while cli.ok("consumer", "ls", fresh, "-n").out:  # they are deleted, none stays behind
        assert time.monotonic() < deadline


def test_the_time_of_arrival_is_shown_if_asked_for(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "one")
    reading = ("sub", "--stream", fresh, "--count", "1")
    assert ", arrived 20" in cli.ok(*reading, "--timestamp").out
    assert "arrived" not in cli.ok(*reading).out
    [line] = cli.ok(*reading, "--timestamp", "--json").lines
    assert line["time"] < line["arrived"]


def test_new_messages_alone(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "old")
    with cli.started("sub", "--stream", fresh, "--new", "--count", "1", "--raw", until="reading") as process:
        cli.ok("pub", "-J", fresh, "new")
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "new\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 2),
        (("s", "--since", "1h"), 2),
        (("s", "--new"), 2),
        (("--stream", "S", "--queue", "q"), 2),
        (("--stream", "S", "--new", "--last"), 2),
        (("--stream", "S", "--since", "soon"), 2),
        (("--stream", "no-such-stream"), 3),
    ],
)
def test_mistakes_are_one_line(our_cli: Cli, arguments: tuple[str, ...], code: int) -> None:
    done = our_cli.run("sub", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done.err
