"""Model of a pipeline: sources, SQL steps and outputs, as immutable values that know where they stand in their file.

Nothing here does I/O. `reader.py` makes a `Pipeline` from TOML, `build.py` makes Spark queries from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipstream.errors import UsageError
from slipstream.kv.bucket import STREAM_PREFIX
from slipstream.spark.pipelines.sql_tables import tables_in
from slipstream.spark.pipelines.toml_positions import TomlPosition, TomlPositions

FORMATS = ("json", "csv", "avro", "protobuf", "raw")
KEY_CODECS = ("none", "base64")  # how keys are stored: as they are, or as `Base64Keys` has them
MODES = ("append", "update", "complete")
DEAD_LETTERS = "dead-"  # before a source's name: the query that writes the source's dead letters
DEFAULT_MASTER = "local[*]"
FIRST = TomlPosition(1, 1)
_MASTER = re.compile(r"local(\[\s*(\d+|\*)\s*(,\s*\d+\s*)?\])?|local-cluster\[[\s\d,]+\]|yarn|(spark|k8s)://\S+")


class Mistake(NamedTuple):
    """One mistake in a pipeline file, with its position."""

    position: TomlPosition
    text: str

    def line(self, file: str, kind: str = "") -> str:
        """As compilers write it, with the file that it is in; `kind` is such as `warning: `."""
        return f"{self.position.file or file}:{self.position.line}:{self.position.column}: {kind}{self.text}"


class PipelineError(UsageError):
    """A pipeline file with mistakes; the message has a line for each: file, line, column, text."""

    def __init__(self, file: str, mistakes: Iterable[Mistake], pipeline: Pipeline | None = None) -> None:
        self.mistakes: tuple[Mistake, ...] = tuple(sorted(mistakes, key=lambda one: (one.position.file, *one)))
        self.pipeline = pipeline  # if it could be read: further checks may then add their mistakes
        super().__init__("\n".join(one.line(file) for one in self.mistakes))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A stream to create if it does not exist."""

    name: str
    subjects: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # further fields of the stream's configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpec:
    """A bucket to create if it does not exist."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of the bucket's configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stream or bucket to read, and how its payloads are decoded into columns."""

    name: str
    position: TomlPosition = FIRST
    stream: str = ""
    bucket: str = ""
    format: str = "raw"
    schema: str = ""
    message: str = ""  # of Protobuf: the type, and the descriptor set that has it
    descriptor: bytes = field(default=b"", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    parse: Mapping[str, str] = field(default_factory=dict)
    watermark: tuple[str, str] = ("", "")

    @property
    def stream_name(self) -> str:
        """The stream that is read; for a bucket, the one beneath it."""
        return self.stream or STREAM_PREFIX + self.bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A view defined by SQL over sources and other steps."""

    name: str
    sql: str
    position: TomlPosition = FIRST
    watermark: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The target of the rows of a source or step."""

    name: str
    position: TomlPosition = FIRST
    view: str
    kind: str  # bucket, stream, files or table
    target: str
    mode: str
    format: str = "parquet"
    key: tuple[str, ...] = ()
    key_codec: str = "none"
    value: str = ""
    deleted: str = ""
    subject: str = ""
    only_changed: bool = False
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A whole pipeline file, checked: steps are in dependency order, and every name that is used is defined."""

    name: str
    file: str
    state: str = ""
    trigger: str = "1 second"
    dead_letter: str = ""
    share_reads: bool = True  # whether outputs whose rows need no state are written from one read of their source
    metrics: str = ""  # address of the endpoint for Prometheus
    ui: str = ""  # port of the Spark UI; empty: there is none
    connection: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    master: str = DEFAULT_MASTER
    conf: Mapping[str, str] = field(default_factory=dict)
    streams: tuple[StreamSpec, ...] = ()
    buckets: tuple[BucketSpec, ...] = ()
    sources: tuple[Source, ...] = ()
    tables: tuple[Source, ...] = ()  # buckets whose current state SQL can join
    steps: tuple[Step, ...] = ()
    outputs: tuple[Output, ...] = ()
    positions: TomlPositions = field(default_factory=lambda: TomlPositions(""), compare=False, repr=False)

    def mistake(self, path: tuple[str, ...], text: str, value: str = "", offset: int = 0) -> Mistake:
        """A mistake at a key of the file, or at an offset in the key's value, which is then a string."""
        position = self.positions.inside(path, value, offset) if value else self.positions[path]
        return Mistake(position, text)

    def views(self) -> list[str]:
        """The names of sources, tables and steps, which SQL reads."""
        return [*(one.name for one in (*self.sources, *self.tables)), *(one.name for one in self.steps)]

    def table_names(self) -> list[str]:
        """The names of the lookup tables, which are no streams: an output cannot write them."""
        return [one.name for one in self.tables]

    def dead_letter_queries(self) -> list[str]:
        """The names of the queries that write dead letters: one per source whose messages are decoded."""
        if not self.dead_letter:
            return []
        return [DEAD_LETTERS + one.name for one in self.sources if one.format != "raw"]

    def sources_of(self, query: str) -> set[str]:
        """The sources that a query reads: those behind its view, or the one whose dead letters it writes."""
        views = [one.view for one in self.outputs if one.name == query]
        return self.sources_behind(views[0] if views else query.removeprefix(DEAD_LETTERS))

    def sources_behind(self, view: str) -> set[str]:
        """The sources that the rows of a source or step follow from."""
        sources, steps = {one.name for one in self.sources}, {one.name: one.sql for one in self.steps}
        views, found = [view], set[str]()
        while views:
            name = views.pop()
            if name not in found:
                found.add(name)
                views += tables_in(steps.get(name, ""), {*sources, *steps})
        return found & sources


def check_master(master: str) -> str:
    """The Spark master URL, if it is one."""
    if not _MASTER.fullmatch(master):
        raise UsageError(f"master must be local[*], local[2], spark://host:7077, k8s://… or yarn, got {master!r}")
    return master
