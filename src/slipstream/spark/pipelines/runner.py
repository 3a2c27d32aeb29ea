"""A pipeline becomes running queries, until they are done (`once`) or until it is told to stop.

Every output is a query with a checkpoint of its own. One that fails because a server was away is started again after a
pause that grows, and goes on where it stood; any other failure ends the run with its reason. Being stopped in the
middle is harmless: what was not committed is done again by the next run, and written once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from slipstream.errors import Error, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.spark.failures import failure_of, is_passing, reason_of
from slipstream.spark.pipelines.connection import jetstream, last_sequences, prepare, servers
from slipstream.spark.pipelines.display import Lines, display
from slipstream.spark.pipelines.model import FIRST, Output, Pipeline, check_master
from slipstream.spark.pipelines.state import WAREHOUSE, QueryState, StateFolder, lag_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from slipstream.spark.pipelines.build import Built

LOOK = 0.5
START = 20.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
MOST_FAILURES = 20
TASK_FAILURES = 4
JVM_DIR = Path("/usr/lib/jvm")
_CATALOG_KIND = "spark.sql.catalogImplementation"
_LOGS = """
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.context.name = org.apache.spark.SparkContext
logger.context.level = off
logger.stream.name = org.apache.spark.sql.execution.streaming
logger.stream.level = off
logger.files.name = org.apache.spark.sql.execution.datasources
logger.files.level = off
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = off
"""


class StoppedError(Error):
    """The run was told to stop before it was done."""


class Running:
    """One query of the pipeline and what is known of it."""

    def __init__(self, name: str, make: Callable[[], DataStreamWriter]) -> None:
        self.name = name
        self.make = make
        self.state = QueryState()
        self.query: StreamingQuery | None = None
        self.pause = FIRST_PAUSE
        self.again_at = 0.0
        self.failures = 0  # since the last batch that went well
        self._seen: set[tuple[str, int]] = set()
        self._settles_by = 0.0

    def start(self, query: StreamingQuery) -> None:
        """It runs."""
        self.query = query
        self._settles_by = time.monotonic() + START

    def is_starting(self) -> bool:
        """Whether Spark is still preparing the query."""
        query = self.query
        if query is None or time.monotonic() >= self._settles_by:
            return False
        if query.isActive and not query.status["isDataAvailable"] and not query.lastProgress:
            return True
        self._settles_by = 0.0
        return False

    def look(self) -> None:
        """Take in what Spark reports about batches that are done."""
        if self.query is None:
            return
        for progress in self.query.recentProgress:
            key = (progress["runId"], progress["batchId"])
            if key in self._seen:
                continue
            self._seen.add(key)
            self._take(progress)

    def _take(self, progress: Any) -> None:
        state = self.state
        rows = progress["numInputRows"]
        if rows:
            state.rows += rows
            state.batch = progress["batchId"]
            state.rate = progress["processedRowsPerSecond"] or 0.0
            state.at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self.pause, self.failures = FIRST_PAUSE, 0
        for place, source in enumerate(progress["sources"]):
            end = source["endOffset"]
            end = json.loads(end) if isinstance(end, str) else end
            if isinstance(end, dict) and "seq" in end:
                state.sequences[str(place)] = end["seq"]
                state.skipped = max(state.skipped, end.get("skipped", 0))


class Runner:
    """Runs the queries of one pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        once: bool,
        master: str = "",
        given_servers: str = "",
        out: TextIO = sys.stdout,
        plain: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._once = once
        self._master = check_master(master or pipeline.master)
        self._given = given_servers
        self._state = StateFolder(pipeline)
        self._out = out
        self._plain = plain
        self._stopping = threading.Event()
        self._at_once = max(2, os.cpu_count() or 1)  # queries that are starting
        self._built: Built
        self._earlier: dict[str, QueryState] = {}
        self.queries: dict[str, Running] = {}
        self.seconds = 0.0

    def stop(self) -> None:
        """End the run, from a signal or another thread."""
        self._stopping.set()

    def run(self) -> dict[str, QueryState]:
        """Run to the end; gives what each query has done. Raises what a query failed with."""
        with self._state.lock.held(f"the pipeline {self._pipeline.name!r}"):
            return self._run_alone()

    def _run_alone(self) -> dict[str, QueryState]:
        _, _, self._earlier = self._state.read_run()
        self._note({})  # the address of an earlier run's server is no longer good
        title = f"pipeline {self._pipeline.name}"
        with (
            servers(self._pipeline, self._state, self._given) as connection,
            jetstream(connection) as js,
            display(self._out, title, plain=self._plain) as screen,
        ):
            self._note(connection)
            for made in prepare(js, self._pipeline):
                screen.say(f"made {made}")
            screen.say(f"{title}: {connection.get('servers') or 'context ' + connection['context']}, {self._master}")
            spark = None if self._stopping.is_set() else start_spark(self._pipeline, self._master, self._state)
            try:
                if spark is not None and not self._stopping.is_set():
                    self._run(spark, connection, js, screen)
            finally:
                self._note(connection)
                if spark is not None:
                    spark.stop()
            if self._stopping.is_set():
                screen.say("stopped; the next run goes on from here")
        return {name: one.state for name, one in self.queries.items()}

    def _run(self, spark: SparkSession, connection: dict[str, str], js: JetStream, screen: Lines) -> None:
        self._build(spark, connection)
        begin = time.monotonic()
        waiting = deque(self.queries.values())
        try:
            while not self._stopping.is_set():
                self._start_some(waiting)
                if not self._tend(waiting, screen):
                    break
                self._report(connection, js, screen)
                self._stopping.wait(LOOK / 5 if waiting else LOOK)
            self._report(connection, js, screen)
        finally:
            self.seconds = time.monotonic() - begin
            for one in self.queries.values():
                if one.query is not None and one.query.isActive:
                    one.query.stop()
                one.look()

    def _build(self, spark: SparkSession, connection: dict[str, str]) -> None:
        from slipstream.spark.pipelines.build import Built

        built = self._built = Built(spark, self._pipeline, connection)
        for output in self._pipeline.outputs:
            self.queries[output.name] = Running(output.name, lambda output=output: built.query(output))  # type: ignore[misc]
        for name in built.dead_letters():
            self.queries[name] = Running(name, lambda name=name: built.dead_letters()[name])  # type: ignore[misc]

    def _start(self, one: Running) -> None:
        output = next((output for output in self._pipeline.outputs if output.name == one.name), None)
        with self._built.blamed(output.place if output else FIRST, f"output {one.name!r}"):
            one.start(self._started(one, output))

    def _started(self, one: Running, output: Output | None) -> StreamingQuery:
        writer = one.make().queryName(f"{self._pipeline.name}-{one.name}")
        writer = writer.option("checkpointLocation", str(self._state.checkpoint(one.name)))
        writer = (
            writer.trigger(availableNow=True) if self._once else writer.trigger(processingTime=self._pipeline.trigger)
        )
        if output is not None and output.kind == "table":
            return self._into_table(writer, output)
        if output is not None and output.kind == "files":
            return writer.start(str(self._state.path_of(output)))
        return writer.start()

    def _into_table(self, writer: DataStreamWriter, output: Output) -> StreamingQuery:
        """Spark's own catalog lives in memory and forgets the table, but not its folder: with the folder named, the
        table is made again over the files of earlier runs."""
        path = self._state.path_of(output)
        if path is not None and self._pipeline.conf.get(_CATALOG_KIND, "in-memory") == "in-memory":
            writer = writer.option("path", str(path))
        return writer.toTable(output.target)

    def _start_some(self, waiting: deque[Running]) -> None:
        """Start queries while few others are starting. Each starts a Python process of its own, and Spark gives up on
        one that does not answer within ten seconds: many at once would not, on few cores."""
        while waiting and sum(one.is_starting() for one in self.queries.values()) < self._at_once:
            if self._stopping.is_set():
                break
            self._start(waiting.popleft())

    def _tend(self, waiting: deque[Running], screen: Lines) -> bool:
        """Start again what a server's absence ended, and raise what ended for good; False once every query is done.
        Those that wait for their first start are left alone."""
        is_any = bool(waiting)
        for one in self.queries.values():
            if one in waiting:
                continue
            one.look()
            if one.query is None:
                if time.monotonic() >= one.again_at:
                    self._start(one)
                is_any = True
            elif one.query.isActive:
                is_any = True
            elif text := failure_of(one.query):
                self._failed(one, text, screen)
                is_any = True
        return is_any

    def _failed(self, one: Running, text: str, screen: Lines) -> None:
        reason = reason_of(text)
        one.state.error = reason
        one.failures += 1
        if one.failures > MOST_FAILURES or not is_passing(text):
            raise Error(f"output {one.name!r} failed: {reason}")
        screen.say(f"{one.name}: {reason}; again in {one.pause:g} s")
        one.query = None
        one.again_at = time.monotonic() + one.pause
        one.pause = min(one.pause * 2, LONGEST_PAUSE)

    def _report(self, connection: dict[str, str], js: JetStream, screen: Lines) -> None:
        for one in self.queries.values():
            one.look()
        screen.show({name: one.state for name, one in self.queries.items()}, self._lags(js))
        self._note(connection)

    def _lags(self, js: JetStream) -> dict[str, int]:
        """How many messages each query has still to read."""
        try:
            last = last_sequences(js, self._pipeline)
        except Error:  # the server is away for a moment: the figure is, too
            return {}
        found = {}
        for name, one in self.queries.items():
            sequences = one.state.after(self._earlier.get(name, QueryState())).sequences
            offsets = [{"seq": seq} for seq in sequences.values()]
            lag = lag_of(self._pipeline, name, offsets, last)
            if lag is not None:
                found[name] = lag
        return found

    def _note(self, connection: dict[str, str]) -> None:
        states = {name: one.state.after(self._earlier.get(name, QueryState())) for name, one in self.queries.items()}
        states = self._earlier | states
        self._state.write_run(connection.get("servers", ""), states)


