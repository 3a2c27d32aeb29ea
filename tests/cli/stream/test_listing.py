"""Reports on streams: lag first, mirrors, subjects, and streams found by their properties."""

from __future__ import annotations

import re
import time

from tests.cli.support import WAIT, Cli
from tests.cli.test_output import ESCAPE


def test_the_report_has_the_largest_lag_first(cli: Cli, fresh: str) -> None:
    for name, messages in ((f"{fresh}-a", 1), (f"{fresh}-b", 5), (f"{fresh}-c", 9)):
        cli.ok("stream", "add", name, "--subjects", name)
        cli.ok("pub", "-J", name, "x", "--count", str(messages))
    cli.ok("consumer", "add", f"{fresh}-a", "slow")
    cli.ok("consumer", "add", f"{fresh}-b", "slower")
    cli.ok("consumer", "add", f"{fresh}-b", "done", "--deliver", "new")
    cli.ok("consumer", "next", f"{fresh}-b", "slower", "--no-ack")
    rows = [row for row in cli.ok("stream", "report", "--json").json if row["stream"].startswith(fresh)]
    assert [(row["stream"], row["lag"], row["slowest"], row["consumers"]) for row in rows] == [
        (f"{fresh}-b", 5, "slower", 2), (f"{fresh}-a", 1, "slow", 1), (f"{fresh}-c", 0, "", 0),
    ]  # fmt: skip
    by_messages = cli.ok("stream", "report", "--json", "--sort", "messages").json
    assert [row["messages"] for row in by_messages if row["stream"].startswith(fresh)] == [9, 5, 1]
    assert cli.run("stream", "report", "--sort", "colour").code == 2
    consumers = cli.ok("consumer", "report", "--json").json
    found = [(row["consumer"], row["lag"], row["unacked"]) for row in consumers if row["stream"].startswith(fresh)]
    assert found == [("slower", 5, 1), ("slow", 1, 0), ("done", 0, 0)]
    assert [row["consumer"] for row in cli.ok("consumer", "report", f"{fresh}-b", "--sort", "name", "--json").json] == [
        "done", "slower"
    ]  # fmt: skip
    assert cli.run("consumer", "report", f"{fresh}-none").code == 3


def test_reports_fit_a_terminal_of_80_columns(our_cli: Cli, fresh: str) -> None:
    our_cli.env["COLUMNS"] = "80"
    name, worker = f"{fresh}-the-events-of-a-platform", "a-worker-with-quite-a-name"
    our_cli.ok("stream", "add", name, "--subjects", fresh)
    our_cli.ok("stream", "add", f"{fresh}-copy", "--mirror", name)
    our_cli.ok("pub", "-J", fresh, "x" * 2000, "--count", "1234")
    our_cli.ok("consumer", "add", name, worker)
    for command, wanted in (("stream", name), ("consumer", worker)):
        code, shown = our_cli.in_terminal(command, "report")
        lines = re.split("[\r\n]+", ESCAPE.sub("", shown))  # a progress bar is drawn over itself
        assert (code, max(map(len, lines)) <= 80) == (0, True), lines
        (row,) = [line for line in lines if line.startswith("│") and wanted in line and "1,234" in line]
        assert re.search(rf"│ {wanted} +│.* 1,234 │", row), row
    assert "Mirrors and sources" in ESCAPE.sub("", our_cli.in_terminal("stream", "report")[1])


def test_a_mirror_is_reported_with_its_lag(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("stream", "add", f"{fresh}-copy", "--mirror", fresh)
    cli.ok("pub", "-J", fresh, "x", "--count", "3")
    deadline = time.monotonic() + WAIT
    while cli.ok("stream", "info", f"{fresh}-copy", "--json").json["state"]["messages"] < 3:
        assert time.monotonic() < deadline
    out = cli.ok("stream", "report").out
    assert re.search(rf"{fresh}-copy +mirror +{fresh} +0", out), out


def test_subjects_are_counted(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    cli.ok("pub", "-J", f"{fresh}.a", "x")
    cli.ok("pub", "-J", f"{fresh}.b", "x", "--count", "2")
    assert cli.ok("stream", "subjects", fresh).out.split() == [
        "Subject",
        "Messages",
        f"{fresh}.b",
        "2",
        f"{fresh}.a",
        "1",
    ]
    assert cli.ok("stream", "subjects", fresh, "--json", "--sort", "name").json == {f"{fresh}.a": 1, f"{fresh}.b": 2}
    assert cli.ok("stream", "subjects", fresh, f"{fresh}.b", "-n").out == f"{fresh}.b\n"
    assert cli.ok("stream", "subjects", fresh, "none").err == "no subjects\n"
    assert cli.run("stream", "subjects", f"{fresh}-none").code == 3


def test_streams_are_found_by_their_properties(cli: Cli, fresh: str) -> None:
    def found(*options: str) -> set[str]:
        return {name for name in cli.ok("stream", "find", *options, "--json").json if name.startswith(fresh)}

    full, empty, copy = f"{fresh}-full", f"{fresh}-empty", f"{fresh}-copy"
    cli.ok("stream", "add", full, "--subjects", full)
    cli.ok("stream", "add", empty, "--subjects", empty)
    cli.ok("stream", "add", copy, "--mirror", full)
    cli.ok("pub", "-J", full, "x")
    cli.ok("consumer", "add", full, "c")
    assert full not in found("--empty")
    assert empty in found("--empty")
    assert found("--mirrored") == {copy}
    assert found("--consumers", "0") == {empty, copy}
    assert found("--subject", full) == {full}
    assert found("--idle", "1h") == set()
    assert found("--idle", "0s") == {full, empty, copy}
    assert found("--created", "1h", "--invert") == {full, empty, copy}
    assert found("--messages", "1", "--subject", full) == {full}
