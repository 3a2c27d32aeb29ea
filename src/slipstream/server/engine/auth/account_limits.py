"""Limits of an account on streams, consumers and bytes; a violation raises nats-server's error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.api import Storage, StreamConfig
from slipstream.errors import ErrorCode
from slipstream.server.engine.ports import StreamLog


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimits:
    """Bytes and numbers; -1 is no limit."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False

    def report(self) -> dict[str, Any]:
        """As account info shows them."""
        return {name: getattr(self, name) for name in self.__slots__}

    def bytes_of(self, storage: str) -> int:
        return self.max_memory if storage == Storage.MEMORY else self.max_storage

    def stream_bytes_of(self, storage: str) -> int:
        return self.memory_max_stream_bytes if storage == Storage.MEMORY else self.storage_max_stream_bytes


UNLIMITED = AccountLimits()


class AccountStream(Protocol):
    """A stream, as it counts against the limits of its account."""

    config: StreamConfig
    log: StreamLog


def check_stream(limits: AccountLimits, config: StreamConfig, others: Iterable[AccountStream], *, new: bool) -> None:
    """Raise an error if the account may not have this stream in addition to the others."""
    if limits is UNLIMITED:
        return
    others = list(others)
    if new and 0 < limits.max_streams <= len(others):
        raise ErrorCode.MAXIMUM_STREAMS_LIMIT.error()
    if limits.max_bytes_required and config.max_bytes <= 0:
        raise ErrorCode.STREAM_MAX_BYTES_REQUIRED.error()
    if 0 < limits.stream_bytes_of(config.storage) < config.max_bytes:
        raise ErrorCode.STREAM_MAX_STREAM_BYTES_EXCEEDED.error()
    if 0 < limits.max_consumers < config.max_consumers:
        raise ErrorCode.MAXIMUM_CONSUMERS_LIMIT.error()
    most = limits.bytes_of(config.storage)
    reserved = sum(max(other.config.max_bytes, 0) for other in others if other.config.storage == config.storage)
    wanted = config.max_bytes if config.max_bytes > 0 else 1 if new else 0
    if 0 <= most < reserved + wanted:
        memory = config.storage == Storage.MEMORY
        raise (ErrorCode.MEMORY_RESOURCES_EXCEEDED if memory else ErrorCode.STORAGE_RESOURCES_EXCEEDED).error()


def exceeds(limits: AccountLimits, storage: str, size: int, streams: Iterable[AccountStream]) -> bool:
    """Whether one more message of that size would exceed the account's limit."""
    most = limits.bytes_of(storage)
    return 0 <= most < size + used(storage, streams)


def used(storage: str, streams: Iterable[AccountStream]) -> int:
    return sum(stream.log.state.bytes for stream in streams if stream.config.storage == storage)
