"""A TOML file becomes a checked pipeline: sources, SQL steps and outputs; every mistake is told with its place.

Pure: nothing is connected to and Spark is not started. All mistakes of a file are found at once, not one per run.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, get_args

from slipstream.errors import UsageError
from slipstream.jetstream.requests import check_name
from slipstream.kv.bucket import MAX_HISTORY, check_bucket
from slipstream.kv.keys import check_pattern
from slipstream.spark.options import kv_stream_options, stream_options
from slipstream.spark.pipelines.avro import spark_schema
from slipstream.spark.pipelines.sql_tables import mentioned
from slipstream.spark.pipelines.toml_positions import TomlPosition, TomlPositions
from slipstream.wire import check_filter

FORMATS = ("json", "csv", "avro", "raw")
MODES = ("append", "update", "complete")
MOST_AGE = 2**63 // 10**9  # a time is sent as nanoseconds
META_COLUMNS = ("_subject", "_sequence", "_timestamp", "_headers")
_MASTER = re.compile(r"local(\[\s*(\d+|\*)\s*(,\s*\d+\s*)?\])?|local-cluster\[[\s\d,]+\]|yarn|(spark|k8s)://\S+")
_TARGETS = ("bucket", "stream", "path", "table")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL = re.compile(r"\d{1,9} (?:milliseconds?|seconds?|minutes?|hours?)")
_SYNTAX_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
DEAD = "dead-"  # and the name of a source: the query for what of it cannot be decoded
DEFAULT_MASTER = "local[*]"
FIRST = TomlPosition(1, 1)


class Mistake(NamedTuple):
    """What is wrong, and where."""

    place: TomlPosition
    text: str


class PipelineError(UsageError):
    """A pipeline file with mistakes; the message has a line for each: file, line, column, text."""

    def __init__(self, file: str, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes))
        super().__init__("\n".join(f"{file}:{place.line}:{place.column}: {text}" for place, text in self.mistakes))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A stream to make if it is not there."""

    name: str
    subjects: tuple[str, ...]
    replicas: int = 1
    max_age_seconds: float = 0.0
    batched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpec:
    """A bucket to make if it is not there."""

    name: str
    history: int = 1
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Messages or changes to read, and how to make columns of their bytes."""

    name: str
    place: TomlPosition = FIRST
    stream: str = ""
    bucket: str = ""
    format: str = "raw"
    schema: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    parse: Mapping[str, str] = field(default_factory=dict)
    watermark: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A view made by SQL of sources and earlier steps."""

    name: str
    sql: str
    place: TomlPosition = FIRST
    watermark: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where the rows of a source or step go."""

    name: str
    place: TomlPosition = FIRST
    view: str
    kind: str  # bucket, stream, files or table
    target: str
    mode: str
    format: str = "parquet"
    key: tuple[str, ...] = ()
    value: str = ""
    deleted: str = ""
    subject: str = ""
    only_changed: bool = False
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A whole file."""

    name: str
    file: str
    state: str = ""
    trigger: str = "1 second"
    dead_letter: str = ""
    connection: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    master: str = DEFAULT_MASTER
    conf: Mapping[str, str] = field(default_factory=dict)
    streams: tuple[StreamSpec, ...] = ()
    buckets: tuple[BucketSpec, ...] = ()
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    outputs: tuple[Output, ...] = ()


Check = Callable[[Pipeline], Iterable[tuple[tuple[str, ...], str]]]


