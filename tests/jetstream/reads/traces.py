"""What a read asked and was told, kept beside its outcome: a broken promise can be understood long after it.

`traced()` listens at the three places where reads of the asyncio client get answers. Each line has the time, the server
that the client is connected to, the question, and of the answer what tells who gave it: the stream's creation, leader
and sequences in stream info, source, sequences and times in messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from slipstream.api import StreamInfo
from slipstream.errors import Error
from slipstream.jetstream.reads._async.drive import ReadDriver
from slipstream.jetstream.reads._async.range_read import RangeRead
from slipstream.jetstream.reads._async.stream_reads import StreamReads
from slipstream.jetstream.reads.columns import Columns
from slipstream.jetstream.reads.direct_get import Replies, StoredMessage
from slipstream.jetstream.reads.rule import Wait

MOST = 60  # of one read
_current: ContextVar[list[str] | None] = ContextVar("trace", default=None)


def begin() -> list[str]:
    """What is asked in this task from now on goes into this list."""
    trace: list[str] = []
    _current.set(trace)
    return trace


@contextmanager
def traced() -> Iterator[None]:
    """Listen to all reads."""
    carry_out, ask, prove = ReadDriver._carry_out, StreamReads._ask, RangeRead._prove

    async def _carry_out(self: ReadDriver, goal: Any, action: Any) -> Any:
        try:
            outcome = await carry_out(self, goal, action)
        except Error as error:
            _note(self._client, action, error)
            raise
        if not isinstance(action, Wait):
            _note(self._client, action, outcome)
        return outcome

    async def _ask(self: StreamReads, subject: str, body: bytes, limit: float) -> StoredMessage:
        try:
            found = await ask(self, subject, body, limit)
        except Error as error:
            _note(self._context.client, subject, error)
            raise
        _note(self._context.client, subject, found)
        return found

    async def _prove(self: RangeRead, page: Any, columns: Columns, *, is_over: bool) -> Any:
        _note(self._client, f"page from {page.start}, is_over={is_over}", columns)
        return await prove(self, page, columns, is_over=is_over)

    ReadDriver._carry_out, StreamReads._ask, RangeRead._prove = _carry_out, _ask, _prove  # type: ignore[method-assign]
    try:
        yield
    finally:
        ReadDriver._carry_out, StreamReads._ask, RangeRead._prove = carry_out, ask, prove  # type: ignore[method-assign]


def _note(client: Any, question: object, outcome: object) -> None:
    trace = _current.get()
    if trace is not None and len(trace) < MOST:
        server = client.server_info.server_name if client.server_info else "?"
        trace.append(f"{time.time():.3f} at {server}: {question} -> {_told(outcome)}")


def _told(outcome: object) -> str:
    if isinstance(outcome, StreamInfo):
        state, cluster = outcome.state, outcome.cluster
        replicas = [(each.get("name"), each.get("active")) for each in cluster.get("replicas") or ()]
        return (
            f"info created={outcome.created} ts={outcome.ts} leader={cluster.get('leader')} "
            f"since={cluster.get('leader_since')} seqs={state.first_seq}..{state.last_seq} n={state.messages} "
            f"first_ts={state.first_ts} replicas={replicas}"
        )
    if isinstance(outcome, StoredMessage):
        return f"{outcome.seq} of {outcome.stream}, time={outcome.time}"
    if isinstance(outcome, Columns):
        ends = (outcome.seqs[0], outcome.seqs[-1], outcome.times[0], outcome.times[-1]) if outcome.seqs else ()
        return f"{len(outcome.seqs)} of {outcome.stream}: {ends}"
    if isinstance(outcome, Replies):
        shown = [_told(item.message) for item in outcome.items[:3]]
        return f"{len(outcome.items)} by {outcome.responder!r} end={outcome.end}: {shown}"
    return repr(outcome)[:200]
