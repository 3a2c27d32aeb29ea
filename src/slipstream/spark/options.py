"""Options of the formats `jetstream` and `jetstream_kv`, for reading and for writing.

All of them are checked when a read or write is planned, before any job starts. `option_reader.py` has what they share:
how values are checked, and the connection.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.api import parse_time
from slipstream.errors import UsageError
from slipstream.jetstream.requests import check_name
from slipstream.kv.bucket import STREAM_PREFIX, check_bucket
from slipstream.kv.keys import check_patterns
from slipstream.spark.option_reader import CONNECTION, Connection, OptionReader

JETSTREAM = "jetstream"
JETSTREAM_KV = "jetstream_kv"

STREAM_COLUMNS = ("subject", "sequence", "timestamp", "timestamp_ns", "headers", "data")
NO_CONNECTION = Connection()
DEFAULT_POLL = 0.02  # seconds
DEFAULT_IN_FLIGHT = 4096
DEFAULT_PROGRESS = "slipstream-progress"

_TRIGGER = ("starting", "ending", "maxMessagesPerTrigger", "maxBytesPerTrigger", "partitions", "pollInterval")
_READ = ("pushFilters", "failOnDataLoss", *CONNECTION)
_SOURCE = ("stream", "subjects", *_TRIGGER, "columns", "includeHeaders", *_READ)
_KV_SOURCE = ("bucket", "keys", "asOfRevision", "history", "includeDeletes", "snapshots", *_TRIGGER, *_READ)
_STREAM_SINK = (
    "stream",
    "writeId",
    "batchId",
    "progress",
    "maxInFlight",
    "atomic",
    "batched",
    "deadLetter",
    *CONNECTION,
)
_KV_SINK = (
    *("bucket", "keyColumn", "valueColumn", "operationColumn", "deletedColumn", "onlyChanged", "maxInFlight"),
    "deadLetter",
    *CONNECTION,
)


class At(enum.Enum):
    """The kinds of positions in a stream."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SEQUENCE = "sequence"
    TIME = "time"


class Position(NamedTuple):
    """A position in a stream; `value` is the sequence, or the time in nanoseconds since the epoch."""

    at: At
    value: int = 0


