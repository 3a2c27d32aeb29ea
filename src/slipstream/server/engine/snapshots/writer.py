"""Snapshot of a stream: nats-server's archive of its state and messages, sent in acknowledged chunks.

It begins with the state at which its first chunk is read, not with that of the request. It reads a chunk at a time, as
a job, and never has more unacknowledged bytes in flight than the receiver asked for. A damaged message ends it with an
error status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec

from slipstream.api import encode_json
from slipstream.api.snapshot.archive import CONSUMERS, END, MAGIC, STATE, Entry, encode_entry
from slipstream.api.snapshot.s2 import MAX_FRAME, S2Writer
from slipstream.errors import CorruptRecordError
from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.ports import StreamLog
from slipstream.server.engine.services import Services
from slipstream.server.engine.timers import Timer
from slipstream.wire.headers import status_block

CHUNK, MAX_CHUNK = 128 * 1024, 1024 * 1024
WINDOW, MAX_WINDOW = 8 * 1024 * 1024, 32 * 1024 * 1024
SMALLEST = 1024
SCAN = 256
SCAN_BYTES = 128 * 1024
ACK_TIMEOUT = 5_000_000_000
INTEREST_TIMEOUT = 2_000_000_000

Size = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class SnapshotRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of STREAM.SNAPSHOT. Messages are checked whether `jsck` is set or not."""

    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: Size = 0
    window_size: Size = 0
    jsck: bool = False


class SnapshotWriter:
    """One running snapshot: a job, and the subscriber of its acknowledgements."""

    def __init__(
        self,
        services: Services,
        log: StreamLog,
        request: SnapshotRequest,
        *,
        state: Callable[[], dict[str, Any]],
        consumers: list[tuple[str, bytes]],
        ack_subject: str,
        ended: Callable[[str], None],
    ) -> None:
        """`ended` is called with the reason if it ends early, or with an empty text."""
        self._services, self._log, self._deliver = services, log, request.deliver_subject
        self._chunk = min(max(request.chunk_size or CHUNK, SMALLEST), MAX_CHUNK)
        window = min(max(request.window_size or WINDOW, SMALLEST), MAX_WINDOW)
        self._most = max(window, self._chunk) // self._chunk
        self._state, self._consumers = state, consumers
        self._ack_subject, self._ended = ack_subject, ended
        self._parts = self._frames()
        self._ready = b""
        self._sent = self._acked = 0
        self._begun = services.router.now
        self._over = False
        self._timer: Timer | None = None
        services.router.add(f"{ack_subject}.>", self)

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:  # noqa: ARG002
        """A chunk was acknowledged."""
        self._acked = min(self._acked + 1, self._sent)
        return True

    def run(self) -> tuple[Progress, int]:
        """Send one chunk."""
        if self._over:
            return Progress.DONE, 0
        there, congested = self._services.router.interest(self._deliver)
        if not there:
            if self._sent or self._services.router.now - self._begun > INTEREST_TIMEOUT:
                return self._end("no interest", status_block(408, "No Interest"))
            self._watch(INTEREST_TIMEOUT)
            return Progress.BLOCKED, 0
        if congested or self._sent - self._acked >= self._most:
            return Progress.BLOCKED, 0
        try:
            while len(self._ready) < self._chunk:
                self._ready += next(self._parts)
        except StopIteration:
            if self._ready:
                self._services.router.send(self._deliver, b"", self._ready)
            return self._end("", status_block(204, "") if self._sent else b"")
        except CorruptRecordError as exc:
            return self._end(str(exc), status_block(500, str(exc)))
        chunk, self._ready = self._ready[: self._chunk], self._ready[self._chunk :]
        self._sent += 1
        reply = f"{self._ack_subject}.{len(chunk)}.{self._sent}"
        self._services.router.request(self._deliver, reply, b"", chunk)
        self._watch(ACK_TIMEOUT)
        return Progress.MORE, 1

    def abandon(self, reason: str) -> None:
        """End the snapshot early, with an error status."""
        if not self._over:
            self._end(reason, status_block(500, reason))

    def _watch(self, timeout: int) -> None:
        """Stop if no acknowledgement arrives for so long."""
        if self._timer is not None:
            self._timer.cancel()

        def give_up(_: int) -> None:
            if self._services.router.interest(self._deliver)[0]:
                self._end("no flow response", status_block(408, "No Flow Response"))
            else:
                self._end("no interest", status_block(408, "No Interest"))

        self._timer = self._services.timers.at(self._services.router.now + timeout, give_up)

    def _end(self, reason: str, status: bytes) -> tuple[Progress, int]:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._services.router.discard(f"{self._ack_subject}.>", self)
        self._services.router.send(self._deliver, status, b"")
        self._ended(reason)
        return Progress.DONE, 1

    def _frames(self) -> Iterator[bytes]:
        """The bytes of the snapshot, one frame at a time."""
        writer, waiting, size = S2Writer(), list[bytes](), 0
        for piece in self._entries():
            waiting.append(piece)
            size += len(piece)
            if size >= MAX_FRAME:
                yield writer.frames(b"".join(waiting))
                waiting, size = [], 0
        yield writer.frames(b"".join(waiting))

    def _entries(self) -> Iterator[bytes]:
        time = self._begun
        yield MAGIC
        # Later than the request: what it would name may be removed by then.
        last = self._log.committed.last_seq
        state = self._state() | {"consumer_count": len(self._consumers)}
        yield encode_entry(Entry(STATE, time, payload=encode_json(state)))
        for name, body in self._consumers:
            yield encode_entry(Entry(CONSUMERS + name, time, payload=body))
        seq = 0
        while seq <= last:
            records = self._log.scan("", seq, limit=SCAN, max_bytes=SCAN_BYTES)
            for seq, time, subject, header, payload in records:
                if seq > last:
                    break
                yield encode_entry(Entry(subject, time, seq, header, payload))
            if not records:
                break
            seq += 1
        yield encode_entry(END)
