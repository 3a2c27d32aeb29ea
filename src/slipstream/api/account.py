"""Account info of the API: an account's use of JetStream, and its limits."""

# ruff: noqa: RUF009 -- `via` and `always` return a dataclasses.field

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.api.model import JsonModel, always, nested, via


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimits(JsonModel):
    """What an account may use; -1 is no limit."""

    max_memory: int = always(-1)
    max_storage: int = always(-1)
    max_streams: int = always(-1)
    max_consumers: int = always(-1)
    max_ack_pending: int = always(-1)
    memory_max_stream_bytes: int = always(-1)
    storage_max_stream_bytes: int = always(-1)
    max_bytes_required: bool = always(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiUse(JsonModel):
    """How many API requests an account made."""

    level: int = always(0)
    total: int = always(0)
    errors: int = always(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountInfo(JsonModel):
    """An account's use of JetStream, in bytes and numbers."""

    memory: int = always(0)
    storage: int = always(0)
    reserved_memory: int = always(0)
    reserved_storage: int = always(0)
    streams: int = always(0)
    consumers: int = always(0)
    domain: str = ""
    limits: AccountLimits = via(nested(AccountLimits), default=AccountLimits(), always=True)
    api: ApiUse = via(nested(ApiUse), default=ApiUse(), always=True)
    tiers: Mapping[str, Any] = field(default_factory=dict)
