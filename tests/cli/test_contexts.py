"""`context copy`, `previous` and `validate`; `object edit`."""

from __future__ import annotations

from tests.cli.support import Cli


def test_contexts_are_copied_and_gone_back_to(our_cli: Cli) -> None:
    our_cli.ok("context", "add", "one", "-s", "nats://one:4222", "--password", "s3cret", "--user", "u", "--select")
    our_cli.ok("context", "copy", "one", "two")
    assert our_cli.run("context", "copy", "one", "two").code == 2
    our_cli.ok("context", "copy", "one", "two", "--force")
    assert our_cli.run("context", "copy", "none", "three").code == 2
    assert our_cli.ok("context", "info", "two", "--json").json["url"] == "nats://one:4222"
    assert our_cli.run("context", "previous").code == 2
    our_cli.ok("context", "select", "two")
    our_cli.ok("context", "select", "two")  # the same again is no step
    assert "selected one" in our_cli.ok("context", "previous").err
    assert "selected two" in our_cli.ok("context", "previous").err
    our_cli.ok("context", "rm", "-f", "one")
    done = our_cli.run("context", "previous")
    assert done.code == 2
    assert "no context 'one'" in done.err


def test_contexts_are_validated(our_cli: Cli) -> None:
    url = our_cli.env["NATS_URL"]
    our_cli.ok("context", "add", "good", "-s", url)
    assert our_cli.ok("context", "validate", "--connect").out.split()[-1] == "valid"
    our_cli.ok("context", "add", "lost", "-s", url, "--creds", "/nonexistent/user.creds")
    our_cli.ok("context", "add", "away", "-s", "nats://127.0.0.1:1")
    done = our_cli.run("context", "validate", "--json")
    assert done.code == 1
    assert [(each["name"], each["valid"]) for each in done.json] == [("away", True), ("good", True), ("lost", False)]
    assert "cannot be read" in done.json[2]["error"]
    assert our_cli.run("context", "validate", "away", "--connect").code == 1
    assert our_cli.run("context", "validate", "none").code == 1


def test_object_buckets_are_edited(cli: Cli, fresh: str) -> None:
    cli.ok("object", "add", fresh)
    cli.ok("object", "put", fresh, "--name", "a", stdin=b"x" * 100)
    cli.ok("object", "edit", fresh, "--ttl", "24h", "--max-bytes", "1MB", "--description", "pictures")
    config = cli.ok("object", "info", fresh, "--json").json["config"]
    assert (config["max_age"], config["description"]) == (86_400 * 10**9, "pictures")
    assert config["max_bytes"] > 0
    assert "nothing to change" in cli.ok("object", "edit", fresh, "--ttl", "24h").err
    assert cli.run("object", "edit", f"{fresh}-none", "--ttl", "1h").code == 3
    assert cli.ok("object", "get", fresh, "a", "-O", "-").out == "x" * 100
