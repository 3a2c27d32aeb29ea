"""Range reads over the asyncio client: batched Direct Gets, page by page, complete from any replica.

The next page is requested before the one that arrived is handed to the caller. Where messages may be removed from a
stream with replicas, a page is handed over when it is whole and was compared with the leader's state. A responder that
ends early proves nothing by itself (`RangeState.DOUBTFUL`): what follows is looked up as any single message. The
blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from slipstream.api import GetRequest, encode_json, format_time
from slipstream.client._async.client import Client
from slipstream.errors import ConnectionLostError, DirectGetNotAllowedError, RequestTimeoutError, StaleReadError
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.drive import ReadDriver
from slipstream.jetstream.reads.columns import ColumnPage, Columns
from slipstream.jetstream.reads.evidence import LeaderWord
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.range_reader import RangeReader, RangeState
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.reads.rule import RangePage, ReadRule
from slipstream.jetstream.reads.trace import TraceSink, trace_header

MOST_WAITS = 3  # what arrives on the connection may be of other requests, and the page's own lost with its responder


class RequestedPage:
    """A page that is under way: its replies, who is asked to name the responder, and the leader's word before it."""

    __slots__ = ("asked_at", "before", "columns", "replies", "start", "token", "trace", "trace_token", "waits")

    def __init__(self, replies: ColumnPage, start: int, before: LeaderWord | None, asked_at: float) -> None:
        self.replies = replies
        self.start = start
        self.asked_at = asked_at
        self.before = before
        self.columns: list[Columns] = []  # arrived, and not yet proven
        self.token = ""
        self.trace: TraceSink | None = None
        self.trace_token = ""
        self.waits = 0  # in a row, in which nothing of it arrived


class RangeRead:
    """The messages of one range. `is_plain`: there is no goal, or the server guarantees it."""

    def __init__(
        self,
        client: Client,
        direct: DirectGets,
        driver: ReadDriver,
        rule: ReadRule,
        goal: ReadGoal,
        reader: RangeReader,
        *,
        is_plain: bool = False,
    ) -> None:
        self._client = client
        self._goal = goal
        self._policy = goal.policy
        self._direct = direct
        self._driver = driver
        self._rule = rule
        self._reader = reader
        self._is_plain = is_plain
        self._page: RequestedPage | None = None  # requested, and not yet taken to its end

    async def columns(self) -> AsyncIterator[Columns]:
        """The messages, as they arrive."""
        if not self._is_plain:
            part = self._goal.for_all_of(self._reader.end)
            await self._driver.run(part, self._rule.learn_generation(part))
            await self._driver.run(part, self._rule.exists(part))
        self._request_page()
        try:
            while not self._reader.is_done:
                columns = await self._driver.repeat(self._goal, self._next)
                if columns.seqs:
                    yield columns
                    self._policy.renew()
        finally:
            self._drop_page()

    def _request_page(self) -> RequestedPage:
        reader, rule, cache = self._reader, self._rule, self._rule.cache
        subject = self._direct.subject if self._is_plain else self._direct.subject_of(rule.copies)
        reader.lower_goal(self._goal.adapt())
        page = RequestedPage(reader.page(subject), reader.next_seq, cache.leader, self._client.now())
        self._page = page
        header = b""
        if cache.needs_names and not self._is_plain:
            page.trace = TraceSink()
            expected = self._client.expect(page.trace)
            page.trace_token, header = expected.token, trace_header(expected.subject)
        page.token = self._client.start_bulk(subject, encode_json(reader.request()), page.replies, header=header)
        return page

    def _drop_page(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            self._client.cancel(page.token)
            if page.trace_token:
                self._client.cancel(page.trace_token)

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

    async def _take(self, page: RequestedPage) -> Columns | Retry:
        """What arrived of a page, proven if there is something to prove."""
        reader, policy, client = self._reader, self._policy, self._client
        received = client.stats.in_bytes
        try:
            for_try = policy.for_late_try if self._is_plain else policy.for_one_try
            limit = for_try() if reader.goal else policy.left()
            await client.wait(page.replies.ready, timeout=limit, what=f"messages of stream {self._goal.stream!r}")
            columns, is_over = page.replies.take()
        except RequestTimeoutError as error:
            page.waits += 1
            is_silent = client.stats.in_bytes - received <= len(self._direct.subject) or page.waits > MOST_WAITS
            if not is_silent and not policy.is_over:
                return Columns.empty()  # large messages on a slow connection are no silence
            return Retry(error)
        except (ConnectionLostError, DirectGetNotAllowedError, StaleReadError) as error:
            if not reader.goal:
                raise
            return Retry(error)
        policy.heard()
        page.waits = 0
        if not self._is_plain and (columns.seqs or page.columns):
            proven = await self._prove(page, columns, is_over=is_over)
            if isinstance(proven, Retry):
                return proven
            columns = proven
        if is_over:
            self._page = None
            if page.trace_token:
                client.cancel(page.trace_token)
        return reader.accept(columns, page.replies.end if is_over else None)

    async def _prove(self, page: RequestedPage, columns: Columns, *, is_over: bool) -> Columns | Retry:
        """What of a page may be handed over: nothing yet, or what is proven of all that arrived."""
        reader, cache = self._reader, self._rule.cache
        if columns.seqs:
            page.columns.append(columns)
        is_right_at_once = columns.stream == self._rule.origin and (cache.is_alone or cache.is_lossless)
        if not is_over and not is_right_at_once:  # one state of the leader for a page, not for every chunk
            return Columns.empty()
        whole = Columns.join(page.columns)
        page.columns.clear()
        responder = "" if page.trace is None else await self._direct.name_of(page.trace)
        arrived = RangePage(
            whole.stream, responder, whole.seqs, whole.times[0], page.start, page.asked_at, reader.is_of_all
        )
        page.start = whole.seqs[-1] + 1
        gone = await self._driver.run(self._goal, self._rule.page(self._goal, arrived, page.before))
        if isinstance(gone, Retry):
            return gone
        has_more = page.replies.end is not None and page.replies.end.pending > 0
        reader.take_over(self._rule.removed_up_to(whole.stream), is_whole=not (gone or arrived.has_holes or has_more))
        if not gone:
            return whole
        reader.pass_over(whole.seqs[-1])
        return whole.without(gone)

    async def _resolve_doubt(self) -> Columns | Retry:
        """A responder ended early: did it lag, or is the rest of the range gone?"""
        reader, goal = self._reader, self._goal
        after = reader.next_seq - 1
        by_time = bool(reader.since) and not after
        request = GetRequest(
            seq=0 if by_time else after + 1,
            start_time=format_time(reader.since) if by_time else None,
            next_by_subj=reader.filter,
        )
        part = goal.for_all_of(reader.floor)
        following = await self._driver.run(part, self._rule.get(part, request))
        goal.reach(part.reached)  # a session remembers as of when the rest was absent
        if following is None or (reader.end and following.seq > reader.end):
            reader.finish()
            return Columns.empty()
        reader.resume()
        return Retry(goal.behind(after, reader.goal))
