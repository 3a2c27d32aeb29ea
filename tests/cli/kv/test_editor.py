"""`kv edit BUCKET KEY`: the value in an editor, stored only if nobody else has changed it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cli.support import Cli


@pytest.fixture
def edited(cli: Cli, fresh: str, tmp_path: Path) -> Cli:
    """A bucket, and an editor that upper-cases the file."""
    cli.ok("kv", "add", fresh)
    cli.ok("kv", "put", fresh, "theme", "dark")
    write_editor(cli, tmp_path, 'tr a-z A-Z <"$1" >"$1.new" && mv "$1.new" "$1"')
    cli.env["TMPDIR"] = str(tmp_path)
    return cli


def write_editor(cli: Cli, folder: Path, script: str) -> None:
    path = folder / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    cli.env["EDITOR"] = f"{path}"


def left(folder: Path) -> list[Path]:
    return [path for path in folder.glob("slipstream-*/*") if path.is_file()]


def test_a_value_is_edited(edited: Cli, fresh: str, tmp_path: Path) -> None:
    assert edited.process("kv", "edit", fresh, "theme").err == "stored as revision 2\n"
    assert edited.ok("kv", "get", fresh, "theme", "--raw").out == "DARK"
    assert edited.process("kv", "edit", fresh, "theme").err == "not changed\n"
    assert left(tmp_path) == []


def test_a_new_key_is_made(edited: Cli, fresh: str, tmp_path: Path) -> None:
    write_editor(edited, tmp_path, 'printf made >"$1"')
    assert edited.process("kv", "edit", fresh, "new").code == 0
    assert edited.ok("kv", "get", fresh, "new", "--raw").out == "made"


def test_a_value_that_another_program_changed_is_not_overwritten(edited: Cli, fresh: str, tmp_path: Path) -> None:
    write_editor(edited, tmp_path, f'printf mine >"$1"; {sys.executable} -m slipstream kv put {fresh} theme theirs')
    done = edited.process("kv", "edit", fresh, "theme")
    assert (done.code, "is at revision 2, not 1" in done.err) == (2, True), done
    kept = re.search(r"your text is in (\S+)", done.err)
    assert kept is not None
    assert Path(kept[1]).read_bytes() == b"mine"
    assert edited.ok("kv", "get", fresh, "theme", "--raw").out == "theirs"


def test_json_is_checked_before_it_is_stored(edited: Cli, fresh: str, tmp_path: Path) -> None:
    edited.ok("kv", "put", fresh, "user", '{"age": 1}', "--codec", "json")
    write_editor(edited, tmp_path, 'sed -i s/1/2/ "$1"')
    edited.process("kv", "edit", fresh, "user", "--codec", "json")
    assert edited.ok("kv", "get", fresh, "user", "--raw").out == '{"age":2}'
    write_editor(edited, tmp_path, "printf '{' >\"$1\"")
    done = edited.process("kv", "edit", fresh, "user", "--codec", "json")
    assert (done.code, "value must be JSON" in done.err, len(left(tmp_path))) == (2, True, 1)


def test_an_editor_that_fails_changes_nothing(edited: Cli, fresh: str, tmp_path: Path) -> None:
    write_editor(edited, tmp_path, "exit 3")
    done = edited.process("kv", "edit", fresh, "theme")
    assert (done.code, "exited with 3" in done.err, left(tmp_path)) == (2, True, [])
    edited.env["EDITOR"] = "/no/such/editor"
    assert edited.process("kv", "edit", fresh, "theme").code == 2
    both = edited.process("kv", "edit", fresh, "theme", "--history", "3")
    assert (both.code, "mutually exclusive" in both.err) == (2, True)
