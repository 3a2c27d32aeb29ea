"""An ordered consumer over the asyncio client: each message once and in order, whatever happens on the way.

Thin: what to create, hand over and repair is decided in `ordered`; here it is carried out, by whoever reads. The
blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from slipstream.api import ConsumerConfig
from slipstream.client._async.client import Subscription
from slipstream.client.base import FOREVER
from slipstream.errors import (
    ApiError,
    ConnectionLostError,
    Error,
    HeartbeatLostError,
    NoRespondersError,
    RequestTimeoutError,
    SlowConsumerError,
)
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.ack_subject import ACK_PREFIX
from slipstream.jetstream.consume.ordered import Ordered, Run, backoff
from slipstream.jetstream.consume.sinks import MAX_BYTES, MAX_MSGS, Ignored, consumer_name
from slipstream.jetstream.consume.status import ControlReply, HeartbeatMonitor
from slipstream.jetstream.consumer_requests import Action

CREATE_TIMEOUT = 5.0
LOOK = 0.5  # seconds without a message of the initial ones before the server is asked whether there is one
CREATE_LEAST = 1.0  # a try that has begun is not given up before that, whatever the caller's deadline


class OrderedConsumer:
    """Messages of a stream in order, each once: `async for message in ordered`, or `chunks()` for lists.

    It begins with `start`, which `async with` and the first read do as well; from then on `initial_pending` says how
    many messages there were to read. Gaps, lost heartbeats, reconnects and restarts of the server are repaired by
    whoever reads next: a new consumer goes on behind the last message that was handed over.
    """

    def __init__(self, context: JetStreamContext, stream: str, config: ConsumerConfig, *, heartbeat: float) -> None:
        self._context = context
        self._client = context.client
        self._api = context.consumer_api
        self._state = Ordered(config, heartbeat=heartbeat)
        self._subscription: Subscription | None = None
        self._pulse = HeartbeatMonitor(heartbeat, self._client.now())
        self._epoch = self._client.epoch
        self._attempts = 0  # to create a consumer, without success
        self._not_before = 0.0  # when the next of them may begin
        self._left: list[JsMessage] = []  # of a chunk, in reverse: for those who read one by one
        self._is_closed = False
        self._away_since = self._client.now()
        self.stream = stream

    @property
    def initial_pending(self) -> int:
        """How many messages there were to read when it was started."""
        return self._state.initial_pending or 0

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message that was received in order."""
        return self._state.last_seq

    @property
    def consumer_seq(self) -> int:
        """How many messages of the consumer in use were received in order."""
        return self._state.consumer_seq

    @property
    def resets(self) -> int:
        """How often a new consumer had to be made."""
        return self._state.resets

    @property
    def consumer_name(self) -> str:
        """The name of the consumer in use; empty while there is none."""
        return self._state.name

    async def start(self, *, timeout: float = CREATE_TIMEOUT) -> Self:
        """Create the consumer, if there is none yet. Raises what the server says against it."""
        if self._state.is_broken and not self._is_closed:
            await self._create(self._client.now() + timeout)
        return self

    async def next(self, *, timeout: float = 5.0) -> JsMessage:
        """The next message; raises RequestTimeoutError if none comes in time."""
        if not self._left:
            chunk = await self.next_chunk(timeout=timeout)
            self._left = chunk[::-1]
        return self._left.pop()

    async def next_chunk(self, *, timeout: float = 5.0) -> list[JsMessage]:
        """Every message that is here, at least one; raises RequestTimeoutError if none comes in time."""
        try:
            chunk = await self._next(self._client.now() + timeout)
        except RequestTimeoutError as error:
            raise RequestTimeoutError(f"ordered consumer of {self.stream}: no message within {timeout:g} s") from error
        if chunk is None:
            raise ConnectionLostError(f"the ordered consumer of {self.stream} is closed")
        return chunk

    async def chunks(self) -> AsyncIterator[list[JsMessage]]:
        """Lists of messages, as they arrive, without end. Leaving the loop closes what the loop started."""
        is_ours = self._state.is_broken
        try:
            while (chunk := await self._next(self._client.now() + FOREVER)) is not None:
                yield chunk
        finally:
            if is_ours:
                self._end()

    async def messages(self) -> AsyncIterator[JsMessage]:
        """The messages one by one, without end. Leaving the loop closes what the loop started."""
        is_ours = self._state.is_broken
        try:
            while (chunk := await self._next(self._client.now() + FOREVER)) is not None:
                self._left = left = chunk[::-1]
                while left:
                    yield left.pop()
        finally:
            if is_ours:
                self._end()

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return self.messages()

    async def is_drained(self) -> bool:
        """Whether the server has nothing left that was not received: some of the initial messages may be removed before
        they were delivered. False where that cannot be told: ask again later."""
        name = self._state.name
        if not name:
            return False
        try:
            info = await self._context.run(self._api.info(self.stream, name))
        except Error:  # it is being made anew, or there is no connection
            return False
        return not info.num_pending and info.delivered.consumer_seq <= self._state.consumer_seq

    async def close(self) -> None:
        """Read no more; the consumer is deleted."""
        name = self._state.name
        self._end(delete=False)
        if name and self._client.is_connected:
            try:
                await self._context.run(self._api.delete(self.stream, name), timeout=CREATE_TIMEOUT)
            except Error:  # it goes by itself when nobody listens
                return

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Reading

    async def _next(self, deadline: float) -> list[JsMessage] | None:
        """The next chunk; None when it is closed."""
        if self._left:
            chunk, self._left = self._left[::-1], []
            return chunk
        run = await self._next_run(deadline)
        client = self._client
        return run and [JsMessage(msg, client, True) for msg in run.each()]

    async def next_run(self, *, timeout: float = 5.0) -> Run | None:
        """The same as `next_chunk` for the rooms above, without an object per message; None when it is closed."""
        return await self._next_run(self._client.now() + timeout)

    async def _next_run(self, deadline: float) -> Run | None:
        """What is next; None when it is closed. Nothing is taken while it waits, so a cancelled reader loses none."""
        state, client = self._state, self._client
        self._pulse.pause(client.now() - self._away_since)  # while nobody listened nothing could be heard
        try:
            while not self._is_closed:
                found = state.take()
                if isinstance(found, Run):
                    return found
                if isinstance(found, ControlReply):
                    client.answer(found.subject)
                elif isinstance(found, Error):
                    self._break()
                elif state.is_broken:
                    await self._create(deadline)
                elif not await self._receive(deadline):
                    break
        finally:
            self._away_since = client.now()
        return None

    async def _receive(self, deadline: float) -> bool:
        """Wait for what comes next; False when the subscription has ended, by whoever closed the client."""
        subscription, client = self._subscription, self._client
        assert subscription is not None
        now = client.now()
        silence = self._pulse.left(now)
        try:
            pieces = await subscription.next_pieces(timeout=max(min(deadline - now, silence), 0.0), epoch=self._epoch)
        except RequestTimeoutError:
            if self._pulse.left(client.now()) > 0:
                raise
            lost = HeartbeatLostError(f"ordered consumer {self._state.name}: no sign of life for {silence:.3g} s")
            client.report(lost)
            self._break()
        except ConnectionLostError:
            if client.is_closed:
                return False
            self._break()
        except SlowConsumerError:
            self._break()
        except Error:
            if subscription.is_over:
                return False
            raise
        else:
            self._pulse.hear(client.now())
            for piece in pieces:
                self._state.feed(piece)
        return True

    # Repairing

    def _break(self) -> None:
        """The consumer in use is of no use any more; `_create` makes another."""
        if self._subscription is not None:
            self._subscription.end()
            self._subscription = None
        self._delete(self._state.broken())

    async def _create(self, deadline: float) -> None:
        """Make a consumer; tries again, with pauses, what may pass by itself. Raises what does not, or at the end."""
        client = self._client
        while not self._is_closed:
            await self._rest(deadline)
            try:
                await self._create_once(deadline)
            except (ConnectionLostError, RequestTimeoutError, NoRespondersError, ApiError) as error:
                hopeless = isinstance(error, ApiError) and error.code < 500
                if client.is_closed or hopeless or client.now() >= deadline:
                    raise
            else:
                self._attempts = 0
                return

    async def _create_once(self, deadline: float) -> None:
        client = self._client
        left = max(deadline - client.now(), 0.0)
        await client.wait(lambda: client.is_connected, timeout=left, what="a connection for an ordered consumer")
        inbox, epoch = client.new_inbox(), client.epoch
        self._not_before = client.now() + backoff(self._attempts, inbox)
        self._attempts += 1  # waiting for a connection is none
        name = consumer_name(inbox)
        subscription = await client.subscribe(inbox, max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES)
        subscription.pack(ACK_PREFIX)
        try:
            call = self._api.create(self.stream, self._state.config(name, inbox), Action.CREATE)
            left = max(deadline - client.now(), CREATE_LEAST)
            info = await self._context.run(call, timeout=min(left, CREATE_TIMEOUT))
        except BaseException as error:
            subscription.end()
            if not isinstance(error, ApiError):
                self._delete(name)  # it may have been made all the same
            raise
        self._subscription, self._epoch = subscription, epoch
        self._pulse.hear(client.now())
        self._state.created(info)

    async def _rest(self, deadline: float) -> None:
        client = self._client
        if not self._attempts or (pause := self._not_before - client.now()) <= 0:
            return
        left = max(deadline - client.now(), 0.0)
        with suppress(ConnectionLostError):
            try:
                await client.wait(lambda: self._is_closed, timeout=min(pause, left), what="the next try")
            except RequestTimeoutError:
                if left < pause:
                    raise

    def _delete(self, name: str) -> None:
        """Have a consumer deleted, without waiting: what is not is gone when nobody has listened for a while."""
        if name and not self._client.is_closed:
            call = self._api.delete(self.stream, name)
            with suppress(ConnectionLostError):  # no room for it to wait in: it goes by itself
                self._client.start(call.subject, call.payload, Ignored())

    def _end(self, *, delete: bool = True) -> None:
        self._is_closed = True
        if self._subscription is not None:
            self._subscription.end()
            self._subscription = None
        name = self._state.broken()
        if delete:
            self._delete(name)
