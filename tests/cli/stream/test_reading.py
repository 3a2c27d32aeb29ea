"""`stream view`: from a time, the newest, and as they are stored; also of streams that no consumer may read."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.support import COMMAND, WAIT, Cli


@contextmanager
def _following(cli: Cli, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command whose output is read while it runs."""
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, env=cli.env, text=True) as process:
        killer = threading.Timer(WAIT, process.kill)
        killer.start()
        try:
            yield process
        finally:
            process.kill()
            killer.cancel()


def _seq(line: str) -> int:
    found: int = json.loads(line)["seq"]
    return found


def seqs(cli: Cli, *arguments: str) -> list[int]:
    return [each["seq"] for each in cli.ok("stream", "view", *arguments, "--json").lines]


@pytest.mark.parametrize("direct", ["--allow-direct", "--no-allow-direct"])
def test_a_view_begins_where_it_is_told(cli: Cli, fresh: str, direct: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>", direct)
    cli.ok("pub", "-J", f"{fresh}.a", "x", "--count", "40")
    cli.ok("pub", "-J", f"{fresh}.b", "x")
    cli.ok("stream", "rmm", "-f", fresh, "39")
    assert len(seqs(cli, fresh)) == 25
    assert seqs(cli, fresh, "--last", "3") == [38, 40, 41]
    assert seqs(cli, fresh, "--last", "2", "--subject", f"{fresh}.a") == [38, 40]
    assert seqs(cli, fresh, "--last", "1", "--subject", f"{fresh}.none") == []
    assert len(seqs(cli, fresh, "--since", "1h")) == 40
    assert seqs(cli, fresh, "2", "--since", "1h", "--subject", f"{fresh}.*") == [1, 2]
    assert seqs(cli, fresh, "--since", "2100-01-01T00:00:00Z") == []
    assert seqs(cli, fresh, "--seq", "40") == [40, 41]
    for wrong in (("--since", "soon"), ("5", "--last", "5"), ("--since", "1h", "--last", "5")):
        assert cli.run("stream", "view", fresh, *wrong).code == 2
    assert cli.run("stream", "view", f"{fresh}-none").code == 3


def test_a_time_between_two_messages_is_a_start(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "old")
    time.sleep(0.01)
    cli.ok("pub", "-J", fresh, "new")
    when = cli.ok("get", fresh, "2", "--json").json["time"]
    assert seqs(cli, fresh, "--since", when[:26] + "Z") == [2]


def test_an_empty_stream_is_viewed(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh)
    assert seqs(cli, fresh) == seqs(cli, fresh, "--last", "3") == seqs(cli, fresh, "--since", "1h") == []


def test_following_goes_on_with_what_is_stored(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>", "--retention", "workqueue")
    cli.ok("pub", "-J", f"{fresh}.a", "old", "--count", "3")
    follow = ("stream", "view", fresh, "6", "--follow", "--json", "--subject", f"{fresh}.a")
    with _following(cli, *follow) as process:
        assert process.stdout is not None
        assert [_seq(process.stdout.readline()) for _ in range(3)] == [1, 2, 3]
        cli.ok("pub", "-J", f"{fresh}.b", "other")
        cli.ok("pub", "-J", f"{fresh}.a", "new", "--count", "3")
        assert [_seq(line) for line in process.stdout] == [5, 6, 7]
        assert process.wait(timeout=30) == 0
    assert cli.ok("stream", "info", fresh, "--json").json["state"]["messages"] == 7  # nothing was consumed
