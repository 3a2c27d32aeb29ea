"""What commands print: times in JSON, tables in a narrow terminal, one line for many messages or a mistake."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli import values
from slipstream.cli.output import Output, fitted
from tests.cli.support import Cli

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def times_in(value: Any) -> list[str]:
    """The values of all fields whose name says that they are times; every one of them must be a text."""
    if isinstance(value, list):
        return [found for each in value for found in times_in(each)]
    if not isinstance(value, dict):
        return []
    named = ("time", "created", "mtime", "ts", "first_ts", "last_ts")
    found = [each for name, each in value.items() if name in named]
    assert all(isinstance(each, str) for each in found), value
    return found + [text for each in value.values() for text in times_in(each)]


def test_times_in_json_are_rfc_3339(cli: Cli, fresh: str, tmp_path: Path) -> None:
    """A number of nanoseconds is rounded by jq and everything else that reads numbers as doubles."""
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.*")
    cli.ok("pub", "-J", f"{fresh}.a", "x")
    cli.ok("consumer", "add", fresh, "w")
    cli.ok("kv", "add", fresh)
    cli.ok("kv", "put", fresh, "k", "1")
    cli.ok("object", "add", fresh)
    (tmp_path / "file").write_bytes(b"x")
    cli.ok("object", "put", fresh, str(tmp_path / "file"))
    for command in (
        ("get", fresh, "1"),
        ("get", fresh, "--from", "1"),
        ("stream", "get", fresh, "1"),
        ("stream", "view", fresh),
        ("stream", "info", fresh),
        ("stream", "ls", "-a"),
        ("consumer", "info", fresh, "w"),
        ("consumer", "ls", fresh),
        ("consumer", "next", fresh, "w"),
        ("kv", "get", fresh, "k"),
        ("kv", "history", fresh, "k"),
        ("kv", "ls", fresh, "--values"),
        ("kv", "snapshot", fresh),
        ("kv", "watch", fresh, "--count", "1"),
        ("object", "info", fresh, "file"),
        ("object", "ls", fresh),
    ):
        found = [time for line in cli.ok(*command, "--json").lines for time in times_in(line)]
        assert found, command
        assert all(RFC_3339.fullmatch(time) for time in found), (command, found)


def test_a_time_keeps_its_nanoseconds() -> None:
    nanos = 1794788385_701926548
    assert values.rfc3339(nanos) == "2026-11-16T00:19:45.701926548Z"
    assert values.rfc3339(nanos // 10**9 * 10**9) == "2026-11-16T00:19:45Z"
    assert datetime.fromisoformat(values.rfc3339(10**9 + 500_000_000)).timestamp() == 1.5


def test_published_messages_are_counted(cli: Cli, fresh: str) -> None:
    assert cli.ok("pub", fresh).err == f"published 1 message (0 bytes) to {fresh}\n"
    assert cli.ok("pub", fresh, "abc", "--count", "2").err == f"published 2 messages (3 bytes each) to {fresh}\n"


def test_many_messages_are_stored_by_the_publisher_and_reported_in_one_line(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    many = cli.ok("pub", "-J", fresh, "number {{Count}}", "--count", "1200")
    assert (many.out, many.err) == ("", f"stored 1,200 messages in {fresh}, the last as sequence 1,200\n")
    assert cli.ok("get", fresh, "1200", "--raw").out == "number 1200\n"
    assert cli.ok("pub", "-J", fresh, "x", "--count", "2", "--json").json == {
        "stream": fresh, "last_seq": 1202, "messages": 2, "duplicates": 0
    }  # fmt: skip
    same = cli.ok("pub", "-J", fresh, "x", "--count", "3", "--msg-id", "one")
    assert same.err == f"stored 3 messages in {fresh}, the last as sequence 1,203, 2 of them duplicates\n"
    nowhere = cli.run("pub", "-J", f"{fresh}.none", "x", "--count", "2")
    assert (nowhere.code, f"no stream accepts subject '{fresh}.none'" in nowhere.err) == (5, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("strem ls", "unknown command 'strem'; did you mean 'stream'? (slipstream --help)"),
        ("stream lst", "unknown command 'lst'; did you mean 'list'? (slipstream stream --help)"),
        ("xyzzy", "unknown command 'xyzzy' (slipstream --help)"),
        (
            "stream add S --subjcts a",
            "unknown option --subjcts; did you mean '--subjects'? (slipstream stream add --help)",
        ),
        ("stream info S T", "unexpected argument 'T' (slipstream stream info --help)"),
        ("stream info", "the following arguments are required: STREAM (slipstream stream info --help)"),
        (
            "stream add S --retention bogus",
            "argument --retention: must be limits, interest or workqueue, got 'bogus' (slipstream stream add --help)",
        ),
        (
            "consumer add S w --ack maybe",
            "argument --ack: must be explicit, all or none, got 'maybe' (slipstream consumer add --help)",
        ),
    ],
    ids=["command", "subcommand", "nothing-like-it", "option", "argument", "missing", "retention", "ack"],
)
def test_a_mistake_in_a_command_is_one_line(our_cli: Cli, command: str, said: str) -> None:
    done = our_cli.run(*command.split())
    assert (done.code, done.out, done.err) == (2, "", f"slipstream: error: {said}\n")


def test_empty_lists_say_so_on_stderr(our_cli: Cli, fresh: str) -> None:
    our_cli.ok("stream", "add", fresh)
    our_cli.ok("kv", "add", fresh)
    our_cli.ok("object", "add", fresh)
    for command, text in (
        (("stream", "ls", "--subject", f"{fresh}.none"), "no streams (-a lists the streams of buckets as well)"),
        (("stream", "info", fresh, "--subjects", "none"), "no subjects"),
        (("consumer", "ls", fresh), "no consumers"),
        (("kv", "ls", fresh), "no keys"),
        (("kv", "ls", fresh, "--values"), "no keys"),
        (("object", "ls", fresh), "no objects"),
    ):
        done = our_cli.ok(*command)
        assert (done.out, done.err) == ("", f"{text}\n"), command
    assert our_cli.ok("stream", "ls", "--subject", f"{fresh}.none", "--json").json == []


def test_streams_of_buckets_are_listed_with_all(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh)
    cli.ok("kv", "add", fresh)
    cli.ok("object", "add", fresh)
    own, buckets = {fresh}, {f"KV_{fresh}", f"OBJ_{fresh}"}
    for options, wanted in (((), own), (("-a",), own | buckets)):
        names = set(cli.ok("stream", "ls", "-n", *options).out.split())
        infos = {each["config"]["name"] for each in cli.ok("stream", "ls", "--json", *options).json}
        assert names & (own | buckets) == infos & (own | buckets) == wanted


def test_the_list_of_streams_fits_a_terminal_of_80_columns(our_cli: Cli, fresh: str) -> None:
    our_cli.env["COLUMNS"] = "80"
    name = f"{fresh}-the-events-of-a-whole-platform"
    text = "a long description that nobody can read in a terminal that narrow, whatever is done with it"
    our_cli.ok("stream", "add", name, "--subjects", fresh, "--description", text)
    our_cli.ok("pub", "-J", fresh, "x" * 2000, "--count", "1000")
    code, shown = our_cli.in_terminal("stream", "ls", "--subject", fresh)
    lines = ESCAPE.sub("", shown).replace("\r", "").splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if name in line]
    assert re.search(rf"│ {name} │ +1,000 │ +\d\.\d MiB │ +\d+ (s|min) ago", row), row


def test_columns_are_cut_or_left_out_but_names_and_numbers_are_not() -> None:
    columns = ("Name", "Text", "Number#", "Age")
    assert fitted(columns, [("n" * 20, "t" * 50, "1,000", "2 h ago")], 100) == {0: 20, 1: 50, 2: 6, 3: 7}
    assert fitted(columns, [("n" * 20, "t" * 50, "1,000", "2 h ago")], 80) == {0: 20, 1: 34, 2: 6, 3: 7}
    assert fitted(columns, [("n" * 20, "t" * 50, "1,000", "2 h ago")], 50) == {0: 20, 2: 6, 3: 7}
    assert fitted(columns, [("n" * 60, "t" * 50, "1,000", "2 h ago")], 50) == {0: 37, 2: 6}
    assert fitted(("Name",), [], 50) == {0: 4}


def test_ages_have_one_unit() -> None:
    now = 10**18
    day = 86_400 * 10**9
    ages = (0, 59 * 10**9, 60 * 10**9, 7_300 * 10**9, day, 400 * day)
    shown = ["0 s ago", "59 s ago", "1 min ago", "2 h ago", "1 day ago", "400 days ago"]
    assert [values.show_age(now - age, now) for age in ages] == shown
    assert values.show_age(0) == "never"


def test_progress_has_the_units_of_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with Output(json=False).progress("file", 3_000_000) as meter:
        assert meter is not None
        meter(3_000_000)
    shown = ESCAPE.sub("", capsys.readouterr().err)
    assert ("2.9/2.9 MiB" in shown, " MB" in shown) == (True, False), shown
