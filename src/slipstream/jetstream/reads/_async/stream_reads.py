"""The reads of one stream over the asyncio client: which way a read takes, and how it is counted.

A plain read is one request. A read that must be new enough goes to a server that guarantees it, or is proven; a read by
the leader goes to the leader alone. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from slipstream.api import GetRequest, encode_json
from slipstream.errors import AuthorizationError, Error, MessageNotFoundError, StaleReadError
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.last_many import Bound
from slipstream.jetstream.reads._async.trusted_read import TrustedReads
from slipstream.jetstream.reads.columns import Columns, Part
from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.range_reader import RangeReader
from slipstream.jetstream.reads.retry import SHORTEST_TRY, RetryPolicy, first_try
from slipstream.jetstream.reads.session import HandleState
from slipstream.wire import has_wildcard


class StreamReads:
    """Reads of one stream, as new as they must be."""

    def __init__(self, context: JetStreamContext, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._direct = context.api.direct_subject(stream)
        self._parts: TrustedReads | None = None
        self._cache = context.read_state.stream(context.prefix, stream)

    async def get(
        self, request: GetRequest, *, min_last_seq: int, from_leader: bool, timeout: float | None
    ) -> StoredMessage:
        """One message: by its sequence, the next one of a subject, or the last one. Its subject must be valid."""
        requests.check_seq(min_last_seq, "min_last_seq")
        context, session = self._context, self._context.session
        limit = context.timeout if timeout is None else timeout
        if min_last_seq or from_leader or session is not None:
            begin = now = context.client.now()
            if isinstance(session, HandleState) and session.is_open(self._stream, request.last_by_subj):
                newest = await self.newest_seq(timeout=limit)
                session.close(self._stream, newest)
                now = context.client.now()
                min_last_seq = max(min_last_seq, newest)
            proven = None
            if request.last_by_subj and not from_leader:
                proven = await self._last_at_once(request, min_last_seq, limit, now)
                if isinstance(proven, StoredMessage):
                    return proven
                limit = max(limit - (context.client.now() - begin), SHORTEST_TRY)  # what was waited counts
            goal = self._goal(min_last_seq, limit, subject=_literal(request.last_by_subj))
            if proven is not None:
                goal.policy.remember(goal.behind(0))
            return await self._get_proven(request, goal, from_leader=from_leader)
        # A Direct Get of whichever replica answers.
        state = context.read_state
        appended = self._appended(request) if request.last_by_subj else ""
        try:
            found = await self._ask(appended or self._direct, b"" if appended else encode_json(request), limit)
        except MessageNotFoundError:
            state.at_once += 1
            raise
        except Error:
            state.failed += 1
            raise
        state.at_once += 1
        return found

    async def _ask(self, subject: str, body: bytes, limit: float) -> StoredMessage:
        client, answer = self._context.client, requests.Answer()
        token = client.start(subject, body, answer)
        try:
            await client.wait(answer.ready, timeout=limit, what=f"an answer on {subject!r}")
            return decode_one(answer.take(), asked=subject)
        finally:
            client.cancel(token)

    async def _last_at_once(
        self, request: GetRequest, min_last_seq: int, limit: float, now: float
    ) -> StoredMessage | StaleReadError | None:
        """The newest message of a literal subject by one request, as most of them are proven. None, or the word of the
        server that it is behind: by all means.

        The same decision as the rule's, and only where all that it needs is known. A trusted read costs no more than a
        plain one then.
        """
        context, subject = self._context, self._appended(request)
        keeps, session, wanted = context.server_keeps_min, context.session, min_last_seq
        if keeps is None or not subject or (keeps and session is not None):
            return None
        if session is not None:
            if session.is_claim(self._stream) or session.is_suspect(self._stream):
                return None
            wanted = max(wanted, session.wanted(self._stream, request.last_by_subj))
        cache, existed, is_fresh = self._cache, 0, False
        if not keeps:
            if cache.is_leader_first or not cache.is_known(now) or not cache.created or cache.origin:
                return None
            existed, is_fresh = cache.reached, cache.has_config(now)
        if cache.is_unsure(now):
            return None
        body = b'{"min_last_seq":%d}' % wanted if keeps and wanted else b""
        try:
            found = await self._ask(subject, body, first_try(limit, is_late=bool(body)))
        except MessageNotFoundError as error:
            if not keeps:
                return None  # nothing is known of who found nothing
            context.read_state.at_once += 1
            raise self._goal(wanted, limit).missing_of(request) from error
        except StaleReadError as error:
            return error
        except Error:
            return None
        if not keeps:
            if found.stream != self._stream or found.time < cache.floor:
                return None
            if found.seq < wanted and not (is_fresh and cache.is_alone and wanted <= existed):
                return None
        context.read_state.at_once += 1
        if session is not None:
            context.note_state(self._stream, max(found.seq, wanted), found.subject, found.seq)
        return found

    async def _get_proven(self, request: GetRequest, goal: ReadGoal, *, from_leader: bool) -> StoredMessage:
        context = self._context
        with _Counted(context, goal):
            if goal.is_claim:
                await self._trusted.check_token(goal)
            get = self._trusted.by_leader.get if from_leader else self._get_trusted
            try:
                found = await get(goal, request)
            except MessageNotFoundError:
                context.note_state(goal.stream, goal.reached, request.last_by_subj)
                raise
            if request.last_by_subj == found.subject:
                context.note_state(goal.stream, max(found.seq, goal.wanted), found.subject, found.seq)
            else:
                context.note(goal.stream, found.seq, found.subject)
            return found

    def _appended(self, request: GetRequest) -> str:
        """Where the newest message of a literal subject is asked for; empty for other requests.

        The subject of such a request names the one asked for, so that permissions can be granted for it.
        """
        subject = request.last_by_subj
        return f"{self._direct}.{subject}" if subject and not has_wildcard(subject) else ""

    async def _get_trusted(self, goal: ReadGoal, request: GetRequest) -> StoredMessage:
        """A get from a server that guarantees what is wanted, or with a proof."""
        trusted = self._trusted
        try:
            keeps = self._context.server_keeps_min
            if keeps is None:
                keeps = await trusted.native.is_possible(goal)
            return await (trusted.native.get(goal, request) if keeps else trusted.get(goal, request))
        except AuthorizationError:
            subject = self._appended(request)
            if not subject:
                raise
            return await trusted.native.last_by_appended(goal, subject)

    async def last_many(
        self, subjects: Sequence[str], bound: Bound, *, min_last_seq: int, from_leader: bool, timeout: float | None
    ) -> dict[str, StoredMessage]:
        """Subject to newest message."""
        requests.check_seq(min_last_seq, "min_last_seq")
        limit = self._context.timeout if timeout is None else timeout
        trusted, goal = self._trusted, self._goal(min_last_seq, limit)
        with _Counted(self._context, goal):
            if goal.is_claim:
                await trusted.check_token(goal)
            if from_leader:
                found = await trusted.last_many.newest_by_leader(goal, trusted.by_leader, subjects)
            else:
                found = await trusted.last_many.newest(goal, subjects, bound)
        self._context.note_many(self._stream, list(found), [message.seq for message in found.values()])
        return found

    async def newest_seq(self, *, timeout: float | None) -> int:
        """The newest sequence of the stream, by its leader: of a mirror, that of its origin."""
        return await self._trusted.newest_seq(self._goal(0, self._context.timeout if timeout is None else timeout))

    async def learn_generation(self, *, is_due: bool = False, timeout: float | None) -> None:
        """Ask the leader when the stream was made, unless that is known; one that is away is not waited for.

        `is_due`: also if it was asked a moment ago.
        """
        goal = self._goal(0, self._context.timeout if timeout is None else timeout)
        await self._trusted.check_token(goal, is_due=is_due)

    async def columns(
        self,
        *,
        start: int,
        end: int,
        subject: str,
        start_time: int | None,
        min_last_seq: int,
        from_leader: bool,
        parts: Part,
        timeout: float | None,
    ) -> AsyncIterator[Columns]:
        """The messages of a range in columns, as they arrive."""
        limit = self._context.timeout if timeout is None else timeout
        trusted, goal = self._trusted, self._goal(min_last_seq, limit)
        with _Counted(self._context, goal):
            if goal.is_claim:
                await trusted.check_token(goal)
            wanted = goal.wanted
            has_goal = bool(end or wanted)
            ask = trusted.by_leader.is_guaranteed if from_leader else trusted.native.is_possible
            trusting = has_goal and await ask(goal)
            reader = RangeReader(
                start=start,
                end=end,
                subject=subject,
                at_least=wanted,
                since=start_time or 0,
                trusting=trusting,
                parts=parts,
            )
            if from_leader:
                chunks = trusted.by_leader.columns(goal, reader)
            else:
                chunks = trusted.range(goal, reader, is_plain=trusting or not has_goal).columns()
            async for columns in chunks:
                goal.reached = columns.seqs[-1]
                self._context.note(goal.stream, goal.reached)  # before the program has it, and may read on
                yield columns

    @property
    def _trusted(self) -> TrustedReads:
        parts = self._parts
        if parts is None:  # made when they are needed: most handles of a stream never do a trusted read
            parts = self._parts = TrustedReads(self._context, self._stream)
        return parts

    def _goal(self, min_last_seq: int, limit: float, *, subject: str = "") -> ReadGoal:
        """The goal of a new read, of that literal subject alone or of more; its time begins now."""
        context = self._context
        policy = RetryPolicy(limit, context.client.now)
        return ReadGoal(self._stream, min_last_seq, context.session, policy, subject=subject)


def _literal(subject: str) -> str:
    """A subject, if it is one and no pattern."""
    return "" if has_wildcard(subject) else subject


class _Counted:
    """Counts a read, and notes it in the session, however it ends. (A class: a generator costs three times as much.)"""

    __slots__ = ("_context", "_goal")

    def __init__(self, context: JetStreamContext, goal: ReadGoal) -> None:
        self._context = context
        self._goal = goal

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        context, goal = self._context, self._goal
        if kind is None or issubclass(kind, (MessageNotFoundError, GeneratorExit)):
            context.read_state.count(tries=goal.policy.tries, with_leader=goal.with_leader)
            context.note(goal.stream, goal.reached)
        else:
            context.read_state.failed += 1
            if isinstance(error, StaleReadError) and context.session is not None:
                error.add_note(
                    f"the session or bucket handle has seen sequence {context.session.seen(goal.stream)} of "
                    f"{goal.stream!r}; if that "
                    "stream was recreated or restored since, begin a new session or reopen the bucket"
                )
