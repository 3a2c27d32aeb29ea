"""Resets as commands: what is removed, what is left, and what is said about it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import pytest

from slipstream import StreamConfig, connect_blocking
from slipstream.cli.main import main
from slipstream.spark.options import DEFAULT_PROGRESS
from slipstream.spark.pipelines import load
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.sink.progress import Progress, Task
from tests.spark.pipelines.support import SMALL


def test_reset_needs_a_confirmation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    file.write_text(SMALL + '[outputs.files]\nfrom = "orders"\npath = "out"\n')
    checkpoint = tmp_path / "p-state" / "checkpoints" / "files"
    for folder in (checkpoint, tmp_path / "out"):
        folder.mkdir(parents=True)
    assert main(["pipeline", "reset", str(file), "--output", "files"]) == 1
    assert "pass --yes" in capsys.readouterr().out
    assert checkpoint.exists()
    assert main(["pipeline", "reset", str(file), "--output", "nope"]) == 2
    assert main(["pipeline", "reset", str(file), "--yes"]) == 0
    assert not checkpoint.exists()
    assert not (tmp_path / "out").exists()  # Spark notes in it what it has, and would leave that out


def test_reset_removes_what_spark_has_written_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(SMALL + '[outputs.files]\nfrom = "orders"\npath = "my out"\n')
    out, outside = tmp_path / "my out", tmp_path / "kept.json"
    written = [out / "part-0.json", out / "word=a%2Fb" / "part-1.json", out / "part-2.json"]
    others = [out / "notes.txt", out / "word=c" / "mine.json", outside]
    for one in (*written, *others, out / ".part-0.json.crc", out / "_spark_metadata" / ".1.crc"):
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_text("{}")
    names = [*written, outside, out / ".." / "kept.json", out / "gone.json", out]
    notes = [json.dumps({"path": one.parent.as_uri() + "/" + quote(one.name), "size": 1}) for one in names]
    (out / "_spark_metadata" / "9.compact").write_text("\n".join(["v1", *notes[:2], '{"cut']))
    (out / "_spark_metadata" / "10").write_text("\n".join(["v1", *notes[2:]]))
    assert main(["pipeline", "reset", str(file), "--yes"]) == 0
    assert sorted(path for path in out.rglob("*") if path.is_file()) == others[:2]
    assert outside.exists()
    assert not (out / "word=a%2Fb").exists()
    assert "leaves what it has not written in" in (said := capsys.readouterr().out)
    assert "my out: notes.txt, word=c" in said


def test_reset_names_the_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    text = SMALL.replace('stream = "ORDERS"', 'stream = "ORDERS"\nformat = "csv"\nschema = "a INT"')
    text = text.replace('subject = "subject"', 'subject = "_subject"').replace('value = "data"', 'value = "a"')
    file.write_text(text)
    assert main(["pipeline", "reset", str(file), "--yes"]) == 0
    assert "for copy\n" in capsys.readouterr().out
    file.write_text(f'[pipeline]\ndead_letter = "DEAD"\n{text}')
    assert main(["pipeline", "reset", str(file), "--yes"]) == 0
    assert "for copy, dead-orders\n" in capsys.readouterr().out
    file.write_text(text)
    # Those that the file no longer has: an output of that name must not go on where it was, nor may the last batch
    # of a read that it shared be repeated for others.
    state = tmp_path / "p-state"
    for name in ("checkpoints/dead-orders", "checkpoints/renamed", "shared/orders"):
        (state / name).mkdir(parents=True)
    assert main(["pipeline", "reset", str(file), "--yes", "--output", "copy"]) == 0
    assert "for copy\n" in capsys.readouterr().out
    assert (state / "shared" / "orders").exists()
    assert main(["pipeline", "reset", str(file), "--yes"]) == 0
    assert "for copy, dead-orders, renamed\n" in capsys.readouterr().out
    assert not list(state.glob("checkpoints/*"))
    assert not (state / "shared").exists()


def test_reset_never_removes_the_pipeline_file(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(SMALL + '[outputs.o]\nfrom = "orders"\npath = "."\n')
    assert main(["pipeline", "reset", str(file), "--yes"]) == 2
    assert file.exists()


def test_reset_says_what_it_does_not_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    file.write_text(SMALL + '[outputs.o]\nfrom = "orders"\npath = "s3a://x/y"\n')
    assert main(["pipeline", "reset", str(file), "--yes"]) == 0
    assert "does not reach s3a://x/y: remove _spark_metadata and the files there" in capsys.readouterr().out


def test_reset_reports_files_that_cannot_be_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    file.write_text(SMALL + '[outputs.o]\nfrom = "orders"\npath = "out"\n')
    (tmp_path / "out").mkdir()
    with mock.patch("pathlib.Path.rmdir", side_effect=PermissionError(13, "Permission denied")):
        assert main(["pipeline", "reset", str(file), "--yes"]) == 1
    assert "out was not cleared: [Errno 13]" in capsys.readouterr().err


def test_running_pipeline_is_not_run_or_reset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    file.write_text(SMALL)
    (checkpoint := tmp_path / "p-state" / "checkpoints" / "copy").mkdir(parents=True)
    with StateFolder(load(str(file))).lock.held("it"):
        for command in (["run", str(file)], ["reset", str(file), "--yes"]):
            assert main(["pipeline", *command]) == 2
            said = f"slipstream: error: the pipeline 'p' is already running, as process {os.getpid()}: stop it first\n"
            assert capsys.readouterr() == ("", said)
    assert checkpoint.exists()
    assert main(["pipeline", "reset", str(file), "--yes"]) == 0
    assert not checkpoint.exists()


def test_reset_removes_tables_of_the_warehouse_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    tables = '[outputs.t]\nfrom = "orders"\ntable = "T"\n[outputs.u]\nfrom = "orders"\ntable = "lake.db.u"\n'
    file.write_text(SMALL + tables)
    folder = tmp_path / "p-state" / "warehouse" / "t"
    (folder / "_spark_metadata").mkdir(parents=True)
    written = [folder / "part-0.parquet", folder / "part-1.json"]  # the format was another one once
    for one in written:
        one.touch()
    (folder / "_spark_metadata" / "0").write_text("v1\n" + "\n".join(json.dumps({"path": str(w)}) for w in written))
    assert main(["pipeline", "reset", str(file), "--yes"]) == 0
    assert not folder.exists()
    assert "does not reach the table lake.db.u, which keeps its rows" in capsys.readouterr().out


def test_reset_removes_the_records_of_retries_from_the_server(
    tmp_path: Path, our_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(SMALL + '[outputs.big]\nfrom = "orders"\nstream = "RESET_BIG"\nsubject = "\'x\'"\n')
    checkpoint = tmp_path / "p-state" / "checkpoints" / "big"

    def start() -> None:
        checkpoint.mkdir(parents=True)
        (checkpoint / "metadata").write_text('{"id":"abc-1"}')

    with connect_blocking(our_url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name="RESET_BIG", subjects=("x",)))
        progress = Progress(js, DEFAULT_PROGRESS, "RESET_BIG")
        progress.prepare(1)
        info = js.stream("RESET_BIG").info()
        for writer in ("abc-1", "abc-2"):
            progress.begin(Task(writer, 0, 0), info)
        start()
        assert main(["pipeline", "reset", str(file), "--yes", "--servers", "nats://127.0.0.1:1"]) == 0
        assert "leaves the records of retries on the server: " in capsys.readouterr().out
        start()
        assert main(["pipeline", "reset", str(file), "--yes", "--servers", our_url]) == 0
        assert "leaves the records" not in capsys.readouterr().out
        records = js.key_value(DEFAULT_PROGRESS).keys("sink.>")
        assert [key.split(".")[2] for key in records if key.split(".")[2].startswith("abc")] == ["abc-2"]
