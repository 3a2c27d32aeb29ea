"""Consumers of the API: configuration, delivery state and info, and the body of a pull request."""

# ruff: noqa: RUF009 -- `via` and `always` return a dataclasses.field

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from slipstream.api.fields_set import ConfigType, one_of
from slipstream.api.model import NANOS, NANOS_LIST, TIME, JsonModel, always, nested, via
from slipstream.api.notebook import facts
from slipstream.api.times import ZERO, Duration, Instant, to_datetime_or_none


class AckPolicy(StrEnum):
    """Which messages must be acknowledged: none, each one, or one for all before it."""

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"


class DeliverPolicy(StrEnum):
    """Where in the stream a consumer starts."""

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class ReplayPolicy(StrEnum):
    """How quickly stored messages are delivered: at once, or with the pauses they were stored with."""

    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(StrEnum):
    """How the pull requests of a group share a consumer."""

    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"


class ConsumerFields(TypedDict, total=False):
    """The fields of a `ConsumerConfig` except its durable name, as a program may pass them."""

    name: str
    description: str
    deliver_policy: (
        DeliverPolicy | Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
    )
    opt_start_seq: int
    opt_start_time: Instant | None
    ack_policy: AckPolicy | Literal["none", "all", "explicit", "flow_control"]
    ack_wait: Duration
    max_deliver: int
    backoff: Sequence[Duration]
    filter_subject: str
    filter_subjects: str | Sequence[str]
    replay_policy: ReplayPolicy | Literal["instant", "original"]
    rate_limit_bps: int
    sample_freq: str
    max_waiting: int
    max_ack_pending: int
    flow_control: bool
    headers_only: bool
    max_batch: int
    max_expires: Duration
    max_bytes: int
    deliver_subject: str
    deliver_group: str
    idle_heartbeat: Duration
    inactive_threshold: Duration
    num_replicas: int
    mem_storage: bool
    direct: bool
    sourcing: bool
    metadata: Mapping[str, str]
    pause_until: Instant | None
    priority_groups: str | Sequence[str]
    priority_policy: PriorityPolicy | Literal["", "none", "overflow", "pinned_client", "prioritized"]
    priority_timeout: Duration
    min_last_seq: int
    unknown: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(JsonModel, metaclass=ConfigType):
    """How a consumer is set up. Without a `deliver_subject` it is a pull consumer; 0 leaves a limit to the server."""

    durable_name: str = field(default="", kw_only=False)
    name: str = ""
    description: str = ""
    deliver_policy: str = always(DeliverPolicy.ALL.value, **one_of(DeliverPolicy))
    opt_start_seq: int = 0
    opt_start_time: int | None = via(TIME, default=None)
    ack_policy: str = always(AckPolicy.EXPLICIT.value, **one_of((*AckPolicy, "flow_control")))
    ack_wait: timedelta = via(NANOS, default=timedelta(0))
    max_deliver: int = 0
    backoff: tuple[timedelta, ...] = via(NANOS_LIST, default=())
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    replay_policy: str = always(ReplayPolicy.INSTANT.value, **one_of(ReplayPolicy))
    rate_limit_bps: int = 0
    sample_freq: str = ""
    max_waiting: int = 0
    max_ack_pending: int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: int = 0
    max_expires: timedelta = via(NANOS, default=timedelta(0))
    max_bytes: int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: timedelta = via(NANOS, default=timedelta(0))
    inactive_threshold: timedelta = via(NANOS, default=timedelta(0))
    num_replicas: int = always(0)
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    pause_until: int | None = via(TIME, default=None)
    priority_groups: tuple[str, ...] = ()
    priority_policy: str = field(default="", metadata=one_of(PriorityPolicy, blank=True))
    priority_timeout: timedelta = via(NANOS, default=timedelta(0))
    # Read-after-write: nothing is delivered before the stream has this sequence. Released servers ignore it.
    min_last_seq: int = 0

    @property
    def opt_start_at(self) -> datetime | None:
        """`opt_start_time` as a datetime."""
        return to_datetime_or_none(self.opt_start_time)

    @property
    def pause_until_at(self) -> datetime | None:
        """`pause_until` as a datetime."""
        return to_datetime_or_none(self.pause_until)

    if TYPE_CHECKING:

        def __init__(self, durable_name: str = "", **fields: Unpack[ConsumerFields]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInfo(JsonModel):
    """A place in a consumer's and in its stream's numbering."""

    consumer_seq: int = always(0)
    stream_seq: int = always(0)
    last_active: int | None = via(TIME, default=None)

    @property
    def last_active_at(self) -> datetime | None:
        """When the consumer got there, as a datetime; None if it is not said."""
        return to_datetime_or_none(self.last_active)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo(JsonModel):
    """A consumer's configuration and state, as the server reports them.

    `created` and `ts` are nanoseconds since the epoch; `created_at` and `timestamp` are the same as datetimes.
    """

    stream_name: str = always("")
    name: str = always("")
    created: int = via(TIME, default=ZERO, always=True)
    config: ConsumerConfig = via(nested(ConsumerConfig), default=ConsumerConfig(), always=True)
    delivered: SequenceInfo = via(nested(SequenceInfo), default=SequenceInfo(), always=True)
    ack_floor: SequenceInfo = via(nested(SequenceInfo), default=SequenceInfo(), always=True)
    num_ack_pending: int = always(0)
    num_redelivered: int = always(0)
    num_waiting: int = always(0)
    num_pending: int = always(0)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    push_bound: bool = False
    paused: bool = False
    pause_remaining: timedelta = via(NANOS, default=timedelta(0))
    ts: int = via(TIME, default=ZERO, always=True)
    priority_groups: tuple[Mapping[str, Any], ...] = ()

    def _repr_html_(self) -> str:
        return facts(
            f"Consumer {self.name} of {self.stream_name}",
            (
                ("Description", self.config.description or None),
                ("To deliver", self.num_pending),
                ("Unacknowledged", self.num_ack_pending),
                ("Redelivered", self.num_redelivered),
                ("Delivered up to", self.delivered.stream_seq),
                ("Acknowledged up to", self.ack_floor.stream_seq),
                ("Waiting pulls", self.num_waiting),
                ("Paused", "yes" if self.paused else None),
                ("Created", self.created_at),
            ),
        )

    @property
    def created_at(self) -> datetime | None:
        """When the consumer was created, as a datetime."""
        return to_datetime_or_none(self.created)

    @property
    def timestamp(self) -> datetime | None:
        """When the server said this, as a datetime."""
        return to_datetime_or_none(self.ts)
