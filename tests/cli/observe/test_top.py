"""`top`: rates and lag, as JSON, as tables and as a screen; and `events`."""

from __future__ import annotations

import re
from pathlib import Path

from slipstream import Server
from tests.cli.support import Cli
from tests.cli.test_output import ESCAPE


def test_rates_are_those_between_two_looks(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "x", "--count", "3")
    cli.ok("consumer", "add", fresh, "w")
    reports = cli.ok("top", "--json", "--count", "2", "--interval", "50ms").lines
    assert len(reports) == 2
    for report in reports:
        (row,) = [row for row in report["streams"] if row["stream"] == fresh]
        assert (row["messages"], row["lag"], row["consumers"], row["in_per_second"]) == (3, 3, 1, 0)
        assert [row["lag"] for row in report["consumers"] if row["stream"] == fresh] == [3]
    assert fresh in cli.ok("top", "--count", "1").out


def test_a_screen_fits_the_terminal(our_cli: Cli, fresh: str) -> None:
    our_cli.env |= {"COLUMNS": "80", "LINES": "24"}
    for number in range(12):
        our_cli.ok("stream", "add", f"{fresh}-{number}", "--subjects", f"{fresh}.{number}")
    our_cli.ok("consumer", "add", f"{fresh}-1", "w")
    code, shown = our_cli.in_terminal("top", "--count", "2", "--interval", "10ms")
    assert code == 0
    screens = shown.split("\x1b[H")[1:]
    assert screens
    for screen in screens:
        lines = re.split("[\r\n]+", ESCAPE.sub("", screen))
        assert max(map(len, lines)) <= 80, lines
        assert len([line for line in lines if line]) <= 24, lines
    assert "Consumers" in screens[-1]


def test_connections_come_from_the_monitoring_port(tmp_path: Path) -> None:
    with Server(http_port=0) as server:
        cli = Cli(server.url, tmp_path)
        report = cli.ok("top", "--json", "--count", "1", "--monitor", server.http_url).lines[0]
        assert [each["name"] for each in report["connections"]] == ["slipstream"]
        assert report["mem"] > 0
        assert "Up for" in cli.ok("server", "info", "--monitor", server.http_url).out


def test_events_are_printed_as_they_happen(cli: Cli, fresh: str) -> None:
    with cli.started("events", "--stream", fresh, "--count", "2", until="waiting") as process:
        cli.ok("stream", "add", f"{fresh}-other", "--subjects", f"{fresh}.other")
        cli.ok("stream", "add", fresh, "--subjects", fresh)
        cli.ok("stream", "rm", fresh, "-f")
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    created, deleted = out.splitlines()
    assert re.match(rf"\d\d:\d\d:\d\d stream action +stream={fresh} action=create", created), created
    assert "action=delete" in deleted
    assert cli.run("events", "--wait", "50ms", "--subject", f"{fresh}.none").code == 0
    assert cli.run("events", "--subject", "a b").code == 2
