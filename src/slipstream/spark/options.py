"""The options of each format, for reading and for writing, become one checked value; a mistake is known before any job.

`jetstream` and `jetstream_kv` each have a set of options for reads and another for writes; what is shared (how to reach
the servers, how values are checked) is in `given.py`.
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
DEFAULT_POLL = 0.1
DEFAULT_IN_FLIGHT = 4096
DEFAULT_PROGRESS = "slipstream-progress"

_TRIGGER = ("starting", "ending", "maxMessagesPerTrigger", "maxBytesPerTrigger", "partitions", "pollInterval")
_READ = ("pushFilters", "failOnDataLoss", *CONNECTION)
_SOURCE = ("stream", "subjects", *_TRIGGER, "columns", "includeHeaders", *_READ)
_KV_SOURCE = ("bucket", "keys", "asOfRevision", "history", "includeDeletes", *_TRIGGER, *_READ)
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
    """What kind of place in a stream a position is."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SEQUENCE = "sequence"
    TIME = "time"


class Position(NamedTuple):
    """A place in a stream; `value` is the sequence, or the time in nanoseconds since the epoch."""

    at: At
    value: int = 0


EARLIEST = Position(At.EARLIEST)
LATEST = Position(At.LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read of a stream. `partitions` and the limits per trigger of 0: the source decides, no limit."""

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

    `feed` is the range that a change feed or a history reads of the stream beneath; of which subjects shows only there,
    from what stands before the keys.
    """

    bucket: str
    feed: SourceOptions
    keys: tuple[str, ...] = (">",)
    as_of: int = 0
    history: bool = False
    include_deletes: bool = False

    def subjects(self, prefix: str) -> tuple[str, ...]:
        """The filters over the stream's subjects, which begin with `prefix`."""
        return tuple(prefix + key for key in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSinkOptions:
    """How rows go into a stream."""

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
    """How rows go into a bucket."""

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
    """Options of `jetstream`, for reading."""
    given = OptionReader(JETSTREAM, options, _SOURCE)
    columns = given.words("columns", STREAM_COLUMNS) or STREAM_COLUMNS
    if not given.flag("includeHeaders", True):
        if given.has("columns") and "headers" in columns:
            raise given.bad("includeHeaders", "it cannot be false while 'columns' names headers")
        columns = tuple(name for name in columns if name != "headers")
    found = _feed(given, given.named("stream", check_name))
    return _replace(found, subjects=given.filters("subjects"), columns=columns)


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """The same, for a read that ends."""
    return _for_batch(JETSTREAM, source_options(options))


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """The same, for a read that goes on."""
    return _for_stream(JETSTREAM, source_options(options))


def kv_source_options(options: Mapping[str, str]) -> KvSourceOptions:
    """Options of `jetstream_kv`, for reading."""
    given = OptionReader(JETSTREAM_KV, options, _KV_SOURCE)
    bucket = given.named("bucket", check_bucket)
    found = KvSourceOptions(
        bucket=bucket,
        feed=_feed(given, STREAM_PREFIX + bucket),
        keys=_keys(given),
        as_of=given.whole("asOfRevision"),
        history=given.flag("history", False),
        include_deletes=given.flag("includeDeletes", False),
    )
    if found.as_of and found.history:
        raise given.bad("asOfRevision", "it cannot be set together with 'history'; use 'ending' to end a history")
    return found


def kv_batch_options(options: Mapping[str, str]) -> KvSourceOptions:
    """The same, for a read that ends."""
    found = kv_source_options(options)
    feed = _for_batch(JETSTREAM_KV, found.feed)
    if not found.history and (feed.starting is not EARLIEST or feed.ending is not LATEST):
        raise UsageError(
            f"{JETSTREAM_KV} options 'starting' and 'ending' choose among the entries of a history: set 'history' to "
            "true as well, or use 'asOfRevision' for the keys as of a revision"
        )
    return found


def kv_stream_options(options: Mapping[str, str]) -> KvSourceOptions:
    """The same, for a change feed."""
    found = kv_source_options(options)
    _for_stream(JETSTREAM_KV, found.feed)
    if found.as_of or found.history or found.include_deletes:
        raise UsageError(
            f"{JETSTREAM_KV} options 'asOfRevision', 'history' and 'includeDeletes' are for batch reads: readStream "
            "gives every change, deletes included"
        )
    return found


def stream_sink_options(options: Mapping[str, str]) -> StreamSinkOptions:
    """Options of `jetstream`, for writing."""
    given = OptionReader(JETSTREAM, options, _STREAM_SINK)
    write_id = given.text("writeId")
    if write_id and not _is_token(write_id):
        raise given.bad("writeId", "letters, digits, '_' and '-' are allowed")
    progress = given.text("progress", DEFAULT_PROGRESS)
    try:
        check_bucket(progress)
    except UsageError as error:
        raise given.bad("progress", str(error)) from error
    if given.text("batched").lower() == given.text("atomic").lower() == "true":
        raise given.bad("batched", "it cannot be true together with 'atomic'")
    return StreamSinkOptions(
        stream=given.named("stream", check_name),
        connection=given.connection(),
        write_id=write_id,
        batch_id=given.whole("batchId", least=0) if given.has("batchId") else None,
        dead_letter=given.subject("deadLetter"),
        progress=progress,
        max_in_flight=given.whole("maxInFlight", DEFAULT_IN_FLIGHT),
        atomic=given.choice("atomic", "auto", ("auto", "true", "false")),
        batched=given.choice("batched", "auto", ("auto", "true", "false")),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Options of `jetstream_kv`, for writing."""
    given = OptionReader(JETSTREAM_KV, options, _KV_SINK)
    found = SinkOptions(
        bucket=given.named("bucket", check_bucket),
        connection=given.connection(),
        key_column=given.text("keyColumn", "key"),
        value_column=given.text("valueColumn", "value"),
        operation_column=given.text("operationColumn", "operation"),
        deleted_column=given.text("deletedColumn", "deleted"),
        only_changed=given.flag("onlyChanged", False),
        dead_letter=given.subject("deadLetter"),
        max_in_flight=given.whole("maxInFlight", DEFAULT_IN_FLIGHT),
    )
    columns = (found.key_column, found.value_column, found.operation_column, found.deleted_column)
    if len(set(columns)) < len(columns):
        raise UsageError(f"{JETSTREAM_KV} columns are {columns}: four different names are allowed")
    return found


def table_options(options: Mapping[str, str], known: tuple[str, ...] = _SOURCE) -> dict[str, str]:
    """Of the options of `CREATE TABLE`, those that its reads will need; empty if no table is being made."""
    if "provider" not in options:  # a property that only tables have
        return {}
    kept = {"path", *(name.lower() for name in known)}
    return {name.lower(): value for name, value in options.items() if name.lower() in kept}


def kv_table_options(options: Mapping[str, str]) -> dict[str, str]:
    """The same for tables of `jetstream_kv`."""
    return table_options(options, _KV_SOURCE)


def _keys(given: OptionReader) -> tuple[str, ...]:
    """Filters over keys, by the bucket's own rules: as a subject `a*` is a good filter, that matches nothing."""
    text = given.text("keys")
    found = [one.strip() for one in text.split(",")] if text else [">"]
    if not all(found):
        raise given.bad("keys", "key filters with one comma between them are allowed")
    try:
        return check_patterns(found)
    except UsageError as error:
        raise given.bad("keys", str(error)) from error


def _feed(given: OptionReader, stream: str) -> SourceOptions:
    return SourceOptions(
        stream=stream,
        connection=given.connection(),
        starting=_position(given, "starting", EARLIEST),
        ending=_position(given, "ending", LATEST),
        max_messages_per_trigger=given.whole("maxMessagesPerTrigger"),
        max_bytes_per_trigger=given.whole("maxBytesPerTrigger"),
        partitions=given.whole("partitions"),
        poll_interval=given.seconds("pollInterval", DEFAULT_POLL),
        push_filters=given.flag("pushFilters", False),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
    )


def _replace(found: SourceOptions, **changes: tuple[str, ...]) -> SourceOptions:
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]  # only fields of texts are changed


def _for_batch(fmt: str, found: SourceOptions) -> SourceOptions:
    starting, ending = found.starting, found.ending
    if starting.at is At.LATEST:
        raise UsageError(
            f"{fmt} option 'starting' is 'latest': a batch read starts at 'earliest', a sequence or a time; "
            "'latest' is for readStream"
        )
    if starting.at is ending.at and starting.value > ending.value:
        raise UsageError(f"{fmt} option 'ending' lies before 'starting': at or behind it is allowed")
    return found


def _for_stream(fmt: str, found: SourceOptions) -> SourceOptions:
    if found.ending.at is not At.LATEST:
        raise UsageError(
            f"{fmt} option 'ending' is set: readStream has no end; use read, or trigger(availableNow=True) to "
            "stop at what is there now"
        )
    if found.push_filters:
        raise UsageError(f"{fmt} option 'pushFilters' is for batch reads: Spark hands no filters to readStream")
    return found


def _is_token(text: str) -> bool:
    return text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def _position(given: OptionReader, name: str, default: Position) -> Position:
    text = given.text(name)
    if not text:
        return default
    if text.lower() in (At.EARLIEST.value, At.LATEST.value):
        return EARLIEST if text.lower() == At.EARLIEST.value else LATEST
    if text.isascii() and text.isdigit() and 1 <= int(text) < 2**63:
        return Position(At.SEQUENCE, int(text))
    try:
        return Position(At.TIME, parse_time(text))
    except ValueError:
        allowed = (
            "'earliest', 'latest', a sequence of at least 1 or an RFC 3339 time such as 2026-01-31T12:00:00Z is allowed"
        )
        raise given.bad(name, allowed) from None
