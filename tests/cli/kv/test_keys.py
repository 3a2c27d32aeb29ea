"""Keys and values from the command line: writes, reads, ranges, snapshots and watches."""

from __future__ import annotations

import json

import pytest

from tests.cli.support import Cli


def test_values_are_written_at_a_revision_and_read_again(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh, "--history", "5", "--value-ttl")
    assert cli.ok("kv", "put", fresh, "k", "1", "--json").json["revision"] == 1
    assert cli.ok("kv", "update", fresh, "k", "1", stdin=b"from stdin").code == 0  # the revision alone
    assert cli.ok("kv", "get", fresh, "k", "--raw").out == "from stdin"
    wrong = cli.run("kv", "update", fresh, "k", "3", "1")
    assert (wrong.code, f"key 'k' in bucket '{fresh}' is at revision 2, not 1" in wrong.err) == (1, True)
    assert cli.run("kv", "del", fresh, "k", "--last", "1", "--force").code == 1
    cli.ok("kv", "del", fresh, "k", "--last", "2", "--force")
    assert cli.run("kv", "purge", fresh, "k", "--last", "2", "--force").code == 1
    cli.ok("kv", "purge", fresh, "k", "--last", "3", "--ttl", "1h", "--force")
    stored = cli.ok("get", f"KV_{fresh}", "--last", f"$KV.{fresh}.k", "--json").json["headers"]
    assert (stored["KV-Operation"], stored["Nats-TTL"]) == (["PURGE"], ["3600000ms"])
    cli.ok("kv", "update", fresh, "k", "short", "4", "--ttl", "1h")
    assert "Nats-TTL" in cli.ok("get", f"KV_{fresh}", "--last", f"$KV.{fresh}.k", "--json").json["headers"]


def test_ranges_are_deleted_and_purged(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh, "--history", "5")
    for key in ("a.x", "a.y", "b.x", "c"):
        cli.ok("kv", "put", fresh, key, key)
    assert "deleted 2 keys" in cli.ok("kv", "del", fresh, "--filter", "a.*", "--force").err
    assert [each["operation"] for each in cli.ok("kv", "history", fresh, "a.x", "--json").json] == ["PUT", "DEL"]
    assert cli.ok("kv", "purge", fresh, "--filter", "b.*", "--filter", "c", "--force", "--json").json == {"purged": 2}
    assert [each["operation"] for each in cli.ok("kv", "history", fresh, "c", "--json").json] == ["PURGE"]
    assert cli.ok("kv", "ls", fresh).out == ""
    asked = cli.run("kv", "del", fresh, "--filter", "a.*")
    assert (asked.code, f"Delete the keys of {fresh} that match a.*?" in asked.err) == (2, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("del B k --filter a.* -f", "cannot be combined with a key or --last"),
        ("purge B --filter a.* --last 3 -f", "cannot be combined with a key or --last"),
        ("del B --last 3 -f", "--last requires a key"),
        ("purge B -f", "a key or --filter is required"),
        ("purge B --filter a.* --ttl 5s -f", "--ttl requires a key"),
        ("watch B --history --updates-only", "not allowed with argument"),
        ("put B k nonsense --codec json", "value must be JSON for the codec json, got 'nonsense'"),
        ("put B k 1 --codec rot13", "must be among base64-keys, base64-values, compressed"),
        ("put B k 1 --codec json,path", "json must be the last one"),
    ],
)
def test_options_that_exclude_each_other_are_rejected(our_cli: Cli, fresh: str, command: str, said: str) -> None:
    our_cli.ok("kv", "add", fresh)
    done = our_cli.run("kv", *[fresh if word == "B" else word for word in command.split()])
    assert (done.code, said in done.err) == (2, True), done


