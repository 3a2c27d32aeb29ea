"""`slipstream pipeline` behind options of the whole command, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.cli import pipeline
from tests.cli.support import Cli

FILE = """
[sources.orders]
stream = "{0}"

[outputs.copy]
from = "orders"
stream = "COPY"
subject = "subject"
value = "data"
"""
NOBODY = "nats://127.0.0.1:1"


@pytest.fixture
def file(tmp_path: Path, fresh: str) -> str:
    path = tmp_path / "p.toml"
    path.write_text(FILE.format(fresh))
    return str(path)


def test_options_before_the_command(cli: Cli, file: str, fresh: str) -> None:
    url = cli.env["NATS_URL"]
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "one")
    assert "no mistakes found" in cli.ok("-s", url, "pipeline", "validate", file).out
    assert json.loads(cli.ok("--json", "-s", url, "pipeline", "status", file).out)["sources"] == {"orders": 1}
    assert json.loads(cli.ok("pipeline", "status", "--json", file, "--servers", url).out)["sources"] == {"orders": 1}
    # The nearer one goes first.
    assert "not running" in cli.ok("-s", NOBODY, "pipeline", "status", file, f"--servers={url}").out


def test_options_that_make_no_sense(our_cli: Cli, file: str) -> None:
    said = "slipstream: error: --js-domain is not for pipelines, whose file says it in [connection]; -s, --json"
    refused = our_cli.run("--js-domain", "hub", "pipeline", "validate", file)
    assert (refused.code, refused.err[: len(said)]) == (2, said)
    refused = our_cli.run("--json", "pipeline", "validate", file)
    assert (refused.code, refused.err) == (2, "slipstream: error: --json is for pipeline status alone\n")
    assert our_cli.run("--password", "hush", "pipeline", "validate", file).err.count("hush") == 0
    assert "unrecognized" not in our_cli.run("-s", NOBODY, "pipeline", "reset", file).err


def test_exit_codes(our_cli: Cli, file: str, tmp_path: Path) -> None:
    away = our_cli.run("-s", NOBODY, "pipeline", "status", file)
    assert away.code == 4
    assert away.err.startswith("error: ")
    assert our_cli.run("--debug", "-s", NOBODY, "pipeline", "status", file).err.startswith("Traceback")
    assert our_cli.run("pipeline", "validate", str(tmp_path / "none")).code == 2
    assert our_cli.run("--debug", "pipeline", "validate", str(tmp_path / "none")).err.startswith("Traceback")
    assert our_cli.run("-s", NOBODY, "pipeline").code == 0  # shows help
    assert "validate" in our_cli.run("-s", NOBODY, "pipeline").out


def test_ctrl_c_while_it_is_loaded(our_cli: Cli, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: list[str], *, debug: bool = False) -> int:
        raise KeyboardInterrupt(debug)

    monkeypatch.setattr(pipeline, "run", interrupted)
    assert our_cli.run("pipeline", "validate", file).code == 130
