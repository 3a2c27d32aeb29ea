"""Replies of services to PING, INFO and STATS, as JSON and as objects.

Fields are written even when they are empty: nats-py reads `last_error`, `data` and `metadata` without a default, and
wants a fraction in `started`. What other implementations leave out or write as null is read as empty.
"""

# ruff: noqa: RUF009 -- `via` and `always` return a dataclasses.field

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import msgspec

from slipstream.api.fields_set import instance_of
from slipstream.api.model import NANOS, Codec, JsonModel, always, nested_list, via
from slipstream.api.times import parse_time

PING_TYPE = "io.nats.micro.v1.ping_response"
INFO_TYPE = "io.nats.micro.v1.info_response"
STATS_TYPE = "io.nats.micro.v1.stats_response"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(text: Any) -> datetime:
    return _EPOCH + timedelta(microseconds=parse_time(text) // 1000)


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"  # nats-py takes no other form


def _error_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


MOMENT = Codec(_moment, _text, instance_of(datetime))
ERROR_TEXT = Codec(_error_text, str, instance_of(str))


def _metadata() -> Any:
    return field(default_factory=dict, metadata={"always": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceIdentity(JsonModel):
    """What every reply of a service instance says of it."""

    type: str = always("")
    name: str = always("")
    id: str = always("")
    version: str = always("")
    metadata: Mapping[str, str] = _metadata()

    @classmethod
    def from_reply(cls, data: bytes) -> Self:
        """Read a reply; raises ValueError if it is not of this type."""
        found, expected = cls.from_json(data), cls().type
        if found.type != expected or not found.name or not found.id:
            raise ValueError(f"type must be {expected!r}, with a name and an id, got {data[:200]!r}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePing(ServiceIdentity):
    """The reply of an instance to PING."""

    type: str = always(PING_TYPE)
    rtt: timedelta | None = via(NANOS, default=None)  # how long the reply took; the client measures it


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointInfo(JsonModel):
    """One endpoint: its subject, and its queue group ("" for none)."""

    name: str = always("")
    subject: str = always("")
    queue_group: str = always("")
    metadata: Mapping[str, str] = _metadata()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo(ServiceIdentity):
    """The reply of an instance to INFO: what it offers."""

    type: str = always(INFO_TYPE)
    description: str = always("")
    endpoints: tuple[EndpointInfo, ...] = via(nested_list(EndpointInfo), default=(), always=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStats(JsonModel):
    """Counters of one endpoint since the service was started or reset; times in nanoseconds."""

    name: str = always("")
    subject: str = always("")
    queue_group: str = always("")
    num_requests: int = always(0)
    num_errors: int = always(0)
    last_error: str = via(ERROR_TEXT, default="", always=True)
    processing_time: int = always(0)
    average_processing_time: int = always(0)
    data: Any = always(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStats(ServiceIdentity):
    """The reply of an instance to STATS."""

    type: str = always(STATS_TYPE)
    started: datetime = via(MOMENT, default=_EPOCH, always=True)
    endpoints: tuple[EndpointStats, ...] = via(nested_list(EndpointStats), default=(), always=True)


class EndpointCounters:
    """The running counters of one endpoint. Times come from the caller."""

    __slots__ = ("errors", "last_error", "processing_time", "requests")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self.requests: int = 0
        self.errors: int = 0
        self.processing_time: int = 0
        self.last_error: str = ""

    def failed(self, error: str) -> None:
        """Count an error."""
        self.errors += 1
        self.last_error = error

    def stats(self, *, name: str, subject: str, queue_group: str) -> EndpointStats:
        """The counters as they are now."""
        return EndpointStats(
            name=name,
            subject=subject,
            queue_group=queue_group,
            num_requests=self.requests,
            num_errors=self.errors,
            last_error=self.last_error,
            processing_time=self.processing_time,
            average_processing_time=self.processing_time // self.requests if self.requests else 0,
        )
