"""A push subscription over the asyncio client: messages as the server sends them, with its statuses handled.

Thin: statuses, gaps and flow control replies are decided in `consume.status`; here they are carried out, by the task
that reads or by the worker that calls back. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Self

from slipstream.api import AckPolicy, ConsumerInfo
from slipstream.client._async.client import Client, Subscription
from slipstream.client._async.tasks import Worker, finish
from slipstream.client.base import FOREVER
from slipstream.client.reporter import failure_of
from slipstream.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    HeartbeatLostError,
    MessageGapError,
    RequestTimeoutError,
    SlowConsumerError,
    StatusError,
)
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.message import Callback, JsMessage
from slipstream.jetstream.consume.inbox import DRAIN_TIMEOUT
from slipstream.jetstream.consume.status import MISSED_HEARTBEATS, ControlReply, PushState
from slipstream.wire.arguments import Duration, check_seconds, check_timeout


class PushSubscription:
    """Messages of a push consumer: `async for message in subscription`, `next`, or `next_chunk` for all that arrived.

    Heartbeats and flow control are handled. Three missed heartbeats are reported to on_event, whether or not a reader
    waits, and gaps when a reader comes to them; other statuses are raised. `is_owner`: the consumer was
    created by this subscription, and is deleted with it.
    """

    def __init__(
        self,
        context: JetStreamContext,
        info: ConsumerInfo,
        subscription: Subscription,
        *,
        is_owner: bool,
        callback: Callback | None = None,
    ) -> None:
        self._context = context
        self._client = context.client
        self._subscription = subscription
        self._is_settled = info.config.ack_policy == AckPolicy.NONE
        first = 1 if is_owner else info.delivered.consumer_seq + 1
        self._state = PushState(info.name, gaps=not info.config.deliver_group, first=first)
        self._worker: Worker | None = None
        self._left: list[JsMessage] = []  # of a chunk, in reverse: not taken by a reader of single messages
        self.is_owner: bool = is_owner
        self.stream: str = info.stream_name
        self.consumer_name: str = info.name
        self._name = f"consumer {info.name!r} of stream {info.stream_name!r}"  # in errors
        self.cached_info: ConsumerInfo = info
        if heartbeat := info.config.idle_heartbeat.total_seconds():
            silence = heartbeat * MISSED_HEARTBEATS
            lost = f"{self._name}: neither a message nor a heartbeat for {silence:.3g} s"
            subscription.watch_silence(silence, partial(_report_silence, self._client, lost))
        if callback is not None:
            name = f"callback of consumer {self.consumer_name}"
            self._worker = self._client.spawn(partial(self._call_back, callback), name)

    def __repr__(self) -> str:
        return f"<PushSubscription {self.consumer_name!r} of {self.stream!r}>"

    @property
    def subject(self) -> str:
        """The subject that the server delivers to."""
        return self._subscription.subject

    @property
    def pending(self) -> int:
        """How many messages have arrived and were not taken yet."""
        return self._subscription.pending + self._state.waiting + len(self._left)

    async def info(self, *, timeout: Duration | None = None) -> ConsumerInfo:
        """Configuration and state of the consumer, as they are now."""
        call = self._context.consumer_api.info(self.stream, self.consumer_name)
        self.cached_info = await self._context.run(call, timeout=timeout)
        return self.cached_info

    async def next(self, *, timeout: Duration = 5.0) -> JsMessage:
        """The next message; raises RequestTimeoutError if none arrives in time, and a status that is an error."""
        timeout = check_seconds(timeout)
        if not self._left:
            self._left = (await self.next_chunk(timeout=timeout))[::-1]
        return self._left.pop()

    async def next_chunk(self, *, timeout: Duration = 5.0) -> list[JsMessage]:
        """All messages that have arrived, at least one; raises as `next` does."""
        timeout = check_seconds(timeout)
        try:
            chunk = await self._read_chunk(self._client.now() + timeout)
        except RequestTimeoutError as error:
            raise RequestTimeoutError(f"{self._name}: no message within {timeout:g} s") from error
        if chunk is None:
            raise ConnectionClosedError(f"the subscription of {self._name} has ended")
        return chunk

    async def chunks(self) -> AsyncIterator[list[JsMessage]]:
        """Lists of messages, as they arrive, until the subscription ends."""
        while (chunk := await self._read_chunk(self._client.now() + FOREVER)) is not None:
            yield chunk

    async def messages(self) -> AsyncIterator[JsMessage]:
        """The messages one by one, until the subscription ends."""
        while (chunk := await self._read_chunk(self._client.now() + FOREVER)) is not None:
            self._left = left = chunk[::-1]
            while left:
                yield left.pop()

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return self.messages()

    async def unsubscribe(self, *, timeout: Duration | None = None) -> None:
        """End the subscription at once; what has arrived can still be read.

        Deletes the consumer if this is its owner, and raises if that fails.
        """
        timeout = check_timeout(timeout)
        self._subscription.end()
        if self.is_owner:
            self.is_owner = False
            await self._context.run(self._context.consumer_api.delete(self.stream, self.consumer_name), timeout=timeout)

    async def drain(self, *, timeout: Duration = DRAIN_TIMEOUT) -> None:
        """End the subscription when everything that the server has sent has arrived.

        With a callback it returns when all of it was handled. Then, or when the last message was read, the consumer is
        deleted if this is its owner; a failure of that is reported to on_event.
        """
        timeout = check_seconds(timeout)
        deadline = self._client.now() + timeout
        await self._subscription.drain(timeout=timeout)
        if self._worker is None:
            if not self.pending:
                await self._delete_owned()
        elif not self._worker.is_own and not await self._worker.join(max(0.0, deadline - self._client.now())):
            raise RequestTimeoutError(f"drain of {self._name}: the callback is still running after {timeout:g} s")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    # Reading

    async def _read_chunk(self, deadline: float) -> list[JsMessage] | None:
        """The next messages; None at the end. Nothing is taken while it waits, so a cancelled reader loses none."""
        if self._left:
            chunk, self._left = self._left[::-1], []
            return chunk
        client, state = self._client, self._state
        while True:
            found = state.take()
            if isinstance(found, list):
                is_settled, codec = self._is_settled, self._context.codec
                chunk = [JsMessage(msg, client, is_settled, codec) for msg in found]
                self._context.note_messages(self.stream, chunk)
                return chunk
            if isinstance(found, ControlReply):
                client.answer(found.subject)
            elif isinstance(found, MessageGapError):
                client.report(found)
            elif isinstance(found, StatusError):
                raise found.about(stream=self.stream, consumer=self.consumer_name)
            elif isinstance(found, Error):
                raise found
            elif self._subscription.is_over:
                await self._delete_owned()
                return None
            else:
                await self._receive_frames(deadline)

    async def _receive_frames(self, deadline: float) -> None:
        client = self._client
        try:
            msgs = await self._subscription.next_msgs(timeout=max(deadline - client.now(), 0.0), epoch=client.epoch)
        except ConnectionLostError:
            if self._subscription.is_ended:
                return  # the reader takes what is left, and then sees the end
        except SlowConsumerError:
            return  # reported already; what was dropped is reported as a gap, or redelivered
        except Error:
            if not self._subscription.is_over:
                raise
        else:
            self._state.feed(msgs)

    async def _delete_owned(self) -> None:
        """At the end of a drain, where no caller can catch an error."""
        if self.is_owner and not self._client.is_closed:
            self.is_owner = False
            await delete_and_report(self._context, self.stream, self.consumer_name)

    async def _call_back(self, callback: Callback) -> None:
        """Call back with each message until the subscription ends."""
        while True:
            try:
                chunk = await self._read_chunk(self._client.now() + FOREVER)
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
                # unasync: off
                except (SystemExit, KeyboardInterrupt):
                    raise  # the event loop ends with it; in a thread it would be silent
                # unasync: on
                except BaseException as exc:  # the top of the user's code
                    if self._client.is_own_end(exc):
                        raise
                    what = f"the callback of consumer {self.consumer_name!r} for {message.describe()}"
                    self._client.callback_failed(what, failure_of(exc))


def _report_silence(client: Client, text: str) -> None:
    client.report(HeartbeatLostError(text))


async def delete_and_report(context: JetStreamContext, stream: str, name: str, *, timeout: float | None = None) -> None:
    """Delete a consumer at the end of its subscription; a failure is reported to on_event."""
    try:
        await context.run(context.consumer_api.delete(stream, name), timeout=timeout)
    except Error as error:
        error.add_note(f"while the consumer {name} was deleted at the end of its subscription")
        context.client.report(error)
