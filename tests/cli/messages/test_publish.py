"""`pub` of many messages: lines of stdin, atomic batches, ids from templates; and what it says of them."""

from __future__ import annotations

import pytest

from tests.cli.support import Cli


def stored(cli: Cli, stream: str) -> list[str]:
    return [each["data"] for each in cli.ok("get", stream, "--from", "1", "--json").lines]


def test_each_line_of_stdin_is_a_message(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    done = cli.ok("pub", "-J", fresh, "--send-on", "newline", stdin=b"one\ntwo {{Count}}\r\n\nlast")
    assert done.err == f"stored 4 messages in {fresh}, the last as sequence 4\n"
    assert stored(cli, fresh) == ["one", "two {{Count}}", "", "last"]  # what is piped has no templates
    assert (
        cli.ok("pub", fresh, "--send-on", "newline", stdin=b"a\nbc\n").err
        == f"published 2 messages (3 bytes) to {fresh}\n"
    )
    assert (
        cli.ok("pub", "-J", fresh, "--send-on", "newline", stdin=b"").err == "stdin was empty: nothing was published\n"
    )
    assert cli.ok("pub", "-J", fresh, "--send-on", "newline", "-q", stdin=b"x\ny\n").err == ""


def test_a_batch_is_stored_as_a_whole_or_not_at_all(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh, "--allow-atomic", "--max-msg-size", "300")
    done = cli.ok("pub", fresh, "--atomic", "--send-on", "newline", "--json", stdin=b"1\n2\n3\n")
    assert done.json == {"stream": fresh, "last_seq": 3, "messages": 3, "duplicates": 0}
    failed = cli.run("pub", fresh, "--atomic", "--send-on", "newline", stdin=b"4\n" + b"x" * 400 + b"\n")
    assert (failed.code, failed.err.count("\n")) == (1, 1), failed.err
    assert stored(cli, fresh) == ["1", "2", "3"]
    cli.ok("pub", fresh, "n {{Count}}", "--atomic", "--count", "2")
    assert stored(cli, fresh)[3:] == ["n 1", "n 2"]
    assert "nothing was published" in cli.ok("pub", fresh, "--atomic", "--send-on", "newline", stdin=b"").err
    cli.ok("stream", "add", f"{fresh}-plain")
    off = cli.run("pub", f"{fresh}-plain", "--atomic", "x")
    assert (off.code, "atomic" in off.err, off.err.count("\n")) == (1, True, 1), off.err


def test_ids_may_have_templates(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "x", "--count", "3", "--msg-id", "id-{{Count}}")
    again = cli.ok("pub", "-J", fresh, "x", "--count", "3", "--msg-id", "id-{{Count}}", "--json").json
    assert (again["duplicates"], len(stored(cli, fresh))) == (3, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("s", "body", "--send-on", "newline"),
        ("s", "--count", "2", "--send-on", "newline"),
        ("s", "body", "--send-on", "tab"),
        ("s", "body", "--msg-id", "x"),
        ("s", "body", "--atomic", "--sleep", "1s"),
    ],
)
def test_options_that_exclude_each_other_are_one_line(our_cli: Cli, arguments: tuple[str, ...]) -> None:
    done = our_cli.run("pub", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err


def test_many_messages_have_a_bar_in_a_terminal(our_cli: Cli, fresh: str) -> None:
    our_cli.ok("stream", "add", fresh, "--subjects", fresh)
    code, shown = our_cli.in_terminal("pub", "-J", fresh, "x", "--count", "3000")
    assert (code, "/3000" in shown, "stored 3,000 messages" in shown) == (0, True, True), shown
