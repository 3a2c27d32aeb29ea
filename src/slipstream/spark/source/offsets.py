"""Codec of stream offsets: the JSON that Spark keeps in its checkpoint.

An offset is the sequence of the last message read, with the creation time of its stream: a stream that is deleted and
recreated counts from 1 again, and its sequences must not be confused with the old ones. Where messages were lost and
the user accepts that, the offset also counts the skipped sequences, so that Spark's progress reports show them. Spark
stores where a batch ends, and asks for the beginning of the first batch of a query again when it repeats that batch.
The answer may have changed, so the end of the first batch contains its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slipstream.api import StreamInfo, format_time
from slipstream.errors import UsageError


class Offset(NamedTuple):
    """Everything up to and with `seq` was read from the stream created at `created` (RFC 3339), but for `skipped`. At
    the end of the first batch of a query, `begin` is the sequence that the batch begins behind."""

    seq: int
    created: str
    skipped: int = 0
    begin: int | None = None

    def to_json(self) -> dict[str, int | str]:
        """The value that Spark stores. Spark compares the text, so the order of the fields matters."""
        plain: dict[str, int | str] = {"seq": self.seq, "created": self.created}
        if self.skipped:
            plain["skipped"] = self.skipped
        return plain if self.begin is None else {**plain, "begin": self.begin}


def offset_of(value: Mapping[str, Any]) -> Offset:
    """The offset that Spark passes back; raises UsageError if it is not one of ours."""
    seq, created, skipped, begin = (value.get(name, 0) for name in ("seq", "created", "skipped", "begin"))
    if "seq" not in value or not all(map(_is_count, (seq, skipped, begin))) or not isinstance(created, str):
        raise UsageError(
            f"offset in the checkpoint must be {{'seq': 0 or more, 'created': a time}}, got {dict(value)!r}; "
            "does the checkpoint belong to another source?"
        )
    return Offset(int(str(seq)), created, int(str(skipped)), int(str(begin)) if "begin" in value else None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def created_of(info: StreamInfo) -> str:
    """When the stream was created, as offsets write it."""
    return format_time(info.created)
