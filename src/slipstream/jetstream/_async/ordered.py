"""An ordered consumer over the asyncio client: each message once and in order, across any failure.

Thin: what to create, return and repair is decided in `consume.ordered`; here it is carried out, by the task that reads.
There is no background task: while the program does not read, nothing is repaired. The blocking twin is generated from
this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import repeat
from types import TracebackType
from typing import NamedTuple, Self

from slipstream.api import ConsumerConfig, ConsumerInfo, StreamInfo
from slipstream.client._async.client import Subscription
from slipstream.client._async.opening import Openable
from slipstream.client.base import FOREVER
from slipstream.errors import (
    ApiError,
    ConnectionLostError,
    ConsumerNotFoundError,
    Error,
    ErrorCode,
    HeartbeatLostError,
    NoRespondersError,
    RequestTimeoutError,
    SlowConsumerError,
    StaleReadError,
    StreamNotFoundError,
)
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.fresh_consumers import leader_with, server_keeps_min
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.ack_subject import ACK_PREFIX
from slipstream.jetstream.consume.inbox import MAX_BYTES, MAX_MSGS, Ignored, consumer_name, retry_pause
from slipstream.jetstream.consume.ordered import MessageRun, OrderedState
from slipstream.jetstream.consume.placement import has_other_stores, is_on, is_on_only_store
from slipstream.jetstream.consume.status import ControlReply, HeartbeatMonitor, flow_control_subject
from slipstream.jetstream.consumer_requests import Action
from slipstream.wire.arguments import Duration, check_seconds, check_timeout

CREATE_TIMEOUT = 5.0
LOOK_TIMEOUT = 1.0  # whether the stream is the same one, after a consumer was replaced
IDLE_CHECK = 0.5  # seconds to wait for one of the initial messages before asking the server whether there is one
MIN_CREATE_TIMEOUT = 1.0  # a creation that has begun is not given up before that, whatever the caller's deadline
PROBE_TIMEOUT = 2.0  # whether the server keeps `min_last_seq`: it may say so late
REPLACE_TIMEOUT = 30.0  # for a new consumer under a reader that waits without a deadline
DELETE_TIMEOUT = 5.0  # until a consumer that was discarded no longer counts: that is not waited for
PLACEMENT_TIMEOUT = 1.0  # for one of several creations: the server that it is placed on may be cut off


class _Created(NamedTuple):
    """A new consumer, the subscription that it delivers to, and the connection that both were made over."""

    subscription: Subscription
    info: ConsumerInfo
    epoch: int


class OrderedConsumer(Openable):
    """Messages of a stream in order, each once: `async for message in ordered`, or `chunks()` for lists.

    The consumer is created by `start`, which `async with` and the first read call as well; from then on
    `initial_pending` says how many messages there were to read. Gaps, lost heartbeats, reconnects and restarts of the
    server are repaired by the next read: a new consumer continues after the last message that was returned.
    """

    def __init__(self, context: JetStreamContext, stream: str, config: ConsumerConfig, *, heartbeat: Duration) -> None:
        self._context = context
        self._client = context.client
        self._api = context.consumer_api
        self._state = OrderedState(config, heartbeat=check_seconds(heartbeat, "heartbeat"))
        self._subscription: Subscription | None = None
        self._heartbeats = HeartbeatMonitor(self._state.heartbeat, self._client.now())
        self._epoch = self._client.epoch
        self._attempts = 0  # to create a consumer, in a row without success
        self._not_before = 0.0  # when the next attempt may begin
        self._last_check = "", 0  # of a consumer that had messages left: its name, and how many it had delivered
        self._checks = 0  # that found it as it was before,
        self._checks_allowed = 1  # and how many may before it is replaced: twice as many each time, it may only be slow
        self._replaced_behind = 0  # the last sequence by then: as before, when the new one got further
        self._deleted_at = -DELETE_TIMEOUT  # when a consumer was discarded
        self._left: list[JsMessage] = []  # of a chunk, in reverse: not taken by a reader of single messages
        self._is_closed = False
        self.stream = stream

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self.stream!r}>"

    @property
    def initial_pending(self) -> int:
        """How many messages there were to read when it was started."""
        return self._state.initial_pending or 0

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message that was received in order."""
        return self._state.last_seq

    @property
    def starts_behind(self) -> int:
        """The stream sequence that the reading began behind; 0 where the consumer's start does not tell it."""
        return self._state.floor

    @property
    def consumer_seq(self) -> int:
        """How many messages of the consumer in use were received in order."""
        return self._state.consumer_seq

    @property
    def resets(self) -> int:
        """How often a new consumer had to be created."""
        return self._state.resets

    @property
    def consumer_name(self) -> str:
        """The name of the consumer in use; empty while there is none."""
        return self._state.name

    async def start(self, *, timeout: Duration = CREATE_TIMEOUT) -> Self:
        """Create the consumer, if there is none in use. Transient failures are retried until the time is up.

        Raises the server's error if it rejects the consumer, StaleReadError if no copy was shown to have what it must
        have seen, and the last failure when the time is up.
        """
        timeout = check_seconds(timeout)
        client = self._client
        deadline = client.now() + timeout
        while self._state.is_broken and not self._is_closed:
            await self._pause_before_retry(deadline)
            try:
                await self._create(deadline)
            except (ConnectionLostError, RequestTimeoutError, NoRespondersError, ApiError) as error:
                is_permanent = isinstance(error, ApiError) and error.code < 500 and not self._is_in_our_way(error)
                if client.is_closed or is_permanent or client.now() >= deadline:
                    raise
        return self

    def _is_in_our_way(self, error: ApiError) -> bool:
        """Whether the limit of consumers was reached with one that was discarded: its deletion is on its way."""
        is_limit = error.err_code == ErrorCode.MAXIMUM_CONSUMERS_LIMIT
        return is_limit and self._client.now() < self._deleted_at + DELETE_TIMEOUT

    async def next(self, *, timeout: Duration = 5.0, idle: Duration | None = None) -> JsMessage:
        """The next message; raises RequestTimeoutError if none arrives in time.

        Also after `idle` seconds of silence, in which a consumer was there: the time to create one does not count.
        """
        timeout, idle = check_seconds(timeout), check_timeout(idle, "idle")
        if not self._left:
            chunk = await self.next_chunk(timeout=timeout, idle=idle)
            self._left = chunk[::-1]
        return self._left.pop()

    async def next_chunk(self, *, timeout: Duration = 5.0, idle: Duration | None = None) -> list[JsMessage]:
        """All messages that have arrived, at least one; raises RequestTimeoutError if none arrives in time (`next`)."""
        timeout, idle = check_seconds(timeout), check_timeout(idle, "idle")
        try:
            chunk = await self._read_chunk(timeout, idle)
        except RequestTimeoutError as error:
            text = f"ordered consumer of stream {self.stream!r}: no message within {timeout:g} s"
            raise RequestTimeoutError(text) from error
        if chunk is None:
            raise ConnectionLostError(f"the ordered consumer of stream {self.stream!r} is closed")
        return chunk

    async def chunks(self) -> AsyncIterator[list[JsMessage]]:
        """Lists of messages, as they arrive, without end. A consumer that the loop created is deleted with it."""
        is_ours = self._state.is_broken
        try:
            while (chunk := await self._read_chunk(FOREVER)) is not None:
                yield chunk
        finally:
            if is_ours:
                self._end()

    async def messages(self) -> AsyncIterator[JsMessage]:
        """The messages one by one, without end. A consumer that the loop created is deleted with it."""
        is_ours = self._state.is_broken
        try:
            while (chunk := await self._read_chunk(FOREVER)) is not None:
                self._left = left = chunk[::-1]
                while left:
                    yield left.pop()
        finally:
            if is_ours:
                self._end()

    def __aiter__(self) -> AsyncIterator[JsMessage]:
        return self.messages()

    async def is_drained(self) -> bool:
        """Whether the server has nothing left to deliver: some of the initial messages may have been removed before
        they were delivered. False where that is not known: ask again later. A consumer that is gone is replaced.

        nats-server 2.15 stops when the message that is next to be delivered, the last one of its subject, expires: it
        goes on with its next heartbeat, and then skips one such message at a time. So a consumer that has delivered
        none since it was asked last is replaced; how many it has left falls meanwhile, which says nothing.
        """
        name = self._state.name
        if not name:
            return False
        try:
            info = await self._context.run(self._api.info(self.stream, name))
        except (ConsumerNotFoundError, StreamNotFoundError):  # as after its stream was deleted, perhaps made again
            if name == self._state.name:
                self._discard_consumer()
            return False
        except Error:  # it is being replaced, or there is no connection
            return False
        if info.delivered.consumer_seq > self._state.consumer_seq:  # on its way
            return False
        if not info.num_pending:
            self._state.complete_initial()
            return True
        found = name, info.delivered.consumer_seq
        self._checks = self._checks + 1 if found == self._last_check else 0
        self._last_check = found
        if self.last_seq > self._replaced_behind:
            self._checks_allowed, self._replaced_behind = 1, self.last_seq
        if self._checks >= self._checks_allowed and name == self._state.name:
            self._checks_allowed *= 2
            self._discard_consumer()
        return False

    async def close(self) -> None:
        """End the reading and delete the consumer."""
        name = self._state.name
        self._end(delete=False)
        if name and self._client.is_connected:
            try:
                await self._context.run(self._api.delete(self.stream, name), timeout=CREATE_TIMEOUT)
            except Error:  # the server removes it when its inbox is not listened to
                return

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Reading

    async def _read_chunk(self, timeout: float, idle: float | None = None) -> list[JsMessage] | None:
        """The next messages; None when it is closed."""
        if self._left:
            chunk, self._left = self._left[::-1], []
            return chunk
        run = await self.receive_run(timeout=timeout, idle=idle)
        if not run:
            return None
        client, codec = self._client, self._context.codec
        chunk = list(map(JsMessage, run.each(), repeat(client), repeat(True), repeat(codec)))
        self._context.note_messages(self.stream, chunk)
        return chunk

    async def receive_run(self, *, timeout: float = 5.0, idle: float | None = None) -> MessageRun | None:
        """As `next_chunk`, for the layers above: in columns, without an object per message; None when it is closed.

        Nothing is taken while it waits, so a cancelled reader loses none.
        """
        state, client, heartbeats = self._state, self._client, self._heartbeats
        deadline = client.now() + timeout
        silent_until = deadline if idle is None else min(deadline, client.now() + idle)
        heartbeats.resume(client.now())
        try:
            while not self._is_closed:
                found = state.take()
                if isinstance(found, MessageRun):
                    return found
                if isinstance(found, ControlReply):
                    client.answer(found.subject)
                elif isinstance(found, Error):
                    self._discard_consumer()
                elif state.is_broken:
                    left = max(deadline - client.now(), 0.0)
                    await self.start(timeout=left if idle is None else min(left, REPLACE_TIMEOUT))
                    if idle is not None:
                        silent_until = min(deadline, client.now() + idle)
                else:
                    assert self._subscription is not None
                    now = client.now()
                    silence = heartbeats.left(now)
                    limit = max(min(silent_until - now, silence), 0.0)
                    try:
                        pieces = await self._subscription.next_pieces(timeout=limit, epoch=self._epoch)
                    except Error as error:
                        if not self._recovers_from(error, silence):
                            break
                    else:
                        heartbeats.hear(client.now())
                        for piece in pieces:
                            state.feed(piece)
        finally:
            heartbeats.suspend(client.now())
        return None

    def _recovers_from(self, error: Error, silence: float) -> bool:
        """Nothing could be received: discard the consumer if a new one can go on; False when the subscription has ended
        with the client. Raises what concerns the reader: its time is up, or the server rejected the subscription."""
        client = self._client
        if isinstance(error, RequestTimeoutError):
            if self._heartbeats.left(client.now()) > 0:
                raise error
            lost = HeartbeatLostError(f"ordered consumer of stream {self.stream!r}: no heartbeat for {silence:.3g} s")
            client.report(lost)
        elif isinstance(error, ConnectionLostError):
            if client.is_closed:
                return False
        elif not isinstance(error, SlowConsumerError):
            if self._subscription is None or self._subscription.is_over:
                return False
            raise error
        self._discard_consumer()
        return True

    # Repairing

    def _discard_consumer(self) -> None:
        """Give up the consumer in use; `start` replaces it."""
        if self._subscription is not None:
            self._subscription.end()
            self._subscription = None
        self._delete(self._state.discard())

    async def _create(self, deadline: float) -> None:
        """Create a consumer that delivers to a fresh inbox, and has seen what it must: one attempt of `start`."""
        client = self._client
        left = max(deadline - client.now(), 0.0)
        await client.wait(lambda: client.is_connected, timeout=left, what="a connection for an ordered consumer")
        inbox = client.new_inbox()
        # Counted from the beginning of this attempt: a slow failure has waited long enough.
        self._not_before = client.now() + retry_pause(self._attempts, inbox)
        self._attempts += 1  # only now: waiting for a connection is no attempt
        if not self._wanted():
            created = await self._create_one(inbox, 0, deadline)
        else:
            left = max(deadline - client.now(), 0.0)
            keeps = await server_keeps_min(self._context, self.stream, timeout=min(left, PROBE_TIMEOUT))
            if keeps:  # also where the server holds the consumer back: only then is `initial_pending` right
                await leader_with(self._context, self.stream, self._wanted, timeout=left)
                created = await self._create_one(inbox, self._wanted(), deadline)
            else:
                created = await self._create_on_only_store(inbox, deadline) or await self._create_proven(deadline)
        if self._state.needs_look:
            try:
                await self._look()
            except BaseException:
                self._discard_created(created)
                raise
        self._subscription, self._epoch, self._attempts = created.subscription, created.epoch, 0
        self._heartbeats.hear(client.now())
        self._state.created(created.info)

    async def _look(self) -> None:
        """Raise StreamNotFoundError if the consumer is one of another stream of that name.

        Behind its creation: a stream that is made again after that has no such consumer. Where it cannot be learned the
        reading goes on, and the next replacement looks again: on a bad connection it must not take more than one answer
        to get further.
        """
        try:
            info = await self._context.run(self._context.api.stream_info(self.stream), timeout=LOOK_TIMEOUT)
        except StreamNotFoundError:
            raise
        except Error:
            return
        if self._state.is_another(info):
            text = f"stream {self.stream!r} was deleted and recreated while it was read"
            raise StreamNotFoundError().about(stream=self.stream, text=text)

    def _wanted(self) -> int:
        """The sequence that the next consumer must have seen; 0 if any will do."""
        session = self._context.session
        return self._state.wanted(0 if session is None else session.seen(self.stream))

    async def _create_on_only_store(self, inbox: str, deadline: float) -> _Created | None:
        """Create a consumer where there is one store alone (see `consume.placement`); None if that cannot be shown."""
        session, cache = self._context.session, self._context.read_state.stream(self._api.prefix, self.stream)
        if session is None or self._client.server_info.cluster or cache.has_other_stores:
            return None
        if self._wanted() > session.seen(self.stream):  # it was asked for, and may not be there yet
            return None
        created = await self._create_one(inbox, 0, min(deadline, self._client.now() + PLACEMENT_TIMEOUT))
        is_proven = False
        try:
            mark = session.mark(self.stream)
            info = await self._context.run(self._context.api.stream_info(self.stream), timeout=LOOK_TIMEOUT)
            cache.has_other_stores = has_other_stores(info)
            is_current = is_on_only_store(created.info, info) and session.learn(self.stream, info, mark)
            is_proven = is_current and info.state.last_seq >= self._wanted()
        except ConnectionLostError:
            raise
        except Error:  # which is looked into where it is proven by placement
            return None
        finally:
            if not is_proven:
                self._discard_created(created)
        return created if is_proven else None

    async def _create_proven(self, deadline: float) -> _Created:
        """Create consumers until one is placed on the leader's copy (see `consume.placement`)."""
        client = self._client
        left = max(deadline - client.now(), 0.0)
        check = self._reject_mirror
        leader = await leader_with(self._context, self.stream, self._wanted, check=check, timeout=left)
        while True:
            created = await self._create_one(client.new_inbox(), 0, min(deadline, client.now() + PLACEMENT_TIMEOUT))
            try:
                is_proven = False
                if is_on(leader, created.info):
                    left = max(deadline - client.now(), MIN_CREATE_TIMEOUT)
                    now = await leader_with(self._context, self.stream, self._wanted, timeout=left)
                    is_proven, leader = now.is_same(leader), now
            except BaseException:
                self._discard_created(created)
                raise
            if is_proven:
                return created
            self._discard_created(created)
            if client.now() >= deadline:
                raise self._stale(f"no consumer was placed on its leader {leader.name} in time")

    def _reject_mirror(self, info: StreamInfo) -> None:
        if (origin := info.config.mirror) is not None:
            raise self._stale(f"a mirror cannot prove what it has; read its origin {origin.name}")

    def _stale(self, why: str) -> StaleReadError:
        wanted = self._wanted()
        text = f"stream {self.stream!r}: {why}, sequence {wanted} is needed"
        return StaleReadError(text, stream=self.stream, min_last_seq=wanted)

    def _discard_created(self, created: _Created) -> None:
        created.subscription.end()
        self._delete(created.info.name)

    async def _create_one(self, inbox: str, min_last_seq: int, deadline: float) -> _Created:
        """Subscribe to an inbox and create a consumer that delivers there."""
        client, epoch = self._client, self._client.epoch
        name = consumer_name(inbox)
        config = self._state.config(name, inbox).replace(min_last_seq=min_last_seq)
        subscription = await client.subscribe(inbox, max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES)
        subscription.pack(ACK_PREFIX)  # runs of messages arrive in columns, statuses one by one
        subscription.answer_on_arrival(flow_control_subject)  # the server must not wait for what the program does
        try:
            call = self._api.create(self.stream, config, Action.CREATE)
            left = max(deadline - client.now(), MIN_CREATE_TIMEOUT)
            info = await self._context.run(call, timeout=min(left, CREATE_TIMEOUT))
        except BaseException as error:
            subscription.end()
            if not isinstance(error, ApiError):
                self._delete(name)  # it may have been created all the same
            raise
        return _Created(subscription, info, epoch)

    async def _pause_before_retry(self, deadline: float) -> None:
        client = self._client
        if not self._attempts or (pause := self._not_before - client.now()) <= 0:
            return
        left = max(deadline - client.now(), 0.0)
        with suppress(ConnectionLostError):
            try:
                await client.wait(lambda: self._is_closed, timeout=min(pause, left), what="the next attempt")
            except RequestTimeoutError:
                if left < pause:
                    raise

    def _delete(self, name: str) -> None:
        """Delete a consumer without waiting for the reply; if that fails it is removed as inactive."""
        if name and not self._client.is_closed:
            self._deleted_at = self._client.now()
            call = self._api.delete(self.stream, name)
            with suppress(ConnectionLostError):  # the buffer for the next connection is full
                self._client.start(call.subject, call.payload, Ignored())

    def _end(self, *, delete: bool = True) -> None:
        self._is_closed = True
        if self._subscription is not None:
            self._subscription.end()
            self._subscription = None
        name = self._state.discard()
        if delete:
            self._delete(name)
