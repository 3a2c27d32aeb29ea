"""Reader of pipeline files: TOML in, a checked `Pipeline` out, or every mistake of the file with its position.

Spark is not started and no server is contacted. Reading goes on after a mistake, so that one run reports all of them;
what merely follows from an earlier mistake is not reported again.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from slipstream.api import ConsumerLimits, Placement, Republish, StreamConfig, StreamSource, SubjectTransform
from slipstream.errors import UsageError
from slipstream.jetstream.requests import check_name
from slipstream.kv.bucket import MAX_HISTORY, BucketConfig, BucketSource, check_bucket
from slipstream.kv.keys import check_pattern
from slipstream.spark.options import kv_stream_options, stream_options
from slipstream.spark.pipelines.checks.columns import file_mistakes
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.formats import avro, protobuf
from slipstream.spark.pipelines.model import (
    DEAD_LETTERS,
    DEFAULT_MASTER,
    FORMATS,
    KEY_CODECS,
    MODES,
    BucketSpec,
    Mistake,
    Output,
    Pipeline,
    PipelineError,
    Source,
    Step,
    StreamSpec,
    check_master,
)
from slipstream.spark.pipelines.observe.metrics import MAX_PORT, parse_address
from slipstream.spark.pipelines.sql_tables import tables_in
from slipstream.spark.pipelines.targets import target_conflicts
from slipstream.spark.pipelines.toml_positions import TomlPosition, TomlPositions
from slipstream.wire import check_filter

MAX_AGE = 2**63 // 10**9  # seconds: ages are sent as nanoseconds in an int64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL = re.compile(r"\d{1,9} (?:milliseconds?|seconds?|minutes?|hours?)")
_SYNTAX_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_VARIABLE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?|[^}]*)\}?")
_TARGETS = ("bucket", "stream", "path", "table")
_SOURCE_OPTIONS = {  # key of the file -> option of the Spark format
    "starting": "starting",
    "max_messages_per_trigger": "maxMessagesPerTrigger",
    "max_bytes_per_trigger": "maxBytesPerTrigger",
    "partitions": "partitions",
    "poll_interval": "pollInterval",
    "fail_on_data_loss": "failOnDataLoss",
}
_OUTPUT_KEYS = {  # kind of output -> the keys that only some kinds have
    "bucket": ("key", "key_codec", "value", "deleted", "only_changed"),
    "stream": ("subject", "value"),
    "files": ("format", "partition_by"),
    "table": ("format", "partition_by", "key", "deleted"),
}


def load(file: str) -> Pipeline:
    """The pipeline in a file."""
    path = Path(file)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    return parse(text, file=file, name=path.stem)


def parse(
    text: str, *, file: str = "pipeline.toml", name: str = "", environ: Mapping[str, str] | None = None
) -> Pipeline:
    """The pipeline in a text; raises PipelineError with every mistake. `name` is used if the text has none; `${NAME}`
    is a variable of `environ` (default: the process's)."""
    data, positions = _read_files(text, file)
    reader = _Reader(data, positions, file)
    reader.expand(os.environ if environ is None else environ)
    pipeline = reader.pipeline(file, name)
    for path, message in target_conflicts(pipeline):
        reader.report(path, message)
    is_readable = not reader.mistakes
    reader.mistakes += [pipeline.mistake(*one) for one in file_mistakes(pipeline, reader.broken)]
    if reader.mistakes:
        raise PipelineError(file, reader.mistakes, pipeline if is_readable else None)
    return pipeline


def _syntax_message(text: str, position: TomlPosition, message: str) -> str:
    """What `tomllib` says, without its position, and what was probably meant."""
    message = _SYNTAX_POSITION.sub("", message)
    line = text.split("\n")[position.line - 1]
    before, after = line[: position.column - 1], line[position.column - 1 :]
    if message.startswith("Invalid value") and before.rstrip().endswith("=") and after.strip():
        return f"{message}; text must be in quotation marks, got {after.strip()}"
    if message.startswith("Illegal character") and not after:
        return "text in single quotation marks must end in its line; put three of them around several lines"
    if message.startswith("Expected newline") and re.match(r"[^=#]*=\s*[\"']", before):
        return f"{message}; put three quotation marks around text that contains some"
    if message.startswith("Expected newline"):
        return f"{message}; text must be in quotation marks"
    return message


def _read_files(text: str, file: str, parents: tuple[Path, ...] = ()) -> tuple[dict[str, Any], TomlPositions]:
    """The content of a file, and of the files that it includes below it: what both have is the file's own."""
    label = file if parents else ""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _SYNTAX_POSITION.search(str(error))
        line, column = (int(found[1]), int(found[2])) if found and found[1] else (text.count("\n") + 1, 1)
        position = TomlPosition(line, column, label)
        raise PipelineError(file, [Mistake(position, _syntax_message(text, position, str(error)))]) from error
    own = TomlPositions(text, label)
    head = data.get("pipeline")
    wanted = head.pop("include", ()) if isinstance(head, dict) else ()
    names = [wanted] if isinstance(wanted, str) else wanted
    path, at = Path(file).resolve(), own[("pipeline", "include")]
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        text = f"include must be a file or a list of files, got {wanted!r}"
        raise PipelineError(file, [Mistake(at, text)])
    included: list[TomlPositions] = []
    for one in names:
        other = path.parent / one
        try:
            if other.resolve() in (path, *parents):
                raise UsageError("it includes itself, directly or through others")
            content = other.read_text("utf-8")
        except (OSError, UnicodeDecodeError, UsageError) as error:
            raise PipelineError(file, [Mistake(at, f"{one} cannot be included: {error}")]) from error
        shown = str(Path(file).parent / one)
        below, positions = _read_files(content, shown, (*parents, path))
        data = _merged(below, data)
        included += positions.files
    return data, TomlPositions(text, label, included)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables in one, key by key; `above` decides where both have a value."""
    found = dict(below)
    for key, value in above.items():
        other = found.get(key)
        is_table = isinstance(value, dict) and isinstance(other, dict)
        found[key] = _merged(other, value) if is_table and isinstance(other, dict) else value
    return found


class _Variable(str):
    """A text that consists of one variable of the environment, which may stand for a number as well."""

    __slots__ = ()


class _Table:
    """One table of the file. Values are checked as they are read; `close` reports the keys that were not read."""

    def __init__(self, reader: _Reader, path: tuple[str, ...], data: Mapping[str, Any]) -> None:
        self._reader = reader
        self.path = path
        self._data = data
        self._known: list[str] = []
        self._bad: set[str] = set()

    def get(self, name: str, kind: Any, default: Any, *, what: str) -> Any:
        """The value of a key, if it has this type; `what` names the type in the mistake."""
        self._known.append(name)
        value = self._data.get(name, default)
        if isinstance(value, _Variable):
            value = _converted(value, (kind, *get_args(kind)))
        is_bool = isinstance(value, bool) and bool not in (kind, *get_args(kind))  # which is an int in Python
        if name in self._data and (is_bool or not isinstance(value, kind)):
            self.report(name, f"{name} must be {what}, got {value!r}")
            return default
        return value

    def text(self, name: str, default: str = "", *, needed: bool = False) -> str:
        value: str = self.get(name, str, default, what="a string")
        if needed and name not in self._data:
            self.report("", f"[{'.'.join(self.path)}] needs {name}")
        elif name in self._data and not self.is_bad(name) and not value.strip():
            self.report(name, f"{name} must not be empty")
        return value.strip() or default

    def texts(self, name: str) -> tuple[str, ...]:
        """A string, or a list of strings."""
        self._known.append(name)
        value = self._data.get(name, [])
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) and one.strip() for one in found):
            self.report(name, f"{name} must be a string or a list of strings, got {value!r}")
            return ()
        return tuple(found)

    def flag(self, name: str) -> bool:
        return bool(self.get(name, bool, False, what="true or false"))

    def whole(self, name: str, default: int, *, least: int = 1, most: int = 2**31) -> int:
        value: int = self.get(name, int, default, what="a whole number")
        if not least <= value <= most:
            self.report(name, f"{name} must be between {least} and {most}, got {value}")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in allowed:
            self.report(name, f"{name} must be one of {', '.join(allowed)}, got {value!r}")
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
                self._reader.report(path, f"{key} must be a table [{name}.{key}], got {value!r}")
        return found

    def strings(self) -> dict[str, str]:
        """Every key with its value as a string, for options that Spark checks."""
        self._known += self._data
        found = {}
        for key, value in self._data.items():
            if isinstance(value, bool):
                found[key] = str(value).lower()
            elif isinstance(value, str | int | float):
                found[key] = str(value)
            else:
                self.report(key, f"{key} must be a string, a number, true or false, got {value!r}")
        return found

    def settings(self, config: type, **fixed: Any) -> dict[str, Any]:
        """The keys that are fields of a configuration, each checked by itself."""
        names = [one.name for one in dataclasses.fields(config) if one.name not in fixed]
        self._known += names
        found: dict[str, Any] = {}
        for name in names:
            if name not in self._data:
                continue
            value = self._data[name]
            if isinstance(value, _Variable):
                value = _converted(value, (int, float, bool))
            try:
                value = _nested(name, value, is_bucket=config is BucketConfig)
                config(**fixed, **{name: value})
            except (UsageError, TypeError) as error:
                text = str(error) if isinstance(error, UsageError) else f"{name} must not be {value!r}: {error}"
                self.report(name, text)
                continue
            found[name] = value
        return found

    def has(self, name: str) -> bool:
        return name in self._data

    def checked(self, name: str, check: Callable[[str], str], *, needed: bool = False) -> str:
        """A string that a function of the client library accepts."""
        value = self.text(name, needed=needed)
        if value:
            self.attempt(name, partial(check, value))
        return value

    def attempt(self, name: str, check: Callable[[], object]) -> None:
        """Report what a check raises."""
        try:
            check()
        except UsageError as error:
            self.report(name, str(error))

    def is_bad(self, *names: str) -> bool:
        """Whether one of these keys has a mistake already: what follows from it is not another one."""
        return not self._bad.isdisjoint(names)

    def report(self, name: str, text: str) -> None:
        """Add a mistake at a key of this table; an empty name is the table itself."""
        self._bad.add(name)
        self._reader.report((*self.path, name) if name else self.path, text)

    def close(self) -> None:
        """Report every key that was not read."""
        for name in self._data:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, 1)
                hint = f", did you mean {near[0]}?" if near else f"; known keys: {', '.join(sorted(self._known))}"
                self.report(name, f"unknown key {name}{hint}")


def _converted(text: str, kinds: tuple[Any, ...]) -> Any:
    """A variable's text as a number or flag, where the key takes one and it is one."""
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return str(text)


def _nested(name: str, value: Any, *, is_bucket: bool) -> Any:
    """A setting that is a table in the file, as the class that the configuration takes."""
    kinds = {"placement": Placement, "republish": Republish}
    if is_bucket:
        kinds |= {"mirror": BucketSource, "sources": BucketSource}
    else:
        kinds |= {"mirror": StreamSource, "sources": StreamSource, "subject_transform": SubjectTransform}
        kinds |= {"consumer_limits": ConsumerLimits}
    if name not in kinds:
        return value
    if name == "sources":
        each = value if isinstance(value, list) else [value]
        return tuple(_nested("mirror", one, is_bucket=is_bucket) for one in each)
    if isinstance(value, str) and name == "mirror" and not is_bucket:
        return StreamSource(name=value)
    return kinds[name](**value) if isinstance(value, dict) else value


class _Reader:
    """Walks the tables of one file and collects mistakes."""

    def __init__(self, data: dict[str, Any], positions: TomlPositions, file: str) -> None:
        self._data = data
        self._file = file
        self._root = _Table(self, (), data)
        self._positions = positions
        self.mistakes: list[Mistake] = []
        self.broken: set[tuple[str, ...]] = set()  # tables with mistakes, such as ("sources", "orders")

    def report(self, path: tuple[str, ...], text: str) -> None:
        """Add a mistake at the position of a key."""
        self.broken.add(path[:2])
        self.mistakes.append(Mistake(self._positions[path], text))

    def expand(self, environ: Mapping[str, str]) -> None:
        """Replace `${NAME}` and `${NAME:-default}` in every string of the file; `$${` is the text `${` itself."""

        def replaced(value: Any, path: tuple[str, ...]) -> Any:
            if isinstance(value, dict):
                for key in value:
                    value[key] = replaced(value[key], (*path, key))
            elif isinstance(value, list):
                return [replaced(one, path) for one in value]
            elif isinstance(value, str) and "${" in value:
                text = _VARIABLE.sub(lambda found: self._variable(found, value, path, environ), value)
                return _Variable(text) if _VARIABLE.fullmatch(value) else text
            return value

        replaced(self._data, ())

    def _variable(self, found: re.Match[str], value: str, path: tuple[str, ...], environ: Mapping[str, str]) -> str:
        if found[0] == "$${":
            return "${"
        name, default = found["name"], found["default"]
        if name is None:
            text = f"a variable must be ${{NAME}} or ${{NAME:-default}}, got {found[0]!r} ($${{ is the text itself)"
        elif environ.get(name) or (default is None and name in environ):
            return environ[name]
        elif default is not None:
            return default
        else:
            near = difflib.get_close_matches(name, list(environ), 1)
            hint = f"did you mean {near[0]}? " if near else ""
            text = f"the environment has no variable {name!r}; {hint}Set it, or write ${{{name}:-default}}"
        self.broken.add(path[:2])
        self.mistakes.append(Mistake(self._positions.inside(path, value, found.start()), text))
        return found[0]

    def pipeline(self, file: str, name: str) -> Pipeline:
        root = self._root
        head = root.table("pipeline")
        spark = root.table("spark")
        connection = self._connection(root.table("connection"))
        server = self._server(root.table("server"))
        if connection.get("servers") and root.has("server"):
            self.report(
                ("server",),
                "[server] starts an embedded server and [connection] names others: they are mutually exclusive",
            )
        found = Pipeline(
            name=self._pipeline_name(head, name),
            file=file,
            state=head.text("state"),
            trigger=self._trigger(head),
            dead_letter=head.checked("dead_letter", check_name),
            share_reads=bool(head.get("share_reads", bool, True, what="true or false")),
            metrics=self._metrics(head),
            ui=self._ui(spark),
            connection=connection,
            server=server,
            master=spark.checked("master", check_master) or DEFAULT_MASTER,
            conf=spark.table("conf").strings(),
            streams=tuple(self._stream(*one) for one in root.tables("streams")),
            buckets=tuple(self._bucket(*one) for one in root.tables("buckets")),
            sources=tuple(self._source(*one) for one in root.tables("sources")),
            tables=tuple(self._lookup(*one) for one in root.tables("tables")),
            steps=tuple(self._step(*one) for one in root.tables("steps")),
            outputs=(),
            positions=self._positions,
        )
        tables = found.table_names()
        views = [name for name in found.views() if name not in tables]
        outputs = tuple(self._output(*one, views, tables) for one in root.tables("outputs"))
        self._check_dead_letters(found.sources, outputs)
        for table in (head, spark, root):
            table.close()
        if not found.sources and not root.is_bad("sources"):
            self.report((), "a pipeline needs at least one source, a table [sources.x]")
        if not outputs and not root.is_bad("outputs"):
            self.report((), "a pipeline needs at least one output, a table [outputs.x]")
        self._check_names({"source": found.sources, "table": found.tables, "step": found.steps})
        steps = self._ordered(found.steps, [one.name for one in (*found.sources, *found.tables)])
        return dataclasses.replace(found, steps=steps, outputs=outputs)

    def _trigger(self, head: _Table) -> str:
        trigger = head.text("trigger", "1 second")
        if not _INTERVAL.fullmatch(trigger):
            head.report(
                "trigger", f"trigger must be an interval such as '500 milliseconds' or '1 minute', got {trigger!r}"
            )
        return trigger

    def _metrics(self, head: _Table) -> str:
        address = str(head.get("metrics", str | int, "", what="a port or host:port"))
        if address:
            head.attempt("metrics", partial(parse_address, address))
        return address

    def _ui(self, spark: _Table) -> str:
        """The port of the Spark UI as text: true is Spark's own default."""
        found = spark.get("ui", bool | int, False, what="true, false or a port")
        if found is True:
            return "4040"
        if found and not 0 < found <= MAX_PORT:
            spark.report("ui", f"ui must be true, false or a port, got {found}")
        return str(found) if found else ""

    def _pipeline_name(self, head: _Table, default: str) -> str:
        name = head.text("name", default or "pipeline")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            head.report("name", f"name must consist of letters, digits, '_' and '-', got {name!r}")
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
            found["timeout"] = str(table.get("timeout", int | float, 10, what="a number of seconds"))
        table.attempt("", partial(stream_options, {"stream": "x", **found}))
        table.close()
        return found

    def _server(self, table: _Table) -> dict[str, Any]:
        found = {"data": table.text("data"), "port": table.whole("port", 0, least=0, most=65535)}
        table.close()
        return found

    def _stream(self, name: str, table: _Table) -> StreamSpec:
        table.attempt("", partial(check_name, name))
        subjects = table.texts("subjects")
        if not subjects and not table.is_bad("subjects"):
            table.report("subjects", f"[streams.{name}] needs subjects")
        for one in subjects:
            table.attempt("subjects", partial(check_filter, one))
        age = table.get("max_age_seconds", int | float, 0.0, what="a number of seconds")
        if not 0 <= age <= MAX_AGE:
            table.report("max_age_seconds", f"max_age_seconds must be between 0 (no limit) and {MAX_AGE}, got {age}")
            age = 0.0
        settings = {
            "num_replicas": table.whole("replicas", 1, most=5),
            "max_age": float(age),
            "allow_batched": table.flag("batched"),
            **table.settings(StreamConfig, name="x", subjects=("x",)),
        }
        table.close()
        return StreamSpec(name=name, subjects=subjects, settings=settings)

    def _bucket(self, name: str, table: _Table) -> BucketSpec:
        table.attempt("", partial(check_bucket, name))
        history, replicas = table.whole("history", 1, most=MAX_HISTORY), table.whole("replicas", 1, most=5)
        settings = table.settings(BucketConfig, bucket="x")
        table.close()
        return BucketSpec(name=name, settings={**settings, "history": history, "replicas": replicas})

    def _lookup(self, name: str, table: _Table) -> Source:
        """A lookup table: the current state of a bucket."""
        bucket = table.checked("bucket", check_bucket, needed=True)
        format_, schema, message, descriptor = self._format(table)
        keys = table.texts("keys")
        for one in keys:
            table.attempt("keys", partial(check_pattern, one))
        found = Source(
            name=name,
            position=self._positions[("tables", name, "schema")],
            bucket=bucket,
            format=format_,
            schema=schema,
            message=message,
            descriptor=descriptor,
            options={"keys": ",".join(keys)} if keys else {},
            parse=table.table("parse").strings(),
        )
        table.close()
        return found

    def _format(self, table: _Table) -> tuple[str, str, str, bytes]:
        """How payloads are decoded: the format, the schema, and of Protobuf the message type and its descriptors."""
        format_ = table.choice("format", FORMATS, "raw")
        schema = table.text("schema")
        message, descriptor = self._protobuf(table, format_)
        if table.is_bad("format", "schema"):
            pass
        elif (format_ in ("raw", "protobuf")) == bool(schema):
            if schema:
                table.report("schema", f"format {format_} takes no schema")
            else:
                table.report("format", f"format {format_} needs a schema, such as 'id BIGINT, name STRING'")
        elif format_ == "avro":
            table.attempt("schema", partial(avro.spark_schema, schema))
        return format_, schema, message, descriptor

    def _protobuf(self, table: _Table, format_: str) -> tuple[str, bytes]:
        """The message type of a Protobuf source, and the content of the file with its descriptors."""
        message, name = table.text("message"), table.text("descriptor")
        if format_ != "protobuf":
            for key in ("message", "descriptor"):
                if table.has(key):
                    table.report(key, f"{key} is for format protobuf, got {format_!r}")
            return "", b""
        if not message or not name:
            if not table.is_bad("message", "descriptor"):
                table.report(
                    "format",
                    "format protobuf needs descriptor, a file that `protoc --include_imports "
                    "--descriptor_set_out=FILE` writes, and message, the type in it, such as 'shop.Order'",
                )
            return message, b""
        try:
            found = (Path(self._file).resolve().parent / name).read_bytes()
        except OSError as error:
            table.report("descriptor", f"descriptor {name!r} cannot be read: {error.strerror or error}")
            return message, b""
        table.attempt("message", partial(protobuf.spark_schema, found, message))
        return message, found

    def _source(self, name: str, table: _Table) -> Source:
        stream, bucket = table.checked("stream", check_name), table.checked("bucket", check_bucket)
        if bool(stream) == bool(bucket) and not table.is_bad("stream", "bucket"):
            table.report("", f"[sources.{name}] needs either a stream or a bucket to read")
        format_, schema, message, descriptor = self._format(table)
        found = Source(
            name=name,
            position=self._positions[("sources", name, "schema")],
            stream=stream,
            bucket=bucket,
            format=format_,
            schema=schema,
            message=message,
            descriptor=descriptor,
            options=self._source_options(table, stream, bucket),
            parse=table.table("parse").strings(),
            watermark=self._watermark(table),
        )
        table.close()
        return found

    def _source_options(self, table: _Table, stream: str, bucket: str) -> dict[str, str]:
        filters = table.texts("keys" if bucket else "subjects")
        found = {("keys" if bucket else "subjects"): ",".join(filters)} if filters else {}
        for key, option in _SOURCE_OPTIONS.items():
            if key == "fail_on_data_loss":
                value = table.get(key, str | bool, None, what="true or false")
            else:
                value = table.get(key, str | int | float, None, what="a string or a number")
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
            position=self._positions[("steps", name, "sql")],
            watermark=self._watermark(table),
        )
        table.close()
        return found

    def _output(self, name: str, table: _Table, views: list[str], tables: list[str]) -> Output:
        view = table.text("from", needed=True)
        if view in tables:
            text = f"a table is not a stream of rows: join {view!r} with a source in a step, and write that"
            table.report("from", text)
        elif view and view not in views:
            table.report("from", f"there is no source or step {view!r}; {suggestion(view, views, 'the file has')}")
        bucket, stream = table.checked("bucket", check_bucket), table.checked("stream", check_name)
        targets = {"bucket": bucket, "stream": stream, "files": table.text("path"), "table": table.text("table")}
        kinds = [kind for kind, value in targets.items() if value]
        if len(kinds) != 1 and not table.is_bad(*_TARGETS):
            table.report("", f"[outputs.{name}] needs exactly one of bucket, stream, path and table, got {len(kinds)}")
        kind = kinds[0] if kinds else "bucket"
        is_upsert = kind == "bucket" or (kind == "table" and table.has("key"))
        if not _NAME.fullmatch(name.replace("-", "_")):
            table.report("", f"an output's name must consist of letters, digits, '_' and '-', got {name!r}")
        found = Output(
            name=name,
            position=self._positions[("outputs", name)],
            view=view,
            kind=kind,
            target=targets[kind],
            mode=table.choice("mode", MODES, "update" if is_upsert else "append"),
            format=table.text("format", "parquet"),
            key=table.texts("key"),
            key_codec=table.choice("key_codec", KEY_CODECS, "none"),
            value=table.text("value"),
            deleted=table.text("deleted"),
            subject=table.text("subject"),
            only_changed=table.flag("only_changed"),
            partition_by=table.texts("partition_by"),
        )
        if len(kinds) == 1:
            self._check_output(found, table)
        table.close()
        return found

    def _check_output(self, output: Output, table: _Table) -> None:
        for key in ("key", "key_codec", "value", "deleted", "only_changed", "subject", "format", "partition_by"):
            if table.has(key) and key not in _OUTPUT_KEYS[output.kind]:
                table.report(key, f"{key} does not apply to an output into a {output.kind.removesuffix('s')}")
        if output.kind == "bucket":
            if not output.key and not table.is_bad("key"):
                table.report("", f"[outputs.{output.name}] needs key: the column or columns that form the key")
            if output.mode == "complete":
                table.report("mode", "mode must be 'update' or 'append' for a bucket, got 'complete'")
        if output.kind == "stream":
            if not output.subject and not table.is_bad("subject"):
                table.report("", f"[outputs.{output.name}] needs subject: an SQL expression, such as \"'alerts.new'\"")
            if output.mode == "complete":
                table.report("mode", "mode must be 'append' or 'update' for a stream, got 'complete'")
        if output.kind == "table" and output.key:
            for key in ("format", "partition_by"):
                if table.has(key):
                    table.report(key, f"{key} does not apply to a table with a key, which must exist")
            if output.mode == "complete":
                table.report("mode", "mode must be 'update' or 'append' for a table with a key, got 'complete'")
            return
        if output.kind == "table" and output.deleted:
            table.report("deleted", "deleted needs key: the columns by which a row of the table is found")
        if output.kind in ("files", "table") and output.mode != "append" and not table.is_bad("mode"):
            table.report("mode", f"mode must be 'append' for files and tables, got {output.mode!r}")

    def _check_names(self, parts: Mapping[str, tuple[Source | Step, ...]]) -> None:
        """Sources, tables and steps become views, whose names Spark compares without regard to case."""
        taken: dict[str, tuple[str, str]] = {}
        for kind, name in [(kind, one.name) for kind, found in parts.items() for one in found]:
            if not _NAME.fullmatch(name):
                self.report(
                    (f"{kind}s", name), f"a {kind}'s name must consist of letters, digits and '_', got {name!r}"
                )
            other_kind, other = taken.setdefault(name.lower(), (kind, name))
            if (other_kind, other) == (kind, name):
                continue
            case = "" if other == name else " (SQL ignores case)"
            self.report((f"{kind}s", name), f"{kind} {name!r} has the name of {other_kind} {other!r}{case}")

    def _check_dead_letters(self, sources: tuple[Source, ...], outputs: tuple[Output, ...]) -> None:
        """An output must not have the name, and with it the checkpoint, of a dead-letter query."""
        taken = {DEAD_LETTERS + one.name: one.name for one in sources}
        for output in outputs:
            if output.name in taken:
                self.report(
                    ("outputs", output.name),
                    f"the name {output.name!r} is reserved for the dead letters of source {taken[output.name]!r}",
                )

    def _ordered(self, steps: tuple[Step, ...], ready: list[str]) -> tuple[Step, ...]:
        """The steps in dependency order: each after those that its SQL reads."""
        left, done, known = list(steps), [], set(ready)
        names = {step.name for step in steps}
        while left:
            free = [step for step in left if not (tables_in(step.sql, names) - known - {step.name})]
            free = [step for step in free if step.name not in tables_in(step.sql, {step.name})]
            if not free:
                for step in left:
                    self.report(
                        ("steps", step.name), f"step {step.name!r} depends on itself, directly or through others"
                    )
                return steps
            done += free
            known |= {step.name for step in free}
            left = [step for step in left if step not in free]
        return tuple(done)
