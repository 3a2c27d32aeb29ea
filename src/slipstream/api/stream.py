"""Streams of the API: configuration, state and info, as client and server exchange them."""

# ruff: noqa: RUF009 -- `via` and `always` return a dataclasses.field

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from slipstream.api.fields_set import ConfigType, one_of
from slipstream.api.model import NANOS, TIME, JsonModel, always, nested, nested_list, via
from slipstream.api.notebook import facts
from slipstream.api.times import ZERO, Duration, Instant, to_datetime_or_none


class Retention(StrEnum):
    """When messages leave a stream."""

    LIMITS = "limits"
    INTEREST = "interest"
    WORK_QUEUE = "workqueue"


class Discard(StrEnum):
    """What a full stream does: drop its oldest message, or reject the new one."""

    OLD = "old"
    NEW = "new"


class Storage(StrEnum):
    """Where a stream is kept."""

    FILE = "file"
    MEMORY = "memory"


class Compression(StrEnum):
    """How a stream's messages are compressed on disk."""

    NONE = "none"
    S2 = "s2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(JsonModel, metaclass=ConfigType):
    """Which servers of a cluster may hold the stream."""

    cluster: str = ""
    tags: tuple[str, ...] = ()
    preferred: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectTransform(JsonModel, metaclass=ConfigType):
    """Subjects that match `src` become `dest`."""

    src: str = always("")
    dest: str = always("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Republish(JsonModel, metaclass=ConfigType):
    """Stored messages are published again on `dest`."""

    src: str = ""
    dest: str = always("")
    headers_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalStream(JsonModel, metaclass=ConfigType):
    """A stream of another account, domain or server."""

    api: str = always("")
    deliver: str = always("")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource(JsonModel, metaclass=ConfigType):
    """Another stream that this one mirrors or takes messages from."""

    name: str = field(default="", kw_only=False)
    opt_start_seq: int = 0
    opt_start_time: int | None = via(TIME, default=None)
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = via(nested_list(SubjectTransform), default=())
    external: ExternalStream | None = via(nested(ExternalStream), default=None)

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str = "",
            *,
            opt_start_seq: int = 0,
            opt_start_time: Instant | None = None,
            filter_subject: str = "",
            subject_transforms: Sequence[SubjectTransform] = (),
            external: ExternalStream | None = None,
            unknown: Mapping[str, Any] = ...,
        ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits(JsonModel, metaclass=ConfigType):
    """Defaults and bounds for the consumers of a stream."""

    inactive_threshold: timedelta = via(NANOS, default=timedelta(0))
    max_ack_pending: int = 0

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            inactive_threshold: Duration = timedelta(0),
            max_ack_pending: int = 0,
            unknown: Mapping[str, Any] = ...,
        ) -> None: ...


