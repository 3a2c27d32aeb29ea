"""A place in a stream becomes the JSON that Spark keeps in its checkpoint, and back.

The offset is the sequence of the last message that was read, with the time its stream was created: a stream that was
deleted and made again counts from 1 once more, and its sequences must not be taken for the old ones. Where messages
were lost and the user accepts that, it also carries how many sequences were passed over, so that Spark's own progress
reports show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slipstream.api import StreamInfo, format_time
from slipstream.errors import UsageError


class Offset(NamedTuple):
    """Everything up to and with `seq` was read from the stream created at `created` (RFC 3339), but for `skipped`."""

    seq: int
    created: str
    skipped: int = 0

    def to_json(self) -> dict[str, int | str]:
        """What Spark stores. It compares the text, so the order of the fields is part of it."""
        plain: dict[str, int | str] = {"seq": self.seq, "created": self.created}
        return {**plain, "skipped": self.skipped} if self.skipped else plain


def offset_of(value: Mapping[str, Any]) -> Offset:
    """The offset that Spark hands back; one that is not ours is an error, not a guess."""
    seq, created, skipped = value.get("seq"), value.get("created"), value.get("skipped", 0)
    if not _is_count(seq) or not _is_count(skipped) or not isinstance(created, str):
        raise UsageError(
            f"bad offset {dict(value)!r} in the checkpoint: {{'seq': 0 or more, 'created': a time}} is allowed; "
            "does the checkpoint belong to another source?"
        )
    return Offset(int(str(seq)), created, int(str(skipped)))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def created_of(info: StreamInfo) -> str:
    """When the stream was created, as offsets write it."""
    return format_time(info.created)
