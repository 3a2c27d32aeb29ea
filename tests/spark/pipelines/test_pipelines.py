"""Pipelines as commands, with Spark: on embedded and named servers, stopped, restarted, with bad records."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from slipstream import BlockingJetStream, Server, StreamConfig, connect_blocking

ROOT = Path(__file__).resolve().parents[3]
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "sensor", "type": "string"}, {"name": "value", "type": "long"}],
}
# On a busy machine a Python worker may need more than the ten seconds that Spark gives it to connect. Then Spark fails
# the query, the runner restarts it, and the worker that came too late says so on its own.
LATE_WORKER = re.compile(r"^Traceback \(most recent call last\):\n(?: .*\n)+.*\[CANNOT_OPEN_SOCKET\].*\n", re.MULTILINE)
FILE = f"""
[pipeline]
name = "small"
dead_letter = "DEAD"
trigger = "200 milliseconds"

[spark]
master = "local[2]"
conf = {{ "spark.sql.shuffle.partitions" = 1 }}

[streams.NUMBERS]
subjects = ["numbers.>"]
[streams.SQUARES]
subjects = ["squares.>"]
[streams.READINGS]
subjects = ["readings.>"]
[buckets.sums]
[buckets.sensors]

[sources.numbers]
stream = "NUMBERS"
format = "csv"
schema = "n BIGINT, word STRING"
max_messages_per_trigger = 400

[sources.readings]
stream = "READINGS"
format = "avro"
schema = '''{json.dumps(AVRO)}'''

[steps.sums]
sql = "SELECT word, count(*) AS numbers, sum(n) AS total FROM numbers GROUP BY word"

[outputs.sums]
from = "sums"
bucket = "sums"
key = "word"

[outputs.squares]
from = "numbers"
stream = "SQUARES"
subject = "concat('squares.', word)"

[outputs.files]
from = "numbers"
path = "out"
format = "json"

[outputs.table]
from = "numbers"
table = "Numbers_Seen"
format = "json"

[outputs.sensors]
from = "readings"
bucket = "sensors"
key = ["sensor"]
value = "value"
mode = "append"
"""
INTO_BUCKET = """
[pipeline]
name = "small"
trigger = "0 seconds"
[spark]
master = "local[2]"
conf = { "spark.sql.shuffle.partitions" = 1 }
[buckets.words]
[sources.words]
stream = "WORDS"
max_messages_per_trigger = 100
[steps.counts]
sql = "SELECT subject, count(*) AS n FROM words GROUP BY subject"
[outputs.words]
from = "counts"
bucket = "words"
key = "subject"
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "slipstream.spark.pipelines", *arguments]


