"""Publishes that are sent again when their answer is missing, over the asyncio client.

What may be sent again, and how long, is decided in `publish.repeats`; here the stream is asked and the copies are sent.
The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.api import PubAck, StreamInfo, names
from slipstream.client.base import timed_out
from slipstream.errors import (
    ApiError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    NoRespondersError,
    NoStreamError,
    RequestTimeoutError,
    StreamLookupError,
)
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.publish.repeats import Answers, repeat_time
from slipstream.wire import Headers
from slipstream.wire.subjects import matches

ASK_AGAIN = 0.1  # seconds, while JetStream is not available


class RepeatCheck:
    """Asks the streams whether messages may be sent again; each of them once."""

    def __init__(self, context: JetStreamContext, deadline: float) -> None:
        self._context = context
        self._client = context.client
        self._deadline = deadline
        self._known: list[StreamInfo] = []

    async def safe_until(self, subject: str, header: bytes, *, sent_at: float, server_id: str) -> float:
        """Until when, by the client's clock, a copy may be sent of what was sent then, to that server; 0 for never."""
        info = await self._info(subject, header)
        now = self._client.now()
        if info is None or not self._client.is_connected:
            return 0.0
        server, leader = self._client.server_info, info.cluster.get("leader")
        is_same = server.server_id == server_id and leader in (None, "", server.server_name)
        until = sent_at + repeat_time(info, header, elapsed=now - sent_at, is_same_process=is_same)
        return until if now < until else 0.0

    async def _info(self, subject: str, header: bytes) -> StreamInfo | None:
        """The stream that would store the message; None if that is not known. Waits for the next connection."""
        for info in self._known:
            if any(matches(pattern, subject) for pattern in info.config.subjects):
                return info
        while (left := self._deadline - self._client.now()) > 0:
            try:
                name = Headers.parse(header).get(names.EXPECTED_STREAM)
                name = name or await self._context.stream_name_of(subject, timeout=left)
                info = await self._context.run(self._context.api.stream_info(name), timeout=left)
            except (ConnectionClosedError, ApiError, StreamLookupError):
                return None
            except (NoRespondersError, ConnectionLostError, RequestTimeoutError):  # JetStream, or the server, restarts
                await self._client.sleep(min(ASK_AGAIN, left))
            else:
                self._known.append(info)
                return info
        return None


class RepeatedPublish:
    """One publish with a message id, sent again while that is safe and there is time."""

    def __init__(self, context: JetStreamContext, call: requests.Call[PubAck]) -> None:
        self._context = context
        self._client = context.client
        self._call = call
        self._answers = Answers()
        self._tokens: list[str] = []

    async def run(self, *, timeout: float, retries: int, retry_wait: float) -> PubAck:
        """Send it and return the ack of any copy.

        An answer that is missing for the time of one try (`timeout` is divided among them) is reason for another copy,
        a lost connection always is. What a stream rejected, or none took, was not stored: that is not in doubt.
        """
        try:
            refused = 0
            while True:
                error = await self._run_once(timeout, retries)
                if isinstance(error, PubAck):
                    return error
                if not isinstance(error, NoStreamError) or refused >= retries:
                    raise error
                self._forget()
                await self._client.sleep(retry_wait * 2**refused)
                refused += 1
        finally:
            self._forget()

    async def _run_once(self, timeout: float, retries: int) -> PubAck | Error:
        """Send it until it is answered; a failure is returned."""
        client = self._client
        sent_at, server_id = client.now(), client.server_info.server_id
        deadline, unanswered = sent_at + timeout, 0
        self._send()
        while True:
            is_last = unanswered >= retries
            until = deadline if is_last else min(deadline, client.now() + timeout / (retries + 1))
            answer = await self._next_answer(until)
            if isinstance(answer, PubAck):
                return answer
            if isinstance(answer, RequestTimeoutError):
                if client.now() >= deadline:
                    return timed_out(f"an answer on {self._call.subject}", timeout)
                unanswered += 1
            elif isinstance(answer, NoStreamError) and len(self._tokens) > 1:
                await client.sleep(min(ASK_AGAIN, max(0.0, deadline - client.now())))  # an earlier copy is in doubt
            elif not isinstance(answer, ConnectionLostError) or isinstance(answer, ConnectionClosedError):
                return answer
            safe_until = 0.0
            if not (is_last and isinstance(answer, RequestTimeoutError)):
                check = RepeatCheck(self._context, deadline)
                subject, header = self._call.subject, self._call.header
                safe_until = await check.safe_until(subject, header, sent_at=sent_at, server_id=server_id)
            if safe_until:
                deadline = min(deadline, safe_until)  # a copy that waits for a connection is dropped then
                self._send()
            elif isinstance(answer, RequestTimeoutError):
                unanswered = retries  # the answer may still arrive
            else:
                return answer

    async def _next_answer(self, until: float) -> PubAck | Error:
        answers, client = self._answers, self._client
        left = max(0.0, until - client.now())
        try:
            await client.wait_for_reply(answers, timeout=left, what="the ack of a publish")
        except (RequestTimeoutError, ConnectionLostError) as exc:
            if not answers.is_ready():
                return exc
        if answers.messages:
            try:
                return self._call.decode(answers.messages.popleft())
            except Error as exc:
                return exc
        lost, answers.lost = answers.lost, None
        assert lost is not None
        return lost

    def _send(self) -> None:
        call = self._call
        self._tokens.append(self._client.start(call.subject, call.payload, self._answers, header=call.header))

    def _forget(self) -> None:
        for token in self._tokens:
            self._client.cancel(token)
        self._tokens.clear()
