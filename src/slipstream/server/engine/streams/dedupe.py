"""The duplicate window: message ids (`Nats-Msg-Id`) with the sequence they were first stored as.

It is bounded by time and by `MAX_DISTANCE` messages, whichever is reached first. The second bounds memory under load.
It is a distance in sequences, so that a window that is rebuilt from the log after a restart has the same bound; ids of
messages that limits have removed since are lost then, as on nats-server.
"""

from __future__ import annotations

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.ports import Record, StreamLog

MAX_DISTANCE = 1_000_000
_CHUNK = 4096


class DuplicateWindow:
    """The ids of one stream."""

    def __init__(self, window: int) -> None:
        self.window = window  # nanoseconds; 0: off
        self._seen: dict[str, tuple[int, int]] = {}  # id -> sequence, time; oldest first

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, msg_id: str, now: int) -> int:
        """The sequence of the message with that id; 0 if the window does not have it."""
        self._forget(now, 0)
        found = self._seen.get(msg_id)
        return found[0] if found is not None else 0

    def add(self, msg_id: str, seq: int, now: int) -> None:
        if self.window:
            self._forget(now, seq)
            self._seen.pop(msg_id, None)
            self._seen[msg_id] = (seq, now)

    def rebuild(self, log: StreamLog, now: int) -> None:
        """Rebuild the window from the stored messages it covers."""
        self._seen.clear()
        if self.window and log.committed.messages:
            self._rebuild(log, now)
        # A scan sees committed messages only.
        for seq in range(log.committed.last_seq + 1, log.state.last_seq + 1):
            self._add_record(log.peek(seq))

    def _rebuild(self, log: StreamLog, now: int) -> None:
        last = log.committed.last_seq
        seq = max(log.time_to_seq(now - self.window + 1), last - MAX_DISTANCE + 1)
        limit = _CHUNK
        while seq <= last:
            try:
                records = log.scan("", seq, limit=limit)
            except CorruptRecordError:  # halve the chunk until the damaged record is alone; its id is lost with it
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
        seen = self._seen
        while seen and seen[key := next(reversed(seen))][0] > last:
            del seen[key]

    def _forget(self, now: int, seq: int) -> None:
        seen, oldest = self._seen, now - self.window
        while seen:
            key = next(iter(seen))
            at, time = seen[key]
            if time > oldest and at > seq - MAX_DISTANCE:
                return
            del seen[key]


def message_id(header: bytes) -> str:
    """The message id in a header block; empty if it has none."""
    at = header.find(b"\r\nNats-Msg-Id:")
    if at < 0:
        return ""
    begin = at + 14
    return header[begin : header.find(b"\r\n", begin)].decode(errors="replace").strip()