def start_spark(pipeline: Pipeline, master: str, state: StateFolder) -> SparkSession:
    """A session with few shuffle partitions, little logging and the pipeline's own settings on top."""
    if not os.environ.get("JAVA_HOME") and not shutil.which("java"):
        usual = sorted(JVM_DIR.glob("*/bin/java"))
        if not usual:
            raise UsageError(
                f"Spark needs Java 17 or newer: there is none on the PATH or in {JVM_DIR}, or set JAVA_HOME"
            )
        os.environ["JAVA_HOME"] = str(usual[-1].parent.parent)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers run the system's Python
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark import SparkConf, SparkContext
    from pyspark.core.context import Py4JError  # type: ignore[attr-defined]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from slipstream.spark.pipelines.build import sentence

    state.path.mkdir(parents=True, exist_ok=True)
    logs = state.path / "log4j2.properties"
    logs.write_text(_LOGS, "utf-8")
    conf = {
        "spark.app.name": f"slipstream pipeline {pipeline.name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        WAREHOUSE: str(state.warehouse),
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logs}",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if re.fullmatch(r"local\[[\d*]+\]", master):
        master = f"{master[:-1]},{TASK_FAILURES}]"  # as on a cluster: one task that dies does not end the query
    settings = SparkConf().setMaster(master).setAll([*{**conf, **pipeline.conf}.items()])
    # By a thread of its own: in the main thread Spark takes SIGINT for itself, and Ctrl-C would be a KeyboardInterrupt
    # in the middle of whatever is done there instead of an orderly stop. The session is this thread's, as it must be.
    try:
        with ThreadPoolExecutor(1) as starter:
            starter.submit(SparkContext.getOrCreate, settings).result()
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise UsageError(f"Spark did not start with the master {master!r}: {sentence(error)}") from error


def stop_on_signals(runner: Runner) -> None:
    """Ctrl-C and SIGTERM end the run in an orderly way; a second one ends it at once."""

    def handle(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        runner.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
