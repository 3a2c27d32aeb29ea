"""The scope of one read over the asyncio client: the values that all its parts share.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.retry import RetryPolicy


class ReadScope(NamedTuple):
    """Where a read goes, what its answer must have reached, and how much time it has."""

    context: JetStreamContext
    goal: ReadGoal
    policy: RetryPolicy

    @classmethod
    def of(cls, context: JetStreamContext, stream: str, *, min_last_seq: int, timeout: float | None) -> ReadScope:
        """The scope of a new read; its time begins now."""
        limit = context.timeout if timeout is None else timeout
        goal = ReadGoal(stream, min_last_seq, context.session)
        return cls(context, goal, RetryPolicy(limit, context.client.now))
