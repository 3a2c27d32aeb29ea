"""`slipstream kv add`, `edit`, `info` and `compact`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.support import Cli


def config(cli: Cli, bucket: str) -> dict[str, Any]:
    found: dict[str, Any] = cli.ok("kv", "info", bucket, "--json").json["stream_info"]["config"]
    return found


def test_bucket_is_created_with_every_option(cli: Cli, fresh: str) -> None:
    made = cli.ok(
        "kv", "add", fresh, "--description", "words", "--history", "5", "--ttl", "1h", "--max-value-size", "1KB",
        "--max-bucket-size", "1MB", "--storage", "memory", "--replicas", "1", "--value-ttl", "--compress",
        "--metadata", "team=ui", "--republish-source", f"$KV.{fresh}.>", "--republish-destination", f"{fresh}.again.>",
        "--republish-headers", "--json",
    )  # fmt: skip
    assert (made.json["history"], made.json["ttl"], made.json["value_ttl"]) == (5, 3600.0, True)
    found = config(cli, fresh)
    assert (found["description"], found["max_msg_size"], found["max_bytes"]) == ("words", 1024, 1024**2)
    assert (found["storage"], found["compression"], found["metadata"]["team"]) == ("memory", "s2", "ui")
    assert found["republish"] == {"src": f"$KV.{fresh}.>", "dest": f"{fresh}.again.>", "headers_only": True}
    shown = cli.ok("kv", "info", fresh).out
    for fact in ("Description: words", "History: 5", "TTL: 1h", "TTL per value: allowed", "memory, compressed"):
        assert fact in shown


def test_bucket_with_its_own_stream_and_subjects(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh, "--stream", f"{fresh}OWN", "--subject-prefix", f"own.{fresh}")
    where = ("--stream", f"{fresh}OWN")
    cli.ok("kv", "put", fresh, "k", "v", *where)
    assert cli.ok("get", f"{fresh}OWN", "--last", f"own.{fresh}.k", "--raw").out == "v\n"
    assert cli.ok("kv", "get", fresh, "k", "--raw", *where, "--subject-prefix", f"own.{fresh}").out == "v"
    assert cli.run("kv", "get", fresh, "k").code == 3
    cli.ok("kv", "del", fresh, "-f", *where)
    assert cli.run("stream", "info", f"{fresh}OWN").code == 3


def test_mirrors_and_aggregates(cli: Cli, fresh: str) -> None:
    for bucket in ("eu", "us"):
        cli.ok("kv", "add", f"{fresh}{bucket}")
    cli.ok("kv", "add", f"{fresh}copy", "--mirror", f"{fresh}eu")
    cli.ok("kv", "add", f"{fresh}all", "--source", f"{fresh}eu,{fresh}us,keys=orders.*,prefix=us")
    assert cli.ok("kv", "info", f"{fresh}copy", "--json").json["mirror_of"] == f"KV_{fresh}eu"
    first = cli.ok("kv", "put", f"{fresh}eu", "k", "1", "--json").json["revision"]
    cli.ok("kv", "put", f"{fresh}us", "orders.7", "2")
    cli.ok("kv", "put", f"{fresh}us", "other", "3")
    read = cli.ok("kv", "get", f"{fresh}copy", "k", "--raw", "--min-last-revision", str(first))
    assert read.out == "1"
    watched = cli.ok("kv", "watch", f"{fresh}all", "--count", "2", "--json").lines
    assert {each["key"]: each["data"] for each in watched} == {"k": "1", "us.orders.7": "2"}
    far = cli.ok("kv", "add", f"{fresh}far", "--mirror", f"{fresh}eu,domain=hub", "--json").json
    assert far["stream_info"]["config"]["mirror"]["external"]["api"] == "$JS.hub.API"
    bad = cli.run("kv", "add", fresh, "--source", "eu,colour=red")
    assert (bad.code, "must be a bucket, then settings of it" in bad.err) == (2, True)
    assert cli.run("kv", "add", fresh, "--mirror", "a,b").code == 2


@pytest.mark.spec("KV-56", on="C N")
def test_edit_changes_only_what_is_named(cli: Cli, fresh: str) -> None:
    cli.ok(
        "kv", "add", fresh, "--description", "words", "--ttl", "1h", "--compress", "--max-value-size", "1KB",
        "--storage", "memory", "--metadata", "team=ui", "--republish-destination", f"{fresh}.again.>",
    )  # fmt: skip
    before = config(cli, fresh)
    edited = cli.ok("kv", "edit", fresh, "--history", "5", "--json").json
    assert edited["history"] == 5
    assert config(cli, fresh) == before | {"max_msgs_per_subject": 5}
    cli.ok("kv", "edit", fresh, "--value-ttl", "--no-compress", "--republish-destination", "")
    now = config(cli, fresh)
    assert (now["allow_msg_ttl"], now.get("compression", "none"), now.get("republish")) == (True, "none", None)
    assert (now["description"], now["max_age"], now["max_msgs_per_subject"]) == ("words", 3600 * 10**9, 5)
    nothing = cli.run("kv", "edit", fresh)
    assert (nothing.code, "--history 5" in nothing.err) == (2, True)
    assert cli.run("kv", "edit", f"{fresh}none", "--history", "5").code == 3


@pytest.mark.spec("KV-56", on="C N")
@pytest.mark.parametrize("command", ["put {b} k v", "create {b} new v", "update {b} k v 1", "purge {b} k --force"])
def test_ttl_that_the_bucket_does_not_allow_says_how_to_allow_it(cli: Cli, fresh: str, command: str) -> None:
    cli.ok("kv", "add", fresh)
    cli.ok("kv", "put", fresh, "k", "old")
    words = (*command.format(b=fresh).split(), "--ttl", "1h")
    refused = cli.run("kv", *words)
    assert refused.code == 2
    assert (
        f"bucket {fresh} has no per-value TTLs; enable them with slipstream kv edit {fresh} --value-ttl" in refused.err
    )
    cli.ok("kv", "edit", fresh, "--value-ttl")
    cli.ok("kv", *words)


def test_compact_removes_deleted_keys_for_good(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh, "--history", "3")
    cli.ok("kv", "put", fresh, "k", "1")
    cli.ok("kv", "del", fresh, "k", "--force")
    assert "removed 1 markers" in cli.ok("kv", "compact", fresh, "--older-than", "0", "--recorded", "--force").err
    assert cli.ok("kv", "info", fresh, "--json").json["values"] == 0
    lost = cli.run("kv", "snapshot", fresh, "--revision", "1")
    assert (lost.code, "removed for good" in lost.err) == (1, True)
    assert cli.ok("kv", "compact", fresh, "--force", "--json").json == {"removed": 0}
