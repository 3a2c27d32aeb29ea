"""Endless reads of a pull consumer, as an iteration over messages or lists of them.

`PullLoop` keeps pull requests in flight and survives reconnects, restarts of the server and changes of the leader;
`MessageLists`, `Messages` and `consuming.Consuming` are the three forms in which a program holds one. How many messages
to ask for, and when, is decided in `consume.pull`.

The iterations are objects, not generators: a loop that is left by `break` ends at once, when nothing refers to it any
more. An async generator would be closed by the event loop a moment later, when the next call may have sent its request
already and would get newer messages than those that the loop had not taken. The blocking twin is generated from this
file (`tools/unasync.py`).
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Self, TypeVar

from slipstream.client._async.client import Client, Subscription
from slipstream.client._async.clock import uptime
from slipstream.client._async.opening import Openable
from slipstream.client._async.tasks import Lock
from slipstream.client.base import FOREVER
from slipstream.errors import (
    ApiError,
    ConnectionLostError,
    ConsumerGoneError,
    Error,
    HeartbeatLostError,
    RequestTimeoutError,
    SlowConsumerError,
    UsageError,
)
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.handover import Handover
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.ack_subject import ACK_PREFIX, num_delivered
from slipstream.jetstream.consume.inbox import MAX_BYTES, MAX_MSGS, retry_pause
from slipstream.jetstream.consume.prefetch import Pace, PullStats
from slipstream.jetstream.consume.pull import PullFlow
from slipstream.jetstream.consume.status import HeartbeatMonitor
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_timeout

CHECK_AFTER = 3  # requests in a row without a responder before the server is asked whether the consumer exists
CHECK_TIMEOUT = 5.0
TURN = 0.02  # seconds that a program may keep the event loop from running between two messages
NOTHING: tuple[list[Msg], float] = ([], math.inf)

T = TypeVar("T")


class PullLoop:
    """Pull requests in flight for one reader, and what they bring.

    Messages that arrived are in one of three places: in the inbox, in `waiting` (taken from it, and not yet by the
    program), or with the program. `_sent_after` is a time since which the `ack_wait` of those in `waiting` runs at
    most.
    """

    def __init__(self, consumer: ConsumerHandle, handover: Handover, flow: PullFlow) -> None:
        self._consumer = consumer
        self._handover = handover
        self._flow = flow
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._epoch = -1
        self._heartbeats = HeartbeatMonitor(flow.heartbeat, consumer.client.now(), timeout=flow.silence)
        self._failures = 0  # in a row
        self._error: Error | None = None  # raised or retried by the next read, behind the messages before it
        self._rules = consumer.ack_rules
        self._pace = Pace(self._rules.ack_wait, first=flow.first_window)
        self._taken = 0  # messages that the program got by the last read,
        self._taken_at = 0.0  # and when
        self.waiting: list[JsMessage] = []  # in reverse
        self._sent_after = 0.0
        self.waiting_until: float = 0.0  # they can be taken as they are
        self._turn_until = 0.0  # the event loop gets its turn then, at the latest
        self.client: Client = consumer.client
        self.name: str = consumer.name
        self._is_closed = False
        self.is_stopped: bool = False  # no more requests are sent; what has arrived is still handed over

    @property
    def stats(self) -> PullStats:
        """What happened to the messages of the consumer so far."""
        return self._handover.stats

    async def read(self, deadline: float) -> list[JsMessage] | None:
        """The next messages; None at the end: stopped, or the client closed.

        Raises RequestTimeoutError at the deadline, and a status of the server that is an error. Nothing is taken from
        the subscription while it waits, so a cancelled reader loses none.
        """
        now = uptime()
        self._pace.round_trip = self.client.round_trip
        self._pace.handled(self._taken, now - self._taken_at)
        self._taken = 0
        if now >= self._turn_until:
            await self._give_turn()
        messages = await self._read(deadline)
        self._taken, self._taken_at = len(messages or ()), uptime()
        return messages

    async def _read(self, deadline: float) -> list[JsMessage] | None:
        self._heartbeats.resume(self.client.now())
        try:
            while True:
                if self._handover.has_kept:  # by earlier calls, or by a loop that ended while this one waited
                    messages, self._sent_after = await self._handover.take_kept(0, deadline)
                    if messages:
                        return messages
                if self._error is not None:
                    await self._retry_or_raise(self._error, deadline)
                    self._error = None
                if not self.is_stopped:
                    await self._request()
                if (subscription := self._subscription) is None:
                    return None
                try:
                    frames, sent_after = await self._receive_frames(subscription, deadline)
                except Error:
                    if subscription.is_over:  # stopped, or the client was closed
                        return None
                    raise
                msgs = self._feed(frames)
                if msgs and (messages := await self._admit(msgs, sent_after)):
                    return messages
        finally:
            self._heartbeats.suspend(self.client.now())

    def _feed(self, frames: list[Msg]) -> list[Msg]:
        """The messages among what was taken from the inbox just now; an error behind them is for the next read."""
        msgs, error = self._flow.feed(frames)
        self._error = None if error is None else self._consumer.named(error)
        return msgs

    async def _admit(self, msgs: list[Msg], sent_after: float) -> list[JsMessage]:
        """What of the messages that have just arrived is the program's; the next ones are requested.

        They are not lost when that fails or is cancelled.
        """
        self._failures = 0
        self._follow_config(msgs)
        if not self._rules.is_fresh(uptime() - sent_after, self.client.round_trip):
            self._pace.late()
        try:
            msgs, sent_after = await self._handover.renew(msgs, sent_after)
            self._sent_after = sent_after
            if msgs and not self.is_stopped:
                await self._request(waiting=len(msgs))
        except BaseException as error:
            if not isinstance(error, ConnectionLostError) or self.client.is_closed:
                self._handover.keep(msgs, sent_after)
                raise
            # It is sent with the next connection.
        return self._handover.hand_over(msgs)

    def _follow_config(self, msgs: list[Msg]) -> None:
        """Notice that the consumer was edited. What is redelivered comes first, so the first message tells."""
        consumer = self._consumer
        consumer.refresh(uptime(), is_redelivering=num_delivered(msgs[0]) > 1)
        if self._rules is not consumer.ack_rules:
            self._rules = consumer.ack_rules
            self._pace.adapt(self._rules.ack_wait)

    async def read_unless_idle(self, idle_timeout: float | None) -> list[JsMessage] | None:
        """As `read`; None also when nothing arrives for `idle_timeout` seconds (None: never)."""
        while True:
            try:
                return await self.read(self.client.now() + (FOREVER if idle_timeout is None else idle_timeout))
            except RequestTimeoutError:
                if idle_timeout is not None:
                    return None

    async def next(self, idle_timeout: float | None) -> JsMessage | None:
        """The next message alone, as `read_unless_idle`."""
        while True:
            if (message := self.take_waiting()) is not None:
                return message
            if self.waiting:
                if uptime() >= self._turn_until:
                    await self._give_turn()
                if await self._renew_left():
                    return self.waiting.pop()
            else:
                messages = await self.read_unless_idle(idle_timeout)
                if messages is None:
                    return None
                if self._is_closed:  # meanwhile
                    self._handover.take_back(messages, self._sent_after)
                    return None
                self.waiting = messages[::-1]
                self._set_next_until()

    def take_waiting(self) -> JsMessage | None:
        """The next message, if one waits; the fast part of `next`."""
        waiting = self.waiting
        try:
            return waiting.pop() if waiting and uptime() < self.waiting_until else None
        except IndexError:  # another thread was faster
            return None

    async def _give_turn(self) -> None:
        """Let the event loop run: a program that never waits keeps its acks from being sent."""
        await self.client.let_run()
        self._turn_until = uptime() + TURN

    async def renew_waiting(self) -> None:
        """Renew what waits for the program, also in the inbox, if it is due: for readers that take none for long."""
        with suppress(ConnectionLostError):  # it is renewed, or dropped, with the next connection
            if self.waiting:
                await self._renew_left()
            else:
                await self._renew_inbox()
                self._set_next_until()

    async def _renew_left(self) -> list[JsMessage]:
        """Renew what waits for the program, also in the inbox, if it is due; returns what is left, in reverse."""
        rules, handover = self._consumer.ack_rules, self._handover
        if not rules.is_fresh(uptime() - self._sent_after, self._handover.round_trip):
            msgs, self._sent_after = await handover.renew([message.raw for message in self.waiting], self._sent_after)
            if len(msgs) != len(self.waiting):
                self.stats.messages -= len(self.waiting) - len(msgs)
                alive = {msg.reply for msg in msgs}
                self.waiting = [message for message in self.waiting if message.reply in alive]
            await self._renew_inbox()
        self._set_next_until()
        return self.waiting

    def _set_next_until(self) -> None:
        fresh_until = self._sent_after + self._consumer.ack_rules.fresh_for(self._handover.round_trip)
        self.waiting_until = min(fresh_until, self._turn_until)

    async def _renew_inbox(self) -> None:
        """Take what waits in the inbox, so that it is renewed with the others."""
        inbox = self._subscription
        if inbox is None or not inbox.pending or self._error is not None:
            return
        with suppress(SlowConsumerError):  # reported when it happened
            frames, sent_after = inbox.take_now()
            msgs = self._feed(frames)
            try:
                msgs, sent_after = await self._handover.renew(msgs, sent_after)
            except BaseException:
                self._handover.keep(msgs, sent_after)
                raise
            if self._subscription is None:  # closed meanwhile
                self._handover.keep(msgs, sent_after)
                return
            self._sent_after = min(self._sent_after, sent_after) if self.waiting else sent_after
            self.waiting = self._handover.hand_over(msgs)[::-1] + self.waiting
            self._taken += len(msgs)

    def stop(self) -> None:
        """Send no more requests. What the server has sent is still handed over."""
        self.is_stopped = True
        if self._subscription is not None:
            self._subscription.drain_soon()

    def put_back(self, messages: list[JsMessage], sent_after: float) -> None:
        """Keep messages that were taken and not handled for the next call; their `ack_wait` runs since `sent_after`."""
        self._handover.take_back(messages, sent_after)

    def close(self) -> None:
        """End it. The messages that its reader did not take, and those that still arrive, are for the next call."""
        self._is_closed = True
        left, self.waiting = self.waiting, []
        self._handover.take_back(left[::-1], self._sent_after)
        subscription, self._subscription = self._subscription, None
        self.is_stopped = True
        if subscription is not None:
            self._handover.drain(subscription)

    async def _receive_frames(self, subscription: Subscription, deadline: float) -> tuple[list[Msg], float]:
        """Messages and statuses, and a time before they were sent; none after a pause or an interruption."""
        client, now = self.client, self.client.now()
        silence = self._heartbeats.left(now)
        self._consumer.mark()
        try:
            frames = await subscription.next_all_dated(
                timeout=max(min(deadline - now, silence, self._rules.look_every), 0.0), epoch=self._epoch
            )
        except RequestTimeoutError:
            now = client.now()
            if self._heartbeats.left(now) > 0:
                if now < deadline:
                    return NOTHING
                raise
            awaited = "heartbeat" if self._flow.heartbeat else "answer"
            text = f"{self._consumer}: no {awaited} for {self._heartbeats.timeout:.3g} s, sending a new pull request"
            client.report(HeartbeatLostError(text))
            self._flow.reset()
            self._heartbeats.hear(client.now())
            return NOTHING
        except ConnectionLostError:
            if client.is_closed:
                raise
            await client.wait(lambda: client.is_connected, timeout=max(deadline - now, 0.0), what="a connection")
            return NOTHING  # the epoch is another one: `_request` sends the requests again
        except SlowConsumerError as error:
            client.report(error)  # the server redelivers what was dropped
            return NOTHING
        self._heartbeats.hear(client.now())
        return frames

    async def _request(self, *, waiting: int = 0) -> None:
        """Send the request that is due; those that were sent over an earlier connection are void.

        `waiting` messages are about to be handed over.
        """
        client = self.client
        if self._subscription is None:
            self._inbox = client.new_inbox()
            self._subscription = await client.subscribe(
                f"{self._inbox}.*", max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES
            )
            self._subscription.pack(ACK_PREFIX)
            if self.is_stopped:  # by another thread, which found no subscription to end
                self._subscription.drain_soon()
        if not client.is_connected:  # sent with the next connection; buffered it would be void by then
            return
        if self._epoch != client.epoch:
            self._epoch = client.epoch
            self._flow.reset()
            self._heartbeats.hear(client.now())
        if body := self._flow.request(window=self._pace.window, waiting=waiting):
            self._consumer.mark()  # the PONG arrives before what is requested
            await client.publish(self._consumer.next_subject, body, reply=f"{self._inbox}.{self._flow.token}")

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


class MessageLists(Openable):
    """The iteration of `Consumer.chunks`: lists of messages. It ends with `aclose`, or when nothing refers to it.

    It has one reader at a time; `consume` has a `concurrency`.
    """

    def __init__(self, loop: PullLoop, idle_timeout: Duration | None) -> None:
        self._loop: PullLoop | None = loop
        self._client = loop.client
        self._idle_timeout = check_timeout(idle_timeout, "idle_timeout")
        self._lock = Lock()
        self._is_reading = False
        self.stats: PullStats = loop.stats

    def __repr__(self) -> str:
        of = "ended" if self._loop is None else f"of {self._loop.name!r}"
        return f"<{type(self).__name__} {of}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[JsMessage]:
        loop = self._begin_read()
        try:
            messages = await loop.read_unless_idle(self._idle_timeout)
        except BaseException:
            self._end()
            raise
        finally:
            self._is_reading = False
        return self._unless_over(messages)

    async def aclose(self) -> None:
        """End the loop; the messages that were not taken are for the next call on the consumer."""
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def _begin_read(self) -> PullLoop:
        with self._lock:
            loop = self._loop
            if loop is None:
                raise StopAsyncIteration
            if self._is_reading:
                raise UsageError(
                    f"messages() or chunks() of {loop.name!r} must have one reader at a time, got a second one: call "
                    "it once for each reader, or use consume() with a concurrency"
                )
            self._is_reading = True
        return loop

    def _unless_over(self, found: T | None) -> T:
        if found is None:
            self._end()
            if (error := self._client.end_error) is not None:  # the client gave up; `close` is no error
                raise error
            raise StopAsyncIteration
        return found

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def __del__(self) -> None:
        if self._loop is not None:
            self._client.run_here(self._end)


class Messages(MessageLists):
    """The iteration of `Consumer.messages`: one message after the other."""

    async def __anext__(self) -> JsMessage:  # type: ignore[override]  # the same messages, one by one
        loop = self._loop
        if loop is not None and loop.waiting and uptime() < loop.waiting_until:  # `take_waiting`, without a call
            try:
                return loop.waiting.pop()
            except IndexError:  # another thread was faster
                pass
        loop = self._begin_read()
        try:
            message = await loop.next(self._idle_timeout)
        except BaseException:
            self._end()
            raise
        finally:
            self._is_reading = False
        return self._unless_over(message)
