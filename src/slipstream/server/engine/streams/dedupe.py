"""The duplicate window: message ids (`Nats-Msg-Id`) with the sequence they were first stored as.

It is bounded by time and by `MAX_DISTANCE` messages, whichever is reached first. The second bounds memory under load.
It is a distance in sequences, so that a window that is rebuilt from the log after a restart has the same bound; ids of
messages that limits have removed since are lost then, as on nats-server.

Ids outside the window are unknown at once, but they are dropped a few per call: a million ids that expire together must
not all be paid for by the next publish. The order is kept in a deque, because the first entry of a dict is found by
passing over every entry that was deleted in front of it, which makes emptying it from the front quadratic.

A group may be lost, with an update of the window and with messages in it. So a shorter window drops nothing before it
is durable, and an id that is stored again remembers the message that had it before.
"""

from __future__ import annotations

from collections import deque

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.ports import Record, StreamLog

MAX_DISTANCE = 1_000_000
DROPPED_AT_ONCE = 16  # ids per call: each publish of a thousand that a client pipelines makes two
_CHUNK = 4096

_Entry = tuple[int, int, str]  # sequence, time, id


class DuplicateWindow:
    """The ids of one stream."""

    def __init__(self, window: int) -> None:
        self.window = window  # nanoseconds; 0: off
        self._kept = window  # ids are dropped beyond this: a shorter window may be lost with its group
        self._seen: dict[str, _Entry] = {}
        self._order: deque[_Entry] = deque()  # oldest first; entries whose id was stored again later are still in it
        self._replaced: dict[int, _Entry] = {}  # sequence -> what its id stood for before, if that is in `_order`
        self._oldest_time = self._oldest_seq = 0  # the edge: ids up to there are outside the window

    def configure(self, window: int) -> bool:
        """Set the window; whether `settle` is to be called once that is durable."""
        self.window, self._kept = window, max(window, self._kept)
        return window < self._kept

    def settle(self, window: int) -> None:
        """A shorter window is durable: what is outside it may go."""
        if self.window == window:
            self._kept = window

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, msg_id: str, now: int) -> int:
        """The sequence of the message with that id; 0 if the window does not have it."""
        self._forget(now, 0)
        found = self._seen.get(msg_id)
        if found is None or found[1] <= self._oldest_time or found[0] <= self._oldest_seq:
            return 0
        return found[0]

    def add(self, msg_id: str, seq: int, now: int) -> None:
        if self.window:
            self._forget(now, seq)
            entry = (seq, now, msg_id)
            before = self._seen.get(msg_id)
            if before is not None:
                self._replaced[seq] = before
            self._seen[msg_id] = entry
            self._order.append(entry)

    def rebuild(self, log: StreamLog, now: int) -> None:
        """Rebuild the window from the stored messages it covers."""
        self._seen.clear()
        self._order.clear()
        self._replaced.clear()
        self._oldest_time = self._oldest_seq = 0
        if self.window and log.committed.messages and log.headers_from:
            self._rebuild(log, now)
        # A scan sees committed messages only.
        for seq in range(log.committed.last_seq + 1, log.state.last_seq + 1):
            self._add_record(log.peek(seq))

    def _rebuild(self, log: StreamLog, now: int) -> None:
        last = log.committed.last_seq
        seq = max(log.time_to_seq(now - self.window + 1), last - MAX_DISTANCE + 1, log.headers_from)
        limit = _CHUNK
        while seq <= last:
            try:
                records = log.scan("", seq, limit=limit)
            except CorruptRecordError as exc:  # its id is lost with it: published again, it is stored again
                if exc.seq:
                    seq = max(seq, exc.seq) + 1
                else:  # halve the chunk until the damaged record is alone
                    seq, limit = (seq, limit // 2) if limit > 1 else (seq + 1, _CHUNK)
                continue
            for record in records:
                self._add_record(record)
            seq = records[-1].seq + 1 if records else last + 1

    def _add_record(self, record: Record | None) -> None:
        if record is not None and record.header and (msg_id := message_id(record.header)):
            self.add(msg_id, record.seq, record.time)

    def take_back(self, last: int) -> None:
        """A group was lost: drop the ids after this sequence."""
        order = self._order
        while order and order[-1][0] > last:
            entry = order.pop()
            before = self._replaced.get(entry[0])
            self._drop(entry)
            if before is not None and order and before[0] >= order[0][0]:
                self._seen[before[2]] = before
        self._oldest_seq = min(self._oldest_seq, last - MAX_DISTANCE)

    def _forget(self, now: int, seq: int) -> None:
        """Move the edge of the window, and drop some of the ids outside it."""
        self._oldest_time = now - self.window
        if seq:
            self._oldest_seq = seq - MAX_DISTANCE
        order, kept_from = self._order, now - self._kept
        for _ in range(DROPPED_AT_ONCE):
            if not order or (order[0][1] > kept_from and order[0][0] > self._oldest_seq):
                return
            self._drop(order.popleft())

    def _drop(self, entry: _Entry) -> None:
        msg_id = entry[2]
        if self._replaced:
            self._replaced.pop(entry[0], None)
        if self._seen.get(msg_id) == entry:  # not `is`: compiled code has tuples by value
            del self._seen[msg_id]


def message_id(header: bytes) -> str:
    """The message id in a header block; empty if it has none."""
    at = header.find(b"\r\nNats-Msg-Id:")
    if at < 0:
        return ""
    begin = at + 14
    return header[begin : header.find(b"\r\n", begin)].decode(errors="replace").strip()
