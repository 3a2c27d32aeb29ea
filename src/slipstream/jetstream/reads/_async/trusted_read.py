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

The parts share two values: the `ReadGoal` (what is wanted, what was reached) and the `RetryPolicy` (how much time is
left). A `TrustedRead` puts them together for one read; the parts below are stateless, and made when they
are needed. The blocking twin is generated from this file (`tools/unasync.py`).
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
from slipstream.jetstream.reads._async.scope import ReadScope
from slipstream.jetstream.reads.range_reader import RangeReader


class TrustedRead:
    """One read of one stream at or after a wanted sequence: its parts, put together."""

    __slots__ = ("_direct", "_leader", "_loop", "_scope", "goal")

    def __init__(self, context: JetStreamContext, stream: str, *, min_last_seq: int, timeout: float | None) -> None:
        self._scope = scope = ReadScope.of(context, stream, min_last_seq=min_last_seq, timeout=timeout)
        self._leader = LeaderState(scope)
        self._loop = RetryLoop(scope, self._leader)
        self._direct = DirectGets(scope, self._leader)
        self.goal = scope.goal

    @property
    def tries(self) -> int:
        """How many attempts did not bring the answer."""
        return self._scope.policy.tries

    async def is_guaranteed(self) -> bool:
        """Whether the server guarantees the wanted sequence itself, or nothing is wanted."""
        if not self.goal.wanted:
            return True
        known = self._scope.context.server_keeps_min
        return await self.native.is_possible() if known is None else known

    @property
    def native(self) -> NativeRead:
        """Reads by servers that keep `min_last_seq`."""
        return NativeRead(self._scope, self._leader, self._direct, self._loop)

    @property
    def proven(self) -> ProvenGet:
        """Single messages with a proof, by whichever replica answers."""
        proofs = self._proofs
        # Not `self.range`: a cycle of references would leave every read to the garbage collector.
        read_range = partial(RangeRead, self._scope, self._leader, self._direct, self._loop, proofs)
        return ProvenGet(self._scope, self._leader, self._direct, self._loop, proofs, read_range)

    @property
    def by_leader(self) -> LeaderRead:
        """Reads by the stream's leader alone."""
        return LeaderRead(self._scope, self._leader, self._loop, self._proofs, self.proven)

    @property
    def last_many(self) -> LastMany:
        """The newest messages of many subjects."""
        return LastMany(self._scope, self._leader, self._direct, self._loop, self.native, self._proofs, self.proven)

    def range(self, reader: RangeReader, *, is_plain: bool = False) -> RangeRead:
        """A range, by whichever replica answers. `is_plain`: there is no goal, or the server guarantees it."""
        return RangeRead(self._scope, self._leader, self._direct, self._loop, self._proofs, reader, is_plain=is_plain)

    @property
    def _proofs(self) -> Proofs:
        return Proofs(self._scope, self._leader, self._direct, self._loop)
