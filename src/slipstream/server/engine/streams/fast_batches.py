"""Fast batches: messages that are stored as they arrive, and acknowledged many at a time.

The part of a message in its batch is at the end of its reply subject, which responses go to as well:
`<inbox>.<batch>.<flow>.<gap mode>.<number>.<operation>.$FI`. A batch has no effect on what is stored: it counts its
messages, acknowledges every `flow` of them (fewer while other batches are open), and ends at the first gap or
rejection unless it allows gaps. Acknowledgements wait in the journal: a number is reported when it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from slipstream.api import encode_json
from slipstream.errors import ApiError, ErrorCode, StoreError, StreamStoreFailedError
from slipstream.server.engine.api.requests import error_body
from slipstream.server.engine.streams.atomic_batches import MAX_ID, TIMEOUT, BatchUsage, check_level
from slipstream.server.engine.streams.publish_headers import is_number
from slipstream.server.engine.timers import Timer, Timers

SUFFIX: Final = ".$FI"
START, APPEND, COMMIT, END, PING = range(5)
MAX_OPEN = 1_000  # of one stream
MAX_OPEN_TOTAL = 50_000
MOST_FLOW = 500
DEFAULT_FLOW = 10


class Part(NamedTuple):
    """The part of a message in its batch."""

    batch: str
    flow: int  # messages per acknowledgement that the sender asks for
    gaps: bool  # it continues after a missing or rejected message
    number: int
    operation: int


class FastOutcome(NamedTuple):
    """A message was stored, or found to be a duplicate of the one with that sequence."""

    seq: int
    is_duplicate: bool = False


class BatchStream(Protocol):
    """The stream, as its batches see it."""

    acks: bool  # whether it acknowledges single messages

    def tell(self, reply: str, payload: bytes) -> None:
        """Send a response once everything up to here is durable."""

    def batch_ack(self, seq: int, batch: str, count: int, *, is_duplicate: bool = False) -> bytes:
        """The ack of a whole batch."""

    def failure(self, error: ApiError) -> bytes:
        """The error response."""


def parse(reply: str) -> Part | None:
    """Decode a reply subject with the suffix; None if it is malformed."""
    parts = reply.rsplit(".", 6)
    if len(parts) < 7:
        return None
    _, batch, flow, mode, digits, operation, _ = parts
    if operation not in ("0", "1", "2", "3", "4") or mode not in ("ok", "fail"):
        return None
    number = int(digits) if is_number(digits) else 0
    if not 0 < number < 0xFFFF_FFFF_FFFF_FFFF:
        return None
    what = int(operation)
    if (what == START and number != 1) or (what in (APPEND, END) and number == 1):
        return None
    every = min(int(flow), 0xFFFF) if is_number(flow) and int(flow) else DEFAULT_FLOW
    return Part(batch, every, mode == "ok", number, what)


class FastBatch:
    """One open batch: message numbers, and the sequence of the last one stored."""

    __slots__ = ("deadline", "every", "flow", "gaps", "last", "reported", "seq", "settled", "timer")

    def __init__(self, part: Part) -> None:
        self.flow: int = part.flow
        self.gaps: bool = part.gaps
        self.every: int = 1
        self.last: int = 0
        self.settled: int = 0  # stored, or a duplicate
        self.reported: int = 0
        self.seq: int = 0
        self.deadline: int = 0
        self.timer: Timer | None = None


class FastBatches:
    """The fast batches of one stream."""

    def __init__(self, timers: Timers, usage: BatchUsage, owner: BatchStream) -> None:
        self._timers, self._usage, self._owner = timers, usage, owner
        self._open: dict[str, FastBatch] = {}

    def receive(self, part: Part | None, reply: str, level: str, store: Callable[[], FastOutcome], now: int) -> None:
        """Count a message, and store it if it is the next one. Raises ApiError if it is part of no batch."""
        if part is None:
            raise ErrorCode.BATCH_PUBLISH_INVALID_PATTERN.error()
        if len(part.batch) > MAX_ID:
            raise ErrorCode.BATCH_PUBLISH_INVALID_BATCH_ID.error()
        batch = self._open.get(part.batch) or self._begin(part, now)
        if level:
            try:
                check_level(level)
            except ApiError:
                self._end(part.batch)
                raise
        batch.deadline = now + TIMEOUT
        if part.operation == PING:
            self._ping(part, batch, reply)
        elif self._counts(part, batch, reply):
            if part.operation == END:
                batch.last -= 1
                self._finish(part.batch, batch, reply)
            else:
                self._store(part, batch, reply, store)

    def stop(self) -> None:
        """Drop all open batches: the stream was deleted, disabled them, or a group was lost."""
        for name in list(self._open):
            self._end(name)

    # One message

    def _begin(self, part: Part, now: int) -> FastBatch:
        if part.number != 1 or part.operation == PING:
            raise ErrorCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID.error()
        if len(self._open) >= MAX_OPEN or self._usage.fast >= MAX_OPEN_TOTAL:
            raise ErrorCode.BATCH_PUBLISH_TOO_MANY_INFLIGHT.error()
        batch = self._open[part.batch] = FastBatch(part)
        batch.every = min(MOST_FLOW, part.flow) if len(self._open) == 1 else 1
        batch.deadline = now + TIMEOUT
        self._usage.fast += 1
        self._watch(part.batch, batch)
        return batch

    def _counts(self, part: Part, batch: FastBatch, reply: str) -> bool:
        """Whether it is the next message, or gaps are permitted; otherwise the batch ends."""
        batch.last += 1
        if part.number == batch.last:
            return True
        self._tell(reply, {"type": "gap", "last_seq": batch.last, "seq": part.number})
        if batch.gaps and part.number > batch.last:
            batch.last = part.number
            return True
        batch.last -= 1
        self._finish(part.batch, batch, reply)
        return False

    def _store(self, part: Part, batch: FastBatch, reply: str, store: Callable[[], FastOutcome]) -> None:
        commits = part.operation == COMMIT
        if part.number == 1 and not commits and self._owner.acks:
            self._report(batch, reply)  # the sender learns the interval of acknowledgements before it sends more
        try:
            outcome = store()
        except (ApiError, StoreError) as exc:
            error = exc if isinstance(exc, ApiError) else StreamStoreFailedError(str(exc))
            self._refused(part, batch, reply, error)
            return
        batch.settled = batch.last
        if not outcome.is_duplicate:
            batch.seq = outcome.seq
            if commits:
                self._finish(part.batch, batch, reply)
            else:
                self._flow(batch, reply)
            return
        self._flow(batch, reply)
        if commits and not part.gaps and batch.last == 1:
            self._end(part.batch)
            self._owner.tell(reply, self._owner.batch_ack(outcome.seq, part.batch, 1, is_duplicate=True))
        elif commits:
            self._finish(part.batch, batch, reply)

    def _refused(self, part: Part, batch: FastBatch, reply: str, error: ApiError) -> None:
        if not part.gaps and batch.last == 1:  # nothing was stored: answered as a single publish
            self._end(part.batch)
            self._owner.tell(reply, self._owner.failure(error))
            return
        self._tell(reply, {"type": "err", "seq": part.number, "error": error_body(error)})
        if not part.gaps or part.operation == COMMIT:
            batch.last -= 1
            self._finish(part.batch, batch, reply)

    def _ping(self, part: Part, batch: FastBatch, reply: str) -> None:
        """Acknowledge again: the sender has received nothing for a while."""
        if part.number > batch.last:
            self._tell(reply, {"type": "gap", "last_seq": batch.last + 1, "seq": part.number + 1})
            if not batch.gaps:
                self._finish(part.batch, batch, reply)
                return
            batch.last = batch.settled = part.number
            if self._flow(batch, reply):
                return
        self._report(batch, reply)

    # Answers

    def _flow(self, batch: FastBatch, reply: str) -> bool:
        """Acknowledge the progress if that is due, and return whether it was. The more batches are open, the more often
        each is acknowledged, so that they share the stream."""
        steps = (batch.settled - batch.reported) // batch.every
        if not steps:
            return False
        batch.reported += steps * batch.every
        most = min(max(MOST_FLOW // len(self._open), 1), batch.flow)
        # As a congestion window: the interval doubles up to the fair share, and is halved above it.
        batch.every = min(batch.every * 2, most) if batch.every <= most else max(batch.every // 2, most)
        self._report(batch, reply)
        return True

    def _report(self, batch: FastBatch, reply: str) -> None:
        self._tell(reply, {"type": "ack", "seq": batch.reported, "msgs": batch.every})

    def _tell(self, reply: str, body: dict[str, object]) -> None:
        self._owner.tell(reply, encode_json(body))

    def _finish(self, name: str, batch: FastBatch, reply: str) -> None:
        self._end(name)
        self._owner.tell(reply, self._owner.batch_ack(batch.seq, name, batch.last))

    def _end(self, name: str) -> None:
        batch = self._open.pop(name)
        if batch.timer is not None:
            batch.timer.cancel()
        self._usage.fast -= 1

    def _watch(self, name: str, batch: FastBatch) -> None:
        """Keep one timer per batch: a message only moves its deadline."""

        def look(when: int) -> None:
            if when >= batch.deadline:
                self._end(name)
            else:
                self._watch(name, batch)

        batch.timer = self._timers.at(batch.deadline, look)
