"""Requests of the consumer API, each with the decoder of its answer. Pure: drivers only send and wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from slipstream.api import ConsumerConfig, ConsumerInfo, encode_json, format_time, names
from slipstream.api.times import to_datetime_or_none
from slipstream.errors import RemoteProtocolError, UsageError
from slipstream.jetstream.requests import (
    Call,
    Page,
    api_body,
    check_name,
    check_type,
    decode_page,
    decode_success,
    naming,
    page_body,
    to_text,
)
from slipstream.wire import Msg, check_filter, has_wildcard

T = TypeVar("T")


class Action(StrEnum):
    """What a create request may do if the consumer exists."""

    CREATE = "create"
    UPDATE = "update"
    CREATE_OR_UPDATE = ""


class Pause(NamedTuple):
    """Whether a consumer is paused, and until when (nanoseconds since the epoch)."""

    paused: bool
    until: int

    @property
    def until_at(self) -> datetime | None:
        """Until when, as a datetime in UTC; None if it is not paused."""
        return to_datetime_or_none(self.until)


@dataclass(frozen=True, slots=True)
class ConsumerApi:
    """The requests for consumers below one subject prefix."""

    prefix: str = names.API_PREFIX

    def create(self, stream: str, config: ConsumerConfig, action: Action) -> Call[ConsumerInfo]:
        """Create or update a consumer. Its name and a literal filter are part of the subject, so that permissions can
        limit them; a consumer without a name gets one from the server."""
        check_config(config)
        name = config.name or config.durable_name
        subject = f"{self.prefix}.CONSUMER.CREATE.{check_name(stream)}"
        if name:
            subject += f".{check_name(name, 'consumer')}"
            if config.filter_subject and not has_wildcard(config.filter_subject):  # a wildcard cannot be published to
                subject += f".{config.filter_subject}"
        return _named(subject, _create_body(stream, config, action), decode_info, stream, name or "")

    def create_as_documented(
        self, stream: str, config: ConsumerConfig, action: Action = Action.CREATE
    ) -> Call[ConsumerInfo]:
        """Create a consumer, unless it exists, on the older subjects that the subscribe workflow documents."""
        check_config(config)
        check_name(stream)
        if config.durable_name:
            subject = f"CONSUMER.DURABLE.CREATE.{stream}.{check_name(config.durable_name, 'consumer')}"
        else:
            subject = f"CONSUMER.CREATE.{stream}" + (f".{config.name}" if config.name else "")
        name = config.durable_name or config.name or ""
        return _named(f"{self.prefix}.{subject}", _create_body(stream, config, action), decode_info, stream, name)

    def info(self, stream: str, name: str) -> Call[ConsumerInfo]:
        """Configuration and state."""
        return _named(self._subject("INFO", stream, name), b"", decode_info, stream, name)

    def delete(self, stream: str, name: str) -> Call[None]:
        """Delete a consumer; its stream keeps its messages."""
        return _named(self._subject("DELETE", stream, name), b"", decode_success, stream, name)

    def pause(self, stream: str, name: str, until: int) -> Call[Pause]:
        """Stop deliveries until a time (nanoseconds since the epoch); 0 resumes at once."""
        body = encode_json({"pause_until": format_time(until)}) if until else b""
        return _named(self._subject("PAUSE", stream, name), body, _pause, stream, name)

    def reset(self, stream: str, name: str, seq: int) -> Call[int]:
        """Deliver again from a sequence on; 0: from behind the ack floor. The result is the next sequence."""
        body = encode_json({"seq": seq}) if seq else b""

        def decode(msg: Msg) -> int:
            return _converted(api_body(msg).get("reset_seq", 0), int)

        return _named(self._subject("RESET", stream, name), body, decode, stream, name)

    def unpin(self, stream: str, name: str, group: str) -> Call[None]:
        """Unpin the client of a priority group."""
        return _named(self._subject("UNPIN", stream, name), encode_json({"group": group}), _unpinned, stream, name)

    def step_down(self, stream: str, name: str) -> Call[None]:
        """Have the leader of a consumer hand over to another replica."""
        return _named(self._subject("LEADER.STEPDOWN", stream, name), b"", decode_success, stream, name)

    def names(self, stream: str, *, offset: int = 0) -> Call[Page[str]]:
        """A page of the names of all consumers."""
        decode = partial(decode_page, field="consumers", convert=to_text)
        return _named(f"{self.prefix}.CONSUMER.NAMES.{check_name(stream)}", page_body("", offset), decode, stream)

    def list(self, stream: str, *, offset: int = 0) -> Call[Page[ConsumerInfo]]:
        """A page of the infos of all consumers."""
        decode = partial(decode_page, field="consumers", convert=ConsumerInfo.from_dict)
        return _named(f"{self.prefix}.CONSUMER.LIST.{check_name(stream)}", page_body("", offset), decode, stream)

    def streams_of(self, subject: str) -> Call[tuple[str, ...]]:
        """The names of the streams that listen on a subject; enough of them to see whether it is one."""

        def decode(msg: Msg) -> tuple[str, ...]:
            return _converted(api_body(msg).get("streams") or (), tuple[str, ...])

        return Call(f"{self.prefix}.STREAM.NAMES", encode_json({"subject": check_filter(subject)}), decode)

    def next_subject(self, stream: str, name: str) -> str:
        """The subject of pull requests."""
        return self._subject("MSG.NEXT", stream, name)

    def _subject(self, verb: str, stream: str, name: str) -> str:
        return f"{self.prefix}.CONSUMER.{verb}.{check_name(stream)}.{check_name(name, 'consumer')}"


def _named(subject: str, body: bytes, decode: Callable[[Msg], T], stream: str, consumer: str = "") -> Call[T]:
    """The request whose errors name the stream and the consumer."""
    return Call(subject, body, naming(decode, subject, stream=stream, consumer=consumer))


def check_config(config: ConsumerConfig) -> None:
    """Reject what cannot be sent, and what every server rejects with a less clear error."""
    check_type(config, ConsumerConfig)
    for name in filter(None, (config.name, config.durable_name)):
        check_name(name, "consumer")
    if config.name and config.durable_name and config.name != config.durable_name:
        raise UsageError(f"name and durable_name must be equal, got {config.name!r} and {config.durable_name!r}")
    if config.filter_subject and config.filter_subjects:
        raise UsageError("filter_subject and filter_subjects are mutually exclusive")
    for pattern in filter(None, (config.filter_subject, *config.filter_subjects)):
        check_filter(pattern)


def decode_info(msg: Msg) -> ConsumerInfo:
    """The info in an answer; raises the server's error."""
    body = api_body(msg)
    body.pop("type", None)  # of the response, not of the consumer
    return _info(body)


def _create_body(stream: str, config: ConsumerConfig, action: Action) -> bytes:
    body: dict[str, Any] = {"stream_name": stream, "config": config.to_dict()}
    if action:
        body["action"] = action.value
    return encode_json(body)


def _pause(msg: Msg) -> Pause:
    body = api_body(msg)
    info = _info({"config": {"pause_until": body.get("pause_until")}})
    return Pause(bool(body.get("paused")), info.config.pause_until or 0)


def _unpinned(msg: Msg) -> None:
    api_body(msg)  # raises the error of the API, if it is one; else it says nothing


def _info(value: Any) -> ConsumerInfo:
    try:
        return ConsumerInfo.from_dict(value)
    except ValueError as exc:
        raise RemoteProtocolError(f"malformed response of the consumer API: {exc}") from exc


def _converted(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.MsgspecError as exc:
        raise RemoteProtocolError(f"malformed response of the consumer API: {exc}") from exc
