"""`slipstream pipeline`: its options, also before the word `pipeline`, its exit codes and its messages."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from slipstream.cli import pipeline
from slipstream.cli.main import main
from slipstream.server import Server
from slipstream.spark.pipelines import load
from slipstream.spark.pipelines.runner import Runner
from slipstream.spark.pipelines.state import QueryState, StateFolder
from slipstream.spark.pipelines.workbench.dead_letters import Group
from slipstream.spark.pipelines.workbench.preview import Preview
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
UNREACHABLE = "nats://127.0.0.1:1"


@pytest.fixture
def file(tmp_path: Path, fresh: str) -> str:
    path = tmp_path / "p.toml"
    path.write_text(FILE.format(fresh))
    return str(path)


def test_options_may_stand_before_the_command(cli: Cli, file: str, fresh: str) -> None:
    url = cli.env["NATS_URL"]
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    missing = cli.run("-s", url, "pipeline", "validate", file)
    assert missing.code == 2
    assert "p.toml:7:1: there is no stream 'COPY', and the file does not declare it; add [streams.COPY]" in missing.err
    Path(file).write_text(Path(file).read_text() + '[streams.COPY]\nsubjects = "copy"\n')
    cli.ok("pub", "-J", fresh, "one")
    assert "is valid: " in cli.ok("-s", url, "pipeline", "validate", file).out
    assert json.loads(cli.ok("--json", "-s", url, "pipeline", "status", file).out)["sources"] == {"orders": 1}
    assert json.loads(cli.ok("pipeline", "status", "--json", file, "--servers", url).out)["sources"] == {"orders": 1}
    assert "not running" in cli.ok("pipeline", "status", file, "-s", url).out
    # The option nearest to the command wins.
    assert "not running" in cli.ok("-s", UNREACHABLE, "pipeline", "status", file, f"--servers={url}").out


def test_options_that_do_not_apply_are_rejected(our_cli: Cli, file: str) -> None:
    said = "slipstream: error: --js-domain does not apply to pipelines, whose file has [connection]; -s, --json"
    refused = our_cli.run("--js-domain", "hub", "pipeline", "validate", file)
    assert (refused.code, refused.err[: len(said)]) == (2, said)
    refused = our_cli.run("--json", "pipeline", "validate", file)
    assert (refused.code, refused.err) == (
        2,
        "slipstream: error: --json applies to pipeline run, status, test, dead and backfill only\n",
    )
    assert our_cli.run("--password", "hush", "pipeline", "validate", file).err.count("hush") == 0
    assert "unrecognized" not in our_cli.run("-s", UNREACHABLE, "pipeline", "reset", file).err


def test_exit_codes(our_cli: Cli, file: str, tmp_path: Path) -> None:
    away = our_cli.run("-s", UNREACHABLE, "pipeline", "status", file)  # which says what it knows
    assert away.code == 0
    assert "\nno lag: " in away.out
    assert "Connection refused; no run has recorded anything yet\n" in away.out
    assert "copy          -             0             -  -\n" in away.out  # not batch -1
    assert list(tmp_path.iterdir()) == [Path(file)]  # a look changes nothing
    assert "not running\n" in our_cli.ok("pipeline", "status", file).out  # on an embedded server that never ran
    assert list(tmp_path.iterdir()) == [Path(file)]
    assert our_cli.run("pipeline", "validate", str(tmp_path / "none")).code == 2
    assert our_cli.run("--debug", "pipeline", "validate", str(tmp_path / "none")).err.startswith("Traceback")
    for words in (("-s", UNREACHABLE, "pipeline"), ("pipeline",)):
        assert (our_cli.run(*words).code, "validate" in our_cli.run(*words).out) == (0, True)  # shows help


def test_ctrl_c_while_the_file_is_loaded(our_cli: Cli, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "_load", interrupted)
    assert our_cli.run("pipeline", "status", file).code == 130


def test_ctrl_c_before_the_command_has_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("slipstream.cli.commands.build_parser", interrupted)
    assert main(["pipeline", "validate", "p.toml"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "foo://x", "local[2"])
def test_bad_master_is_rejected(master: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text(FILE)
    assert main(["pipeline", "run", str(tmp_path / "p.toml"), "--master", master]) == 2
    assert capsys.readouterr().err.startswith("slipstream: error: master must be local[*], local[2], spark://host:7077")


def test_run_without_spark_or_java_creates_nothing(
    our_cli: Cli, file: str, fresh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    our_cli.ok("stream", "add", fresh, "--subjects", fresh)
    before = our_cli.ok("stream", "ls", "-a", "-n").out
    run = ("pipeline", "run", "--once", "-s", our_cli.env["NATS_URL"], file)
    no_java = our_cli.run(*run, JAVA_HOME=str(tmp_path))
    assert (no_java.code, no_java.out) == (2, "")
    assert no_java.err == f"slipstream: error: Spark needs Java 17 or newer, and JAVA_HOME has none: {tmp_path}\n"
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name == "pyspark" else object())
    no_spark = our_cli.run(*run)
    text = "pipelines need Spark: pip install 'slipstream-jetstream[spark]' (and Java 17 or newer)"
    assert (no_spark.code, no_spark.out, no_spark.err) == (2, "", f"slipstream: error: {text}\n")
    assert our_cli.ok("stream", "ls", "-a", "-n").out == before


def test_validate_reports_mistakes_with_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    file.write_text(FILE.format("ORDERS") + '[streams.ORDERS]\nsubjects = "o"\n[streams.COPY]\nsubjects = "c"\n')
    assert main(["pipeline", "validate", str(file)]) == 0
    assert "is valid: 1 source, 0 steps, 1 output;" in capsys.readouterr().out
    with file.open("a") as text:
        text.write('[buckets.t]\n[tables.t]\nbucket = "t"\nformat = "json"\nschema = "n BIGINT"\n')
    assert main(["pipeline", "validate", str(file)]) == 0
    assert "is valid: 1 source, 0 steps, 1 output, 1 lookup table;" in capsys.readouterr().out
    file.write_text(FILE + "typo = 1\n")
    assert main(["pipeline", "validate", str(file)]) == 2
    assert f"{file}:10:1: unknown key typo" in capsys.readouterr().err
    assert main(["pipeline", "validate", str(tmp_path / "none.toml")]) == 2


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Both outputs are a terminal of so many columns."""
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))


