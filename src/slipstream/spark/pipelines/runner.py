"""Runner of a pipeline: starts its queries, supervises them, and stops when they are done (`once`) or on request.

Every output has a checkpoint of its own, and a query of its own or one that it shares with others (`fan_out/`). A query
that fails because a server was unreachable is restarted after a back-off, for as long as it takes, and continues from
its checkpoint. Any other failure ends that output: the others go on, and the run reports it at once and in the end. A
run may be stopped at any moment: the next run repeats what was not committed, and its rows are written exactly once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

from slipstream.client.backoff import Backoff
from slipstream.errors import Error
from slipstream.facade._sync.client import JetStream
from slipstream.spark.failures import failure_of, is_misfit, is_outage, is_transient, reason_of
from slipstream.spark.pipelines.checks.servers import check_servers
from slipstream.spark.pipelines.connection import (
    connection_options,
    create_declared,
    last_sequences,
    open_connection,
    wait_out,
)
from slipstream.spark.pipelines.display import Lines, display
from slipstream.spark.pipelines.lag import lag_seconds, letter_counts
from slipstream.spark.pipelines.model import Pipeline, PipelineError, check_master
from slipstream.spark.pipelines.observe.events import Event, EventLog, late_rows, progress_details
from slipstream.spark.pipelines.observe.metrics import metrics_endpoint, metrics_page
from slipstream.spark.pipelines.observe.reports import reports_since
from slipstream.spark.pipelines.spark_session import OwnSpark, StartStoppedError
from slipstream.spark.pipelines.state import QueryState, StateFolder, lag_of, now_text

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from slipstream.spark.pipelines.build import QueryPlan
    from slipstream.spark.pipelines.fan_out.shared_read import SharedRead

T = TypeVar("T")

POLL = 0.5  # seconds between two looks at the queries
METRICS = "slipstream"  # as build.py names them, which needs pyspark
MEASURE = 2.0  # seconds between two looks at ages and dead letters
START_TIMEOUT = 20.0  # after so many seconds a query no longer counts as starting
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
MAX_FAILURES = 20
_JVM_IS_GONE = ("Py4JError", "Py4JNetworkError", "Py4JJavaError")  # of py4j, which comes with pyspark
SHARED = "shared:"  # before a source's name: the query that reads it for several outputs; no output has such a name


def _ignored(*_: object, **__: object) -> None:
    """Events of a query that is not part of a run."""


class RunningQuery:
    """One output of the pipeline, its query, progress and failures; or a query that several outputs share.

    The outputs that share a query are `members` of it: it is started and restarted, they are reported.
    """

    def __init__(
        self,
        plan: QueryPlan,
        events: Callable[..., None] = _ignored,
        *,
        members: Sequence[RunningQuery] = (),
        shared: SharedRead | None = None,
    ) -> None:
        self.plan = plan
        self.members = tuple(members)
        self.shared = shared
        self.rows_read = 0  # by this query: a row that members share counts once
        self._events = events
        self.name: str = plan.name
        self.state: QueryState = QueryState()
        self.query: StreamingQuery | None = None
        self.backoff: Backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.0)
        self.crashes = 0  # since the last batch: failures that were not outages
        self.restart_at: float = 0.0
        self.is_failed = False
        self._seen: set[tuple[str, int, bool]] = set()
        self._newest = ""  # of the reports that were read
        self._starts_until = 0.0

    def started(self, query: StreamingQuery) -> None:
        """Take the query that Spark has started."""
        self.query = query
        for member in self.members:
            member.query = query
        self._starts_until = time.monotonic() + START_TIMEOUT

    def ended(self) -> None:
        """The query has ended and is to be started again, or never."""
        self.query = None
        for member in self.members:
            member.query = None

    def outputs(self) -> list[RunningQuery]:
        """What this query writes: its members that have not failed for good, or itself."""
        return [one for one in self.members if not one.is_failed] if self.members else [self]

    def is_starting(self) -> bool:
        """Whether Spark is still preparing the query."""
        query = self.query
        if query is None or time.monotonic() >= self._starts_until:
            return False
        if query.isActive and not query.status["isDataAvailable"] and not query.lastProgress:
            return True
        self._starts_until = 0.0
        return False

    def update(self) -> None:
        """Add the batches that Spark has reported since the last call."""
        if self.query is None:
            return
        found, self._newest = reports_since(self.query, self._newest)
        for progress in found:
            # An idle query reports the batch to come every ten seconds: that must not hide the batch itself.
            key = (progress["runId"], progress["batchId"], "addBatch" in (progress.get("durationMs") or ()))
            if key in self._seen:
                continue
            self._seen.add(key)
            self.rows_read += progress["numInputRows"]
            if self.shared is None:
                self.add_progress(progress)
            else:
                self._add_shared(progress, self.shared)

    def _add_shared(self, progress: Any, shared: SharedRead) -> None:
        """Add a batch to the members that it was written to, each with its own number."""
        written = shared.written(progress["batchId"])
        if progress["numInputRows"]:
            self._advanced()
        for member in self.members:
            if (found := written.get(member.name)) is not None:
                counts = {METRICS: {"rows": found.rows}}
                member.add_progress({**dict(progress), "batchId": found.batch, "observedMetrics": counts})

    def _advanced(self) -> None:
        """A batch was written: the next failure is the first one."""
        self.backoff.reset()
        self.crashes = 0

    def add_progress(self, progress: Any) -> None:
        """Add a batch that Spark has reported."""
        state = self.state
        rows = progress["numInputRows"]
        state.late += late_rows(progress)
        if mark := (progress.get("eventTime") or {}).get("watermark", ""):
            state.watermark = mark
        if operators := progress.get("stateOperators"):
            state.state_rows = sum(one.get("numRowsTotal", 0) for one in operators)
        if rows:
            self._events("progress", now_text(), output=self.name, **progress_details(progress))
            state.batches += 1
            state.rows += rows
            state.batch = progress["batchId"]
            state.rate = progress["processedRowsPerSecond"] or 0.0
            state.at = now_text()
            state.batch_rows = rows
            state.batch_seconds = progress.get("batchDuration", 0) / 1_000
            self._advanced()
        written = (progress.get("observedMetrics") or {}).get(METRICS)
        if written is not None:
            state.written = max(state.written, 0) + int(written["rows"])
        state.is_recovered = bool(state.error) and not state.is_failed
        for index, source in enumerate(progress["sources"]):
            end = source["endOffset"]
            end = json.loads(end) if isinstance(end, str) else end
            if isinstance(end, dict) and "seq" in end:
                state.sequences[str(index)] = end["seq"]
                state.skipped = max(state.skipped, end.get("skipped", 0))


class Runner:
    """Runs the queries of one pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        once: bool,
        master: str = "",
        servers: str = "",
        out: TextIO = sys.stdout,
        plain: bool = False,
        verbose: bool = False,
        metrics: str = "",
        on_event: Callable[[Event], None] | None = None,
        spark: OwnSpark | None = None,
        prefix: str = "",
    ) -> None:
        """`metrics` is the address at which they are served, instead of the file's; `on_event` is called with each
        event that is written to the log of events. `spark` is one that other runs share, `prefix` begins every line
        that is printed."""
        self._pipeline = pipeline
        self._metrics = metrics or pipeline.metrics
        self._once = once
        self._master = check_master(master or pipeline.master)
        self._servers = servers
        self._state = StateFolder(pipeline)
        self._events = EventLog(self._state.path, on_event)
        self._out = out
        self._plain = plain
        self._verbose = verbose
        self._spark = spark or OwnSpark()
        self._prefix = prefix
        self._stopping = threading.Event()
        self._max_starting = max(2, os.cpu_count() or 1)
        self._earlier: dict[str, QueryState] = {}
        self.queries: dict[str, RunningQuery] = {}  # by output
        self._shared: list[RunningQuery] = []
        self.seconds: float = 0.0
        self._measure_at = 0.0
        self._page = b""

    def stop(self) -> None:
        """End the run, from a signal handler or another thread."""
        self._stopping.set()

    def run(self) -> dict[str, QueryState]:
        """Run to the end; returns what each query has done. Raises an error if one of them failed for good."""
        title = f"pipeline {self._pipeline.name}"
        with self._state.lock.held(f"the pipeline {self._pipeline.name!r}"):
            _, _, self._earlier = self._state.read_run()
            self._save({})  # the address of an earlier run's server is no longer valid
            with (
                connection_options(self._pipeline, self._state, self._servers) as connection,
                open_connection(connection) as js,
                metrics_endpoint(self._metrics, lambda: self._page) as metrics,
                display(self._out, title, plain=self._plain, prefix=self._prefix) as screen,
            ):
                self._save(connection)
                address = connection.get("servers") or f"context {connection['context']}"
                screen.say(f"{title}: {address}, {self._master}")
                if metrics:
                    screen.say(f"metrics are served on {metrics}")
                self._event("run_started", once=self._once, master=self._master)
                try:
                    with self._without_jvm():
                        self._run_on_spark(connection, js, screen)
                finally:
                    self._event("run_ended", stopped=self._stopping.is_set())
                if self._stopping.is_set():
                    screen.say("stopped; the next run goes on from here")
        if failed := [
            f"output {one.name!r} failed: {one.state.error}" for one in self.queries.values() if one.is_failed
        ]:
            raise Error("\n".join(failed))
        return {name: one.state for name, one in self.queries.items()}

    @property
    def rows_read(self) -> int:
        """The rows that Spark has read from sources; outputs that share a read count once."""
        return sum(one.rows_read for one in self._started())

    def _started(self) -> list[RunningQuery]:
        """What is started and supervised: the shared queries, and the outputs that share none."""
        members = {id(one) for query in self._shared for one in query.members}
        return [*self._shared, *(one for one in self.queries.values() if id(one) not in members)]

    def result(self) -> dict[str, Any]:
        """What the run has done so far, for programs."""
        names = ("rows", "written", "batch", "at", "dead", "error", "error_at", "is_failed")
        outputs = {
            name: {slot: getattr(one.state, slot) for slot in names} | {"written": _known(one.state.written)}
            for name, one in self.queries.items()
        }
        ok = bool(outputs) and not any(one.is_failed for one in self.queries.values())
        seconds = round(self.seconds, 3)
        head = {"pipeline": self._pipeline.name, "ok": ok, "seconds": seconds, "rows_read": self.rows_read}
        return head | {"outputs": outputs}

    @contextmanager
    def _without_jvm(self) -> Iterator[None]:
        """Go on although the JVM does not answer, if the run is being stopped: service managers send SIGTERM to every
        process of a service, so the JVM may be the first to end."""
        try:
            yield
        except Exception as error:
            is_gone = isinstance(error, OSError) or type(error).__name__ in _JVM_IS_GONE
            if not (is_gone and self._stopping.is_set()):
                raise

    def _run_on_spark(self, connection: dict[str, str], js: JetStream, screen: Lines) -> None:
        report = self._wait_out(connection, lambda: check_servers(self._pipeline, js))
        if report is None:
            return
        for warning in report.warnings:
            screen.say(warning.line(self._pipeline.file, "warning: "))
        if self._stopping.is_set():
            return
        begin = time.monotonic()
        try:
            spark = self._spark.session(
                self._pipeline, self._master, self._state, verbose=self._verbose, stopping=self._stopping
            )
        except StartStoppedError:
            return
        screen.say(f"Spark is up after {time.monotonic() - begin:.1f} s")
        from slipstream.spark.pipelines.build import plan_queries  # imports pyspark: after its environment is set
        from slipstream.spark.pipelines.checks.deep import deep_mistakes
        from slipstream.spark.pipelines.fan_out.sharing import shared_reads
        from slipstream.spark.pipelines.preparation import prepare

        try:
            if not self._stopping.is_set():  # a signal may arrive while Spark starts
                prepare(spark, self._pipeline, connection)
                if mistakes := [*report.mistakes, *deep_mistakes(spark, self._pipeline)]:
                    raise PipelineError(self._pipeline.file, mistakes)
                created = self._wait_out(connection, lambda: create_declared(js, self._pipeline))
                if created is None:
                    return
                for name in created:
                    screen.say(f"created {name}")
                plans = plan_queries(spark, self._pipeline, connection, snapshots=str(self._state.tables))
                self.queries = {plan.name: RunningQuery(plan, self._events.add) for plan in plans}
                self._shared = [
                    self._share(read, screen) for read in shared_reads(spark, self._pipeline, plans, connection)
                ]
                self._supervise(connection, js, screen)
        finally:
            self._save(connection)
            self._spark.release(spark)

    def _wait_out(self, connection: dict[str, str], work: Callable[[], T]) -> T | None:
        """The result of `work`, called again during an outage; None if the run is stopped meanwhile."""
        return wait_out(connection, work, pause=self._stopping.wait, is_stopping=self._stopping.is_set)

    def _share(self, read: SharedRead, screen: Lines) -> RunningQuery:
        """The query of a shared read."""
        from slipstream.spark.pipelines.build import QueryPlan

        names = [one.name for one in read.outputs]
        screen.say(f"one read of {read.source} for {', '.join(names)}")
        plan = QueryPlan(f"{SHARED}{read.source}", None, read.writer, str(read.checkpoint.folder))
        return RunningQuery(plan, members=[self.queries[name] for name in names], shared=read)

    def _supervise(self, connection: dict[str, str], js: JetStream, screen: Lines) -> None:
        """Start the queries, restart those that failed, and report, until all are done or the run is stopped."""
        begin = time.monotonic()
        waiting = deque(self._started())
        try:
            while not self._stopping.is_set():
                self._start_waiting(waiting)
                if not self._check(waiting, screen):
                    break
                self._report(connection, js, screen)
                self._stopping.wait(POLL / 5 if waiting else POLL)
            self._measure_at = 0.0  # the last report is of the end
            self._report(connection, js, screen)
        finally:
            self.seconds = time.monotonic() - begin
            for one in self._started():
                if one.query is not None and one.query.isActive:
                    one.query.stop()
                one.update()

    def _start_waiting(self, waiting: deque[RunningQuery]) -> None:
        """Start queries that have not been started yet, while few others are starting."""
        while waiting and self._may_start() and not self._stopping.is_set():
            self._start(waiting.popleft())

    def _may_start(self) -> bool:
        """Whether few queries are starting. Each starts a Python process of its own, and Spark gives up on one that
        does not answer within ten seconds, which happens when many start, or restart, at once on few cores."""
        return sum(one.is_starting() for one in self._started()) < self._max_starting

    def _start(self, one: RunningQuery) -> None:
        from slipstream.spark.pipelines.queries import start_query

        query = start_query(one.plan, self._pipeline, self._state, once=self._once)
        one.started(query)
        for output in one.outputs():
            self._event("query_started", output=output.name, query_id=str(query.id), run_id=str(query.runId))

    def _check(self, waiting: deque[RunningQuery], screen: Lines) -> bool:
        """Restart the queries whose pause is over and handle failures; False once every query is done. Queries that
        wait for their first start are left alone."""
        is_any = bool(waiting)
        for one in self._started():
            if one in waiting or one.is_failed:
                continue
            one.update()
            self._give_up_members(one, screen)
            if one.query is None:
                if time.monotonic() >= one.restart_at and self._may_start():
                    self._start(one)
                is_any = True
            elif one.query.isActive:
                is_any = True
            elif text := failure_of(one.query):
                self._failed(one, text, screen)
                is_any = is_any or not one.is_failed
        return is_any

    def _give_up_members(self, one: RunningQuery, screen: Lines) -> None:
        """Outputs of a shared query that have failed for good; the others go on."""
        for member in one.members if one.shared else ():
            text = one.shared.failed.get(member.name) if one.shared else None
            if text is not None and not member.is_failed:
                self._note(member, reason_of(text))
                member.state.failures += 1
                self._give_up(member, screen)

    def _note(self, one: RunningQuery, reason: str) -> None:
        one.state.error, one.state.error_at, one.state.is_recovered = reason, now_text(), False

    def _give_up(self, one: RunningQuery, screen: Lines) -> None:
        one.is_failed = one.state.is_failed = True
        one.query = None
        screen.say(f"{one.name}: failed: {one.state.error}")
        self._event("query_given_up", output=one.name, reason=one.state.error)

    def _failed(self, one: RunningQuery, text: str, screen: Lines) -> None:
        """Schedule a restart, or give the query up if another attempt would not help."""
        self._give_up_members(one, screen)
        outputs = one.outputs()
        names = ", ".join(output.name for output in outputs)
        reason = reason_of(text)
        if is_misfit(text):
            options = " ".join(f"--output {output.name}" for output in outputs)
            reason = (
                f"a step was changed so that the state of this output no longer fits: "
                f"slipstream pipeline reset {self._pipeline.file} {options}"
            )
        for output in outputs:
            self._note(output, reason)
            output.state.failures += 1
        pause = one.backoff.next()
        # Outages do not count: when the server is back, many queries start at once, and a worker of Spark may fail.
        one.crashes += not is_outage(text)
        is_hopeless = one.crashes > MAX_FAILURES
        one.ended()
        if not outputs or is_hopeless or not is_transient(text):
            one.is_failed = True
            for output in outputs:
                self._give_up(output, screen)
            return
        screen.say(f"{names}: {reason}; restarting in {pause:g} s")
        for output in outputs:
            self._event("query_failed", output=output.name, reason=reason, restarts_in=pause)
        one.restart_at = time.monotonic() + pause

    def _report(self, connection: dict[str, str], js: JetStream, screen: Lines) -> None:
        for one in self._started():
            one.update()
        lags = self._lags(js)
        self._measure(js, lags)
        states = {name: one.state for name, one in self.queries.items()}
        running = {name: one.query is not None and one.query.isActive for name, one in self.queries.items()}
        self._page = metrics_page(self._pipeline.name, states, lags, running)
        screen.show(states, lags)
        self._save(connection)

    def _event(self, kind: str, **details: Any) -> None:
        self._events.add(kind, now_text(), **details)

    def _measure(self, js: JetStream, lags: Mapping[str, int]) -> None:
        """Look at what costs a request each: how old unread messages are, and how many dead letters there are."""
        if time.monotonic() < self._measure_at:
            return
        self._measure_at = time.monotonic() + MEASURE
        states = {name: one.state for name, one in self.queries.items()}
        totals = self._totals()
        try:
            letters = letter_counts(js, self._pipeline)
            for name, state in states.items():
                state.dead = letters.get(name, 0)
                state.lag_seconds = 0.0
                if lags.get(name):
                    state.lag_seconds = lag_seconds(js, self._pipeline, name, totals[name].sequences)
        except Error:  # the server is unreachable for a moment
            return

    def _lags(self, js: JetStream) -> dict[str, int]:
        """How many messages each query has still to read."""
        try:
            last = last_sequences(js, self._pipeline)
        except Error:  # the server is unreachable for a moment: report without lags
            return {}
        found = {}
        for name, state in self._totals().items():
            lag = lag_of(self._pipeline, name, [{"seq": seq} for seq in state.sequences.values()], last)
            if lag is not None:
                found[name] = lag
        return found

    def _save(self, connection: Mapping[str, str]) -> None:
        """Write what this and the earlier runs have seen."""
        self._state.write_run(connection.get("servers", ""), self._earlier | self._totals())

    def _totals(self) -> dict[str, QueryState]:
        """Each query's state, with its earlier runs added."""
        return {name: one.state.after(self._earlier.get(name, QueryState())) for name, one in self.queries.items()}


def _known(count: int) -> int | None:
    return count if count >= 0 else None


class _Stoppable(Protocol):
    def stop(self) -> None:
        """End the run."""


def stop_on_signals(runner: _Stoppable) -> None:
    """Ctrl-C and SIGTERM stop the run in order; a second one ends the process at once."""

    def handle(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        runner.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
