"""Drivers, workers, servers and nodes killed at random points of a pipeline: every output is as if nothing happened.

The short form is part of the suite; `make soak` does thirty rounds on each kind of server. For more of them, or for the
same once again:

    SLIPSTREAM_KILL_ROUNDS=300 SLIPSTREAM_KILL_SEED=7 python -m pytest -m soak tests/spark/test_kills.py -k cluster -s
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq
import pytest

from slipstream import BlockingJetStream, RequestTimeoutError, StreamConfig, connect_blocking
from tests.cluster import NODES, Cluster, wait_for
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
        """How many batches were committed, of all outputs. Spark keeps the files of the last hundred of each."""
        newest: dict[Path, int] = {}
        for one in (self._folder / "kills-state").glob("checkpoints/*/commits/*"):
            if one.name.isdigit():
                newest[one.parent] = max(newest.get(one.parent, 0), int(one.name) + 1)
        return sum(newest.values())

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


class Target(Protocol):
    """What the pipeline reads and writes, and what of it can be killed."""

    replicas: int

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""

    def strike(self, chance: random.Random) -> str:
        """Kill something, start it again after a moment; gives its name."""

    def settle(self) -> None:
        """Wait until it serves as before."""


class OneServer:
    """A single server: while it is away, nothing goes on."""

    replicas = 1

    def __init__(self, server: OurProcess | RealProcess) -> None:
        self._server = server

    @property
    def urls(self) -> list[str]:
        return [self._server.url]

    def strike(self, chance: random.Random) -> str:
        self._server.kill()
        time.sleep(chance.random())
        self._server.start()
        return "server"

    def settle(self) -> None:
        """It serves as soon as it has started."""


class ThreeNodes:
    """A cluster whose streams have three replicas: a node is killed with `kill -9`, and the two others go on."""

    replicas = len(NODES)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def urls(self) -> list[str]:
        return self._cluster.urls

    def strike(self, chance: random.Random) -> str:
        name = chance.choice(NODES)
        is_leader = self._cluster.leader("NUMBERS") == name
        self._cluster.kill(name)
        time.sleep(chance.random() * 8)  # an election takes about four seconds: some kills are over before it, some not
        self._cluster.start(name)
        return "leader" if is_leader else "follower"

    def settle(self) -> None:
        """A second node may only be killed when the first has caught up: two of three are a quorum."""
        self._cluster.wait_until_whole()
        found: list[int] = []

        def is_answered() -> bool:  # the stream may have no leader yet, and then none of its servers answers
            with connect_blocking(self.urls) as client, contextlib.suppress(RequestTimeoutError):
                found.append(client.jetstream().stream("NUMBERS").info().state.last_seq)
            return bool(found)

        wait_for(is_answered, "the leader of NUMBERS", timeout=60)
        self._cluster.wait_until_level("NUMBERS", found[0])


@contextmanager
def a_target(kind: str, folder: Path) -> Iterator[Target]:
    if kind == "cluster":
        with Cluster() as cluster:
            yield ThreeNodes(cluster)
        return
    folder.mkdir()
    with OurProcess(folder) if kind == "ours" else StoppedProcess(folder) as server:
        yield OneServer(server)


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


def file_for(replicas: int) -> str:
    """The pipeline, with as many replicas of what it makes."""
    text = FILE.replace("batched = true", f"batched = true\nreplicas = {replicas}")
    return text.replace("[buckets.sums]", f"[buckets.sums]\nreplicas = {replicas}")


def rounds(
    kind: str, folder: Path, orders: list[str], *, seed: int, say: Callable[[str], None] = lambda _: None
) -> Counter[str]:
    """Do the rounds and compare all outputs; gives how often each thing was killed."""
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    count = 0
    with a_target(kind, folder / "server") as target:
        (folder / "kills.toml").write_text(file_for(target.replicas))
        config = StreamConfig(name="NUMBERS", subjects=("numbers.>",), allow_direct=True, num_replicas=target.replicas)
        with connect_blocking(target.urls) as client:
            client.jetstream().create_stream(config)
        job = Job(folder, ",".join(target.urls))
        try:
            for number, order in enumerate(orders, 1):
                job.start()
                before = job.batches()
                with connect_blocking(target.urls) as client:
                    publish(client.jetstream(), range(count, count + 1_200))
                count += 1_200
                job.wait_for_work(before)
                time.sleep(chance.random() * 3)  # the random point
                if order == "driver":
                    job.kill_driver()
                elif order == "worker":
                    job.kill_worker(chance)
                else:
                    order = target.strike(chance)
                    target.settle()
                killed[order] += 1
                say(f"round {number}: {order}, {job.batches()} batches, {count} messages")
            job.finish()
        finally:
            job.close()
        with connect_blocking(target.urls) as client:
            check(client.jetstream(), folder, count)
    return killed


@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kind", "orders"), [("ours", ["worker", "driver"]), ("real", ["server"]), ("cluster", ["node", "worker"])]
)
def test_every_output_is_right_after_kills(kind: str, orders: list[str], tmp_path: Path) -> None:
    rounds(kind, tmp_path, orders, seed=1)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("kind", ["ours", "real", "cluster"])
def test_every_output_is_right_after_many_rounds_of_kills(kind: str) -> None:
    number = int(os.environ.get("SLIPSTREAM_KILL_ROUNDS", "30"))
    seed = int(os.environ.get("SLIPSTREAM_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    print(f"{kind}: {number} rounds, seed {seed}", flush=True)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="slipstream-kills-") as folder:
        orders = chance.choices(["driver", "worker", "server"], k=number)
        killed = rounds(kind, Path(folder), orders, seed=seed, say=lambda line: print(line, flush=True))
    print(f"{kind}: killed {dict(killed)}", flush=True)
