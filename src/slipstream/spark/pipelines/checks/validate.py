"""Validation of a pipeline before it runs: the file, the streams on its server, and with `deep` all of it on Spark.

The reader has checked the file when it made the `Pipeline`. This looks at the rest, reports every mistake at once, and
says what it has not looked at.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from slipstream.spark.pipelines.checks.columns import known_columns
from slipstream.spark.pipelines.checks.servers import ServerReport, check_servers
from slipstream.spark.pipelines.connection import NotReachedError, existing_server
from slipstream.spark.pipelines.model import Mistake, Pipeline, PipelineError
from slipstream.spark.pipelines.reader import load
from slipstream.spark.pipelines.state import StateFolder


class Validation(NamedTuple):
    """The result for a pipeline without mistakes: warnings as lines, and what was not checked."""

    pipeline: Pipeline
    warnings: tuple[str, ...]
    unchecked: tuple[str, ...]


def validate_file(file: str, *, servers: str = "", deep: bool = False, verbose: bool = False) -> Validation:
    """Check the pipeline in a file; raises PipelineError with every mistake of the file, the streams and the SQL."""
    try:
        pipeline = load(file)
    except PipelineError as error:
        if error.pipeline is None:
            raise
        try:
            validate(error.pipeline, servers=servers, deep=deep, verbose=verbose)
        except PipelineError as more:
            # What Spark says about a line that the file's own check has reported is the same mistake.
            lines = {one.position._replace(column=0) for one in error.mistakes}
            new = [one for one in more.mistakes if one.position._replace(column=0) not in lines]
            raise PipelineError(file, [*error.mistakes, *new]) from error
        raise
    return validate(pipeline, servers=servers, deep=deep, verbose=verbose)


def validate(pipeline: Pipeline, *, servers: str = "", deep: bool = False, verbose: bool = False) -> Validation:
    """Check a pipeline; raises PipelineError with every mistake. Nothing is created, on disk or on a server."""
    unchecked = []
    try:
        with existing_server(pipeline, StateFolder(pipeline), servers) as js:
            report = check_servers(pipeline, js)
    except NotReachedError as error:
        report = ServerReport([], [])
        unchecked.append(f"streams and buckets ({error})")
    mistakes = list(report.mistakes)
    if deep:
        mistakes += _deep(pipeline, verbose=verbose)
    else:
        unchecked.insert(0, _without_spark(pipeline))
    if mistakes:
        raise PipelineError(pipeline.file, mistakes)
    warnings = tuple(one.line(pipeline.file, "warning: ") for one in report.warnings)
    return Validation(pipeline, warnings, tuple(one for one in unchecked if one))


def _without_spark(pipeline: Pipeline) -> str:
    """What only Spark can check."""
    if not pipeline.steps:
        return "types and modes (--deep does)"
    known = known_columns(pipeline)
    steps = [one.name for one in pipeline.steps if one.name not in known]
    columns = f", the columns of {', '.join(steps)}" if steps else ""
    return f"SQL{columns} (--deep does)"


def _deep(pipeline: Pipeline, *, verbose: bool) -> list[Mistake]:
    from slipstream.spark.pipelines.spark_session import start_spark

    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:  # the pipeline may be running: not in its state
        state = StateFolder(replace(pipeline, state=folder))
        spark = start_spark(pipeline, "local[1]", state, verbose=verbose)
        from slipstream.spark.pipelines.checks.deep import deep_mistakes

        try:
            Path(state.warehouse).mkdir(exist_ok=True)
            return deep_mistakes(spark, pipeline)
        finally:
            spark.stop()
