"""Locks, elections and sets from the command line: a program runs while the lease is held."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import pytest

from slipstream.cli.common import Shell
from slipstream.cli.kv import coordination
from slipstream.errors import LeaseLostError
from tests.cli.support import WAITING, Cli


def test_a_lock_is_held_while_a_command_runs(our_cli: Cli, fresh: str) -> None:
    our_cli.ok("kv", "add", fresh)
    inner = "import os; print(os.environ['SLIPSTREAM_TOKEN'])"
    first = our_cli.process("kv", "lock", fresh, "nightly", "--", sys.executable, "-c", inner)
    second = our_cli.process("kv", "elect", fresh, "nightly", "--", sys.executable, "-c", inner)
    assert int(second.out) > int(first.out) > 0
    with our_cli.started("kv", "lock", fresh, "nightly", "--", *WAITING, until="got the lock"):
        busy = our_cli.run("kv", "lock", fresh, "nightly", "--wait", "500ms", "--", "true")
        assert (busy.code, "nightly is held by another process" in busy.err) == (5, True)


def test_a_command_that_does_not_stop_when_the_lock_is_lost_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        checks = 0

        def check(self) -> int:
            self.checks += 1
            if self.checks > 8:
                raise LeaseLostError("nightly", "another holder acquired it")
            return 1

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(coordination, "STOP_TIMEOUT", 0.5)
    monkeypatch.setattr(subprocess, "Popen", start)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    options = argparse.Namespace(program=[sys.executable, "-c", stubborn])
    with pytest.raises(LeaseLostError):
        coordination._run(Shell(options), Held(), "the lock")
    assert started[0].poll() is not None


@pytest.mark.spec("KV-49", on="C N")
def test_members_are_listed_and_watched_while_their_commands_run(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh)
    member = ("kv", "members", "join", fresh, "services.web", "--name", "ada", "--data", "10.0.0.1:80", "--ttl", "20s")
    with cli.started(*member, "--", *WAITING, until="got the membership"):
        listed = cli.ok("kv", "members", "ls", fresh, "services.web", "--json").json
        assert [(each["name"], each["data"]) for each in listed] == [("ada", "10.0.0.1:80")]
        assert cli.ok("kv", "members", "ls", fresh, "services.web").out.split()[-3::2] == ["ada", "10.0.0.1:80"]
        taken = cli.run(
            "kv", "members", "join", fresh, "services.web", "--name", "ada", "--wait", "100ms", "--", "true"
        )
        assert taken.code == 5
        watch = ("kv", "members", "watch", fresh, "services.web", "--count", "3", "--json")
        with cli.started(*watch, until="watching") as watching:
            second = cli.ok("kv", "members", "join", fresh, "services.web", "--name", "bob", "--", "true")
            assert "got the membership" in second.err
            out, _ = watching.communicate(timeout=30)
    changes = [json.loads(line) for line in out.splitlines()]
    assert [(each["change"], each["name"]) for each in changes] == [
        ("joined", "ada"),
        ("joined", "bob"),
        ("left", "bob"),
    ]


@pytest.mark.spec("KV-49", on="C N")
def test_the_leader_is_shown_and_watched(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh)
    assert cli.run("kv", "leader", fresh, "boss")[:2] == (3, "no leader\n")
    elected = ("kv", "elect", fresh, "boss", "--name", "ada", "--data", "10.0.0.1", "--ttl", "20s")
    with cli.started(*elected, "--", *WAITING, until="got the leadership"):
        found = cli.ok("kv", "leader", fresh, "boss", "--json").json
        assert (found["leader"], found["data"]) == ("ada", "10.0.0.1")
        assert cli.ok("kv", "leader", fresh, "boss").out == f"ada term {found['term']}: 10.0.0.1\n"
        assert cli.ok("kv", "leader", fresh, "boss", "--watch", "--count", "1", "--json").json == found


def test_the_program_gets_the_token_and_its_exit_code_is_passed_on(our_cli: Cli, fresh: str) -> None:
    our_cli.ok("kv", "add", fresh)
    for command in (("lock", fresh, "k"), ("elect", fresh, "k"), ("members", "join", fresh, "k")):
        done = our_cli.process("kv", *command, "--", "sh", "-c", "test $SLIPSTREAM_TOKEN -gt 0 && exit 7")
        assert done.code == 7, done
