"""Endless reads of a pull consumer: as an iteration over messages or lists of them, or by a callback.

`PullLoop` keeps pull requests in flight and survives reconnects, restarts of the server and changes of the leader;
`MessageLists`, `Messages` and `Consuming` are the three forms in which a program holds one. How many messages to ask
for, and when, is decided in `consume.pull`.

The iterations are objects, not generators: a loop that is left by `break` ends at once, when nothing refers to it any
more. An async generator would be closed by the event loop a moment later, when the next call may have sent its request
already and would get newer messages than those that the loop had not taken. The blocking twin is generated from this
file (`tools/unasync.py`).
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from slipstream.client._async.client import Subscription
from slipstream.client._async.tasks import finish
from slipstream.client.base import FOREVER
from slipstream.errors import (
    ApiError,
    ConnectionLostError,
    ConsumerGoneError,
    Error,
    HeartbeatLostError,
    RequestTimeoutError,
    SlowConsumerError,
)
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.handover import Handover
from slipstream.jetstream._async.message import Callback, JsMessage
from slipstream.jetstream.consume.inbox import DRAIN_TIMEOUT, MAX_BYTES, MAX_MSGS, retry_pause
from slipstream.jetstream.consume.pull import PullFlow
from slipstream.jetstream.consume.status import HeartbeatMonitor
from slipstream.wire import Msg

CHECK_AFTER = 3  # requests in a row without a responder before the server is asked whether the consumer exists
CHECK_TIMEOUT = 5.0


class PullLoop:
    """Pull requests in flight for one reader, and what they bring."""

    def __init__(self, consumer: ConsumerHandle, handover: Handover, flow: PullFlow) -> None:
        self._consumer = consumer
        self._handover = handover
        self._flow = flow
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._epoch = -1
        self._heartbeats = HeartbeatMonitor(flow.heartbeat, consumer.client.now())
        self._failures = 0  # in a row
        self._error: Error | None = None  # raised or retried by the next read, behind the messages before it
        self.client = consumer.client
        self.name = consumer.name
        self.is_stopped = False  # no more requests are sent; what has arrived is still handed over

    async def read(self, deadline: float) -> list[JsMessage] | None:
        """The next messages; None at the end: stopped, or the client closed.

        Raises RequestTimeoutError at the deadline, and a status of the server that is an error. Nothing is taken from
        the subscription while it waits, so a cancelled reader loses none.
        """
        if kept := await self._handover.take_kept(0, deadline):
            return self._handover.hand_over(kept)
        self._heartbeats.resume(self.client.now())
        try:
            while True:
                if self._error is not None:
                    await self._retry_or_raise(self._error, deadline)
                    self._error = None
                if not self.is_stopped:
                    await self._request()
                if self._subscription is None:
                    return None
                try:
                    frames = await self._receive_frames(self._subscription, deadline)
                except Error:
                    if self._subscription.is_over:  # stopped, or the client was closed
                        return None
                    raise
                msgs, self._error = self._flow.feed(frames)
                if msgs:
                    self._failures = 0
                    if not self.is_stopped:
                        await self._request_more(msgs)
                    return self._handover.hand_over(msgs)
        finally:
            self._heartbeats.suspend(self.client.now())

    async def read_unless_idle(self, idle_timeout: float | None) -> list[JsMessage] | None:
        """As `read`; None also when nothing arrives for `idle_timeout` seconds (None: never)."""
        while True:
            try:
                return await self.read(self.client.now() + (FOREVER if idle_timeout is None else idle_timeout))
            except RequestTimeoutError:
                if idle_timeout is not None:
                    return None

    def stop(self) -> None:
        """Send no more requests. What the server has sent is still handed over."""
        self.is_stopped = True
        if self._subscription is not None:
            self._subscription.drain_soon()

    def close(self, untaken: list[JsMessage]) -> None:
        """End it. The messages that its reader did not take, and those that still arrive, are for the next call."""
        self._handover.keep([message.raw for message in untaken])
        subscription, self._subscription = self._subscription, None
        self.is_stopped = True
        if subscription is not None:
            self._handover.drain(subscription)

    async def _receive_frames(self, subscription: Subscription, deadline: float) -> list[Msg]:
        """Messages and statuses; none after an interruption, for which requests are sent again."""
        client, now = self.client, self.client.now()
        silence = self._heartbeats.left(now)
        try:
            msgs = await subscription.next_msgs(timeout=max(min(deadline - now, silence), 0.0), epoch=self._epoch)
        except RequestTimeoutError:
            if self._heartbeats.left(client.now()) > 0:
                raise
            text = f"consumer {self.name}: no heartbeat for {silence:.3g} s, sending a new pull request"
            client.report(HeartbeatLostError(text))
            self._flow.reset()
            self._heartbeats.hear(client.now())
            return []
        except ConnectionLostError:
            if client.is_closed:
                raise
            await client.wait(lambda: client.is_connected, timeout=max(deadline - now, 0.0), what="a connection")
            return []  # the epoch is another one: `_request` sends the requests again
        except SlowConsumerError as error:
            client.report(error)  # the server redelivers what was dropped
            return []
        self._heartbeats.hear(client.now())
        return msgs

    async def _request(self) -> None:
        """Send the request that is due; those that were sent over an earlier connection are void."""
        client = self.client
        if self._subscription is None:
            self._inbox = client.new_inbox()
            self._subscription = await client.subscribe(
                f"{self._inbox}.*", max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES
            )
            if self.is_stopped:  # by another thread, which found no subscription to end
                self._subscription.drain_soon()
        if not client.is_connected:  # sent with the next connection; buffered it would be void by then
            return
        if self._epoch != client.epoch:
            self._epoch = client.epoch
            self._flow.reset()
            self._heartbeats.hear(client.now())
        if body := self._flow.request():
            await client.publish(self._consumer.next_subject, body, reply=f"{self._inbox}.{self._flow.token}")

    async def _request_more(self, msgs: list[Msg]) -> None:
        """Send the next request while `msgs` are handled; they are not lost when that fails or is cancelled."""
        try:
            await self._request()
        except BaseException as error:
            if isinstance(error, ConnectionLostError) and not self.client.is_closed:
                return  # sent with the next connection
            self._handover.keep(msgs)
            raise

    async def _retry_or_raise(self, error: Error, deadline: float) -> None:
        """Wait if the error may be transient, and raise it if not: while a leader changes there is no responder."""
        if not isinstance(error, ConsumerGoneError):
            raise error
        self._failures += 1
        client = self.client
        left = max(deadline - client.now(), 0.0)
        pause = min(retry_pause(self._failures, self._inbox), left)
        with suppress(RequestTimeoutError, ConnectionLostError):
            await client.wait(lambda: self.is_stopped, timeout=pause, what="the consumer to answer again")
        if self._failures < CHECK_AFTER:
            return
        try:
            await self._consumer.info(timeout=min(left, CHECK_TIMEOUT))
        except ApiError as refusal:
            if refusal.code == 404:
                raise error from refusal
        except Error:
            return  # JetStream is not available at the moment


class MessageLists:
    """The iteration of `Consumer.chunks`: lists of messages. It ends with `aclose`, or when nothing refers to it."""

    def __init__(self, loop: PullLoop, idle_timeout: float | None) -> None:
        self._loop: PullLoop | None = loop
        self._client = loop.client
        self._idle_timeout = idle_timeout
        self._left: list[JsMessage] = []  # not taken by a reader of single messages, the next one last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[JsMessage]:
        return await self._read_list()

    async def aclose(self) -> None:
        """End the loop; the messages that were not taken are for the next call on the consumer."""
        self._end()

    async def _read_list(self) -> list[JsMessage]:
        loop = self._loop
        if loop is None:
            raise StopAsyncIteration
        try:
            messages = await loop.read_unless_idle(self._idle_timeout)
        except BaseException:
            self._end()
            raise
        if messages is None:
            self._end()
            raise StopAsyncIteration
        return messages

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        left, self._left = self._left, []
        if loop is not None:
            loop.close(left[::-1])

    def __del__(self) -> None:
        if self._loop is not None:
            self._client.run_here(self._end)


class Messages(MessageLists):
    """The iteration of `Consumer.messages`: one message after the other."""

    async def __anext__(self) -> JsMessage:  # type: ignore[override]  # the same messages, one by one
        if not self._left:
            self._left = (await self._read_list())[::-1]
        return self._left.pop()


class Consuming:
    """A callback at work. `stop` ends it at once, `drain` after what has arrived; both wait for the callback."""

    def __init__(self, loop: PullLoop, callback: Callback) -> None:
        self._loop = loop
        self._callback = callback
        self._is_stopped = False
        self._error: Error | None = None
        self._worker = loop.client.spawn(self._run, f"consume {loop.name}")

    @property
    def is_done(self) -> bool:
        """Whether the callback has been called for the last time."""
        return self._worker.is_done

    async def stop(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop calling back. Messages that arrived and were not handled are for the next call on the consumer.

        Raises the error that ended it before.
        """
        self._is_stopped = True
        await self.drain(timeout=timeout)

    async def drain(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """Send no more requests and wait until everything that arrived is handled. Raises as `stop` does."""
        self._loop.stop()
        if not await self._worker.join(timeout) and not self._worker.is_done:
            if self._worker.is_own:
                return
            raise RequestTimeoutError(f"consume {self._loop.name}: the callback still runs after {timeout:g} s")
        if self._error is not None:
            raise self._error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _run(self) -> None:
        loop, left = self._loop, list[JsMessage]()
        try:
            while (messages := await loop.read_unless_idle(None)) is not None:
                left = messages[::-1] + left  # behind those that a `stop` left unhandled
                while left and not self._is_stopped:
                    message = left.pop()
                    try:
                        await finish(self._callback(message))
                    except Exception as exc:  # the top of the user's code
                        loop.client.report(exc)
        except Error as error:
            self._error = error
            loop.client.report(error)
        finally:
            loop.close(left[::-1])
