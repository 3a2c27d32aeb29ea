"""What an account may use: streams and messages held against its limits become nothing, or nats-server's error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.api import Storage, StreamConfig
from slipstream.errors import ApiError
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


class Holder(Protocol):
    """A stream, as its account counts it."""

    config: StreamConfig
    log: StreamLog


def check_stream(limits: AccountLimits, config: StreamConfig, others: Iterable[Holder], *, new: bool) -> None:
    """Whether the account may have a stream like this beside the others."""
    if limits is UNLIMITED:
        return
    others = list(others)
    if new and 0 < limits.max_streams <= len(others):
        raise ApiError("maximum number of streams reached", code=400, err_code=10027)
    if limits.max_bytes_required and config.max_bytes <= 0:
        raise ApiError("account requires a stream config to have max bytes set", code=400, err_code=10113)
    if 0 < limits.stream_bytes_of(config.storage) < config.max_bytes:
        raise ApiError("stream max bytes exceeds account limit max stream bytes", code=400, err_code=10122)
    if 0 < limits.max_consumers < config.max_consumers:
        raise ApiError("maximum consumers limit reached", code=400, err_code=10026)
    most = limits.bytes_of(config.storage)
    reserved = sum(max(other.config.max_bytes, 0) for other in others if other.config.storage == config.storage)
    wanted = config.max_bytes if config.max_bytes > 0 else 1 if new else 0
    if 0 <= most < reserved + wanted:
        memory = config.storage == Storage.MEMORY
        text = f"insufficient {'memory' if memory else 'storage'} resources available"
        raise ApiError(text, code=500, err_code=10028 if memory else 10047)


def check_bytes(limits: AccountLimits, storage: str, size: int, streams: Iterable[Holder]) -> None:
    """Whether the account has room for one more message."""
    most = limits.bytes_of(storage)
    if most >= 0 and size + used(storage, streams) > most:
        raise ApiError("resource limits exceeded for account", code=400, err_code=10002)


def used(storage: str, streams: Iterable[Holder]) -> int:
    return sum(stream.log.state.bytes for stream in streams if stream.config.storage == storage)