def test_snapshots_are_as_of_a_revision(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh, "--history", "2")
    for key, value in (("a.x", "1"), ("b.x", "2"), ("a.x", "3")):
        cli.ok("kv", "put", fresh, key, value)
    then = cli.ok("kv", "snapshot", fresh, "--revision", "2", "--json").json
    assert {each["key"]: each["data"] for each in then} == {"a.x": "1", "b.x": "2"}
    now = cli.ok("kv", "snapshot", fresh, "--filter", "a.*", "--min-last-revision", "3", "--json").json
    assert [(each["key"], each["data"], each["revision"]) for each in now] == [("a.x", "3", 3)]
    assert cli.ok("kv", "snapshot", fresh, "--filter", "a.*").out.split() == [
        "Key",
        "Revision",
        "Value",
        "a.x",
        "3",
        "3",
    ]
    cli.ok("kv", "put", fresh, "a.x", "4")
    lost = cli.run("kv", "snapshot", fresh, "--revision", "2")
    assert (lost.code, "2 entries are kept" in lost.err) == (1, True)


def test_watch_begins_and_leaves_out_what_the_options_say(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh, "--history", "5")
    for value in ("1", "2"):
        cli.ok("kv", "put", fresh, "a", value)
    cli.ok("kv", "put", fresh, "b", "3")
    cli.ok("kv", "del", fresh, "a", "--force")
    cli.ok("kv", "put", fresh, "b", "4")

    def watched(count: int, *options: str) -> list[tuple[str, str, str]]:
        lines = cli.ok("kv", "watch", fresh, "--json", "--count", str(count), *options).lines
        return [(each["key"], each["operation"], each["data"]) for each in lines]

    assert watched(2) == [("a", "DEL", ""), ("b", "PUT", "4")]
    assert watched(1, "--ignore-deletes") == [("b", "PUT", "4")]
    assert watched(2, "--meta-only") == [("a", "DEL", ""), ("b", "PUT", "")]
    assert watched(3, "--resume-from", "3") == [("b", "PUT", "3"), ("a", "DEL", ""), ("b", "PUT", "4")]
    assert [value for _, _, value in watched(5, "--history")] == ["1", "2", "3", "", "4"]
    assert watched(1, "--filter", "b", "--min-last-revision", "5") == [("b", "PUT", "4")]
    shown = cli.ok("kv", "watch", fresh, "b", "--count", "1").out
    assert f"PUT {fresh} > b revision 5: 4" in shown
    with cli.started("kv", "watch", fresh, "--updates-only", "--count", "1", "--json", until="watching") as watching:
        cli.ok("kv", "put", fresh, "c", "5")
        out, _ = watching.communicate(timeout=30)
    assert json.loads(out)["key"] == "c"


@pytest.mark.spec("KV-55", on="C N")
def test_codecs_encode_keys_and_values(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh)
    path = ("--codec", "path,compressed,json")
    cli.ok("kv", "put", fresh, "/users/ada", '{"age": 36}', *path)
    assert cli.ok("kv", "ls", fresh).out == "_root_.users.ada\n"
    assert cli.ok("kv", "ls", fresh, "--filter", "/users/*", *path).out == "/users/ada\n"
    found = cli.ok("kv", "get", fresh, "/users/ada", "--json", *path).json
    assert (found["key"], found["data"]) == ("/users/ada", {"age": 36})
    assert cli.ok("kv", "get", fresh, "/users/ada", "--raw", *path).out == '{"age": 36}'
    assert cli.ok("kv", "ls", fresh, "-v", *path).out.split()[-1] == "36}"
    assert cli.ok("kv", "get", fresh, "_root_.users.ada", "--raw").out.startswith("\0")  # small: not compressed
    packed = ("--codec", "base64-keys,msgpack")
    cli.ok("kv", "put", fresh, "any key ☃", "[1, 2]", *packed)
    assert cli.ok("kv", "get", fresh, "any key ☃", "--raw", *packed).out == "[1, 2]"
    assert cli.ok("kv", "get", fresh, "YW55IGtleSDimIM", "--json").json["data_base64"] == "kgEC"
    cli.ok("kv", "put", fresh, "bytes", stdin=b"\x00\xff")
    listed = cli.process("kv", "ls", fresh, *packed)
    assert (listed.out, "_root_.users.ada" in listed.err) == ("any key ☃\n", True)  # foreign keys are reported
    cli.ok("kv", "put", fresh, "text", "words", "--codec", "base64-values")
    assert cli.ok("kv", "get", fresh, "text", "--raw").out == "d29yZHM"
    wrong = cli.run("kv", "get", fresh, "text", "--codec", "json")
    assert (wrong.code, "is not the JSON expected" in wrong.err) == (1, True)