def parse(text: str, *, file: str = "pipeline.toml", name: str = "", check: Check | None = None) -> Pipeline:
    """The pipeline in a text; raises PipelineError with every mistake. `check` finds those that are none without the
    world around the file, by their keys."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _SYNTAX_PLACE.search(str(error))
        lines = text.count("\n") + 1
        place = TomlPosition(int(found[1]), int(found[2])) if found and found[1] else TomlPosition(lines, 1)
        raise PipelineError(file, [Mistake(place, _SYNTAX_PLACE.sub("", str(error)))]) from error
    reader = _Reader(data, TomlPositions(text))
    pipeline = reader.pipeline(file, name)
    for path, said in check(pipeline) if check else ():
        reader.wrong(path, said)
    if reader.mistakes:
        raise PipelineError(file, reader.mistakes)
    return pipeline


class _Table:
    """One table of the file; what is asked of it is checked, and what nobody asked for is a mistake."""

    def __init__(self, reader: _Reader, path: tuple[str, ...], data: Mapping[str, Any]) -> None:
        self._reader = reader
        self.path = path
        self._data = data
        self._asked: list[str] = []
        self._bad: set[str] = set()

    def get(self, name: str, kind: Any, default: Any, *, what: str) -> Any:
        """The value of a key, if it is of this kind."""
        self._asked.append(name)
        value = self._data.get(name, default)
        is_refused = isinstance(value, bool) and bool not in (kind, *get_args(kind))  # for Python it is a number
        if name in self._data and (is_refused or not isinstance(value, kind)):
            self.wrong(name, f"{name} is {value!r}: {what} is allowed")
            return default
        return value

    def text(self, name: str, default: str = "", *, needed: bool = False) -> str:
        value: str = self.get(name, str, default, what="a text")
        if needed and name not in self._data:
            self.wrong("", f"[{'.'.join(self.path)}] needs {name}")
        elif name in self._data and not self.is_bad(name) and not value.strip():
            self.wrong(name, f"{name} is empty")
        return value.strip() or default

    def texts(self, name: str) -> tuple[str, ...]:
        """A text, or a list of them."""
        self._asked.append(name)
        value = self._data.get(name, [])
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) and one.strip() for one in found):
            self.wrong(name, f"{name} is {value!r}: a text or a list of texts is allowed")
            return ()
        return tuple(found)

    def flag(self, name: str) -> bool:
        return bool(self.get(name, bool, False, what="true or false"))

    def whole(self, name: str, default: int, *, least: int = 1, most: int = 2**31) -> int:
        value: int = self.get(name, int, default, what="a whole number")
        if not least <= value <= most:
            self.wrong(name, f"{name} is {value}: {least} to {most} is allowed")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in allowed:
            self.wrong(name, f"{name} is {value!r}: {', '.join(allowed)} are allowed")
        return value

    def table(self, name: str) -> _Table:
        data = self.get(name, dict, {}, what="a table")
        return _Table(self._reader, (*self.path, name), data)

    def tables(self, name: str) -> list[tuple[str, _Table]]:
        """Named tables below a key: `[sources.orders]`."""
        found = []
        for key, value in self.get(name, dict, {}, what=f"tables such as [{name}.x]").items():
            path = (*self.path, name, key)
            if isinstance(value, dict):
                found.append((key, _Table(self._reader, path, value)))
            else:
                self._bad.add(name)
                self._reader.wrong(path, f"{key} is {value!r}: a table [{name}.{key}] is allowed")
        return found

    def strings(self) -> dict[str, str]:
        """Every key as a text, for options of others."""
        self._asked += self._data
        found = {}
        for key, value in self._data.items():
            if isinstance(value, bool):
                found[key] = str(value).lower()
            elif isinstance(value, str | int | float):
                found[key] = str(value)
            else:
                self.wrong(key, f"{key} is {value!r}: a text, a number or true or false is allowed")
        return found

    def has(self, name: str) -> bool:
        return name in self._data

    def checked(self, name: str, check: Callable[[str], str], *, needed: bool = False) -> str:
        value = self.text(name, needed=needed)
        if value:
            self.attempt(name, lambda: check(value))
        return value

    def attempt(self, name: str, check: Callable[[], object]) -> None:
        try:
            check()
        except UsageError as error:
            self.wrong(name, str(error))

    def is_bad(self, *names: str) -> bool:
        """Whether a mistake was found in one of these: what follows from it is no other one."""
        return not self._bad.isdisjoint(names)

    def wrong(self, name: str, text: str) -> None:
        self._bad.add(name)
        self._reader.wrong((*self.path, name) if name else self.path, text)

    def close(self) -> None:
        """Whatever was not asked for is not known."""
        for name in self._data:
            if name not in self._asked:
                near = difflib.get_close_matches(name, self._asked, 1)
                hint = f", did you mean {near[0]}?" if near else f"; allowed are {', '.join(sorted(self._asked))}"
                self.wrong(name, f"{name} is not known here{hint}")


class _Reader:
    """Walks through the tables and gathers mistakes."""

    def __init__(self, data: Mapping[str, Any], places: TomlPositions) -> None:
        self._root = _Table(self, (), data)
        self._places = places
        self.mistakes: list[Mistake] = []

    def wrong(self, path: tuple[str, ...], text: str) -> None:
        self.mistakes.append(Mistake(self._places[path], text))

    def pipeline(self, file: str, name: str) -> Pipeline:
        root = self._root
        head = root.table("pipeline")
        spark = root.table("spark")
        connection = self._connection(root.table("connection"))
        server = self._server(root.table("server"))
        if connection.get("servers") and root.has("server"):
            self.wrong(("server",), "[server] starts an embedded server, [connection] names others: one is allowed")
        found = Pipeline(
            name=self._pipeline_name(head, name),
            file=file,
            state=head.text("state"),
            trigger=self._trigger(head),
            dead_letter=head.checked("dead_letter", check_name),
            connection=connection,
            server=server,
            master=spark.checked("master", check_master) or DEFAULT_MASTER,
            conf=spark.table("conf").strings(),
            streams=tuple(self._stream(*one) for one in root.tables("streams")),
            buckets=tuple(self._bucket(*one) for one in root.tables("buckets")),
            sources=tuple(self._source(*one) for one in root.tables("sources")),
            steps=tuple(self._step(*one) for one in root.tables("steps")),
            outputs=(),
        )
        views = [*(one.name for one in found.sources), *(one.name for one in found.steps)]
        outputs = tuple(self._output(*one, views) for one in root.tables("outputs"))
        self._check_dead(found.sources, outputs)
        for table in (head, spark, root):
            table.close()
        if not found.sources and not root.is_bad("sources"):
            self.wrong((), "there is no source: at least one table [sources.x] is needed")
        if not outputs and not root.is_bad("outputs"):
            self.wrong((), "there is no output: at least one table [outputs.x] is needed")
        self._check_names(found.sources, found.steps)
        steps = self._ordered(found.steps, [one.name for one in found.sources])
        return _with(found, steps=steps, outputs=outputs)

    def _trigger(self, head: _Table) -> str:
        trigger = head.text("trigger", "1 second")
        if not _INTERVAL.fullmatch(trigger):
            head.wrong("trigger", f"trigger is {trigger!r}: a time such as '500 milliseconds' or '1 minute' is allowed")
        return trigger

    def _pipeline_name(self, head: _Table, default: str) -> str:
        name = head.text("name", default or "pipeline")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            head.wrong("name", f"name is {name!r}: letters, digits, '_' and '-' are allowed")
        return name

    def _connection(self, table: _Table) -> dict[str, str]:
        found = {}
        servers = table.texts("servers")
        if servers:
            found["servers"] = ",".join(servers)
        for key, option in (
            ("context", "context"),
            ("credentials", "credentials"),
            ("api_prefix", "apiPrefix"),
            ("domain", "domain"),
        ):
            if value := table.text(key):
                found[option] = value
        if table.has("timeout"):
            found["timeout"] = str(table.get("timeout", int | float, 10, what="seconds"))
        table.attempt("", lambda: stream_options({"stream": "x", **found}))
        table.close()
        return found

    def _server(self, table: _Table) -> dict[str, Any]:
        found = {"data": table.text("data"), "port": table.whole("port", 0, least=0, most=65535)}
        table.close()
        return found

    def _stream(self, name: str, table: _Table) -> StreamSpec:
        table.attempt("", lambda: check_name(name))
        subjects = table.texts("subjects")
        if not subjects and not table.is_bad("subjects"):
            table.wrong("subjects", f"[streams.{name}] needs subjects")
        for one in subjects:
            table.attempt("subjects", partial(check_filter, one))
        age = table.get("max_age_seconds", int | float, 0.0, what="seconds")
        if not 0 <= age <= MOST_AGE:
            table.wrong("max_age_seconds", f"max_age_seconds is {age}: 0 (for ever) to {MOST_AGE} is allowed")
            age = 0.0
        found = StreamSpec(
            name=name,
            subjects=subjects,
            replicas=table.whole("replicas", 1, most=5),
            max_age_seconds=float(age),
            batched=table.flag("batched"),
        )
        table.close()
        return found

    def _bucket(self, name: str, table: _Table) -> BucketSpec:
        table.attempt("", lambda: check_bucket(name))
        found = BucketSpec(
            name=name,
            history=table.whole("history", 1, most=MAX_HISTORY),
            replicas=table.whole("replicas", 1, most=5),
        )
        table.close()
        return found

    def _source(self, name: str, table: _Table) -> Source:
        stream, bucket = table.checked("stream", check_name), table.checked("bucket", check_bucket)
        if bool(stream) == bool(bucket) and not table.is_bad("stream", "bucket"):
            table.wrong("", f"[sources.{name}] needs a stream or a bucket to read, one of them")
        format_ = table.choice("format", FORMATS, "raw")
        schema = table.text("schema")
        if table.is_bad("format", "schema"):
            pass
        elif (format_ == "raw") == bool(schema):
            allowed = "raw has no schema" if schema else f"{format_} needs a schema, such as 'id BIGINT, name STRING'"
            table.wrong("schema" if schema else "format", allowed)
        elif format_ == "avro":
            table.attempt("schema", lambda: spark_schema(schema))
        found = Source(
            name=name,
            place=self._places[("sources", name, "schema")],
            stream=stream,
            bucket=bucket,
            format=format_,
            schema=schema,
            options=self._source_options(table, stream, bucket),
            parse=table.table("parse").strings(),
            watermark=self._watermark(table),
        )
        table.close()
        return found

    def _source_options(self, table: _Table, stream: str, bucket: str) -> dict[str, str]:
        filters = table.texts("keys" if bucket else "subjects")
        found = {("keys" if bucket else "subjects"): ",".join(filters)} if filters else {}
        names = {
            "starting": "starting",
            "max_messages_per_trigger": "maxMessagesPerTrigger",
            "max_bytes_per_trigger": "maxBytesPerTrigger",
            "partitions": "partitions",
            "poll_interval": "pollInterval",
            "fail_on_data_loss": "failOnDataLoss",
        }
        for key, option in names.items():
            if key == "fail_on_data_loss":
                value = table.get(key, str | bool, None, what="true or false")
            else:
                value = table.get(key, str | int | float, None, what="a text or a number")
            if value is None:
                continue
            found[option] = str(value).lower() if isinstance(value, bool) else str(value)
            if bucket:
                table.attempt(key, partial(kv_stream_options, {"bucket": "x", option: found[option]}))
            elif stream:
                table.attempt(key, partial(stream_options, {"stream": "x", option: found[option]}))
        for one in filters:
            table.attempt("keys" if bucket else "subjects", partial(check_pattern if bucket else check_filter, one))
        return found

    def _watermark(self, table: _Table) -> tuple[str, str]:
        if not table.has("watermark"):
            table.get("watermark", dict, {}, what="a table")
            return "", ""
        mark = table.table("watermark")
        if table.is_bad("watermark"):
            return "", ""
        found = mark.text("column", needed=True), mark.text("delay", needed=True)
        mark.close()
        return found

    def _step(self, name: str, table: _Table) -> Step:
        found = Step(
            name=name,
            sql=table.text("sql", needed=True),
            place=self._places[("steps", name, "sql")],
            watermark=self._watermark(table),
        )
        table.close()
        return found

    def _output(self, name: str, table: _Table, views: list[str]) -> Output:
        view = table.text("from", needed=True)
        if view and view not in views:
            near = difflib.get_close_matches(view, views, 1)
            hint = f"did you mean {near[0]}?" if near else f"{', '.join(views) or 'none'} are there"
            table.wrong("from", f"there is no source or step {view!r}: {hint}")
        bucket, stream = table.checked("bucket", check_bucket), table.checked("stream", check_name)
        targets = {"bucket": bucket, "stream": stream, "files": table.text("path"), "table": table.text("table")}
        given = [kind for kind, value in targets.items() if value]
        if len(given) != 1 and not table.is_bad(*_TARGETS):
            table.wrong("", f"[outputs.{name}] needs one of bucket, stream, path and table, it has {len(given)}")
        kind = given[0] if given else "bucket"
        if not _NAME.fullmatch(name.replace("-", "_")):
            table.wrong("", f"bad name {name!r}: letters, digits, '_' and '-' are allowed")
        found = Output(
            name=name,
            place=self._places[("outputs", name)],
            view=view,
            kind=kind,
            target=targets[kind],
            mode=table.choice("mode", MODES, "update" if kind == "bucket" else "append"),
            format=table.text("format", "parquet"),
            key=table.texts("key"),
            value=table.text("value"),
            deleted=table.text("deleted"),
            subject=table.text("subject"),
            only_changed=table.flag("only_changed"),
            partition_by=table.texts("partition_by"),
        )
        if len(given) == 1:
            self._check_output(found, table)
        table.close()
        return found

    def _check_output(self, output: Output, table: _Table) -> None:
        belongs = {
            "bucket": ("key", "value", "deleted", "only_changed"),
            "stream": ("subject", "value"),
            "files": ("format", "partition_by"),
            "table": ("format", "partition_by"),
        }
        for key in ("key", "value", "deleted", "only_changed", "subject", "format", "partition_by"):
            if table.has(key) and key not in belongs[output.kind]:
                table.wrong(key, f"{key} is not for an output into a {output.kind.removesuffix('s')}")
        if output.kind == "bucket":
            if not output.key and not table.is_bad("key"):
                table.wrong("", f"[outputs.{output.name}] needs key: the column, or columns, that make the key")
            if output.mode == "complete":
                table.wrong("mode", "mode is 'complete': a bucket takes 'update' or 'append'")
        if output.kind == "stream":
            if not output.subject and not table.is_bad("subject"):
                table.wrong("", f"[outputs.{output.name}] needs subject: an SQL expression, such as \"'alerts.new'\"")
            if output.mode == "complete":
                table.wrong("mode", "mode is 'complete': a stream takes 'append' or 'update'")
        if output.kind in ("files", "table") and output.mode != "append" and not table.is_bad("mode"):
            table.wrong("mode", f"mode is {output.mode!r}: files and tables take 'append'")

    def _check_names(self, sources: tuple[Source, ...], steps: tuple[Step, ...]) -> None:
        """Sources and steps are views, whose names Spark compares without regard to case."""
        taken: dict[str, tuple[str, str]] = {}
        for kind, name in [("source", one.name) for one in sources] + [("step", one.name) for one in steps]:
            if not _NAME.fullmatch(name):
                self.wrong((f"{kind}s", name), f"bad name {name!r}: letters, digits and '_' are allowed, as in SQL")
            other_kind, other = taken.setdefault(name.lower(), (kind, name))
            if (other_kind, other) == (kind, name):
                continue
            said = "is a source as well" if other == name else f"is {other_kind} {other!r} as well: SQL ignores case"
            self.wrong((f"{kind}s", name), f"{name!r} {said}: names of sources and steps must differ")

    def _check_dead(self, sources: tuple[Source, ...], outputs: tuple[Output, ...]) -> None:
        """An output must not have the name, and with it the checkpoint, of a query for dead letters."""
        taken = {DEAD + one.name: one.name for one in sources}
        for output in outputs:
            if output.name in taken:
                self.wrong(
                    ("outputs", output.name),
                    f"{output.name!r} is the name of the dead letters of source {taken[output.name]!r}: another one is "
                    "allowed",
                )

    def _ordered(self, steps: tuple[Step, ...], ready: list[str]) -> tuple[Step, ...]:
        """The steps so that each comes behind those whose names its SQL mentions."""
        left, done, known = list(steps), [], set(ready)
        names = {step.name for step in steps}
        while left:
            free = [step for step in left if not (mentioned(step.sql, names) - known - {step.name})]
            free = [step for step in free if step.name not in mentioned(step.sql, {step.name})]
            if not free:
                for step in left:
                    self.wrong(("steps", step.name), f"step {step.name!r} is made of itself, directly or by others")
                return steps
            done += free
            known |= {step.name for step in free}
            left = [step for step in left if step not in free]
        return tuple(done)


def check_master(master: str) -> str:
    """Where Spark runs, if it can be such a place."""
    if not _MASTER.fullmatch(master):
        raise UsageError(f"master is {master!r}: local[*], local[2], spark://host:7077, k8s://… or yarn is allowed")
    return master


def _with(found: Pipeline, *, steps: tuple[Step, ...], outputs: tuple[Output, ...]) -> Pipeline:
    return dataclasses.replace(found, steps=steps, outputs=outputs)
