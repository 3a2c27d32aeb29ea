"""`account backup` and `restore`: all streams of an account, with what goes wrong on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.testing import TestServer
from tests.cli.support import Cli


@pytest.fixture
def own(tmp_path: Path) -> object:
    """A server whose account has nothing but what the test makes."""
    with TestServer() as server:
        yield Cli(server.url, tmp_path)


def test_all_streams_are_backed_up_and_restored(own: Cli, tmp_path: Path) -> None:
    own.ok("stream", "add", "ORDERS", "--subjects", "orders.>")
    own.ok("pub", "-J", "orders.a", "x", "--count", "5")
    own.ok("consumer", "add", "ORDERS", "w")
    own.ok("kv", "add", "settings")
    own.ok("kv", "put", "settings", "theme", "dark")
    target = tmp_path / "backup"
    done = own.ok("account", "backup", str(target), "--json")
    assert done.json == {"streams": ["KV_settings", "ORDERS"], "failed": []}
    assert own.run("account", "backup", str(target)).code == 2  # not empty
    existing = own.run("account", "restore", str(target))
    assert (existing.code, "already exist: KV_settings, ORDERS" in existing.err) == (2, True)
    own.ok("stream", "rm", "ORDERS", "-f")
    own.ok("account", "restore", str(target), "--skip-existing")
    assert own.ok("stream", "info", "ORDERS", "--json").json["state"]["messages"] == 5
    assert own.ok("consumer", "ls", "ORDERS", "-n").out == "w\n"
    own.ok("kv", "del", "settings", "-f")
    assert own.ok("account", "restore", str(target), "--skip-existing").err.endswith("restored 1 stream\n")
    assert own.ok("kv", "get", "settings", "theme", "--raw").out == "dark"


def test_restoring_checks_all_backups_first(own: Cli, tmp_path: Path) -> None:
    own.ok("stream", "add", "ORDERS")
    target = tmp_path / "backup"
    own.ok("account", "backup", str(target))
    (target / "ZZZ").mkdir()
    (target / "ZZZ" / "backup.json").write_text("{}")
    own.ok("stream", "rm", "ORDERS", "-f")
    done = own.run("account", "restore", str(target))
    assert (done.code, "not a backup of a stream" in done.err, done.err.count("\n")) == (2, True, 1)
    assert own.ok("stream", "ls", "-n").out == ""
    assert own.run("account", "restore", str(tmp_path / "none")).code == 2
    (tmp_path / "empty").mkdir()
    assert own.run("account", "restore", str(tmp_path / "empty")).code == 2


def test_one_damaged_backup_does_not_keep_the_others_back(own: Cli, tmp_path: Path) -> None:
    for name in ("A", "B"):
        own.ok("stream", "add", name)
        own.ok("pub", "-J", name, "x")
    target = tmp_path / "backup"
    own.ok("account", "backup", str(target))
    (target / "A" / "stream.tar.s2").write_bytes(b"nothing of the kind")
    for name in ("A", "B"):
        own.ok("stream", "rm", name, "-f")
    done = own.run("account", "restore", str(target), "--json")
    assert (done.code, done.json) == (1, {"streams": ["B"], "failed": ["A"]})
    assert own.ok("stream", "ls", "-n").out == "B\n"


def test_the_account_is_shown_with_and_without_the_command(cli: Cli) -> None:
    assert cli.ok("account", "--json").json.keys() == cli.ok("account", "info", "--json").json.keys()
    assert "Streams" in cli.ok("account").out
