"""`slipstream pipeline …`: run, check, watch and reset a pipeline on Spark.

Only arguments and output are here. What the commands do is in `slipstream.spark.pipelines`, which is imported when a
command runs, so that `slipstream --help` stays light. `python -m slipstream.spark.pipelines` is the same command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.exit_codes import FAILED, USAGE
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.cli.common import Commands, Shell
    from slipstream.spark.pipelines import Pipeline
    from slipstream.spark.pipelines.runner import Runner

NAME = "pipeline"
_ADDRESS = ("-s", "--server", "--servers")
_VERBOSE = "show what Spark, its JVM and its Python workers print"
_JSON = ("run", "status", "test", "dead", "backfill")
_SPARK = ("pyspark", "pyarrow", "pandas")
# What may be in the namespace. Anything else is a connection option before the word `pipeline`.
_KNOWN = frozenset(
    (
        *("command", "pipeline_command", "run", "server", "json", "debug"),
        *("file", "once", "continuous", "master", "plain", "output", "yes", "deep", "verbose", "console"),
        *(
            "stream",
            "sample",
            "style",
            "step",
            "starting",
            "limit",
            "case",
            "cases",
            "update",
            "source",
            "reason",
            "of",
            "resend",
            "metrics",
            "ending",
            "avro",
            "descriptor",
            "message",
            "files",
        ),
    )
)


def add(commands: Commands) -> None:
    """Declare the commands."""
    text = "run, check and watch a pipeline: one file of sources, SQL and outputs, on Spark"
    shared = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    group = commands.group(NAME, text, shared=shared, is_required=False)
    run = group.add("run", _run, "run it until it is stopped, or once")
    kind = run.add_mutually_exclusive_group()
    kind.add_argument("--once", action="store_true", help="process everything available now, then exit")
    kind.add_argument("--continuous", action="store_true", help="run until stopped (default)")
    run.add_argument("--master", default="", help="Spark master URL, such as spark://host:7077")
    text = "print the result of each output as JSON at the end, and progress on stderr"
    run.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=text)
    run.add_argument("--plain", action="store_true", help="print lines instead of a live table")
    text = "serve metrics for Prometheus: a port, or host:port"
    run.add_argument("--metrics", default="", metavar="ADDRESS", help=text)
    run.add_argument("--verbose", action="store_true", help=_VERBOSE)
    run.add_argument("--console", action="store_true", help="also serve the web console, and print its address")
    validate = group.add("validate", _validate, "check the file, and the streams if a server is reachable")
    validate.add_argument(
        "--deep", action="store_true", help="also check SQL, columns and types, on Spark, without data"
    )
    validate.add_argument("--verbose", action="store_true", help=_VERBOSE)
    status = group.add("status", _status, "show the progress of each output")
    status.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    reset = group.add("reset", _reset, "discard the progress, so that the next run starts from the beginning")
    reset.add_argument("--output", action="append", default=[], help="only this output; may be repeated")
    reset.add_argument("--yes", action="store_true", help="skip the confirmation")
    new = group.add("new", _new, "write a first pipeline file from a sample of a stream")
    new.add_argument("--stream", required=True, help="the stream to sample")
    new.add_argument("--sample", type=int, default=1_000, metavar="N", help="messages to sample (default: 1000)")
    new.add_argument("--avro", default="", metavar="FILE", help="messages are Avro records of the schema in this file")
    text = "messages are Protobuf, defined in this file, which `protoc --include_imports --descriptor_set_out` writes"
    new.add_argument("--descriptor", default="", metavar="FILE", help=text)
    new.add_argument("--message", default="", metavar="TYPE", help="the message type in --descriptor: shop.Order")
    new.add_argument("file", nargs="?", default="", help="the file to write (default: standard output)")
    explain = group.add("explain", _explain, "draw sources, steps and outputs, with the columns between them")
    explain.add_argument("--style", choices=("text", "mermaid", "html"), default="text", help="(default: text)")
    preview = group.add("preview", _preview, "show rows of a source or step, without writing anything")
    preview.add_argument(
        "--step", default="", metavar="NAME", help="a source or step (default: that of the first output)"
    )
    text = "first, last (default), a sequence, or a time such as 2026-01-31T12:00:00Z"
    preview.add_argument("--from", dest="starting", default="last", metavar="WHERE", help=text)
    preview.add_argument("--limit", type=int, default=20, metavar="N", help="rows to show (default: 20)")
    preview.add_argument("--verbose", action="store_true", help=_VERBOSE)
    test = group.add("test", _test, "run it on recorded input and compare the output")
    test.add_argument("--case", action="append", default=[], metavar="NAME", help="only this case; may be repeated")
    test.add_argument("--update", action="store_true", help="save the actual output as the expected output")
    test.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    test.add_argument("--verbose", action="store_true", help=_VERBOSE)
    record = group.add("record", _record, "create the input of a test case from live streams")
    record.add_argument("--case", required=True, metavar="NAME", help="name of the case to create")
    record.add_argument("--source", action="append", default=[], metavar="NAME", help="only this source")
    record.add_argument("--from", dest="starting", default="last", metavar="WHERE", help=text)
    record.add_argument("--limit", type=int, default=100, metavar="N", help="messages of each source (default: 100)")
    for parser in (test, record):
        where = "folder of the cases (default: FILE without .toml, with -tests)"
        parser.add_argument("--cases", default="", metavar="FOLDER", help=where)
    dead = group.add("dead", _dead, "list the dead letters by reason and column, or send them again after a fix")
    dead.add_argument("--of", default="", metavar="NAME", help="only letters of this source or output")
    dead.add_argument("--reason", default="", metavar="TEXT", help="only letters whose reason contains this text")
    dead.add_argument(
        "--resend", action="store_true", help="send the messages of sources again, and remove the letters"
    )
    dead.add_argument("--yes", action="store_true", help="skip the confirmation")
    dead.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    backfill = group.add("backfill", _backfill, "repair the outputs for a range of messages")
    text = "first message: a sequence, or a time such as 2026-01-31T12:00:00Z"
    backfill.add_argument("--from", dest="starting", required=True, metavar="WHERE", help=text)
    text = "last message: a sequence (included) or a time (not included); default: what the output has read"
    backfill.add_argument("--to", dest="ending", default="", metavar="WHERE", help=text)
    backfill.add_argument("--output", action="append", default=[], help="only this output; may be repeated")
    backfill.add_argument("--master", default="", help="Spark master URL, such as spark://host:7077")
    backfill.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    backfill.add_argument("--verbose", action="store_true", help=_VERBOSE)
    group.add("warm", _warm, "create an archive of the JVM's classes that halves the start of Spark")
    text = "the pipeline's TOML file; several run together, on one Spark"
    run.add_argument("files", nargs="+", metavar="file", help=text)
    for parser in (validate, status, reset, explain, preview, test, record, dead, backfill):
        parser.add_argument("file", help="the pipeline's TOML file")
    for parser in (run, validate, status, reset, new, preview, record, dead, backfill):
        text = "NATS servers, instead of those in the file"
        parser.add_argument(*_ADDRESS, dest="server", metavar="URL", default=argparse.SUPPRESS, help=text)


def _load(options: argparse.Namespace) -> Pipeline:
    """The pipeline in the file."""
    _check_options(options)
    from slipstream.spark.pipelines import load

    return load(options.file)


def _check_options(options: argparse.Namespace) -> None:
    """Reject options before the word `pipeline` that do not apply, which are most."""
    if other := sorted(vars(options).keys() - _KNOWN):
        raise UsageError(
            f"--{other[0].replace('_', '-')} does not apply to pipelines, whose file has [connection]; "
            "-s, --json and --debug do"
        )
    if hasattr(options, "json") and options.pipeline_command not in _JSON:
        raise UsageError(f"--json applies to pipeline {', '.join(_JSON[:-1])} and {_JSON[-1]} only")


def _run(shell: Shell) -> None:
    options = shell.options
    if len(options.files) > 1:
        return _run_together(options)
    (options.file,) = options.files
    pipeline = _load(options)
    from slipstream.spark.pipelines.runner import Runner, stop_on_signals

    servers = getattr(options, "server", "")
    runner = Runner(
        pipeline,
        once=options.once,
        master=options.master,
        servers=servers,
        out=sys.stderr if hasattr(options, "json") else sys.stdout,
        plain=options.plain or hasattr(options, "json"),
        verbose=options.verbose,
        metrics=options.metrics,
    )
    _check_spark()
    stop_on_signals(runner)
    with _console(options, servers):
        return _run_to_the_end(options, runner)


def _run_together(options: argparse.Namespace) -> None:
    """Run several pipelines in this process."""
    for name in ("console", "metrics"):
        if getattr(options, name):
            raise UsageError(f"--{name} applies to one pipeline, got {len(options.files)} files")
    _check_options(options)
    from slipstream.spark.pipelines import load
    from slipstream.spark.pipelines.runner import stop_on_signals
    from slipstream.spark.pipelines.together import PipelineGroup

    is_json = hasattr(options, "json")
    group = PipelineGroup(
        [load(file) for file in options.files],
        once=options.once,
        out=sys.stderr if is_json else sys.stdout,
        master=options.master,
        servers=getattr(options, "server", ""),
        verbose=options.verbose,
    )
    _check_spark()
    stop_on_signals(group)
    try:
        group.run()
    finally:
        if is_json:
            print(json.dumps(group.result(), indent=1))
    if not is_json:
        rows = sum(one.rows_read for one in group.runners.values())
        print(f"{rows:,} rows read by {len(group.runners)} pipelines in {group.seconds:.1f} s")


@contextmanager
def _console(options: argparse.Namespace, servers: str) -> Iterator[None]:
    """The console of a run, if it is asked for: read-only, and connected once the run has a server."""
    if not options.console:
        yield
        return
    from slipstream.cli.observe.console import open_site
    from slipstream.console.pipeline_file import connection_of

    site = open_site(
        find=partial(connection_of, options.file, servers), pipelines=[options.file], pipeline_servers=servers
    )
    with site.in_background():
        print(f"console: {site.address}", file=sys.stderr if hasattr(options, "json") else sys.stdout, flush=True)
        yield


def _run_to_the_end(options: argparse.Namespace, runner: Runner) -> None:
    if hasattr(options, "json"):
        try:
            runner.run()
        finally:  # also if an output failed, whose error follows
            print(json.dumps(runner.result(), indent=1))
        return
    states = runner.run()
    outputs = "output" if len(states) == 1 else "outputs"
    each = " (a message counts once for each read)" if len(states) > 1 else ""
    print(f"{runner.rows_read:,} rows read for {len(states)} {outputs} in {runner.seconds:.1f} s{each}")


def _check_spark() -> None:
    """Raise before anything is created on a server if Spark cannot start: its packages or Java are missing."""
    if any(find_spec(package) is None for package in _SPARK):
        raise UsageError("pipelines need Spark: pip install 'slipstream-jetstream[spark]' (and Java 17 or newer)")
    from slipstream.spark.pipelines.spark_session import find_java

    find_java()


def _say_that_spark_starts() -> None:
    """Tell who waits at a terminal for the first line of a command what it waits for."""
    if sys.stderr.isatty():
        print("starting Spark", file=sys.stderr, flush=True)


def _validate(shell: Shell) -> int:
    from slipstream.spark.pipelines import PipelineError

    options = shell.options
    try:
        _check_options(options)
        if options.deep:
            _check_spark()
            _say_that_spark_starts()
        from slipstream.spark.pipelines.checks.validate import validate_file

        servers = getattr(options, "server", "")
        result = validate_file(options.file, servers=servers, deep=options.deep, verbose=options.verbose)
    except PipelineError as error:
        if getattr(options, "debug", False):
            raise
        print(error, file=sys.stderr)  # as compilers do, without our name in front: editors read these lines
        return USAGE
    for warning in result.warnings:
        print(warning, file=sys.stderr)
    pipeline = result.pipeline
    parts = {"source": pipeline.sources, "step": pipeline.steps, "output": pipeline.outputs}
    if pipeline.tables:
        parts["lookup table"] = pipeline.tables
    counts = ", ".join(f"{len(found)} {name}{'' if len(found) == 1 else 's'}" for name, found in parts.items())
    unchecked = f"; not checked: {', '.join(result.unchecked)}" if result.unchecked else ""
    print(f"{options.file} is valid: {counts}{unchecked}")
    return 0


def _status(shell: Shell) -> None:
    pipeline = _load(shell.options)
    from slipstream.spark.pipelines.status import status_of

    status = status_of(pipeline, getattr(shell.options, "server", ""))
    if getattr(shell.options, "json", False):
        print(json.dumps(status, indent=1))
        return
    outputs = status["outputs"]
    since = f", last seen at {status['at']}" if status["at"] and not status["pid"] else ""
    running = f"running as process {status['pid']}" if status["pid"] else f"not running{since}"
    print(f"pipeline {pipeline.name}: {running}")
    if status["away"]:
        rest = f"the rest is as of {status['at']}" if status["at"] else "no run has recorded anything yet"
        print(f"no lag: {status['away']}; {rest}")
    width = max(map(len, ("output", *outputs)))
    print(f"{'output':<{width}}  {'batch':>7}  {'rows':>12}  {'behind':>12}  last batch at")
    for name, one in outputs.items():
        behind = "-" if one["lag"] is None else f"{one['lag']:,}"
        batch = one["batch"] if one["batch"] >= 0 else "-"
        print(f"{name:<{width}}  {batch:>7}  {one['rows']:>12,}  {behind:>12}  {one['at'] or '-'}")
        if one["error"]:
            print(f"{'':<{width}}  last failure: {one['error']}")


def _new(shell: Shell) -> None:
    options = shell.options
    _check_options(options)
    from slipstream.spark.pipelines.connection import last_messages, open_connection
    from slipstream.spark.pipelines.workbench.sample import infer, infer_avro, infer_protobuf, pipeline_text

    if bool(options.descriptor) != bool(options.message):
        raise UsageError("--descriptor and --message go together: the file, and the type in it such as shop.Order")
    if options.avro and options.descriptor:
        raise UsageError("--avro and --descriptor are mutually exclusive")
    schema, descriptors = _read(options.avro).decode(errors="replace"), _read(options.descriptor)
    servers = getattr(options, "server", "")
    with open_connection({"servers": servers} if servers else {}) as js:
        messages = last_messages(js, options.stream, options.sample)
    if options.avro:
        sample = infer_avro(messages, schema)
    elif options.descriptor:
        beside = os.path.relpath(options.descriptor, Path(options.file).parent)
        sample = infer_protobuf(messages, descriptors, beside, options.message)
    else:
        sample = infer(messages)
    text = pipeline_text(options.stream, sample, servers)
    if not options.file:
        print(text, end="")
        return
    try:
        with Path(options.file).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{options.file} already exists; choose another file name") from error
    print(f"wrote {options.file}, from {len(messages)} messages of stream {options.stream}")


def _read(path: str) -> bytes:
    """The content of a file that an option names, if it does."""
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def _explain(shell: Shell) -> None:
    pipeline = _load(shell.options)
    from slipstream.spark.pipelines.workbench.explain import explain

    print(explain(pipeline, shell.options.style))


def _warm(shell: Shell) -> None:
    _check_options(shell.options)
    _check_spark()
    from slipstream.spark.pipelines.workbench.warm import warm

    path = warm()
    print(f"wrote {path}, {path.stat().st_size / 1e6:.0f} MB; pipelines use it from now on")


def _preview(shell: Shell) -> None:
    options = shell.options
    pipeline = _load(options)
    _check_spark()
    from slipstream.spark.pipelines.workbench.preview import preview

    _say_that_spark_starts()
    found = preview(
        pipeline,
        view=options.step,
        starting=options.starting,
        limit=options.limit,
        servers=getattr(options, "server", ""),
        verbose=options.verbose,
    )
    _print_rows(found.columns, found.rows)
    print(f"({len(found.rows)} rows, from {' and '.join(found.read)})")


def _backfill(shell: Shell) -> None:
    options = shell.options
    pipeline = _load(options)
    _check_spark()
    from slipstream.spark.pipelines.workbench.backfill import backfill

    _say_that_spark_starts()
    is_json = hasattr(options, "json")
    found = backfill(
        pipeline,
        starting=options.starting,
        ending=options.ending,
        outputs=options.output,
        servers=getattr(options, "server", ""),
        master=options.master,
        verbose=options.verbose,
        say=lambda line: print(line, file=sys.stderr if is_json else sys.stdout, flush=True),
    )
    if is_json:
        print(json.dumps([one._asdict() for one in found], indent=1))
        return
    for one in found:
        print(f"{one.output}: {one.rows:,} rows, {one.written:,} written; the others were right already")


def _test(shell: Shell) -> int:
    options = shell.options
    _check_options(options)
    _check_spark()
    from slipstream.spark.pipelines.workbench.cases import pipeline_cases, run_cases

    cases = pipeline_cases(options.file, options.cases, options.case)
    _say_that_spark_starts()
    failed = 0
    found = []
    for case, result in run_cases(cases, verbose=options.verbose, update=options.update):
        failed += bool(result.differences)
        found.append(result.as_json(case.name))
        if hasattr(options, "json"):
            continue
        outcome = "updated" if options.update else "FAILED" if result.differences else "ok"
        print(f"{case.name}: {outcome} ({result.summary()})", flush=True)
        for line in result.lines():
            print(line)
    if hasattr(options, "json"):
        print(json.dumps(found, indent=1))
    else:
        print(f"{len(cases)} case{'s' if len(cases) > 1 else ''}, {failed} failed")
    return FAILED if failed else 0


def _record(shell: Shell) -> None:
    options = shell.options
    pipeline = _load(options)
    from slipstream.spark.pipelines.connection import running_server
    from slipstream.spark.pipelines.workbench.recording import record

    with running_server(pipeline, getattr(options, "server", "")) as js:
        found = record(
            js,
            pipeline,
            options.case,
            sources=options.source,
            starting=options.starting,
            limit=options.limit,
            folder=options.cases,
        )
    for path, count in found.items():
        print(f"wrote {path}, {count} messages")
    print(
        f"now: slipstream pipeline test {options.file} --case {options.case} --update, and review the expected output"
    )


def _dead(shell: Shell) -> int:
    options = shell.options
    pipeline = _load(options)
    from slipstream.spark.pipelines.connection import running_server
    from slipstream.spark.pipelines.workbench.dead_letters import groups_of, letters_of, resend

    with running_server(pipeline, getattr(options, "server", "")) as js:
        letters = list(letters_of(js, pipeline, origin=options.of, reason=options.reason))
        groups = groups_of(letters)
        if hasattr(options, "json"):
            print(json.dumps([one._asdict() for one in groups], indent=1))
        else:
            print(f"{len(letters):,} dead letters in stream {pipeline.dead_letter}")
            head = ("letters", "of", "reason", "column", "last at", "such as")
            rows = [
                (f"{one.letters:,}", one.origin, one.reason, one.columns or "-", one.last, one.example)
                for one in groups
            ]
            _print_letters([head, *rows] if rows else [])
        if not options.resend:
            return 0
        chosen = [one for one in letters if not one.is_row]
        if not chosen:
            print("none of them is a message of a source, so there is nothing to send again")
            return 0
        print(f"sends {len(chosen):,} messages to the streams they came from again, and removes their letters")
        if not options.yes and not _confirmed():
            print("nothing was changed")
            return FAILED
        done = resend(js, pipeline, chosen)
    newer = f", {done['replaced']:,} were of keys that have a newer value" if done["replaced"] else ""
    print(f"{done['sent']:,} sent again{newer}")
    return 0


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    for line in _table_lines(rows):
        print(line)


def _table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{value:<{width}}" for value, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _is_too_wide(lines: Sequence[str]) -> bool:
    """Whether lines do not fit the terminal that they are printed on."""
    return sys.stdout.isatty() and max(map(len, lines), default=0) > shutil.get_terminal_size().columns


def _print_letters(rows: Sequence[Sequence[str]]) -> None:
    """A table, whose last column has lines of its own if the terminal is too narrow."""
    lines = _table_lines(rows)
    if not _is_too_wide(lines):
        _print_table(rows)
        return
    indent = " " * (max(len(row[0]) for row in rows) + 2)
    for line, row in zip(_table_lines([row[:-1] for row in rows]), rows, strict=True):
        print(line)
        if row is not rows[0]:
            print(f"{indent}{rows[0][-1]} {row[-1]}")


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, or if the terminal is too narrow, a line for each column of each row."""
    if not _is_too_wide(_table_lines([columns, *rows])):
        _print_table([columns, *rows])
        return
    width = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        print(f"-- row {number} --")
        for name, value in zip(columns, row, strict=True):
            print(f"{name:<{width}}  {value}".rstrip())


def _reset(shell: Shell) -> int:
    pipeline = _load(shell.options)
    from slipstream.spark.pipelines.reset import Reset

    reset = Reset(pipeline, shell.options.output, getattr(shell.options, "server", ""))
    for line in reset.description():
        print(line)
    if not shell.options.yes and not _confirmed():
        print("nothing was changed")
        return FAILED
    for line in reset.apply():
        print(line)
    return 0


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        print("stdin is not a terminal; pass --yes to skip the confirmation")
        return False
    return input("continue? [y/N] ").strip().lower() in ("y", "yes")
