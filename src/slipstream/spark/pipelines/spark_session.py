"""Spark session of a pipeline: a JVM to run on, settings for small streaming jobs, and quiet logs."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.errors import Error, UsageError
from slipstream.spark import worker_start
from slipstream.spark.formats import register
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.state import WAREHOUSE, StateFolder

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
JVM_DIR = Path("/usr/lib/jvm")
_LOOK = 0.1  # seconds between two looks at whether the run was stopped
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
# Hadoop's FileContext runs nine processes (chmod, stat, readlink) for each file that it writes atomically on a local
# disk, its FileSystem two: 31 and 10 ms of CPU. A micro-batch writes at least four files.
DIRECT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# Of files of state: on a local disk Hadoop keeps a checksum of every file already, in a file of its own like this one.
SECOND_CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
# Sinks know by its partition what a task of a repeated batch has written. Adaptive execution decides at run time which
# rows are in which partition, by sizes, the order in which stages end, and the number of cores.
ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
_CHEAP_PROCESSES = "-Djdk.lang.Process.launchMechanism=VFORK"  # without a helper process in between
_DAEMON = "spark.python.daemon.module"
MAX_PARTITIONS = 4
JVM_OPTIONS = "SPARK_SUBMIT_OPTS"  # the variable from which Spark's launcher takes options of the JVM
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


_CONTEXT_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")  # of pyspark: every error, as 10 kB of JSON


class StartStoppedError(Error):
    """The run was stopped while Spark started."""


def start_spark(
    pipeline: Pipeline,
    master: str,
    state: StateFolder,
    *,
    verbose: bool = False,
    stopping: threading.Event | None = None,
) -> SparkSession:
    """Start Spark, with settings for small streaming jobs and the pipeline's own on top.

    What the JVM and Spark's Python workers print goes to `spark.log` in the state, or to stderr if `verbose` is set.
    """
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers run the system's Python
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    use_archive()
    from pyspark import SparkConf
    from pyspark.core.context import Py4JError  # type: ignore[attr-defined]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from slipstream.spark.pipelines.checks.spark_errors import spark_message

    state.path.mkdir(parents=True, exist_ok=True)
    logs = state.path / "log4j2.properties"
    logs.write_text(_LOGS, "utf-8")
    conf = {
        "spark.app.name": f"slipstream pipeline {pipeline.name}",
        "spark.ui.enabled": "true" if pipeline.ui else "false",
        "spark.ui.port": pipeline.ui or "4040",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(shuffle_partitions(master)),
        WAREHOUSE: str(state.warehouse),
        "spark.sql.streaming.metricsEnabled": "false",
        CHECKPOINT_FILES: DIRECT_FILES,
        SECOND_CHECKSUMS: "false",
        ADAPTIVE: "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logs} {_CHEAP_PROCESSES}",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf[_DAEMON] = "slipstream.spark.worker_start.daemon"
    if re.fullmatch(r"local\[[\d*]+\]", master):
        master = f"{master[:-1]},{TASK_ATTEMPTS}]"  # as on a cluster: a task that fails is retried
    settings = SparkConf().setMaster(master).setAll([*{**conf, **pipeline.conf}.items()])
    # The context is created in another thread: in the main thread Spark installs its own SIGINT handler, and Ctrl-C
    # would raise KeyboardInterrupt anywhere instead of stopping the run in order. The session must be this thread's.
    try:
        start = partial(_start_context, settings, None if verbose else state.spark_log)
        _in_thread(start, stopping, meanwhile=_import_meanwhile)
        if not verbose:
            silence_context_loggers()
            silence_interruptions()
        spark = SparkSession.builder.getOrCreate()
        register(spark)
        return spark
    except (PySparkException, Py4JError) as error:
        more = "" if verbose else f" (see {state.spark_log})"
        raise UsageError(f"Spark did not start with master {master!r}: {spark_message(error)}{more}") from error


def shuffle_partitions(master: str) -> int:
    """How many partitions an aggregate has: each has state of its own, to be read and committed by each micro-batch.
    More of them than cores cost time, and give none. A query keeps the number that it was started with."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)[^]]*\])?", master)
    if found is None:
        return MAX_PARTITIONS
    cores = (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)
    return max(min(cores, MAX_PARTITIONS), 1)


def _import_meanwhile() -> None:
    """Import what the driver needs once Spark is up: most of the time that a JVM takes to start, a core is idle."""
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    import slipstream.spark.pipelines.build
    import slipstream.spark.pipelines.checks.deep
    import slipstream.spark.pipelines.fan_out.sharing
    import slipstream.spark.sink.kv
    import slipstream.spark.sink.stream  # noqa: F401

    with suppress(ImportError):  # as Spark says itself, where it matters
        require_minimum_pandas_version()


