"""Arguments become what is done with a pipeline file: run, validate, status, reset."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.errors import (
    AuthorizationError,
    BucketNotFoundError,
    ConnectionLostError,
    Error,
    NoRespondersError,
    RequestTimeoutError,
    StreamNotFoundError,
    UsageError,
)
from slipstream.spark.pipelines.connection import jetstream, last_sequences, servers
from slipstream.spark.pipelines.model import Pipeline, parse
from slipstream.spark.pipelines.runner import Runner, stop_on_signals
from slipstream.spark.pipelines.state import NOTES, QueryState, StateFolder, clear, dead_letters, lag_of, misplaced

SHOWN = 5
INTERRUPTED = 130


def arguments() -> argparse.ArgumentParser:
    """The command's arguments; the `slipstream` command hangs them below `pipeline`."""
    parser = argparse.ArgumentParser(
        prog="slipstream pipeline", description="Run a pipeline: streams in, SQL, views, streams and tables out."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run it until it is stopped, or once")
    kind = run.add_mutually_exclusive_group()
    kind.add_argument("--once", action="store_true", help="stop when everything that is there now is done")
    kind.add_argument("--continuous", action="store_true", help="go on until stopped (the default)")
    run.add_argument("--master", default="", help="Spark's master, such as spark://host:7077")
    run.add_argument("--plain", action="store_true", help="lines instead of a live table")
    validate = commands.add_parser("validate", help="look for mistakes, without starting anything")
    status = commands.add_parser("status", help="how far each output has come")
    status.add_argument("--json", action="store_true", help="as JSON")
    reset = commands.add_parser("reset", help="forget how far it has come, so that it starts from the beginning")
    reset.add_argument("--output", action="append", default=[], help="only this output; may be repeated")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    for command in (run, validate, status, reset):
        command.add_argument("file", help="the pipeline's TOML file")
    for command in (run, status):
        command.add_argument("--servers", default="", help="addresses of NATS servers, instead of the file's")
    return parser


def main(argv: Sequence[str] | None = None, *, debug: bool = False) -> int:
    """Run the command; gives the exit code, which means what it does for every `slipstream` command. With `debug` an
    error is raised instead of told."""
    given = arguments().parse_args(argv)
    try:
        pipeline = load(given.file)
        command = {"run": _run, "validate": _validate, "status": _status, "reset": _reset}[given.command]
        return command(pipeline, given)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Error, OSError) as error:
        if debug:
            raise
        print(f"error: {error}" if given.command != "validate" else str(error), file=sys.stderr)
        return exit_code(error)


def exit_code(error: Error | OSError) -> int:
    """2 for a mistake in the file or the arguments, 3 for what is not there, 4 for no connection, 5 for no answer."""
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, StreamNotFoundError | BucketNotFoundError):
        return 3
    if isinstance(error, ConnectionLostError | AuthorizationError):
        return 4
    return 5 if isinstance(error, RequestTimeoutError | NoRespondersError) else 1


def load(file: str) -> Pipeline:
    """The pipeline in a file."""
    path = Path(file)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    return parse(text, file=file, name=path.stem, check=misplaced)


def _validate(pipeline: Pipeline, given: argparse.Namespace) -> int:
    counts = (len(pipeline.sources), len(pipeline.steps), len(pipeline.outputs))
    print(f"{given.file}: {counts[0]} sources, {counts[1]} steps, {counts[2]} outputs, no mistakes found")
    return 0


def _run(pipeline: Pipeline, given: argparse.Namespace) -> int:
    runner = Runner(pipeline, once=given.once, master=given.master, given_servers=given.servers, plain=given.plain)
    stop_on_signals(runner)
    states = runner.run()
    total = sum(state.rows for state in states.values())
    print(f"{total:,} rows in {runner.seconds:.1f} s")
    return 0


def _status(pipeline: Pipeline, given: argparse.Namespace) -> int:
    found = status_of(pipeline, given.servers)
    if given.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"pipeline {pipeline.name}: {'running as process ' + str(found['pid']) if found['pid'] else 'not running'}")
    width = max((len(name) for name in found["outputs"]), default=6)
    print(f"{'output':<{width}}  {'batch':>7}  {'rows':>12}  {'behind':>12}  last batch at")
    for name, one in found["outputs"].items():
        behind = "-" if one["lag"] is None else f"{one['lag']:,}"
        print(f"{name:<{width}}  {one['batch']:>7}  {one['rows']:>12,}  {behind:>12}  {one['at'] or '-'}")
        if one["error"]:
            print(f"{'':<{width}}  last failure: {one['error']}")
    return 0


def status_of(pipeline: Pipeline, given_servers: str = "") -> dict[str, Any]:
    """How far each output has come: the last batch, rows, and how many messages its sources are ahead."""
    state = StateFolder(pipeline)
    pid, url, queries = state.read_run()
    last: dict[str, int] = {}
    # The embedded server of a run is that run's; without a run its data can be opened here.
    with servers(pipeline, state, given_servers or (url if pid else "")) as connection, jetstream(connection) as js:
        last = last_sequences(js, pipeline)
    known: dict[str, Any] = {}
    for name in (*(one.name for one in pipeline.outputs), *dead_letters(pipeline)):
        batch, offsets = state.committed(name)
        seen = queries.get(name, QueryState())
        read = sum(offset.get("seq", 0) for offset in offsets)
        lag = lag_of(pipeline, name, offsets, last)
        known[name] = {
            "batch": batch, "rows": seen.rows, "at": seen.at, "lag": lag, "read": read, "error": seen.error,
        }  # fmt: skip
    return {"pipeline": pipeline.name, "pid": pid, "sources": last, "outputs": known}


def _reset(pipeline: Pipeline, given: argparse.Namespace) -> int:
    state = StateFolder(pipeline)
    what = f"the pipeline {pipeline.name!r}"
    with state.lock.held(what):  # before anything is asked
        pass
    outputs = [one for one in pipeline.outputs if not given.output or one.name in given.output]
    unknown = set(given.output) - {one.name for one in outputs}
    if unknown:
        raise UsageError(f"there is no output {sorted(unknown)[0]!r}: {', '.join(o.name for o in pipeline.outputs)}")
    paths = [path for one in outputs if (path := state.path_of(one)) is not None]
    names = [one.name for one in outputs]
    if not given.output:
        names += dead_letters(pipeline)  # and those of earlier, from before the file said otherwise
        names += [name for name in state.dead_letters() if name not in names]
    print("the next run starts from the beginning of the sources, for " + ", ".join(names))
    for path in paths:  # Spark notes in them which batches they have, and would leave those out
        if isinstance(path, Path):
            print(f"removes the files that it has written in {path}")
        else:
            print(f"does not reach {path}: remove {NOTES} and the files there, or the next run leaves them out")
    for one in outputs:
        if one.kind == "table" and state.path_of(one) is None:
            print(f"does not reach the table {one.target}, which keeps its rows")
    if any(one.kind == "stream" for one in outputs):
        print("messages in output streams stay, and are published again")
    if not given.yes and not _confirmed():
        print("nothing was changed")
        return 1
    with state.lock.held(what):
        state.reset(names)
        for path in paths:
            if isinstance(path, Path) and (left := clear(path).left):
                print(f"leaves what it has not written in {path}: {_some(left)}")
    return 0


def _some(paths: tuple[Path, ...]) -> str:
    names = ", ".join(path.name for path in paths[:SHOWN])
    return names if len(paths) <= SHOWN else f"{names} and {len(paths) - SHOWN} more"


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        print("say --yes to do it")
        return False
    return input("go on? [y/N] ").strip().lower() in ("y", "yes")