def test_preview_that_is_wider_than_the_terminal_has_a_line_for_each_value(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch, 40)
    found = Preview(["subject", "data"], [["orders.ada", "1"], ["orders.alan", "2" * 30]], ("all messages",))
    monkeypatch.setattr("slipstream.spark.pipelines.workbench.preview.preview", lambda *_, **__: found)
    assert main(["pipeline", "preview", file]) == 0
    text = f"""\
-- row 1 --
subject  orders.ada
data     1
-- row 2 --
subject  orders.alan
data     {"2" * 30}
(2 rows, from all messages)
"""
    assert capsys.readouterr() == (text, "starting Spark\n")
    monkeypatch.setenv("COLUMNS", "41")
    assert main(["pipeline", "preview", file]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["-- row 1 --", "subject  orders.ada"]
    monkeypatch.setenv("COLUMNS", "43")
    assert main(["pipeline", "preview", file]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["subject      data", "orders.ada   1"]


def test_dead_letters_are_shown_on_a_narrow_terminal(
    our_cli: Cli, file: str, fresh: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    our_cli.ok("stream", "add", fresh, "--subjects", fresh)
    letters = [Group("orders", False, "not JSON", "", 1, "", "2026-01-31T09:12:09Z", '{"customer": "ada"')]
    monkeypatch.setattr("slipstream.spark.pipelines.workbench.dead_letters.groups_of", lambda _: letters)
    monkeypatch.setattr("slipstream.spark.pipelines.workbench.dead_letters.letters_of", lambda *_, **__: [])
    capsys.readouterr()
    on_terminal(monkeypatch, 40)
    assert main(["pipeline", "dead", file, "-s", our_cli.env["NATS_URL"]]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "letters  of      reason    column  last at",
        "1        orders  not JSON  -       2026-01-31T09:12:09Z",
        '         such as {"customer": "ada"',
    ]


def test_run_brings_a_console_along_that_finds_the_server_of_the_run(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Spark: the run is a server and the record that a run makes of it."""
    seen: dict[str, Any] = {}

    def run(_: Runner) -> dict[str, QueryState]:
        state = StateFolder(load(file))
        line = capsys.readouterr().out.strip()
        base, token = line.removeprefix("console: ").split("/?token=")
        with state.lock.held("the run"), Server() as server, httpx.Client(base_url=base, timeout=30) as browser:
            assert browser.get("/", params={"token": token}).status_code == 303
            seen["before"] = browser.get("/api/about").status_code
            state.write_run(server.url, {"copy": QueryState(rows=7)})
            deadline = time.monotonic() + 30
            while (about := browser.get("/api/about")).status_code == 503 and time.monotonic() < deadline:
                time.sleep(0.05)
            seen["about"] = about.json()
            with browser.stream("GET", "/api/pipelines/p/live") as answer:
                first = next(line for line in answer.iter_lines() if line.startswith("data: "))
            seen["sample"] = json.loads(first[6:])
        return {}

    monkeypatch.setattr(Runner, "run", run)
    monkeypatch.setattr(pipeline, "_check_spark", lambda: None)
    assert main(["pipeline", "run", file, "--console", "--once"]) == 0
    assert seen["before"] == 503
    assert seen["about"]["write"] is False
    assert seen["sample"]["outputs"]["copy"]["rows"] == 7
    assert seen["sample"]["pid"] > 0
