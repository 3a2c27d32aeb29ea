"""The reply to a Direct Get of one key becomes an entry, in one step: the hot path of `get`.

Only the usual form is read here (the server's four headers, in their order, for the subject that was asked for). All
else is left to `jetstream/reads/direct_get.py`, which knows every form and every error.
"""

from __future__ import annotations

import re

from slipstream.api.times import parse_time
from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one
from slipstream.kv.entry import Entry, Operation, has_mark, mark_of
from slipstream.wire import Msg

_TAIL = re.compile(
    rb"\r\nNats-Stream: ([^\r]*)\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d{1,20})\r\nNats-Time-Stamp: "
    rb"([-0-9T:.]{19,29}Z)\r\n\r\n"
)
_MARK = b"\r\nNats-Stream: "


def entry_or_message(msg: Msg, *, bucket: str, key: str, subject: str) -> Entry[bytes] | StoredMessage:
    """The entry; or the message as `decode_one` reads it, which raises what the server said instead."""
    header = msg.header
    at = header.rfind(_MARK)
    tail = _TAIL.fullmatch(header, at) if at >= 0 else None
    if tail is None or tail[2] != subject.encode():
        return decode_one(msg, asked=subject)
    stream, _, seq, time = tail.groups()
    operation, marker = Operation.PUT, ""
    if at > 8 and has_mark(header):
        operation, marker = mark_of(header[: at + 2] + b"\r\n")
    created = parse_time(time.decode())
    return Entry(bucket, key, msg.payload, int(seq), created, 0, operation, marker, stream.decode(errors="replace"))
