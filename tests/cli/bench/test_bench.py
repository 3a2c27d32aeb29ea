"""`bench`: every kind of work, several clients and sizes, results as lines, JSON and CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.cli.support import Cli

KINDS = {
    "pub": ["published"],
    "sub": ["received"],
    "req": ["requests answered"],
    "js": ["stored and acknowledged", "read by batched Direct Get"],
    "consume": ["consumed and acknowledged"],
    "ordered": ["read in order"],
    "kv": ["values put", "values read"],
}


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_counts_all_messages_and_leaves_nothing(cli: Cli, kind: str) -> None:
    before = cli.ok("stream", "ls", "-n", "-a").out
    done = cli.ok("bench", kind, "--msgs", "301", "--size", "16", "--json")
    assert [(each["what"], each["messages"]) for each in done.lines] == [(what, 301) for what in KINDS[kind]]
    assert cli.ok("stream", "ls", "-n", "-a").out == before


@pytest.mark.parametrize("kind", ["js", "consume"])
def test_several_clients_share_the_work(cli: Cli, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    extra = ("--consumers", "2") if kind == "consume" else ()
    done = cli.process("bench", kind, "--msgs", "301", "--clients", "2", "--csv", str(file), "--json", *extra)
    assert done.code == 0, done
    wanted = 602 if kind == "consume" else 301  # each consumer has all messages
    assert {each["messages"] for each in done.lines} == {wanted}
    rows = rows_of(file)
    assert [(row["work"], row["clients"], row["messages"]) for row in rows] == [(kind, "2", str(wanted))] * len(
        KINDS[kind]
    )
    assert all(float(row["per_second"]) > 0 for row in rows)


def test_sizes_are_compared_in_a_table(our_cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    words = ("bench", "pub", "--msgs", "100", "--size", "16,1KB", "--csv", str(file))
    our_cli.ok(*words)
    done = our_cli.ok(*words)
    assert ("16 B" in done.out, "1.0 KiB" in done.out) == (True, True)
    assert [row["size"] for row in rows_of(file)] == ["16", "1024"] * 2  # appended, one header


@pytest.mark.parametrize(
    "words",
    [
        ("pub", "--size", ""),
        ("pub", "--size", "1,x"),
        ("pub", "--msgs", "2", "--clients", "3"),
        ("consume", "--consumers", "2"),
        ("pub", "--csv", "/no/such/folder/out.csv"),
        ("pub", "-s", "nats://127.0.0.1:9"),
    ],
)
def test_mistakes_are_one_line_before_any_work(our_cli: Cli, words: tuple[str, ...]) -> None:
    done = our_cli.run("bench", *words)
    assert (done.code in (1, 2, 4), done.out, done.err.count("\n")) == (True, "", 1), done


def test_a_client_that_fails_is_reported(our_cli: Cli) -> None:
    done = our_cli.process("bench", "pub", "--msgs", "10", "--clients", "2", "-s", "nats://127.0.0.1:9")
    assert (done.code, done.err.count("\n")) == (4, 1), done
