"""Latency of pipelines: from a publish to the view that shows it, and from `pipeline run` to the first value.

    python -m benchmarks.pipelines [view rows five floor] [--conf KEY=VALUE] [--messages N] [--phases]

One nats-server, `local[2]`, `trigger = "0 seconds"`. Single messages at random intervals on an idle pipeline are timed
until their value arrives: `view` is an aggregate into a bucket, `rows` a bucket of plain rows, `five` has five outputs
of which the last one counts. `floor` is Spark alone: its rate source, grouped, into nothing. CPU is that of all
processes of the pipeline, without the server; it depends less on what else the machine does than the times.
`--phases` adds the parts of a micro-batch, as Spark reports them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from slipstream import BlockingJetStream, StreamConfig, connect_blocking
from tests.servers import real_server

SINGLE = 60  # messages that are timed,
UNCOUNTED = 20  # after these: the JVM compiles what they run
FEW = 15  # of five outputs
FILLED = 1_000  # messages that are in the stream when the pipeline starts,
MANY = 50_000  # and of five outputs
LONGEST = 240.0  # seconds for anything
KEYS = 5
IDLE = 5.0  # seconds
_HEAD = """
[pipeline]
name = "bench"
trigger = "0 seconds"
[spark]
master = "local[2]"
[spark.conf]
{conf}
[sources.orders]
stream = "ORDERS"
format = "json"
schema = "n BIGINT, customer STRING, amount BIGINT"
"""
_VIEW = """
[buckets.totals]
[steps.totals]
sql = "SELECT customer, max(n) AS n, count(*) AS orders, sum(amount) AS revenue FROM orders GROUP BY customer"
[outputs.totals]
from = "totals"
bucket = "totals"
key = "customer"
"""
_ROWS = """
[buckets.newest]
[outputs.newest]
from = "orders"
bucket = "newest"
key = "customer"
mode = "append"
"""
_FIVE = """
[buckets.large]
[steps.large]
sql = "SELECT customer, n, amount FROM orders WHERE amount >= 0"
[outputs.large]
from = "large"
bucket = "large"
key = "customer"
mode = "append"
[buckets.averages]
[steps.averages]
sql = "SELECT customer, max(n) AS n, avg(amount) AS amount FROM orders GROUP BY customer"
[outputs.averages]
from = "averages"
bucket = "averages"
key = "customer"
[streams.COPIES]
subjects = ["copies.>"]
[outputs.copies]
from = "orders"
stream = "COPIES"
subject = "concat('copies.', customer)"
"""
SHAPES = {
    "view": (_VIEW, ("KV_totals",)),
    "rows": (_ROWS, ("KV_newest",)),
    "five": (_VIEW + _ROWS + _FIVE, ("KV_totals", "KV_newest", "KV_large", "KV_averages", "COPIES")),
}


class Timing(NamedTuple):
    """One line of the report: seconds, and the most that they are to be."""

    work: str
    seconds: float
    target: float | None = None


class Arrivals:
    """Watches the targets of a pipeline, in threads: when the largest number so far arrived at each."""

    def __init__(self, url: str, streams: Sequence[str]) -> None:
        self._at: dict[str, tuple[int, float]] = dict.fromkeys(streams, (-1, 0.0))
        self._changed = threading.Condition()
        self._url = url
        self._ended = False
        self._threads = [threading.Thread(target=self._follow, args=(name,), daemon=True) for name in streams]
        for thread in self._threads:
            thread.start()

    def _follow(self, stream: str) -> None:
        subject = f"$KV.{stream.removeprefix('KV_')}.>" if stream.startswith("KV_") else f"{stream.lower()}.>"
        with connect_blocking(self._url) as client, client.subscribe(subject) as messages:
            while not self._ended:
                try:
                    message = messages.next(timeout=0.2)
                except TimeoutError:
                    continue
                now, number = time.perf_counter(), int(json.loads(message.data)["n"])
                with self._changed:
                    if number > self._at[stream][0]:
                        self._at[stream] = number, now
                        self._changed.notify_all()

    def wait(self, number: int, *, any_number: bool = False) -> float:
        """When every target had shown this number, or the first one if any will do."""

        def is_there() -> bool:
            return all(found >= (0 if any_number else number) for found, _ in self._at.values())

        with self._changed:
            assert self._changed.wait_for(is_there, LONGEST), f"{number} has not arrived: {self._at}"
            return max(at for _, at in self._at.values())

    def close(self) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join()


class Job:
    """`slipstream pipeline run` as a process, and when it printed what."""

    def __init__(self, folder: Path, url: str) -> None:
        self.began = time.perf_counter()
        self.lines: list[tuple[float, str]] = []
        command = [sys.executable, "-m", "slipstream", "pipeline", "run", "bench.toml", "--plain", "--servers", url]
        self._process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append((time.perf_counter() - self.began, line.rstrip()))

    def said(self, text: str) -> float:
        """When it printed a line with this text, in seconds since its start."""
        return next((at for at, line in self.lines if text in line), float("nan"))

    def cpu(self) -> float:
        """Seconds of CPU so far, of all its processes and of those that have ended."""
        return sum(self.cpu_by_process().values())

    def cpu_by_process(self) -> dict[str, float]:
        """The same by process; those that have ended count for the one that started them."""
        found: dict[str, float] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid:  # the session
                    words = (folder / "cmdline").read_text().split("\0")
                    name = " ".join(word for word in words[1:4] if not word.startswith("/"))
                    name = f"{folder.name} {Path(words[0]).name} {name}"[:90]
                    found[name] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return found

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join()


def publish(js: BlockingJetStream, first: int, count: int) -> None:
    """Messages whose numbers count on from `first`."""
    with js.publisher(timeout=60) as publisher:
        for n in range(first, first + count):
            publisher.publish("orders.new", b'{"n": %d, "customer": "c%d", "amount": %d}' % (n, n % KEYS, n % 100))


@contextmanager
def running(
    shape: str, conf: Mapping[str, str], filled: int
) -> Iterator[tuple[Job, Arrivals, BlockingJetStream, Path]]:
    """A pipeline that has just been started, over a stream that has messages."""
    text, targets = SHAPES[shape]
    lines = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in conf.items())
    with real_server() as url, tempfile.TemporaryDirectory(prefix="slipstream-bench-") as name:
        folder = Path(name)
        (folder / "bench.toml").write_text(_HEAD.format(conf=lines) + text)
        with connect_blocking(url) as client:
            js = client.jetstream()
            js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",), allow_direct=True))
            publish(js, 0, filled)
            arrivals = Arrivals(url, targets)
            job = Job(folder, url)
            try:
                yield job, arrivals, js, folder
            except BaseException:
                print("\n".join(line for _, line in job.lines[-20:]), file=sys.stderr)
                raise
            finally:
                job.stop()
                arrivals.close()


def singles(js: BlockingJetStream, arrivals: Arrivals, first: int, count: int) -> list[float]:
    """Seconds from a publish to its value in every target, of single messages at random intervals."""
    chance = random.Random(1)
    found = []
    for n in range(first, first + count):
        time.sleep(chance.uniform(0.3, 1.2))
        begin = time.perf_counter()
        publish(js, n, 1)
        found.append(arrivals.wait(n) - begin)
    return found


def measure(shape: str, conf: Mapping[str, str], *, phases: bool, messages: int = 0) -> list[Timing]:
    """The first value, and how long single messages take."""
    filled, count = (MANY, FEW) if shape == "five" else (FILLED, SINGLE)
    count = messages or count
    target = (12.0, 0.3, 0.6) if shape == "view" else (None, None, None)
    with running(shape, conf, filled) as (job, arrivals, js, folder):
        first = arrivals.wait(0, any_number=True) - job.began
        all_read = arrivals.wait(filled - 1) - job.began
        start_cpu = job.cpu()
        processes = job.cpu_by_process()
        uncounted = min(count, 5 if shape == "five" else UNCOUNTED)
        singles(js, arrivals, filled, uncounted)
        before = job.cpu()
        time.sleep(IDLE)
        idle = (job.cpu() - before) / IDLE
        begin, before = time.time(), job.cpu()
        taken = sorted(singles(js, arrivals, filled + uncounted, count))
        each = (job.cpu() - before - idle * (time.time() - begin)) / count
        text = _phases(folder / "bench-state" / "events.jsonl", begin) if phases else ""
    if phases:
        print("\n".join(f"    {at:6.2f} s  {line}" for at, line in job.lines[:12]))
        print("\n".join(f"    {seconds:6.2f} s of CPU until then: {name}" for name, seconds in processes.items()))
        print(text)
    return [
        Timing(f"{shape}: start of `pipeline run` to `Spark is up`", job.said("Spark is up")),
        Timing(f"{shape}: to the first value of every output", first, target[0]),
        Timing(f"{shape}: to all of {filled:,} messages", all_read),
        Timing(f"{shape}: publish to value, p50 of {count}", statistics.median(taken), target[1]),
        Timing(f"{shape}: p95", taken[int(len(taken) * 0.95)], target[2]),
        Timing(f"{shape}: longest", taken[-1]),
        Timing(f"{shape}: CPU for one message", each),
        Timing(f"{shape}: CPU for an idle second", idle),
        Timing(f"{shape}: CPU from the start to all of {filled:,} messages", start_cpu),
    ]


def _phases(events: Path, begin: float) -> str:
    """The medians of the parts of micro-batches, in milliseconds, by output."""
    found: dict[str, list[dict[str, float]]] = {}
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(begin))
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "progress" and event["at"] >= since:
            found.setdefault(event["output"], []).append(event["durations_ms"])
    lines = []
    for output, batches in found.items():
        names = dict.fromkeys(name for batch in batches for name in batch)
        parts = ", ".join(f"{name} {statistics.median(one.get(name, 0) for one in batches):.0f}" for name in names)
        lines.append(f"    {output}, {len(batches)} batches, ms: {parts}")
    return "\n".join(lines)


def floor(conf: Mapping[str, str]) -> list[Timing]:
    """What Spark itself takes for a micro-batch of an aggregate, without a source or sink in Python."""
    from slipstream.spark import session

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", **conf}
    spark = session("local[2]", conf=settings)
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-", ignore_cleanup_errors=True) as folder:
        rows = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        rows = rows.selectExpr("value % 5 AS key", "value").groupBy("key").sum("value")
        writer = rows.writeStream.format("noop").outputMode("update").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        time.sleep(SINGLE)
        batches = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]][-SINGLE // 2 :]
        query.stop()
    spark.stop()
    names = dict.fromkeys(name for batch in batches for name in batch)
    return [Timing(f"floor: {name}", statistics.median(one.get(name, 0) for one in batches) / 1_000) for name in names]


def run(
    sections: Sequence[str] = ("view", "rows", "five"),
    conf: Mapping[str, str] | None = None,
    *,
    phases: bool = False,
    messages: int = 0,
) -> str:
    """Measure; returns the lines as text."""
    found: list[Timing] = []
    for name in sections:
        load = os.getloadavg()[0]
        found += floor(conf or {}) if name == "floor" else measure(name, conf or {}, phases=phases, messages=messages)
        print(f"    {name}: load average {load:.1f} before", flush=True)
    lines = [f"{'work':<62} {'seconds':>9} {'target':>8}"]
    for one in found:
        verdict = "" if one.target is None else "  ok" if one.seconds <= one.target else "  ABOVE"
        lines.append(f"{one.work:<62} {one.seconds:9.3f} {'-' if one.target is None else one.target:>8}{verdict}")
    return "\n".join(lines)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the pipeline's processes are to end too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["view", "rows", "five"])
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--phases", action="store_true")
    parser.add_argument(
        "--messages", type=int, default=0, help="how many are timed, after as many (at most 20) that are not"
    )
    given = parser.parse_args()
    conf = dict(one.split("=", 1) for one in given.conf)
    print(run(given.sections, conf, phases=given.phases, messages=given.messages))


if __name__ == "__main__":
    main()
