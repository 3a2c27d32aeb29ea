"""Several pipelines in one process, on one Spark: each keeps its session, state, lock and server, the JVM is shared.

Views are those of a session. Settings of the JVM and Spark's own catalog are shared by all sessions: what files say
about them must not contradict. A pipeline that fails does not end the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from slipstream.errors import Error, UsageError
from slipstream.spark.formats import register
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.observe.events import Event
from slipstream.spark.pipelines.runner import Runner
from slipstream.spark.pipelines.spark_session import OwnSpark, start_spark
from slipstream.spark.pipelines.state import StateFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_SESSIONS = "spark.sql."  # settings that a session may have for itself, but for those fixed at the start
_POLL = 0.2  # seconds: signals are handled between two waits


class SharedSpark(OwnSpark):
    """One Spark with a session for each pipeline: started by the first that needs it, stopped by `close`."""

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        """Raises UsageError if the pipelines cannot share one."""
        self._common = common_settings(pipelines)
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def session(
        self, pipeline: Pipeline, master: str, state: StateFolder, *, verbose: bool, stopping: threading.Event
    ) -> SparkSession:
        """A session of this pipeline."""
        with self._lock:
            if self._spark is None:
                self._spark = start_spark(self._common, master, state, verbose=verbose, stopping=stopping)
            session = self._spark.newSession()
        register(session)  # formats are those of a session, too
        for name, value in pipeline.conf.items():
            if name not in self._common.conf:
                self._set(session, pipeline, name, value)
        return session

    @staticmethod
    def _set(session: SparkSession, pipeline: Pipeline, name: str, value: str) -> None:
        from pyspark.errors import PySparkException

        try:
            session.conf.set(name, value)
        except PySparkException:
            raise UsageError(
                f"[spark] conf {name!r} of {pipeline.file} is fixed when Spark starts: pipelines that run together "
                "need it in all files, with one value"
            ) from None

    def release(self, session: SparkSession) -> None:
        """The pipeline is done with its session; other pipelines may go on."""

    def close(self) -> None:
        """Stop Spark, if it was started."""
        if self._spark is not None:
            self._spark.stop()


def common_settings(pipelines: Sequence[Pipeline]) -> Pipeline:
    """What Spark is started with: settings of the JVM, and those of sessions that all files have. Raises UsageError if
    they contradict each other."""
    first = pipelines[0]
    conf: dict[str, str] = {}
    files: dict[str, str] = {}
    owners: dict[tuple[str, str], Pipeline] = {}
    for one in pipelines:
        state = StateFolder(one)
        claims = [("name", one.name.lower()), ("state", str(state.path.resolve()))]
        claims += [("target", str(path)) for output in one.outputs if (path := state.output_path(output)) is not None]
        # Spark's own catalog is one for all sessions, wherever the files of its tables are.
        claims += [
            ("table", output.target.lower())
            for output in one.outputs
            if output.kind == "table" and state.output_path(output) is not None
        ]
        for what, value in claims:
            other = owners.setdefault((what, value), one)
            if other is not one:
                raise UsageError(f"{other.file} and {one.file} have the same {what} {value!r}: run them apart")
        if one.master != first.master:
            raise UsageError(
                f"pipelines that run together need one master: {first.file} has {first.master!r}, {one.file} has "
                f"{one.master!r} (--master applies to all)"
            )
        for name, value in one.conf.items():
            if name.startswith(_OF_SESSIONS):
                if all(other.conf.get(name) == value for other in pipelines):
                    conf[name] = value
            elif conf.setdefault(name, value) != value:
                raise UsageError(
                    f"pipelines that run together need one value of {name!r} in [spark] conf: {files[name]} has "
                    f"{conf[name]!r}, {one.file} has {value!r}"
                )
            files.setdefault(name, one.file)
    ui = next((one.ui for one in pipelines if one.ui), "")
    return replace(first, name=", ".join(one.name for one in pipelines), conf=conf, ui=ui)


class PipelineGroup:
    """Runs several pipelines until all are done, or until `stop`."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        *,
        once: bool,
        out: TextIO,
        master: str = "",
        servers: str = "",
        verbose: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """`master` and `servers` are for all of them."""
        self._spark = SharedSpark([replace(one, master=master) for one in pipelines] if master else pipelines)
        self._out = out
        self._stopping = threading.Event()
        self.runners: Mapping[str, Runner] = {
            one.name: Runner(
                one,
                once=once,
                master=master,
                servers=servers,
                out=out,
                plain=True,
                verbose=verbose,
                on_event=on_event,
                spark=self._spark,
                prefix=f"{one.name}: ",
            )
            for one in pipelines
        }
        self.errors: dict[str, Error] = {}
        self.seconds = 0.0

    def stop(self) -> None:
        """End the run, from a signal handler or another thread."""
        for one in self.runners.values():
            one.stop()

    def run(self) -> None:
        """Run to the end. Raises the error of the first pipeline that failed, with those of the others as notes."""
        begin = time.monotonic()
        with ThreadPoolExecutor(len(self.runners)) as pool:
            runs = [pool.submit(self._run_one, name, one) for name, one in self.runners.items()]
            try:
                while wait(runs, timeout=_POLL).not_done:
                    continue
            finally:
                self.stop()  # what still runs, if this thread was interrupted
        self._spark.close()
        for one in runs:
            one.result()
        self.seconds = time.monotonic() - begin
        if self.errors:
            (first, error), *others = self.errors.items()
            text = "\n".join(f"pipeline {name}: {one}" for name, one in [(first, error), *others])
            raise UsageError(text) if isinstance(error, UsageError) else Error(text)

    def _run_one(self, name: str, runner: Runner) -> None:
        try:
            runner.run()
        except Error as error:
            self.errors[name] = error
            self._out.write("".join(f"{name}: failed: {line}\n" for line in str(error).splitlines()))
            self._out.flush()

    def result(self) -> dict[str, Any]:
        """What the run has done so far, for programs."""
        results = {name: one.result() for name, one in self.runners.items()}
        for name, error in self.errors.items():
            results[name] |= {"ok": False, "error": str(error)}
        ok = all(one["ok"] for one in results.values())
        return {"ok": ok, "seconds": round(self.seconds, 3), "pipelines": list(results.values())}
