"""The header block of a publish becomes what its sender demands of the stream.

A block without any `Nats-` header costs one search. Of a header that is there twice the first one counts, names are
compared as they are written: both as on nats-server.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.api import names
from slipstream.errors import ApiError

_NUMBERS = {names.EXPECTED_LAST_SEQ: "last_seq", names.EXPECTED_LAST_SUBJECT_SEQ: "subject_seq"}
_TEXTS = {
    names.MSG_ID: "msg_id",
    names.EXPECTED_STREAM: "stream",
    names.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: "subject",
    names.EXPECTED_LAST_MSG_ID: "last_msg_id",
    names.ROLLUP: "rollup",
}
# What a stream would have to be configured for, and cannot be yet.
_DISABLED = {
    names.TTL: ApiError("per-message TTL is not supported yet by this server", code=400, err_code=10166),
    "Nats-Incr": ApiError("message counters is disabled", code=400, err_code=10168),
    "Nats-Batch-Id": ApiError("atomic publish is disabled", code=400, err_code=10174),
    "Nats-Schedule": ApiError("message schedules is disabled", code=400, err_code=10188),
}


class Demands(NamedTuple):
    """Empty and None: not asked for."""

    msg_id: str = ""
    stream: str = ""
    last_seq: int | None = None
    subject_seq: int | None = None
    subject: str = ""
    last_msg_id: str = ""
    rollup: str = ""
    disabled: ApiError | None = None


NOTHING = Demands()


def demands(header: bytes) -> Demands:
    """What the publisher asks of the stream."""
    if b"\r\nNats-" not in header:
        return NOTHING
    found: dict[str, object] = {}
    for line in header.decode(errors="replace").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        value = value.strip()
        if not value:
            continue
        if name in _TEXTS:
            found.setdefault(_TEXTS[name], value.lower() if name == names.ROLLUP else value)
        elif name in _NUMBERS:
            # A number that is none cannot be the right one: it is refused as a wrong sequence, as on nats-server.
            found.setdefault(_NUMBERS[name], int(value) if value.isascii() and value.isdigit() else -1)
        elif name in _DISABLED and not (name == names.TTL and value in ("0", "0s")):
            found.setdefault("disabled", _DISABLED[name])
    return Demands(**found) if found else NOTHING  # type: ignore[arg-type]