def run(folder: Path, *arguments: str, timeout: float = 400) -> str:
    done = subprocess.run(command(*arguments), cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def avro(sensor: str, value: int) -> bytes:
    return bytes([len(sensor) * 2]) + sensor.encode() + bytes([value * 2])


def publish(js: BlockingJetStream, numbers: range) -> None:
    words = ("one", "two", "three four")  # the last makes no key and no subject
    with js.publisher() as publisher:
        for n in numbers:
            body = f"{n},{words[n % 3]}" if n % 100 else ("x,one", "1", "", "1,one,more")[n // 100 % 4]
            publisher.publish(f"numbers.{n % 5}", body.encode())
            publisher.publish("readings.x", avro(f"s{n % 10}", n % 60) if n % 100 else b"\x01broken")


def check(js: BlockingJetStream, folder: Path, count: int) -> None:
    """Every output is what plain Python computes, and bad records are dead letters with a reason."""
    good = [n for n in range(count) if n % 100]
    sums = js.key_value("sums")
    expected = {
        word: {"numbers": len(ns), "total": sum(ns)}
        for index, word in enumerate(("one", "two"))
        if (ns := [n for n in good if n % 3 == index])
    }
    assert {key: json.loads(sums.get(key).value) for key in sums.keys()} == expected  # noqa: SIM118
    squares = [json.loads(message.data)["n"] for message in js.stream("SQUARES").read()]
    assert sorted(squares) == [n for n in good if n % 3 != 2]
    for target in (folder / "out", folder / "small-state" / "warehouse" / "numbers_seen"):
        lines = [json.loads(line) for file in target.glob("*.json") for line in file.read_text().splitlines()]
        assert sorted(line["n"] for line in lines) == good
    sensors = js.key_value("sensors")
    assert len(sensors.keys()) == 10
    bad = Counter((message.subject, message.headers.get("Slipstream-Reason")) for message in js.stream("DEAD").read())
    assert bad["DEAD.numbers", "empty"] == len([n for n in range(0, count, 100) if n // 100 % 4 == 2])
    assert sum(number for (subject, _), number in bad.items() if subject == "DEAD.numbers") == count // 100
    assert bad["DEAD.readings", "not Avro of the schema"] == count // 100
    refused = [
        number
        for (subject, reason), number in bad.items()
        if subject == "DEAD.squares" and "subject must be" in str(reason)
    ]
    assert sum(refused) == len([n for n in good if n % 3 == 2])
    assert any(subject == "DEAD.sums" and "key must" in str(reason) for subject, reason in bad)


@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.spec("SP-09")
class TestRunning:
    def test_run_once_on_an_embedded_server_again_and_after_a_reset(self, tmp_path: Path) -> None:
        (tmp_path / "small.toml").write_text(FILE)
        data = tmp_path / "small-state" / "server"
        data.mkdir(parents=True)

        def on_server(first: int, end: int) -> None:
            with Server(data_dir=data) as server, connect_blocking(server.url) as client:
                js = client.jetstream()
                for name in ("NUMBERS", "READINGS"):
                    subjects = (f"{name.lower()}.>",)
                    js.create_stream(StreamConfig(name=name, subjects=subjects, allow_direct=True))
                if first:
                    check(js, tmp_path, first)
                if end:
                    publish(js, range(first, end))

        on_server(0, 900)
        said = run(tmp_path, "run", "small.toml", "--once")
        assert "created bucket sums" in said
        assert re.search(r"sums: batch 2 read 100 rows in [\d.]+ s \([\d,]+ rows/s\), 900 in this run", said)
        on_server(900, 1_200)  # more arrives while nothing runs
        status = json.loads(run(tmp_path, "status", "small.toml", "--json"))
        assert status["pid"] == 0
        assert status["sources"] == {"numbers": 1_200, "readings": 1_200}
        assert {one["lag"] for one in status["outputs"].values()} == {300}  # each reads one of the two sources
        result = json.loads(run(tmp_path, "run", "small.toml", "--once", "--json"))
        assert result["ok"]
        outputs = result["outputs"]
        assert {name: one["written"] for name, one in outputs.items()} == {
            **{"sums": 3, "squares": 297, "files": 297, "table": 297, "sensors": 297},
            **{"dead-numbers": 3, "dead-readings": 3},
        }
        assert (outputs["squares"]["dead"], outputs["dead-numbers"]["dead"]) == (396, 12)
        on_server(1_200, 0)
        run(tmp_path, "reset", "small.toml", "--yes", "--output", "files", "--output", "table")
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "small-state" / "warehouse" / "numbers_seen").exists()
        run(tmp_path, "run", "small.toml", "--once")
        on_server(1_200, 0)
        status = json.loads(run(tmp_path, "status", "small.toml", "--json"))
        assert {one["lag"] for one in status["outputs"].values()} == {0}
        assert {one["rows"] for one in status["outputs"].values()} == {1_200}  # of all runs, also where nothing was new
        assert all(one["at"] for one in status["outputs"].values())

    def test_run_until_stopped_on_a_named_server(self, tmp_path: Path, real_url: str) -> None:
        (tmp_path / "small.toml").write_text(FILE)
        with connect_blocking(real_url) as client, (tmp_path / "log").open("wb") as log:
            js = client.jetstream()
            arguments = command("run", "small.toml", "--servers", real_url, "--master", "local[2]")
            job = subprocess.Popen(arguments, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
            try:
                wait_for(lambda: "READINGS" in list(js.stream_names()), job, tmp_path / "log")
                publish(js, range(500))
                seen = {"sums": 500, "squares": 500, "files": 500, "dead-numbers": 500, "dead-readings": 500}
                wait_for(lambda: rows_of(tmp_path).items() >= seen.items(), job, tmp_path / "log")
                said = run(tmp_path, "status", "small.toml", "--servers", real_url)
                assert f"running as process {job.pid}" in said
                again = subprocess.run(
                    arguments, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200
                )
                assert again.returncode == 2
                assert f"is already running, as process {job.pid}" in again.stderr
                os.killpg(job.pid, signal.SIGINT)  # as Ctrl-C does: to the processes of Spark as well
                assert job.wait(timeout=60) == 0, (tmp_path / "log").read_text()
            finally:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait(timeout=20)
            assert "stopped; the next run goes on from here" in (said := (tmp_path / "log").read_text())
            assert "Traceback" not in LATE_WORKER.sub("", said)
            check(js, tmp_path, 500)

    def test_all_mistakes_are_reported_before_anything_is_created(self, tmp_path: Path, our_url: str) -> None:
        text = FILE.replace('format = "json"', 'format = "parqet"', 1).replace("sum(n)", "sum(m)")
        (tmp_path / "small.toml").write_text(text.replace("count(*)", "conut(*)") + "[streams.UNUSED]\nsubjects='u'\n")
        with connect_blocking(our_url) as client:
            before = set(client.jetstream().stream_names())
            arguments = command("run", "small.toml", "--once", "--servers", our_url)
            done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
            assert set(client.jetstream().stream_names()) == before
        assert done.returncode == 2, done.stderr
        # Nothing else: no JSON of pyspark's loggers, no traces, no warnings of the JVM.
        assert done.stderr.splitlines() == [
            "slipstream: error: small.toml:32:21: step 'sums': there is no function 'conut'; did you mean count?",
            "small.toml:47:1: output 'files': Spark has no format 'parqet'; did you mean parquet?",
        ]
        assert (tmp_path / "small-state" / "spark.log").exists()

    def test_ctrl_c_during_a_batch_into_a_bucket_ends_in_one_line(self, tmp_path: Path, our_url: str) -> None:
        (tmp_path / "small.toml").write_text(INTO_BUCKET)
        log = tmp_path / "log"
        with connect_blocking(our_url) as client, log.open("wb") as out:
            js = client.jetstream()
            js.create_stream(StreamConfig(name="WORDS", subjects=("words.>",)))
            with js.publisher() as publisher:
                for n in range(20_000):
                    publisher.publish(f"words.{n}", b"x")
            arguments = command("run", "small.toml", "--servers", our_url)
            job = subprocess.Popen(arguments, cwd=tmp_path, stdout=out, stderr=out, start_new_session=True)
            try:
                # Batches follow one another without a pause, so one is being written whenever the signal arrives.
                wait_for(lambda: rows_of(tmp_path).get("words", 0) > 0, job, log)
                os.killpg(job.pid, signal.SIGINT)
                assert job.wait(timeout=60) == 0, log.read_text()
            finally:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait(timeout=20)
        said = log.read_text().splitlines()
        assert rows_of(tmp_path)["words"] < 20_000, "the run was done before it was interrupted"
        assert said[-2] == "stopped; the next run goes on from here"
        other = re.compile(
            r"words: batch \d+ read|created |pipeline small: |Spark is up|\d[\d,]* rows read for|stopped;"
        )
        assert [line for line in said if not other.match(line)] == []
        assert "StackOverflowError" not in (tmp_path / "small-state" / "spark.log").read_text()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_run_is_stopped_while_spark_starts(self, tmp_path: Path, our_url: str, number: signal.Signals) -> None:
        (tmp_path / "small.toml").write_text(FILE)
        arguments = command("run", "small.toml", "--servers", our_url)
        log = tmp_path / "log"
        with log.open("wb") as out:
            job = subprocess.Popen(arguments, cwd=tmp_path, stdout=out, stderr=out, start_new_session=True)
        try:
            wait_for(lambda: "pipeline small: nats" in log.read_text(), job, log)
            os.kill(job.pid, number)
            assert job.wait(timeout=60) == 0, log.read_text()
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait(timeout=20)
        end = "stopped; the next run goes on from here\n0 rows read for 0 outputs in 0.0 s\n"
        assert log.read_text().endswith(end)
        assert "Spark is up" not in log.read_text()  # it did not wait for that


def rows_of(folder: Path) -> dict[str, int]:
    try:
        found = json.loads((folder / "small-state" / "run.json").read_text())
    except (OSError, ValueError):
        return {}
    return {name: one["rows"] for name, one in found["queries"].items()}


def wait_for(condition: object, job: subprocess.Popen[bytes], log: Path, *, timeout: float = 400) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout
    while not condition():
        assert job.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
