"""Counters: the total of each subject, stored as the payload of its last message.

A total may depend on uncommitted messages, which the log does not return by subject: those are cached here.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from slipstream.api import NOT_JSON, encode_json, names
from slipstream.errors import ApiError, ErrorCode
from slipstream.server.engine.ports import Record, StreamLog
from slipstream.server.engine.streams.publish_headers import set_header

MAX_REMEMBERED = 4096
Sources = dict[str, dict[str, str]]  # origin stream -> its subject -> the total that it had


class Total(NamedTuple):
    """The state of one counter, and the message that holds it."""

    seq: int
    value: int
    sources: Sources


class Value(msgspec.Struct):
    """The payload of a counter."""

    val: str = "0"


def broken() -> ApiError:
    return ErrorCode.MESSAGE_COUNTER_BROKEN.error()


class Counters:
    """The counters of one stream."""

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        self._totals: dict[str, Total] = {}

    def forget(self) -> None:
        """A group was lost: drop the cache."""
        self._totals.clear()

    def current(self, subject: str) -> Total:
        """The current total, uncommitted increments included."""
        seq = self._log.last_seq_of(subject)
        known = self._totals.get(subject)
        if known is not None and known.seq == seq:
            return known
        if not seq:
            return Total(0, 0, {})
        record = self._log.peek(seq)
        if record is None:
            raise broken()
        return Total(seq, parse_value(record.payload), _sources(record))

    def add(self, total: Total, amount: int, header: bytes) -> tuple[Total, bytes, bytes]:
        """The new total, and the message that will hold it: header and payload."""
        total = total._replace(value=total.value + amount)
        if total.sources:
            header = set_header(header, names.COUNTER_SOURCES, encode_json(total.sources).decode())
        return total, header, b'{"val":"%d"}' % total.value

    def add_sourced(self, total: Total, origin: str, subject: str, value: int) -> tuple[Total, int]:
        """Take over the total that a sourced counter has now: the totals without the increment, and the increment."""
        before = int(total.sources.get(origin, {}).get(subject, "0"))
        sources = {name: dict(subjects) for name, subjects in total.sources.items()}
        sources.setdefault(origin, {})[subject] = str(value)
        return total._replace(sources=sources), value - before

    def add_message(self, subject: str, header: bytes, payload: bytes, source: str) -> tuple[Total, bytes, bytes]:
        """The same for a message of a counter in another stream, whose origin is `source`."""
        fields = source.split(" ")
        origin = fields[4] if len(fields) > 4 else subject
        total, amount = self.add_sourced(self.current(subject), fields[0], origin, parse_value(payload))
        return self.add(total, amount, set_header(header, names.INCR, str(amount)))

    def stored(self, subject: str, total: Total, seq: int) -> None:
        """The message with this total was appended to the log."""
        if len(self._totals) >= MAX_REMEMBERED:
            done = self._log.committed.last_seq
            self._totals = {name: known for name, known in self._totals.items() if known.seq > done}
        self._totals[subject] = total._replace(seq=seq)


def parse_value(payload: bytes) -> int:
    """The total in a counter's payload."""
    try:
        return int(msgspec.json.decode(payload, type=Value).val)
    except NOT_JSON as exc:
        raise broken() from exc


def _sources(record: Record) -> Sources:
    lead = f"\r\n{names.COUNTER_SOURCES}:".encode()
    at = record.header.find(lead)
    if at < 0:
        return {}
    begin = at + len(lead)
    try:
        return msgspec.json.decode(record.header[begin : record.header.find(b"\r\n", begin)], type=Sources)
    except NOT_JSON as exc:
        raise broken() from exc
