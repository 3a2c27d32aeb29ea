"""Drivers, workers and servers killed at random points of a pipeline: every output is as if nothing had happened.

The short form is part of the suite; `make soak` does thirty rounds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slipstream import BlockingJetStream, StreamConfig, connect_blocking
from tests.servers import OurProcess, RealProcess

ROOT = Path(__file__).resolve().parent.parent.parent
WORDS = ("one", "two", "three")
FILE = """
[pipeline]
name = "kills"
trigger = "100 milliseconds"

[spark]
master = "local[2]"
conf = { "spark.sql.shuffle.partitions" = 2 }

[streams.COPIES]
subjects = ["copies.>"]
batched = true
[buckets.sums]

[sources.numbers]
stream = "NUMBERS"
format = "csv"
schema = "n BIGINT, word STRING"
max_messages_per_trigger = 300

[steps.sums]
sql = "SELECT word, count(*) AS numbers, sum(n) AS total FROM numbers GROUP BY word"

[outputs.sums]
from = "sums"
bucket = "sums"
key = "word"

[outputs.copies]
from = "numbers"
stream = "COPIES"
subject = "concat('copies.', word)"

[outputs.files]
from = "numbers"
path = "files"
"""


class StoppedProcess(RealProcess):
    """The real server, stopped as a service manager would: it syncs now and then only."""

    def kill(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=30)


class Job:
    """The pipeline as a process group of its own, JVM and Python workers included."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._job: subprocess.Popen[bytes] | None = None

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "slipstream.spark.pipelines", "run", "kills.toml", "--servers", self._url, *more]

    def start(self) -> None:
        if self._job is not None and self._job.poll() is None:
            return
        with (self._folder / "log").open("ab") as log:
            self._job = subprocess.Popen(
                self.command(), cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )

    def batches(self) -> int:
        """How many batches were committed, of all outputs."""
        return len(
            [one for one in (self._folder / "kills-state").glob("checkpoints/*/commits/*") if one.name.isdigit()]
        )

    def wait_for_work(self, before: int) -> None:
        """Until it has committed more than before."""
        deadline = time.monotonic() + 300
        while self.batches() <= before:
            assert self._job is not None
            assert self._job.poll() is None, (self._folder / "log").read_text()[-4000:]
            assert time.monotonic() < deadline, (self._folder / "log").read_text()[-4000:]
            time.sleep(0.05)

    def kill_driver(self) -> None:
        assert self._job is not None
        os.killpg(self._job.pid, signal.SIGKILL)
        self._job.wait(timeout=20)

    def kill_worker(self, chance: random.Random) -> None:
        """One of the Python processes that the JVM has started, whatever it does."""
        assert self._job is not None
        workers = [pid for pid in group_of(self._job.pid) if "pyspark" in command_of(pid) and pid != self._job.pid]
        if workers:
            try:
                os.kill(chance.choice(workers), signal.SIGKILL)
            except ProcessLookupError:
                return

    def finish(self) -> None:
        """Stop what runs, then do the rest in one go."""
        if self._job is not None and self._job.poll() is None:
            self._job.terminate()
            try:
                self._job.wait(timeout=60)
            finally:
                self.close()
        file = self._folder / "kills.toml"  # large batches from here on
        file.write_text(
            file.read_text().replace("max_messages_per_trigger = 300", "max_messages_per_trigger = 100_000")
        )
        done = subprocess.run(
            self.command("--once"), cwd=self._folder, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def close(self) -> None:
        if self._job is not None and self._job.poll() is None:
            os.killpg(self._job.pid, signal.SIGKILL)
            self._job.wait(timeout=20)


def group_of(leader: int) -> list[int]:
    """The processes of a group; Linux has them in /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader:  # the session: Spark's daemons make groups of their own in it
            found.append(int(path.parent.name))
    return found


def command_of(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text if "java" not in text.split(" ")[0] else ""


@contextmanager
def a_server(kind: str, folder: Path) -> Iterator[OurProcess | RealProcess]:
    folder.mkdir()
    with OurProcess(folder) if kind == "ours" else StoppedProcess(folder) as server:
        yield server


def publish(js: BlockingJetStream, numbers: range) -> None:
    with js.publisher() as publisher:
        for n in numbers:
            publisher.publish("numbers.x", f"{n},{WORDS[n % 3]}".encode())


def check(js: BlockingJetStream, folder: Path, count: int) -> None:
    """What a batch over the finished stream gives, in plain Python."""
    assert js.stream("NUMBERS").info().state.messages == count
    sums = js.key_value("sums")
    found = {key: json.loads(sums.get(key).value) for key in sums.keys()}  # noqa: SIM118 - no mapping
    by_word = {word: range(index, count, 3) for index, word in enumerate(WORDS)}
    assert found == {word: {"numbers": len(ns), "total": sum(ns)} for word, ns in by_word.items()}
    copies = sorted(json.loads(message.data)["n"] for message in js.stream("COPIES").read())
    assert copies == list(range(count))
    files = folder / "files"
    written: set[str] = set()  # of the files, those that Spark has committed: others are left-overs of killed tasks
    for log in sorted(files.glob("_spark_metadata/*")):
        if log.name[0].isdigit():
            lines = log.read_text().splitlines()[1:]
            written |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
    rows = [n for path in written for n in pq.read_table(path, columns=["n"]).column("n").to_pylist()]
    assert sorted(rows) == list(range(count))


def rounds(kind: str, folder: Path, orders: list[str], *, seed: int) -> None:
    chance = random.Random(seed)
    (folder / "kills.toml").write_text(FILE)
    count = 0
    with a_server(kind, folder / "server") as server:
        with connect_blocking(server.url) as client:
            client.jetstream().create_stream(StreamConfig(name="NUMBERS", subjects=("numbers.>",), allow_direct=True))
        job = Job(folder, server.url)
        try:
            for order in orders:
                job.start()
                before = job.batches()
                with connect_blocking(server.url) as client:
                    publish(client.jetstream(), range(count, count + 1_200))
                count += 1_200
                job.wait_for_work(before)
                time.sleep(chance.random() * 3)  # the random point
                if order == "driver":
                    job.kill_driver()
                elif order == "worker":
                    job.kill_worker(chance)
                else:
                    server.kill()
                    time.sleep(chance.random())
                    server.start()
            job.finish()
        finally:
            job.close()
        with connect_blocking(server.url) as client:
            check(client.jetstream(), folder, count)


@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kind", "orders"), [("ours", ["worker", "driver"]), ("real", ["server"])])
def test_every_output_is_right_after_kills(kind: str, orders: list[str], tmp_path: Path) -> None:
    rounds(kind, tmp_path, orders, seed=1)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["ours", "real"])
def test_every_output_is_right_after_thirty_rounds_of_kills(kind: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="slipstream-kills-") as folder:
        rounds(kind, Path(folder), chance.choices(["driver", "worker", "server"], k=30), seed=seed)
