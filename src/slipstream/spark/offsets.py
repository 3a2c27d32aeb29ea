"""A place in a stream becomes the JSON that Spark keeps in its checkpoint, and back.

The offset is the sequence of the last message that was read, with the time its stream was created: a stream that was
deleted and made again counts from 1 once more, and its sequences must not be taken for the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slipstream.api import StreamInfo, format_time
from slipstream.errors import UsageError


class Offset(NamedTuple):
    """Everything up to and with `seq` was read from the stream created at `created` (RFC 3339)."""

    seq: int
    created: str

    def to_json(self) -> dict[str, int | str]:
        """What Spark stores. It compares the text, so the order of the fields is part of it."""
        return {"seq": self.seq, "created": self.created}


def offset_of(value: Mapping[str, Any]) -> Offset:
    """The offset that Spark hands back; one that is not ours is an error, not a guess."""
    seq, created = value.get("seq"), value.get("created")
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0 or not isinstance(created, str):
        raise UsageError(
            f"bad offset {dict(value)!r} in the checkpoint: {{'seq': 0 or more, 'created': a time}} is allowed; "
            "does the checkpoint belong to another source?"
        )
    return Offset(seq, created)


def created_of(info: StreamInfo) -> str:
    """When the stream was created, as offsets write it."""
    return format_time(info.created)