class StreamFields(TypedDict, total=False):
    """The fields of a `StreamConfig` except its name, as a program may pass them."""

    description: str
    subjects: str | Sequence[str]
    retention: Retention | Literal["limits", "interest", "workqueue"]
    max_consumers: int
    max_msgs: int
    max_bytes: int
    max_age: Duration
    max_msgs_per_subject: int
    max_msg_size: int
    discard: Discard | Literal["old", "new"]
    storage: Storage | Literal["file", "memory"]
    num_replicas: int
    no_ack: bool
    duplicate_window: Duration
    placement: Placement | None
    mirror: StreamSource | None
    sources: Sequence[StreamSource]
    compression: Compression | Literal["none", "s2"]
    first_seq: int
    subject_transform: SubjectTransform | None
    republish: Republish | None
    allow_direct: bool
    mirror_direct: bool
    discard_new_per_subject: bool
    sealed: bool
    deny_delete: bool
    deny_purge: bool
    allow_rollup_hdrs: bool
    consumer_limits: ConsumerLimits
    allow_msg_ttl: bool
    subject_delete_marker_ttl: Duration
    allow_msg_counter: bool
    allow_atomic: bool
    allow_msg_schedules: bool
    persist_mode: Literal["", "default", "async"]
    allow_batched: bool
    metadata: Mapping[str, str]
    unknown: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig(JsonModel, metaclass=ConfigType):
    """How a stream is set up. A limit of -1 is no limit; a `max_age` of 0 keeps messages forever.

    Durations may be seconds, and `subjects` one subject. `allow_direct` is set: any replica of a stream created with
    this library answers reads. (The default of servers, and of configurations without the field, is off.)
    """

    name: str = field(kw_only=False)
    description: str = ""
    subjects: tuple[str, ...] = ()
    retention: str = always(Retention.LIMITS.value, **one_of(Retention))
    max_consumers: int = always(-1)
    max_msgs: int = always(-1)
    max_bytes: int = always(-1)
    max_age: timedelta = via(NANOS, default=timedelta(0), always=True)
    max_msgs_per_subject: int = always(-1)
    max_msg_size: int = always(-1)
    discard: str = always(Discard.OLD.value, **one_of(Discard))
    storage: str = always(Storage.FILE.value, **one_of(Storage))
    num_replicas: int = always(1)
    no_ack: bool = False
    duplicate_window: timedelta = via(NANOS, default=timedelta(0))
    placement: Placement | None = via(nested(Placement), default=None)
    mirror: StreamSource | None = via(nested(StreamSource), default=None)
    sources: tuple[StreamSource, ...] = via(nested_list(StreamSource), default=())
    compression: str = always(Compression.NONE.value, **one_of(Compression))
    first_seq: int = 0
    subject_transform: SubjectTransform | None = via(nested(SubjectTransform), default=None)
    republish: Republish | None = via(nested(Republish), default=None)
    allow_direct: bool = always(True, absent=False)
    mirror_direct: bool = always(False)
    discard_new_per_subject: bool = False
    sealed: bool = always(False)
    deny_delete: bool = always(False)
    deny_purge: bool = always(False)
    allow_rollup_hdrs: bool = always(False)
    consumer_limits: ConsumerLimits = via(nested(ConsumerLimits), default=ConsumerLimits(), always=True)
    allow_msg_ttl: bool = always(False)
    subject_delete_marker_ttl: timedelta = via(NANOS, default=timedelta(0))
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: str = field(default="", metadata=one_of(("default", "async"), blank=True))
    allow_batched: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    if TYPE_CHECKING:

        def __init__(self, name: str, **fields: Unpack[StreamFields]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState(JsonModel):
    """A stream's state: what it holds, and between which sequences and times (in nanoseconds since the epoch)."""

    messages: int = always(0)
    bytes: int = always(0)
    first_seq: int = always(0)
    first_ts: int = via(TIME, default=ZERO, always=True)
    last_seq: int = always(0)
    last_ts: int = via(TIME, default=ZERO, always=True)
    num_subjects: int = 0
    subjects: Mapping[str, int] = field(default_factory=dict)
    num_deleted: int = 0
    deleted: tuple[int, ...] = ()
    consumer_count: int = always(0)

    @property
    def first_timestamp(self) -> datetime | None:
        """When the first message was stored, as a datetime; None if there is none."""
        return to_datetime_or_none(self.first_ts)

    @property
    def last_timestamp(self) -> datetime | None:
        """When the last message was stored, as a datetime; None if there never was one."""
        return to_datetime_or_none(self.last_ts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo(JsonModel):
    """A stream's configuration and state, as the server reports them.

    `created` and `ts` are nanoseconds since the epoch; `created_at` and `timestamp` are the same as datetimes.
    """

    config: StreamConfig = via(nested(StreamConfig), default=StreamConfig(name=""), always=True)
    created: int = via(TIME, default=ZERO, always=True)
    state: StreamState = via(nested(StreamState), default=StreamState(), always=True)
    domain: str = ""
    cluster: Mapping[str, Any] = field(default_factory=dict)
    mirror: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[Mapping[str, Any], ...] = ()
    alternates: tuple[Mapping[str, Any], ...] = ()
    ts: int = via(TIME, default=ZERO, always=True)

    def _repr_html_(self) -> str:
        config, state = self.config, self.state
        return facts(
            f"Stream {config.name}",
            (
                ("Subjects", ", ".join(config.subjects) or None),
                ("Description", config.description or None),
                ("Messages", state.messages),
                ("Bytes", state.bytes),
                ("Sequences", f"{state.first_seq:,} to {state.last_seq:,}"),
                ("Subjects in use", state.num_subjects),
                ("Consumers", state.consumer_count),
                ("Storage", config.storage),
                ("Retention", config.retention),
                ("Replicas", config.num_replicas),
                ("Last message", state.last_timestamp),
                ("Created", self.created_at),
            ),
        )

    @property
    def created_at(self) -> datetime | None:
        """When the stream was created, as a datetime."""
        return to_datetime_or_none(self.created)

    @property
    def timestamp(self) -> datetime | None:
        """When the server said this, as a datetime."""
        return to_datetime_or_none(self.ts)
