"""The reply to a Direct Get of one key becomes an entry, in one step: the hot path of `get`.

Only the usual form is read here (the server's four headers, in their order, for the subject that was asked for). All
else is left to `jetstream/reads/direct_get.py`, which knows every form and every error.
"""

from __future__ import annotations

from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one, match_tail, own_headers, time_of
from slipstream.kv.entry import Entry, Operation, has_mark, mark_of
from slipstream.wire import Msg


def entry_or_message(msg: Msg, *, bucket: str, key: str, subject: str) -> Entry[bytes] | StoredMessage:
    """The entry; or the message as `decode_one` reads it, which raises what the server said instead."""
    header = msg.header
    tail = match_tail(header)
    if tail is None or tail[2] != subject.encode():
        return decode_one(msg, asked=subject)
    stream, _, seq, time, _, _ = tail.groups()
    operation, marker = Operation.PUT, ""
    if tail.start() > len("NATS/1.0") and has_mark(header):
        operation, marker = mark_of(own_headers(header, tail))
    created = time_of(time, subject)
    return Entry(bucket, key, msg.payload, int(seq), created, 0, operation, marker, stream.decode(errors="replace"))
