"""Direct Gets of one stream over the asyncio client: one request, and its replies or a `Retry`.

Whichever copy answers; what its answer proves is for the rule to say. A request may ask for the name of its
responder, which message tracing gives. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.api import GetRequest, encode_json
from slipstream.errors import ConnectionLostError, DirectGetNotAllowedError, RequestTimeoutError, StaleReadError
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads.direct_get import Replies
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.reads.trace import TraceSink, trace_header
from slipstream.jetstream.requests import describe_behind
from slipstream.wire import has_wildcard

TRACE_WAIT = 0.25  # seconds that a name may come later than the answer


class DirectGets:
    """The requests about one stream that any copy may answer."""

    __slots__ = ("_client", "_prefix", "subject")

    def __init__(self, context: JetStreamContext, stream: str) -> None:
        self._client = context.client
        self._prefix = f"{context.prefix}.DIRECT.GET."
        self.subject = self._prefix + stream  # the name was checked when its handle was made

    def subject_of(self, stream: str) -> str:
        """Where the copies of a stream are asked: this one, or the one that it mirrors."""
        return self._prefix + stream

    def appended(self, request: GetRequest) -> str:
        """Where the newest message of a literal subject is asked for; empty for other requests.

        The subject of such a request names the one asked for, so that permissions can be granted for it.
        """
        subject = request.last_by_subj
        return f"{self.subject}.{subject}" if subject and not has_wildcard(subject) else ""

    async def ask(
        self, goal: ReadGoal, request: GetRequest, *, is_late: bool = False, is_named: bool = False, copies: str = ""
    ) -> Replies | Retry:
        """Send one request. `is_late`: the server may hold its answer back until it is new enough.

        `copies`: of which stream, if not of this one.

        Raises what will not be different the next time (a bad request, too many subjects).
        """
        policy = goal.policy
        limit = policy.for_late_try() if is_late else policy.for_one_try()
        is_ours = not copies or self.subject_of(copies) == self.subject
        subject = self.appended(request) if is_ours and not request.min_last_seq else ""
        body = b"" if subject else encode_json(request)
        subject = subject or (self.subject if is_ours else self.subject_of(copies))
        try:
            if is_named:
                replies = await self._named(subject, body, limit)
            else:
                replies = await self.send(subject, body, limit, min_last_seq=request.min_last_seq)
        except DirectGetNotAllowedError as error:
            return Retry(error)
        if not isinstance(replies, Retry):
            policy.heard()
        return replies

    async def send(
        self,
        subject: str,
        body: bytes,
        limit: float,
        *,
        min_last_seq: int = 0,
        header: bytes = b"",
        has_stamp: bool = False,
    ) -> Replies | Retry:
        """Send one request and wait for all its replies."""
        client, replies = self._client, Replies(subject, min_last_seq=min_last_seq, has_stamp=has_stamp)
        try:
            token = client.start(subject, body, replies, header=header)
            try:
                await client.wait(replies.ready, timeout=limit, what=f"an answer on {subject!r}")
            finally:
                client.cancel(token)
            if replies.error is not None:
                raise replies.error
        except StaleReadError:
            stream = subject.removeprefix(self._prefix).partition(".")[0]
            text = describe_behind(stream, min_last_seq)
            return Retry(StaleReadError(text, stream=stream, min_last_seq=min_last_seq))
        except (RequestTimeoutError, ConnectionLostError) as error:
            return Retry(error)
        return replies

    async def _named(self, subject: str, body: bytes, limit: float) -> Replies | Retry:
        """The same, with the name of the responder if that can be learned."""
        trace = TraceSink()
        expected = self._client.expect(trace)
        try:
            replies = await self.send(subject, body, limit, header=trace_header(expected.subject))
            if not isinstance(replies, Retry):
                replies.responder = await self.name_of(trace)
        finally:
            self._client.cancel(expected.token)
        return replies

    async def name_of(self, trace: TraceSink) -> str:
        """The responder's name, which is waited for but a moment; empty if it is not learned."""
        try:
            await self._client.wait(trace.ready, timeout=TRACE_WAIT, what="the trace of a Direct Get")
        except (RequestTimeoutError, ConnectionLostError):
            return ""
        return trace.responder
