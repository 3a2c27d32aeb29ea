"""The command line as a user runs it, on our server and on the real one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nats
import pytest

from slipstream.cli import values
from tests.cli.support import Cli


def test_stream_is_created_written_read_and_removed(cli: Cli, fresh: str) -> None:
    made = cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>", "--max-age", "1h", "--allow-direct")
    assert f"Stream {fresh}" in made.out
    first = cli.ok("pub", "-J", f"{fresh}.a", "one", "-H", "Kind:x", "-H", "Kind:y", "--json")
    assert (first.json["stream"], first.json["seq"]) == (fresh, 1)
    assert "sequence 2" in cli.ok("pub", "-J", f"{fresh}.b", stdin=b"two\xff").err
    assert cli.ok("get", fresh, "1", "--raw").out == "one\n"
    shown = cli.ok("get", fresh, "--last", f"{fresh}.a", "--min-last-seq", "2", "--json").json
    assert (shown["data"], shown["headers"]) == ("one", {"Kind": ["x", "y"]})
    assert "data_base64" in cli.ok("get", fresh, "--next", f"{fresh}.*", "--seq", "2", "--json").json
    assert [each["seq"] for each in cli.ok("get", fresh, "--from", "1", "--json").lines] == [1, 2]
    assert [each["seq"] for each in cli.ok("stream", "view", fresh, "1", "--json").lines] == [1]
    assert cli.ok("stream", "info", fresh, "--json").json["state"]["messages"] == 2
    assert cli.ok("stream", "info", fresh, "--subjects", ">").out.split() == [
        "Subject", "Messages", f"{fresh}.a", "1", f"{fresh}.b", "1"
    ]  # fmt: skip
    assert fresh in cli.ok("stream", "ls", "-n").out.split()
    assert fresh in cli.ok("stream", "ls").out
    cli.ok("stream", "edit", fresh, "--max-msgs", "10", "--description", "words")
    edited = cli.ok("stream", "info", fresh, "--json").json["config"]
    assert (edited["max_msgs"], edited["description"], edited["max_age"]) == (10, "words", 3600 * 10**9)
    cli.ok("stream", "rmm", "-f", fresh, "1")
    assert cli.ok("stream", "purge", "-f", fresh, "--json").json == {"purged": 1}
    cli.ok("stream", "rm", "-f", fresh)
    gone = cli.run("stream", "info", fresh)
    assert (gone.code, gone.err) == (3, f"slipstream: error: no stream is called '{fresh}'\n")


def test_objects_are_stored_and_read_as_files(cli: Cli, fresh: str, tmp_path: Path) -> None:
    data = os.urandom(400_000)
    (tmp_path / "picture.png").write_bytes(data)
    cli.ok("object", "add", fresh, "--description", "pictures")
    stored = cli.ok("object", "put", fresh, str(tmp_path / "picture.png"), "--json").json
    assert (stored["name"], stored["size"], stored["chunks"]) == ("picture.png", len(data), 4)
    cli.ok("object", "put", fresh, "--name", "piped", stdin=b"from a pipe")
    assert cli.ok("object", "get", fresh, "piped", "-O", "-").out == "from a pipe"
    target = tmp_path / "out.png"
    sequence = str(stored["sequence"])
    cli.ok("object", "get", fresh, "picture.png", "-O", str(target), "--min-last-seq", sequence)
    assert target.read_bytes() == data
    again = cli.run("object", "get", fresh, "picture.png", "-O", str(target))
    assert (again.code, "already exists" in again.err) == (2, True)
    assert [each["name"] for each in cli.ok("object", "ls", fresh, "--json").json] == ["picture.png", "piped"]
    assert fresh in cli.ok("object", "ls").out
    cli.ok("object", "rm", "-f", fresh, "piped")
    assert cli.run("object", "info", fresh, "piped").code == 3
    cli.ok("object", "seal", "-f", fresh)
    assert "sealed" in cli.run("object", "put", fresh, "--name", "late", stdin=b"x").err
    cli.ok("object", "rm", "-f", fresh)
    assert cli.run("object", "ls", fresh).code == 3


def test_messages_are_published_and_printed_as_they_arrive(cli: Cli, fresh: str) -> None:
    with cli.started("sub", f"{fresh}.>", "--count", "3", "--json", until="subscribed") as watching:
        cli.ok("pub", f"{fresh}.a", "number {{Count}}", "--count", "2", "-H", "X:1")
        cli.ok("pub", f"{fresh}.b", "{{as it is}}", "--no-templates", "--reply", "somewhere")
        out, _ = watching.communicate(timeout=30)
    assert watching.returncode == 0
    assert out.splitlines() == [
        f'{{"subject":"{fresh}.a","headers":{{"X":["1"]}},"data":"number 1"}}',
        f'{{"subject":"{fresh}.a","headers":{{"X":["1"]}},"data":"number 2"}}',
        f'{{"subject":"{fresh}.b","reply":"somewhere","data":"{{{{as it is}}}}"}}',
    ]


def test_requests_are_answered_by_reply(cli: Cli, fresh: str) -> None:
    with cli.started("reply", f"{fresh}.*", "--command", "echo {{1}} {{Request}}", "--count", "2", until="answering"):
        assert cli.ok("req", f"{fresh}.x", "a b; c", "--raw").out == "x a b; c\n\n"
        assert [each["data"] for each in cli.ok("req", f"{fresh}.y", "", "--replies", "0", "--json").lines] == ["y \n"]
    nobody = cli.run("req", f"{fresh}.z", "x")
    assert (nobody.code, "no responders" in nobody.err) == (5, True)


def test_contexts_are_those_of_the_nats_tool(cli: Cli, fresh: str, tmp_path: Path) -> None:
    url = cli.env["NATS_URL"]
    (tmp_path / ".config/nats/context").mkdir(parents=True)
    written = f'{{"description":"made elsewhere","url":"{url}","color_scheme":"fancy","user":"","nsc":""}}'
    (tmp_path / ".config/nats/context/theirs.json").write_text(written)
    assert cli.ok("rtt", "--context", "theirs", "--json", NATS_URL="").json["rtt_ms"]
    cli.ok("context", "add", "ours", "-s", url, "--description", fresh, "--select", NATS_URL="")
    listed = cli.ok("context", "ls", "--json").json
    assert [(each["name"], each["selected"]) for each in listed] == [("ours", True), ("theirs", False)]
    assert cli.ok("account", "--json", NATS_URL="").json["limits"]["max_streams"] == -1
    cli.ok("context", "edit", "theirs", "--password", "secret")
    shown = cli.ok("context", "info", "theirs")
    assert ("secret" in shown.out, "(set)" in shown.out) == (False, True)
    file = tmp_path / ".config/nats/context/theirs.json"
    assert ('"fancy"' in file.read_text(), file.stat().st_mode & 0o777) == (True, 0o600)
    assert cli.run("context", "rm", "ours").code == 2
    cli.ok("context", "rm", "-f", "ours")
    missing = cli.run("rtt", "--context", "ours")
    assert (missing.code, missing.err) == (2, "slipstream: error: no context 'ours'; known: theirs\n")


def test_passwords_in_addresses_of_contexts_are_not_shown(our_cli: Cli) -> None:
    given = "nats://me:hush@a:4222, tls://hush@b,me:hush@c:1,nats://d:4222"
    our_cli.ok("context", "add", "c", "-s", given)
    for command in (("ls",), ("info", "c")):
        assert "hush" not in our_cli.ok("context", *command).out
    shown = "nats://a:4222,tls://b,c:1,nats://d:4222"
    assert our_cli.ok("context", "ls", "--json").json[0]["url"] == shown
    assert our_cli.ok("context", "info", "c", "--json").json["url"] == shown


def test_first_connection_is_tried_for_the_time_of_the_flag_or_the_variable(our_cli: Cli) -> None:
    dead = "nats://127.0.0.1:9"
    by_flag = our_cli.run("rtt", "-s", dead, "--wait-for-server", "50ms")
    by_variable = our_cli.run("rtt", "-s", dead, NATS_WAIT_FOR_SERVER="50ms")
    for found in (by_flag, by_variable):
        assert found.code == 4
        assert re.search(rf"no server could be reached within \d+\.\d s, in \d+ attempts, at {dead}", found.err)
    assert our_cli.run("rtt", "-s", dead, "--wait-for-server", "soon").code == 2


def test_errors_are_one_line_and_an_exit_code(our_cli: Cli, fresh: str) -> None:
    dead = our_cli.process("rtt", "-s", "nats://127.0.0.1:9", "--timeout", "1s")
    assert (dead.code, dead.out, dead.err.count("\n")) == (4, "", 1)
    assert "slipstream server starts one" in dead.err
    assert "Traceback" in our_cli.run("rtt", "-s", "nats://127.0.0.1:9", "--timeout", "1s", "--debug").err
    assert our_cli.run("stream", "purge", fresh).code == 2  # stdin is not a terminal, so it cannot be confirmed
    assert our_cli.run("get", fresh, "1", "--last", "x").code == 2
    wrong = our_cli.run("stream", "add", fresh, "--max-age", "soon")
    assert (wrong.code, "like 30s, 1h30m" in wrong.err) == (2, True)
    assert our_cli.run("nonsense").code == 2
    assert our_cli.run("pub", fresh, "{{What}}").err.startswith(
        "slipstream: error: unknown template {{What}}; known: Count"
    )
    assert our_cli.run().code == 2


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "stream add S --max-age 99999999999y",
            "argument --max-age: duration must be less than 292y, got '99999999999y'",
        ),
        ("stream add S --max-age " + "9" * 400, "duration must be less than 292y"),
        ("stream add S --max-bytes 8388608T", "size must be less than 8388608T, got '8388608T'"),
        ("consumer pause S C 9999999y", "argument DURATION: duration must be less than 292y, got '9999999y'"),
        ("rtt --timeout 300y", "duration must be less than 292y, got '300y'"),
        ("bench pub --size -1", "argument --size: size must be between 0 and 64MB, got '-1'"),
        ("bench pub --size 999999T", "argument --size: size must be between 0 and 64MB, got '999999T'"),
    ],
)
def test_numbers_out_of_range_are_rejected(our_cli: Cli, command: str, said: str) -> None:
    done = our_cli.run(*command.split())
    assert (done.code, said in done.err) == (2, True), done.err


def test_numbers_in_range_are_accepted() -> None:
    assert values.nanoseconds("292y") == 292 * 365 * 86400 * 10**9
    assert (values.nanoseconds("1h30m"), values.nanoseconds("1.5")) == (5400 * 10**9, 1_500_000_000)
    assert values.size("8388607T") == 8388607 * 1024**4
    assert (values.size("-1"), values.payload("0"), values.payload("64MB")) == (-1, 0, 64 * 1024 * 1024)


def test_in_a_terminal_tables_are_framed_and_questions_asked(our_cli: Cli, fresh: str) -> None:
    our_cli.ok("stream", "add", fresh)
    code, shown = our_cli.in_terminal("stream", "ls")
    assert (code, "╭" in shown, fresh in shown) == (0, True, True)
    code, shown = our_cli.in_terminal("stream", "rm", fresh, typed=b"n\n")
    assert (code, "aborted" in shown) == (2, True)
    code, shown = our_cli.in_terminal("stream", "rm", fresh, typed=b"y\n")
    assert (code, f"removed {fresh}" in shown) == (0, True)


def test_consumers_are_created_read_paused_and_removed(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    cli.ok("pub", "-J", f"{fresh}.a", "number {{Count}}", "--count", "4")
    made = cli.ok(
        "consumer", "add", fresh, "worker", "--filter", f"{fresh}.*", "--max-deliver", "5", "--wait", "30s", "--json"
    )
    assert (made.json["config"]["durable_name"], made.json["num_pending"]) == ("worker", 4)
    assert cli.ok("consumer", "next", fresh, "worker", "--count", "2", "--raw").out == "number 1\nnumber 2\n"
    assert cli.ok("consumer", "sub", fresh, "worker", "--count", "2", "--raw").out == "number 3\nnumber 4\n"
    empty = cli.run("consumer", "next", fresh, "worker", "--wait", "200ms")
    assert (empty.code, "no message arrived in time" in empty.err) == (5, True)
    info = cli.ok("consumer", "info", fresh, "worker", "--json").json
    assert (info["ack_floor"]["stream_seq"], info["num_pending"], info["num_ack_pending"]) == (4, 0, 0)
    cli.ok("consumer", "edit", fresh, "worker", "--description", "words", "--deliver", "all")
    assert "words" in cli.ok("consumer", "info", fresh, "worker").out
    cli.ok("consumer", "pause", fresh, "worker", "10m")
    assert "for another" in cli.ok("consumer", "info", fresh, "worker").out
    cli.ok("consumer", "resume", fresh, "worker")
    assert cli.ok("consumer", "ls", fresh, "-n").out == "worker\n"
    assert "pull" in cli.ok("consumer", "ls", fresh).out
    cli.ok("consumer", "rm", "-f", fresh, "worker")
    assert cli.run("consumer", "info", fresh, "worker").code == 3


@pytest.mark.spec("KV-29", on="C N")
async def test_key_value_commands_interoperate_with_another_client(cli: Cli, fresh: str) -> None:
    cli.ok("kv", "add", fresh, "--history", "5", "--description", "settings", "--marker-ttl", "1m")
    assert cli.ok("kv", "put", fresh, "theme", "dark", "--json").json["revision"] == 1
    assert cli.ok("kv", "create", fresh, "size", stdin=b"12").code == 0
    taken = cli.run("kv", "create", fresh, "theme", "blue")
    assert (taken.code, "already has a value" in taken.err) == (1, True)
    assert cli.ok("kv", "update", fresh, "theme", "light", "1", "--json").json["revision"] == 3
    assert cli.run("kv", "update", fresh, "theme", "blue", "1").code == 1
    assert cli.ok("kv", "get", fresh, "theme", "--raw", "--min-last-revision", "3").out == "light"
    assert cli.ok("kv", "get", fresh, "theme", "--revision", "1", "--json").json["data"] == "dark"
    assert [each["data"] for each in cli.ok("kv", "history", fresh, "theme", "--json").json] == ["dark", "light"]
    assert cli.ok("kv", "ls", fresh).out.split() == ["size", "theme"]
    assert [each["key"] for each in cli.ok("kv", "ls", fresh, "-v", "--json").json] == ["size", "theme"]
    cli.ok("kv", "revert", fresh, "theme", "1")
    cli.ok("kv", "put", fresh, "brief", "x", "--ttl", "1h")
    cli.ok("kv", "del", "-f", fresh, "size")
    assert cli.run("kv", "get", fresh, "size").code == 3
    cli.ok("kv", "purge", "-f", fresh, "brief")
    watched = cli.ok("kv", "watch", fresh, "--count", "3", "--json").lines
    assert [(each["key"], each["operation"]) for each in watched] == [
        ("theme", "PUT"),
        ("size", "DEL"),
        ("brief", "PURGE"),
    ]
    assert cli.ok("kv", "info", fresh, "--json").json["history"] == 5
    peer = await nats.connect(cli.env["NATS_URL"])
    try:
        theirs = await peer.jetstream().key_value(fresh)
        assert (await theirs.get("theme")).value == b"dark"
        await theirs.put("made.elsewhere", b"y")
        assert cli.ok("kv", "get", fresh, "made.elsewhere", "--raw").out == "y"
        made = await peer.jetstream().create_key_value(bucket=f"{fresh}peer")
        await made.put("k", b"v")
    finally:
        await peer.close()
    assert cli.ok("kv", "get", f"{fresh}peer", "k", "--raw").out == "v"
    assert {fresh, f"{fresh}peer"} <= {each["bucket"] for each in cli.ok("kv", "ls", "--json").json}
    cli.ok("kv", "compact", "-f", fresh, "--older-than", "0s")
    cli.ok("kv", "del", "-f", fresh)
    assert cli.run("kv", "ls", fresh).code == 3


def test_values_are_printed_without_markup(our_cli: Cli, fresh: str) -> None:
    """Brackets and `:x:` are not markup."""
    value = "[/b] [red]x[/red] :x: :smile:"
    our_cli.ok("kv", "add", fresh)
    our_cli.ok("kv", "put", fresh, "k", value)
    assert value in our_cli.ok("kv", "get", fresh, "k").out
    assert value in our_cli.ok("kv", "ls", fresh, "--values").out
    code, shown = our_cli.in_terminal("kv", "ls", fresh, "--values")
    assert (code, value in shown) == (0, True)


def test_stream_is_backed_up_to_a_directory_and_restored(cli: Cli, fresh: str, tmp_path: Path) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "message {{Count}}", "--count", "20")
    kept = str(tmp_path / "kept")
    assert "20 messages" in cli.ok("stream", "backup", fresh, kept).err
    assert cli.run("stream", "backup", fresh, kept).code == 2  # not into a directory that holds something
    assert cli.run("stream", "restore", kept).code == 1  # the stream is still there
    cli.ok("stream", "rm", "-f", fresh)
    assert "20 messages" in cli.ok("stream", "restore", kept).err
    assert cli.ok("get", fresh, "20", "--raw").out == "message 20\n"
    assert cli.run("stream", "restore", str(tmp_path)).code == 2


def test_benchmarks_run_and_remove_their_streams(our_cli: Cli) -> None:
    for kind in ("pub", "sub", "req", "js"):
        results = our_cli.ok("bench", kind, "--msgs", "200", "--json").lines
        assert all(each["messages"] == 200 and each["per_second"] > 0 for each in results)
    assert not [name for name in our_cli.ok("stream", "ls", "-n", "--json").json if "BENCH" in name]


def test_help_shows_examples(our_cli: Cli) -> None:
    assert "slipstream get ORDERS --last orders.7" in our_cli.ok("get", "--help").out
    assert our_cli.ok("--version").out.startswith("slipstream 0.")
