"""The string options of `spark.read.format(...)` become checked values; whatever is wrong is an error before any job.

An error names the option and what is allowed, never the value of an option we do not know: it may be a secret. Secrets
themselves are no options, since Spark prints those; they come from the environment of the driver and the executors.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.api import parse_time
from slipstream.errors import UsageError
from slipstream.jetstream.calls import check_name
from slipstream.kv.bucket import check_bucket
from slipstream.wire import check_filter

JETSTREAM = "jetstream"
JETSTREAM_KV = "jetstream_kv"

DEFAULT_SERVER = "nats://127.0.0.1:4222"
DEFAULT_TIMEOUT = 10.0

_CONNECTION = ("servers", "apiPrefix", "domain", "timeout")
_SOURCE = (
    *("stream", "subjects", "starting", "ending", "maxMessagesPerTrigger", "partitions"),
    *("includeHeaders", "failOnDataLoss", *_CONNECTION),
)
_SINK = ("bucket", "keyColumn", "valueColumn", "operationColumn", "deletedColumn", *_CONNECTION)
# Spark hands these over with ours: the argument of load() and save(), what a streaming query is started with, and the
# properties of a table (CREATE TABLE), where each option comes once more with "option." before its name.
_SPARKS_OWN = frozenset(
    (
        *("path", "checkpointlocation", "queryname", "outputmode"),
        *("provider", "owner", "comment", "location", "external", "is_managed_location", "collation", "table_type"),
    )
)
_TABLE_OPTION = "option."
_SECRETS = frozenset(("user", "username", "password", "token", "secret", "nkey", "seed"))
_SECRET_ADVICE = (
    "Spark prints options, so secrets are not taken from them: set NATS_USER and NATS_PASSWORD, or NATS_TOKEN, "
    "in the environment of the driver and the executors"
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
class Connection:
    """How to reach the servers; without any secret."""

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    api_prefix: str = ""
    domain: str = ""
    timeout: float = DEFAULT_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of `jetstream`. `partitions` and `max_messages_per_trigger` of 0: the source decides, no limit."""

    stream: str
    connection: Connection = Connection()
    subjects: tuple[str, ...] = ()
    starting: Position = EARLIEST
    ending: Position = LATEST
    max_messages_per_trigger: int = 0
    partitions: int = 0
    include_headers: bool = True
    fail_on_data_loss: bool = True

    @property
    def subject(self) -> str:
        """The filter to read by; empty for every message."""
        return self.subjects[0] if self.subjects else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of `jetstream_kv`, for writing."""

    bucket: str
    connection: Connection = Connection()
    key_column: str = "key"
    value_column: str = "value"
    operation_column: str = "operation"
    deleted_column: str = "deleted"


class Secrets(NamedTuple):
    """Credentials out of the environment."""

    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return "Secrets(...)"


def secrets_of(environ: Mapping[str, str]) -> Secrets:
    """What `NATS_USER`, `NATS_PASSWORD` and `NATS_TOKEN` say; a token and a user exclude each other."""
    found = Secrets(environ.get("NATS_USER", ""), environ.get("NATS_PASSWORD", ""), environ.get("NATS_TOKEN", ""))
    if found.token and (found.user or found.password):
        raise UsageError(
            "NATS_TOKEN and NATS_USER or NATS_PASSWORD are all set: a token or a user is allowed, not both"
        )
    return found


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of `jetstream`, for reading."""
    given = _Given(JETSTREAM, options, _SOURCE)
    return SourceOptions(
        stream=_checked(given, "stream", given.named("stream")),
        connection=_connection(given),
        subjects=_subjects(given),
        starting=_position(given, "starting", EARLIEST),
        ending=_position(given, "ending", LATEST),
        max_messages_per_trigger=given.whole("maxMessagesPerTrigger", 0),
        partitions=given.whole("partitions", 0),
        include_headers=given.flag("includeHeaders", True),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
    )


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Of the options of `CREATE TABLE`, those that its reads will need; empty if no table is being made."""
    if "provider" not in options:  # a property that only tables have
        return {}
    kept = {"path", *(name.lower() for name in _SOURCE)}
    return {name.lower(): value for name, value in options.items() if name.lower() in kept}


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """The same, for a read that ends."""
    found = source_options(options)
    starting, ending = found.starting, found.ending
    if starting.at is At.LATEST:
        raise UsageError(
            f"{JETSTREAM} option 'starting' is 'latest': a batch read starts at 'earliest', a sequence or a time; "
            "'latest' is for readStream"
        )
    if starting.at is ending.at and starting.value > ending.value:
        raise UsageError(f"{JETSTREAM} option 'ending' lies before 'starting': at or behind it is allowed")
    return found


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """The same, for a read that goes on."""
    found = source_options(options)
    if found.ending.at is not At.LATEST:
        raise UsageError(
            f"{JETSTREAM} option 'ending' is set: readStream has no end; use read, or trigger(availableNow=True) to "
            "stop at what is there now"
        )
    return found


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Options of `jetstream_kv`, for writing."""
    given = _Given(JETSTREAM_KV, options, _SINK)
    found = SinkOptions(
        bucket=_checked(given, "bucket", given.named("bucket")),
        connection=_connection(given),
        key_column=given.text("keyColumn", "key"),
        value_column=given.text("valueColumn", "value"),
        operation_column=given.text("operationColumn", "operation"),
        deleted_column=given.text("deletedColumn", "deleted"),
    )
    columns = (found.key_column, found.value_column, found.operation_column, found.deleted_column)
    if len(set(columns)) < len(columns):
        raise UsageError(f"{JETSTREAM_KV} columns are {columns}: four different names are allowed")
    return found


