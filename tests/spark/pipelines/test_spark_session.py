"""The Spark session of a pipeline: how it starts, its settings and the file's own, and what its workers import."""

from __future__ import annotations

import inspect
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from py4j import java_gateway  # type: ignore[import-untyped]

from slipstream.spark.pipelines import parse, spark_session
from slipstream.spark.pipelines.spark_session import (
    StartStoppedError,
    _in_thread,
    compiled_workers,
    shuffle_partitions,
    silence_interruptions,
)
from tests.spark.pipelines.support import SMALL

PROGRAM = """
import json, os, sys
from slipstream.spark.pipelines import parse
from slipstream.spark.pipelines.spark_session import start_spark
from slipstream.spark.pipelines.state import StateFolder

def look(batches):
    import pyarrow as pa
    loaded = "slipstream.spark.sink.kv" in sys.modules, "slipstream.spark.source.stream" in sys.modules
    list(batches)
    import pyspark
    yield pa.RecordBatch.from_pydict({"found": [json.dumps([pyspark.__file__, all(loaded)])]})

pipeline = parse(open(sys.argv[1]).read(), file=sys.argv[1])
spark = start_spark(pipeline, "local[1]", StateFolder(pipeline))
found = json.loads(spark.range(0, 1, 1, 1).mapInArrow(look, "found STRING").collect()[0][0])
names = (
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled",
    "spark.sql.adaptive.streaming.stateless.enabled",
    "spark.python.daemon.module",
)
print(json.dumps([*found, *(spark.conf.get(name) for name in names), os.environ.get("PYTHONPATH")]))
spark.stop()
"""


@pytest.mark.parametrize(
    ("master", "partitions"),
    [
        ("local", 1),
        ("local[1]", 1),
        ("local[2]", 2),
        ("local[3,4]", 3),
        ("local[64]", 4),
        ("local[*]", min(os.cpu_count() or 1, 4)),
        ("local[*,2]", min(os.cpu_count() or 1, 4)),
        ("local-cluster[2,1,1024]", 4),
        ("spark://host:7077", 4),
        ("yarn", 4),
    ],
)
def test_aggregates_have_a_partition_per_core(master: str, partitions: int) -> None:
    assert shuffle_partitions(master) == partitions


@pytest.mark.parametrize("before", [None, "/mine"])
def test_path_of_workers_is_set_only_while_the_jvm_starts(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    if before is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", before)
    with compiled_workers():
        folder, *rest = os.environ["PYTHONPATH"].split(os.pathsep)
        assert Path(folder, "sitecustomize.py").is_file()
        assert rest == ([before] if before else [])
    assert os.environ.get("PYTHONPATH") == before


@pytest.mark.spark
@pytest.mark.parametrize("own", [False, True])
def test_settings_and_workers_of_a_pipeline(tmp_path: Path, own: bool) -> None:
    import pyspark

    file = tmp_path / "p.toml"
    conf = ['"spark.sql.shuffle.partitions" = 7', '"spark.python.daemon.module" = "pyspark.daemon"'] if own else []
    file.write_text(SMALL + ("\n[spark]\nconf = { " + ", ".join(conf) + " }\n" if own else ""))
    parse(file.read_text(), file=str(file))  # the file is one
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, timeout=180, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    package, has_modules, partitions, checksums, adaptive, daemon, path = json.loads(run.stdout.splitlines()[-1])
    assert package == pyspark.__file__  # and not a zip file of its sources
    assert has_modules is not own
    assert (partitions, daemon) == (("7", "pyspark.daemon") if own else ("1", "slipstream.spark.worker_start.daemon"))
    assert (checksums, adaptive) == ("false", "false")
    assert path == os.environ.get("PYTHONPATH")


def test_start_returns_and_raises_as_if_it_were_called() -> None:
    done: list[bool] = []
    _in_thread(lambda: done.append(True), threading.Event())
    assert done == [True]

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        _in_thread(fail, None)


def test_run_that_is_stopped_does_not_wait_for_spark_and_stops_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, is_up, is_stopped = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(spark_session, "_stop_context", is_stopped.set)

    def start() -> None:
        stopping.set()
        assert is_up.wait(30)

    with pytest.raises(StartStoppedError):
        _in_thread(start, stopping)
    assert not is_stopped.is_set()
    is_up.set()
    assert is_stopped.wait(30)


def test_spark_that_is_up_is_not_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "_stop_context", lambda: pytest.fail("the run stops it"))
    stopping = threading.Event()
    _in_thread(stopping.set, stopping)  # up when the run is stopped: it returns


def test_ctrl_c_while_the_jvm_works_prints_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Py4J logs it by the root logger, with these words."""
    words = "KeyboardInterrupt while sending command."
    assert f'logging.exception("{words}")' in inspect.getsource(java_gateway)
    silence_interruptions()
    silence_interruptions()
    logging.exception(words)
    logging.exception("Exception while sending command.")
    assert [one.getMessage() for one in caplog.records] == ["Exception while sending command."]
    assert logging.getLogger().filters.count(spark_session._is_no_interruption) == 1
