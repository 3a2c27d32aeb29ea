"""Range reads over the asyncio client: batched Direct Gets, page by page, complete from any replica.

The next page is requested before the one that arrived is handed to the caller. A responder that ends early proves
nothing by itself (`RangeState.DOUBTFUL`): the proof of completeness comes from `Proofs.rest`. The blocking twin is
generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from slipstream.api import encode_json
from slipstream.client._async.client import Client
from slipstream.errors import ConnectionLostError, DirectGetNotAllowedError, RequestTimeoutError, StaleReadError
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.leader_state import LeaderState
from slipstream.jetstream.reads._async.proofs import Proofs
from slipstream.jetstream.reads._async.retry_loop import RetryLoop
from slipstream.jetstream.reads.columns import ColumnPage, Columns
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.proof import Verdict
from slipstream.jetstream.reads.range_reader import RangeReader, RangeState
from slipstream.jetstream.reads.retry import Retry


class RangeRead:
    """The messages of one range. `is_plain`: there is no goal, or the server guarantees it."""

    def __init__(
        self,
        client: Client,
        leader: LeaderState,
        direct: DirectGets,
        loop: RetryLoop,
        proofs: Proofs,
        goal: ReadGoal,
        reader: RangeReader,
        *,
        is_plain: bool = False,
    ) -> None:
        self._client = client
        self._goal = goal
        self._policy = goal.policy
        self._leader = leader
        self._direct = direct
        self._loop = loop
        self._proofs = proofs
        self._reader = reader
        self._is_plain = is_plain
        self._page: ColumnPage | None = None  # requested, and not yet taken to its end
        self._token = ""

    async def columns(self) -> AsyncIterator[Columns]:
        """The messages, as they arrive."""
        if not self._is_plain:
            await self._loop.run(self._goal, partial(self._leader.learn_generation, self._goal))
        self._request_page()
        try:
            while not self._reader.is_done:
                columns = await self._loop.run(self._goal, self._next)
                if columns.seqs:
                    yield columns
                    self._policy.renew()
        finally:
            self._drop_page()

    def _request_page(self) -> ColumnPage:
        reader, subject = self._reader, self._direct.subject
        self._page = page = reader.page(subject)
        self._token = self._client.start_bulk(subject, encode_json(reader.request()), page)
        return page

    def _drop_page(self) -> None:
        self._page = None
        self._client.cancel(self._token)

    async def _next(self) -> Columns | Retry:
        """One attempt at the next columns; they may be empty."""
        reader = self._reader
        if reader.state is RangeState.DOUBTFUL:
            return await self._resolve_doubt()
        columns = await self._take(self._page or self._request_page())
        if isinstance(columns, Retry):
            self._drop_page()  # what else comes of it is of no use
        elif self._page is None and reader.state is RangeState.READING:
            self._request_page()  # it is under way while this one is handled
        return columns

    async def _take(self, page: ColumnPage) -> Columns | Retry:
        """What arrived of a page."""
        reader, policy, client = self._reader, self._policy, self._client
        received = client.stats.in_bytes
        try:
            for_try = policy.for_late_try if self._is_plain else policy.for_one_try
            limit = for_try() if reader.goal else policy.left()
            await client.wait(page.ready, timeout=limit, what=f"messages of {self._goal.stream}")
            columns, is_over = page.take()
        except RequestTimeoutError as error:
            if client.stats.in_bytes - received > len(self._direct.subject) and not policy.is_over:
                return Columns.empty()  # large messages on a slow connection are no silence
            return Retry(error)
        except (ConnectionLostError, DirectGetNotAllowedError, StaleReadError) as error:
            if not reader.goal:
                raise
            return Retry(error)
        policy.heard()
        if columns.seqs and reader.goal:
            reason = await self._leader.distrust(self._goal, columns.stream, columns.times[0], wanted=reader.goal)
            if reason is not None:
                return Retry(reason)
            self._leader.cache.anchor = (columns.subjects[-1], columns.seqs[-1])
        if is_over:
            self._page = None
        return reader.accept(columns, page.end if is_over else None)

    async def _resolve_doubt(self) -> Columns | Retry:
        """A responder ended early: did it lag, or is the rest of the range gone?"""
        reader = self._reader
        after = reader.next_seq - 1
        verdict = await self._proofs.rest(self._goal, reader.filter, after, reader.end, reader.goal, since=reader.since)
        if verdict is Verdict.ABSENT:
            reader.finish()
            return Columns.empty()
        if verdict is Verdict.UNPROVEN:
            reader.widen()
        else:
            reader.resume()
        return Retry(self._goal.behind(after, reader.goal))