class _Given:
    """The options of one format as the user gave them. Spark's map ignores case, so do we."""

    def __init__(self, fmt: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self.format = fmt
        lowered = {name.lower(): value for name, value in options.items()}
        self._values = {name: value for name, value in lowered.items() if not name.startswith(_TABLE_OPTION)}
        allowed = {name.lower() for name in known}
        unknown = sorted(set(self._values) - allowed - _SPARKS_OWN)
        if not unknown:
            return
        if advice := next((_SECRET_ADVICE for name in unknown if name in _SECRETS), ""):
            raise UsageError(f"{fmt} does not know the option {unknown[0]!r}: {advice}")
        plural = "s" if len(unknown) > 1 else ""
        names = ", ".join(map(repr, unknown))
        raise UsageError(f"{fmt} does not know the option{plural} {names}; allowed are {', '.join(known)}")

    def bad(self, name: str, allowed: str) -> UsageError:
        return UsageError(f"{self.format} option {name!r} is {self._values.get(name.lower())!r}: {allowed}")

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name.lower(), default)
        if name.lower() in self._values and not value.strip():
            raise self.bad(name, "a value that is not empty is allowed")
        return value.strip()

    def named(self, name: str) -> str:
        """What the read or write is about, as an option or as the argument of load() or save()."""
        option, path = self._values.get(name, ""), self._values.get("path", "")
        if option and path and option != path:
            raise UsageError(
                f"{self.format} is given two names, option {name!r} {option!r} and path {path!r}: one is allowed"
            )
        if not option and not path:
            raise UsageError(
                f"{self.format} needs the option {name!r}, or the {name}'s name as argument of load() or save() "
                "(a table made with a list of columns has lost its options: leave the list out)"
            )
        return option or path

    def whole(self, name: str, default: int) -> int:
        value = self.text(name, "")
        if not value:
            return default
        if not (value.isascii() and value.isdigit() and 1 <= int(value) < 2**63):
            raise self.bad(name, "a whole number of at least 1 is allowed")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, "").lower()
        if value not in ("", "true", "false"):
            raise self.bad(name, "'true' or 'false' is allowed")
        return value == "true" if value else default

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name, "")
        try:
            number = float(value) if value else default
        except ValueError:
            number = 0.0
        if not 0 < number < 1e6:
            raise self.bad(name, "a number of seconds above 0 is allowed")
        return number


def _checked(given: _Given, name: str, value: str) -> str:
    try:
        return check_name(value) if name == "stream" else check_bucket(value)
    except UsageError as error:
        raise UsageError(f"{given.format} option {name!r}: {error}") from error


def _connection(given: _Given) -> Connection:
    servers = tuple(one.strip() for one in given.text("servers", DEFAULT_SERVER).split(","))
    if any("@" in one for one in servers):  # not repeated in the message: it holds the secret
        raise UsageError(
            f"{given.format} option 'servers' has user info in a URL: nats://host:port is allowed. {_SECRET_ADVICE}"
        )
    if not all(servers):
        raise given.bad("servers", "nats://host:port is allowed, several with commas between them")
    prefix, domain = given.text("apiPrefix", ""), given.text("domain", "")
    if prefix and domain:
        raise given.bad("domain", "it cannot be set together with 'apiPrefix', which already says where the API is")
    return Connection(
        servers=servers, api_prefix=prefix, domain=domain, timeout=given.seconds("timeout", DEFAULT_TIMEOUT)
    )


def _subjects(given: _Given) -> tuple[str, ...]:
    text = given.text("subjects", "")
    filters = tuple(one.strip() for one in text.split(",")) if text else ()
    for one in filters:
        try:
            check_filter(one)
        except UsageError as error:
            raise given.bad("subjects", str(error)) from error
    if len(filters) > 1:  # TODO: several filters, once batched Direct Get or the reader can take them
        raise given.bad("subjects", "one filter is allowed for now")
    return filters


def _position(given: _Given, name: str, default: Position) -> Position:
    text = given.text(name, "")
    if not text:
        return default
    if text.lower() in (At.EARLIEST.value, At.LATEST.value):
        return Position(At(text.lower()))
    if text.isascii() and text.isdigit() and 1 <= int(text) < 2**63:
        return Position(At.SEQUENCE, int(text))
    try:
        return Position(At.TIME, parse_time(text))
    except ValueError:
        allowed = (
            "'earliest', 'latest', a sequence of at least 1 or an RFC 3339 time such as 2026-01-31T12:00:00Z is allowed"
        )
        raise given.bad(name, allowed) from None
