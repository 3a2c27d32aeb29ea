"""A push subscription over the asyncio client: messages as the server sends them, with statuses taken care of.

Thin: statuses, gaps and answers are decided in `asm`; here they are carried out, by whoever reads or by the worker that
calls back. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from slipstream.api import AckPolicy, ConsumerInfo
from slipstream.client._async.client import Subscription
from slipstream.client._async.tasks import Worker, finish
from slipstream.client.base import FOREVER
from slipstream.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    HeartbeatLostError,
    MessageGapError,
    RequestTimeoutError,
    SlowConsumerError,
)
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.message import Callback, JsMessage
from slipstream.jetstream.consume.status import ControlReply, HeartbeatMonitor, PushWatch

DRAIN_TIMEOUT = 30.0


class PushSubscription:
    """Messages of a push consumer: `async for message in subscription`, `next`, or `next_chunk` for all that is there.

    Heartbeats and flow control are seen to. Three missed heartbeats, and gaps, are told to on_event; other statuses are
    raised. `is_owner`: the consumer was created by this subscription, and goes with it.
    """

    def __init__(
        self, context: JetStreamContext, info: ConsumerInfo, subscription: Subscription, *, is_owner: bool
    ) -> None:
        self._context = context
        self._client = context.client
        self._subscription = subscription
        self._is_settled = info.config.ack_policy == AckPolicy.NONE
        self._watch = PushWatch(info.name, gaps=not info.config.deliver_group)
        self._pulse = HeartbeatMonitor(info.config.idle_heartbeat.total_seconds(), self._client.now())
        self._away_since = self._client.now()
        self._worker: Worker | None = None
        self._left: list[JsMessage] = []  # of a chunk, in reverse: for those who read one by one
        self.is_owner = is_owner
        self.stream = info.stream_name
        self.consumer_name = info.name
        self.cached_info = info

    @property
    def subject(self) -> str:
        """Where the server delivers."""
        return self._subscription.subject

    @property
    def pending(self) -> int:
        """Messages that arrived and were not taken yet."""
        return self._subscription.pending + self._watch.waiting + len(self._left)

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Configuration and state of the consumer, as they are now."""
        call = self._context.consumer_api.info(self.stream, self.consumer_name)
        self.cached_info = await self._context.run(call, timeout=timeout)
        return self.cached_info

    async def next(self, *, timeout: float = 5.0) -> JsMessage:
        """The next message; raises RequestTimeoutError if none comes in time, and what a status says."""
        if not self._left:
            self._left = (await self.next_chunk(timeout=timeout))[::-1]
        return self._left.pop()

    async def next_chunk(self, *, timeout: float = 5.0) -> list[JsMessage]:
        """Every message that is here, at least one; raises as `next` does."""
        try:
            chunk = await self._next(self._client.now() + timeout)
        except RequestTimeoutError as error:
            raise RequestTimeoutError(f"consumer {self.consumer_name}: no message within {timeout:g} s") from error
        if chunk is None:
            raise ConnectionClosedError(f"the subscription of consumer {self.consumer_name} has ended")
        return chunk

    async def chunks(self) -> AsyncIterator[list[JsMessage]]:
        """Lists of messages, as they arrive, until the subscription ends."""
        while (chunk := await self._next(self._client.now() + FOREVER)) is not None:
            yield chunk

    async def messages(self) -> AsyncIterator[JsMessage]:
        """The messages one by one, until the subscription ends."""
        while (chunk := await self._next(self._client.now() + FOREVER)) is not None:
            self._left = left = chunk[::-1]
            while left:
                yield left.pop()

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return self.messages()

    async def unsubscribe(self, *, timeout: float | None = None) -> None:
        """End it at once; what is here can still be read. Deletes the consumer if it is its owner, and raises if that
        fails."""
        self._subscription.end()
        if self.is_owner:
            self.is_owner = False
            await self._context.run(self._context.consumer_api.delete(self.stream, self.consumer_name), timeout=timeout)

    async def drain(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """End it after everything that the server has sent.

        Returns when all of it is here and, with a callback, handled. Then, or when the last message was read, the
        consumer is deleted if this is its owner; on_event is told if that fails.
        """
        deadline = self._client.now() + timeout
        await self._subscription.drain(timeout=timeout)
        if self._worker is None:
            if not self.pending:
                await self._delete_owned()
        elif not self._worker.is_own and not await self._worker.join(max(0.0, deadline - self._client.now())):
            raise RequestTimeoutError(f"drain of {self.consumer_name}: the callback still runs after {timeout:g} s")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    # Reading

    async def _next(self, deadline: float) -> list[JsMessage] | None:
        """The next chunk; None at the end. Nothing is taken while it waits, so a cancelled reader loses none."""
        if self._left:
            chunk, self._left = self._left[::-1], []
            return chunk
        client, watch = self._client, self._watch
        self._pulse.pause(client.now() - self._away_since)  # while nobody listened nothing could be heard
        try:
            while True:
                found = watch.take()
                if isinstance(found, list):
                    is_settled = self._is_settled
                    return [JsMessage(msg, client, is_settled) for msg in found]
                if isinstance(found, ControlReply):
                    client.answer(found.subject)
                elif isinstance(found, MessageGapError):
                    client.report(found)
                elif isinstance(found, Error):
                    raise found
                elif self._subscription.is_over:
                    await self._delete_owned()
                    return None
                else:
                    await self._receive(deadline)
        finally:
            self._away_since = client.now()

    async def _receive(self, deadline: float) -> None:
        client, now = self._client, self._client.now()
        silence = self._pulse.left(now)
        try:
            msgs = await self._subscription.next_msgs(
                timeout=max(min(deadline - now, silence), 0.0), epoch=client.epoch
            )
        except RequestTimeoutError:
            if self._pulse.left(client.now()) > 0:
                raise
            client.report(HeartbeatLostError(f"consumer {self.consumer_name}: no sign of life for {silence:.3g} s"))
            self._pulse.hear(client.now())
        except ConnectionLostError:
            if self._subscription.is_ended:
                return  # what is left to read, and then the end
        except SlowConsumerError:
            return  # told already; what was dropped is told as a gap, or comes again
        except Error:
            if not self._subscription.is_over:
                raise
        else:
            self._pulse.hear(client.now())
            self._watch.feed(msgs)

    async def _delete_owned(self) -> None:
        """The end of a drain, where nobody is there to catch an error."""
        if not self.is_owner or self._client.is_closed:
            return
        self.is_owner = False
        try:
            await self._context.run(self._context.consumer_api.delete(self.stream, self.consumer_name))
        except Error as error:
            error.add_note(f"while the consumer {self.consumer_name} was deleted at the end of its subscription")
            self._client.report(error)

    # Calling back

    def _call_back(self, callback: Callback) -> None:
        async def work() -> None:
            while True:
                try:
                    chunk = await self._next(self._client.now() + FOREVER)
                except ConnectionLostError:
                    return  # the client is closed
                except Error as error:
                    self._client.report(error)
                    continue
                if chunk is None:
                    return
                for message in chunk:
                    try:
                        await finish(callback(message))
                    except Exception as exc:  # the top of the user's code
                        self._client.report(exc)

        self._worker = self._client.spawn(work, f"callback of consumer {self.consumer_name}")
