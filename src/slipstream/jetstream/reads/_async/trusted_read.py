"""Trusted reads over the asyncio client: an answer that is proven to be new enough, or an error.

Theory of operation
-------------------
A replica answers a Direct Get with what it has, and neither says who it is nor how far it is. A trusted read must not
return anything older than the sequence `wanted` (from the caller, or from a session). Who provides that:

1. **A server that keeps `min_last_seq`** does it itself: `NativeRead` probes that once per connection, by what the
   server does, and then only passes the number on. All that follows is for other servers.
2. **The rule** (`rule.ReadRule`) decides what is requested and what is trusted, without any I/O; `evidence` has the
   theory of what an answer proves. It is a generator: it yields requests and is sent their outcomes.
3. **The driver** (`ReadDriver`) carries the requests out, by `DirectGets` (whichever copy answers) and `LeaderRequests`
   (stream info, Message Get). It alone waits between attempts, switches to another server when ours is silent or stuck,
   and raises the most telling reason when the time is up.
4. **Ranges and listings** (`RangeRead`, `LastMany`, `LeaderRead`) ask page by page, and have each page proven.

The parts belong to the stream: they are made once, by the first trusted read of a handle, and hold nothing of any one
read. What differs from read to read, what is wanted, the time for it (`RetryPolicy`) and what was reached, is the
`ReadGoal`, which each part gets as an argument. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from functools import partial

from slipstream.api import GetRequest
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.drive import ReadDriver
from slipstream.jetstream.reads._async.last_many import LastMany
from slipstream.jetstream.reads._async.leader_read import LeaderRead
from slipstream.jetstream.reads._async.leader_requests import LeaderRequests
from slipstream.jetstream.reads._async.native_read import NativeRead
from slipstream.jetstream.reads._async.range_read import RangeRead
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.range_reader import RangeReader
from slipstream.jetstream.reads.rule import ReadRule


class TrustedReads:
    """The parts that carry out the trusted reads of one stream."""

    __slots__ = ("_driver", "_read_range", "_rule", "by_leader", "last_many", "native")

    def __init__(self, context: JetStreamContext, stream: str) -> None:
        client = context.client
        self._rule = rule = ReadRule(stream, context.read_state.stream(context.prefix, stream), client.now)
        direct = DirectGets(context, stream)
        leader = LeaderRequests(context)
        self._driver = driver = ReadDriver(context, rule, direct, leader)
        self._read_range = partial(RangeRead, client, direct, driver, rule)
        self.native = NativeRead(context, rule, direct, driver)
        self.by_leader = LeaderRead(context, rule, driver, self._read_range)
        self.last_many = LastMany(leader, rule, direct, driver, self.native)

    async def get(self, goal: ReadGoal, request: GetRequest) -> StoredMessage:
        """One message with a proof, by whichever copy can give it."""
        found = await self._driver.run(goal, self._rule.get(goal, request))
        if found is None:
            raise goal.missing_of(request)
        return found

    async def check_token(self, goal: ReadGoal, *, is_due: bool = False) -> None:
        """Compare what a session claims with the stream here, if its leader answers; see `SessionState.made`."""
        is_due = is_due or (goal.session is not None and goal.session.is_suspect(goal.stream))
        await self._driver.run(goal, self._rule.learn_generation(goal, is_due=is_due))

    async def newest_seq(self, goal: ReadGoal) -> int:
        """The newest sequence of the stream, by its leader; for a mirror that of its origin."""
        return await self._driver.run(goal, self._rule.newest_seq(goal))

    def range(self, goal: ReadGoal, reader: RangeReader, *, is_plain: bool = False) -> RangeRead:
        """A range, by whichever replica answers. `is_plain`: there is no goal, or the server guarantees it."""
        return self._read_range(goal, reader, is_plain=is_plain)
