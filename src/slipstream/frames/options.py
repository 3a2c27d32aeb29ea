"""Options of data frames."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from slipstream.wire.arguments import Duration


class FrameOptions(TypedDict, total=False):
    """What of messages or entries a table holds.

    `columns` names its columns: subject, sequence, timestamp, headers, data of messages; key, value, revision, created,
    operation of entries. `schema` decodes payloads as JSON into columns of their own, instead of `data` or `value`: a
    type (a Struct, a dataclass, a TypedDict) or a `pyarrow.Schema`. `errors` is "raise" (a MessageDecodeError for a
    payload that is not that) or "null" (its columns are null).
    """

    columns: Sequence[str] | None
    schema: Any
    errors: str


class RangeOptions(FrameOptions, total=False):
    """Also which messages: the arguments of `Stream.read`."""

    start: int
    end: int
    subject: str
    start_time: int | datetime | None
    min_last_seq: int
    from_leader: bool
    timeout: Duration | None


class SnapshotOptions(FrameOptions, total=False):
    """Also which entries: the arguments of `KeyValue.snapshot`."""

    revision: int
    min_last_revision: int
    timeout: Duration | None