def _in_thread(
    start: Callable[[], None], stopping: threading.Event | None, *, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Call a function that starts Spark in a thread which the process does not wait for when it exits, and another one
    here; raise what they raise. Raises StartStoppedError as soon as the event is set: a JVM that is starting ends when
    its parent does, and if that goes on, Spark is stopped when it is up."""
    errors: list[BaseException] = []
    lock, is_done, is_left = threading.Lock(), threading.Event(), threading.Event()

    def work() -> None:
        try:
            start()
        except BaseException as error:
            errors.append(error)
        with lock:
            is_done.set()
        if is_left.is_set() and not errors:
            _stop_context()

    threading.Thread(target=work, name="start of Spark", daemon=True).start()
    meanwhile()
    while not is_done.wait(_LOOK):
        with lock:
            if stopping is not None and stopping.is_set() and not is_done.is_set():
                is_left.set()
                raise StartStoppedError("stopped while Spark was starting")
    for error in errors:
        raise error


def _stop_context() -> None:
    from pyspark import SparkContext

    SparkContext.getOrCreate().stop()


class OwnSpark:
    """The Spark of one run."""

    def session(
        self, pipeline: Pipeline, master: str, state: StateFolder, *, verbose: bool, stopping: threading.Event
    ) -> SparkSession:
        """Start Spark; returns the session. Raises StartStoppedError if the event is set meanwhile."""
        return start_spark(pipeline, master, state, verbose=verbose, stopping=stopping)

    def release(self, session: SparkSession) -> None:
        """Stop Spark: the run is over."""
        session.stop()


def _start_context(settings: SparkConf, log: Path | None) -> None:
    """Start the JVM, with its stderr in a file if one is named, and Spark in it."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if log is None or SparkContext._gateway is not None:  # a JVM that a program has started is left as it is
        with compiled_workers():
            SparkContext.getOrCreate(settings)
        return
    with log.open("wb") as file, compiled_workers():
        gateway = launch_gateway(settings, {"stderr": file})  # type: ignore[no-untyped-call]
    SparkContext(conf=settings, gateway=gateway)


def archive_path() -> Path:
    """Where `pipeline warm` keeps the class-data archive of this version of Spark."""
    from pyspark import __version__

    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "slipstream", f"spark-{__version__}.jsa")


def use_archive() -> None:
    """Have the JVM start from the archive, if there is one and the environment does not say otherwise."""
    options = os.environ.get(JVM_OPTIONS, "")
    if "ArchiveFile" in options or "ArchiveClasses" in options or not (path := archive_path()).is_file():
        return
    os.environ[JVM_OPTIONS] = f"{options} -XX:SharedArchiveFile={path} -Xlog:cds=off -Xlog:cds+dynamic=off".strip()


@contextmanager
def compiled_workers() -> Iterator[None]:
    """The Python processes of a JVM that is started meanwhile import pyspark compiled, which Python has stored with the
    package, and not from a zip file of its sources."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*worker_start.__path__, *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def silence_context_loggers() -> None:
    """Stop pyspark from printing the context of every error as JSON."""
    from pyspark.logger import PySparkLogger

    for name in _CONTEXT_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


_INTERRUPTED = "KeyboardInterrupt while sending command."


def silence_interruptions() -> None:
    """Stop Py4J from printing a traceback, by the root logger, when Ctrl-C interrupts a wait for the JVM."""
    logging.getLogger().addFilter(_is_no_interruption)  # once, however often it is added


def _is_no_interruption(record: logging.LogRecord) -> bool:
    return record.msg != _INTERRUPTED


def find_java() -> None:
    """Set JAVA_HOME to an installed JVM if neither it nor the PATH names one. Raises UsageError if there is none."""
    if home := os.environ.get("JAVA_HOME"):
        if shutil.which("java", path=Path(home, "bin")) is None:
            raise UsageError(f"Spark needs Java 17 or newer, and JAVA_HOME has none: {home}")
        return
    if shutil.which("java"):
        return
    installed = sorted(JVM_DIR.glob("*/bin/java"))
    if not installed:
        raise UsageError(f"Spark needs Java 17 or newer, and there is none on the PATH or in {JVM_DIR}: set JAVA_HOME")
    os.environ["JAVA_HOME"] = str(installed[-1].parent.parent)
