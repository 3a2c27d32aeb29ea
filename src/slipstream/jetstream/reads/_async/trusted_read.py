"""Trusted reads over the asyncio client: an answer that is proven to be new enough, or an error.

Theory of operation
-------------------
A replica answers a Direct Get with what it has, and neither says who it is nor how far it is. A trusted read must not
return anything older than the sequence `wanted` (from the caller, or from a session). It works in five steps:

1. **Who guarantees it?** A server that keeps `min_last_seq` does it itself: `NativeRead` probes that once per
   connection, by what the server does, and then only passes the number on. All that follows is for other servers.
2. **Generation.** Sequences mean something only within one life of a stream. `LeaderState` learns from the leader when
   the stream was made; messages from before that belong to an older stream of the same name.
3. **Ask.** `DirectGets` sends one request to whichever replica answers. An answer is believed only if it comes from the
   stream or from a mirror that holds all of it, and from this generation.
4. **Judge.** `proof` decides, as a pure function of that one answer, what it proves: PRESENT, ABSENT, BEHIND or
   UNPROVEN. `Proofs` asks the further questions that an unproven answer needs: an anchor to make the end of a
   multi-subject get come, the newest message of a subject, the chain of messages behind one, the leader's state.
5. **Retry.** An attempt returns its answer or a `Retry` with its reason; `RetryLoop` alone waits between attempts,
   switches to another server when ours is silent or stuck, and raises the most telling reason when the time is up.

The parts belong to the stream: they are made once, by the first trusted read of a handle, and hold nothing of any one
read. What differs from read to read, what is wanted, the time for it (`RetryPolicy`) and what was reached, is the
`ReadGoal`, which each part gets as an argument. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from functools import partial

from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.last_many import LastMany
from slipstream.jetstream.reads._async.leader_read import LeaderRead
from slipstream.jetstream.reads._async.leader_state import LeaderState
from slipstream.jetstream.reads._async.native_read import NativeRead
from slipstream.jetstream.reads._async.proofs import Proofs
from slipstream.jetstream.reads._async.proven_get import ProvenGet
from slipstream.jetstream.reads._async.range_read import RangeRead
from slipstream.jetstream.reads._async.retry_loop import RetryLoop
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.range_reader import RangeReader


class TrustedReads:
    """The parts that carry out the trusted reads of one stream."""

    __slots__ = ("_read_range", "by_leader", "last_many", "native", "proven")

    def __init__(self, context: JetStreamContext, stream: str) -> None:
        leader = LeaderState(context, stream)
        loop = RetryLoop(context, leader)
        direct = DirectGets(context, stream, leader)
        proofs = Proofs(leader, direct, loop)
        self._read_range = partial(RangeRead, context.client, leader, direct, loop, proofs)
        self.native = NativeRead(context, leader, direct, loop)
        self.proven = ProvenGet(leader, direct, loop, proofs, self._read_range)
        self.by_leader = LeaderRead(context, leader, loop, proofs, self.proven)
        self.last_many = LastMany(context, leader, direct, loop, self.native, proofs, self.proven)

    def range(self, goal: ReadGoal, reader: RangeReader, *, is_plain: bool = False) -> RangeRead:
        """A range, by whichever replica answers. `is_plain`: there is no goal, or the server guarantees it."""
        return self._read_range(goal, reader, is_plain=is_plain)