EARLIEST = Position(At.EARLIEST)
LATEST = Position(At.LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read of a stream. 0 partitions: the source decides; a limit per trigger of 0: no limit."""

    stream: str
    connection: Connection = NO_CONNECTION
    subjects: tuple[str, ...] = ()
    starting: Position = EARLIEST
    ending: Position = LATEST
    max_messages_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    partitions: int = 0
    poll_interval: float = DEFAULT_POLL
    columns: tuple[str, ...] = STREAM_COLUMNS
    push_filters: bool = False
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSourceOptions:
    """What to read of a bucket: its keys as of now or as of a revision, or every entry of a range (`history`).

    `feed` is the range that a change feed or a history reads of the underlying stream. Its subjects are not known yet:
    they depend on the prefix of the bucket's keys.
    """

    bucket: str
    feed: SourceOptions
    keys: tuple[str, ...] = (">",)
    as_of: int = 0
    history: bool = False
    include_deletes: bool = False
    snapshots: str = ""  # a folder: each micro-batch of a streaming query sees one state

    def subjects(self, prefix: str) -> tuple[str, ...]:
        """The filters on the stream's subjects, which begin with `prefix`."""
        return tuple(prefix + key for key in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSinkOptions:
    """How rows are published to a stream."""

    stream: str
    connection: Connection = NO_CONNECTION
    write_id: str = ""
    batch_id: int | None = None
    dead_letter: str = ""
    progress: str = DEFAULT_PROGRESS
    max_in_flight: int = DEFAULT_IN_FLIGHT
    atomic: str = "auto"
    batched: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """How rows are put into a bucket."""

    bucket: str
    connection: Connection = NO_CONNECTION
    key_column: str = "key"
    value_column: str = "value"
    operation_column: str = "operation"
    deleted_column: str = "deleted"
    only_changed: bool = False
    dead_letter: str = ""
    max_in_flight: int = DEFAULT_IN_FLIGHT


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of `jetstream` for reading."""
    reader = OptionReader(JETSTREAM, options, _SOURCE)
    columns = reader.words("columns", STREAM_COLUMNS) or STREAM_COLUMNS
    if not reader.flag("includeHeaders", True):
        if reader.has("columns") and "headers" in columns:
            raise reader.bad("includeHeaders", "true if 'columns' names headers")
        columns = tuple(name for name in columns if name != "headers")
    found = _feed(reader, reader.named("stream", check_name))
    return _replace(found, subjects=reader.filters("subjects"), columns=columns)


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of `jetstream` for `spark.read`."""
    return _for_batch(JETSTREAM, source_options(options))


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of `jetstream` for `spark.readStream`."""
    return _for_stream(JETSTREAM, source_options(options))


def kv_source_options(options: Mapping[str, str]) -> KvSourceOptions:
    """Options of `jetstream_kv` for reading."""
    reader = OptionReader(JETSTREAM_KV, options, _KV_SOURCE)
    bucket = reader.named("bucket", check_bucket)
    found = KvSourceOptions(
        bucket=bucket,
        feed=_feed(reader, STREAM_PREFIX + bucket),
        keys=_keys(reader),
        as_of=reader.whole("asOfRevision"),
        history=reader.flag("history", False),
        include_deletes=reader.flag("includeDeletes", False),
        snapshots=reader.text("snapshots"),
    )
    if found.snapshots and (found.as_of or found.history):
        raise UsageError(
            f"{JETSTREAM_KV} option 'snapshots' provides the state of a bucket as of each micro-batch: it cannot be "
            "combined with 'asOfRevision' or 'history'"
        )
    if found.as_of and found.history:
        raise UsageError(
            f"{JETSTREAM_KV} options 'asOfRevision' and 'history' are mutually exclusive; use 'ending' to end a history"
        )
    return found


def kv_batch_options(options: Mapping[str, str]) -> KvSourceOptions:
    """Options of `jetstream_kv` for `spark.read`."""
    found = kv_source_options(options)
    feed = _for_batch(JETSTREAM_KV, found.feed)
    if not found.history and (feed.starting is not EARLIEST or feed.ending is not LATEST):
        raise UsageError(
            f"{JETSTREAM_KV} options 'starting' and 'ending' choose among the entries of a history: set 'history' to "
            "true as well, or use 'asOfRevision' for the keys as of a revision"
        )
    return found


def kv_stream_options(options: Mapping[str, str]) -> KvSourceOptions:
    """Options of `jetstream_kv` for `spark.readStream`, the change feed."""
    found = kv_source_options(options)
    _for_stream(JETSTREAM_KV, found.feed)
    if found.as_of or found.history or found.include_deletes or found.snapshots:
        raise UsageError(
            f"{JETSTREAM_KV} options 'asOfRevision', 'history', 'includeDeletes' and 'snapshots' apply to batch reads "
            "only: readStream gives every change, including deletes"
        )
    return found


def stream_sink_options(options: Mapping[str, str]) -> StreamSinkOptions:
    """Options of `jetstream` for writing."""
    reader = OptionReader(JETSTREAM, options, _STREAM_SINK)
    write_id = reader.text("writeId")
    if write_id and not _is_token(write_id):
        raise reader.bad("writeId", "letters, digits, '_' and '-'")
    progress = reader.text("progress", DEFAULT_PROGRESS)
    try:
        check_bucket(progress)
    except UsageError as error:
        raise reader.invalid("progress", error) from error
    if reader.text("batched").lower() == reader.text("atomic").lower() == "true":
        raise reader.exclusive("batched", "atomic")
    return StreamSinkOptions(
        stream=reader.named("stream", check_name),
        connection=reader.connection(),
        write_id=write_id,
        batch_id=reader.whole("batchId", least=0) if reader.has("batchId") else None,
        dead_letter=reader.subject("deadLetter"),
        progress=progress,
        max_in_flight=reader.whole("maxInFlight", DEFAULT_IN_FLIGHT),
        atomic=reader.choice("atomic", "auto", ("auto", "true", "false")),
        batched=reader.choice("batched", "auto", ("auto", "true", "false")),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Options of `jetstream_kv` for writing."""
    reader = OptionReader(JETSTREAM_KV, options, _KV_SINK)
    found = SinkOptions(
        bucket=reader.named("bucket", check_bucket),
        connection=reader.connection(),
        key_column=reader.text("keyColumn", "key"),
        value_column=reader.text("valueColumn", "value"),
        operation_column=reader.text("operationColumn", "operation"),
        deleted_column=reader.text("deletedColumn", "deleted"),
        only_changed=reader.flag("onlyChanged", False),
        dead_letter=reader.subject("deadLetter"),
        max_in_flight=reader.whole("maxInFlight", DEFAULT_IN_FLIGHT),
    )
    columns = (found.key_column, found.value_column, found.operation_column, found.deleted_column)
    if len(set(columns)) < len(columns):
        raise UsageError(f"{JETSTREAM_KV} columns must be four different names, got {columns}")
    return found


def table_options(options: Mapping[str, str], known: tuple[str, ...] = _SOURCE) -> dict[str, str]:
    """The options of `CREATE TABLE` that reads of the table will need; empty if no table is being created."""
    if "provider" not in options:  # a property that only tables have
        return {}
    kept = {"path", *(name.lower() for name in known)}
    return {name.lower(): value for name, value in options.items() if name.lower() in kept}


def kv_table_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that reads of a table of `jetstream_kv` will need."""
    return table_options(options, _KV_SOURCE)


def _keys(reader: OptionReader) -> tuple[str, ...]:
    """Key filters, checked by the rules of keys: `a*` is a valid subject filter too, but one that matches nothing."""
    text = reader.text("keys")
    found = [one.strip() for one in text.split(",")] if text else [">"]
    if not all(found):
        raise reader.bad("keys", "key filters, separated by single commas")
    try:
        return check_patterns(found)
    except UsageError as error:
        raise reader.invalid("keys", error) from error


def _feed(reader: OptionReader, stream: str) -> SourceOptions:
    return SourceOptions(
        stream=stream,
        connection=reader.connection(),
        starting=_position(reader, "starting", EARLIEST),
        ending=_position(reader, "ending", LATEST),
        max_messages_per_trigger=reader.whole("maxMessagesPerTrigger"),
        max_bytes_per_trigger=reader.whole("maxBytesPerTrigger"),
        partitions=reader.whole("partitions"),
        poll_interval=reader.seconds("pollInterval", DEFAULT_POLL),
        push_filters=reader.flag("pushFilters", False),
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
    )


def _replace(found: SourceOptions, **changes: tuple[str, ...]) -> SourceOptions:
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]  # only tuples of strings are changed


def _for_batch(fmt: str, found: SourceOptions) -> SourceOptions:
    starting, ending = found.starting, found.ending
    if starting.at is At.LATEST:
        raise UsageError(
            f"{fmt} option 'starting' of a batch read must be 'earliest', a sequence or a time, got 'latest', which is "
            "for readStream"
        )
    if starting.at is ending.at and starting.value > ending.value:
        raise UsageError(f"{fmt} option 'ending' must not be before 'starting'")
    return found


def _for_stream(fmt: str, found: SourceOptions) -> SourceOptions:
    if found.ending.at is not At.LATEST:
        raise UsageError(
            f"{fmt} option 'ending' does not apply to readStream, which has no end; use read, or "
            "trigger(availableNow=True) to stop at the messages available now"
        )
    if found.push_filters:
        raise UsageError(
            f"{fmt} option 'pushFilters' applies to batch reads only: Spark pushes no filters into readStream"
        )
    return found


def _is_token(text: str) -> bool:
    return text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def _position(reader: OptionReader, name: str, default: Position) -> Position:
    text = reader.text(name)
    if not text:
        return default
    if text.lower() in (At.EARLIEST.value, At.LATEST.value):
        return EARLIEST if text.lower() == At.EARLIEST.value else LATEST
    if text.isascii() and text.isdigit() and 1 <= int(text) < 2**63:
        return Position(At.SEQUENCE, int(text))
    try:
        return Position(At.TIME, parse_time(text))
    except ValueError:
        expected = "'earliest', 'latest', a sequence of at least 1 or an RFC 3339 time such as 2026-01-31T12:00:00Z"
        raise reader.bad(name, expected) from None
