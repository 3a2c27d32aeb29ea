"""A consumer over the asyncio client: its info, its pause, and its messages by pull requests.

Thin: requests, counting and statuses are decided in `pull`; here they are sent and waited for. Invariant: a message
that arrived is handed over, or stays here for the next call; it is never acknowledged unasked. The blocking twin is
generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self

from slipstream.api import AckPolicy, ConsumerInfo
from slipstream.client._async.client import Subscription
from slipstream.client._async.tasks import Guard, Lock, finish
from slipstream.errors import ConnectionLostError, Error, RequestTimeoutError, UsageError
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.message import Callback, JsMessage
from slipstream.jetstream._async.message_loop import Chunks, Messages
from slipstream.jetstream._async.pull_loop import Pulling
from slipstream.jetstream.consume.pull import (
    MARGIN,
    MAX_EXPIRES,
    MAX_MESSAGES,
    Fetch,
    Flow,
    Singles,
    expires_within,
    lingering_body,
    no_wait_body,
)
from slipstream.jetstream.consume.sinks import MAX_BYTES, MAX_MSGS
from slipstream.jetstream.consume.status import is_status
from slipstream.jetstream.consumer_requests import Pause
from slipstream.wire import Msg

DRAIN_TIMEOUT = 30.0
ROUND_TRIP = 1.0  # what a server may take to confirm the end of a subscription


class Consumer:
    """One consumer of a stream. For pull consumers: `fetch`, `next`, `messages`, `chunks`, `consume`."""

    def __init__(self, context: JetStreamContext, stream: str, name: str, info: ConsumerInfo | None = None) -> None:
        self._context = context
        self._client = context.client
        self._api = context.consumer_api
        self._next_subject = self._api.next_subject(stream, name)
        self._singles = Singles()
        self._inbox: tuple[str, Subscription] | None = None  # of the single pulls
        self._turn = Guard()  # who makes it
        self._lock = Lock()  # for what several threads may count at once; nobody waits with it
        self._count = 0  # single pulls so far: the last token of their reply subjects
        self._epoch = 0
        self._kept: deque[tuple[Msg, float]] = (
            deque()
        )  # arrived for a call that was given up, and until when it is ours
        self._adopted: list[tuple[Subscription, float]] = []  # of such calls: something may still come
        self.stream = stream
        self.name = name
        self.cached_info = info

    def __del__(self) -> None:
        inbox = getattr(self, "_inbox", None)
        if inbox is not None:  # programs make a consumer for each call, and clients live long
            self._client.run_here(inbox[1].end)

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Configuration and state, as they are now."""
        self.cached_info = await self._context.run(self._api.info(self.stream, self.name), timeout=timeout)
        return self.cached_info

    async def delete(self, *, timeout: float | None = None) -> None:
        """Remove the consumer; the stream keeps its messages."""
        await self._context.run(self._api.delete(self.stream, self.name), timeout=timeout)

    async def pause(self, until: int, *, timeout: float | None = None) -> Pause:
        """Have nothing delivered until that time, in nanoseconds since the epoch."""
        if until <= 0:
            raise UsageError(f"bad time {until}: nanoseconds since the epoch are expected; `resume` ends a pause")
        return await self._context.run(self._api.pause(self.stream, self.name, until), timeout=timeout)

    async def resume(self, *, timeout: float | None = None) -> Pause:
        """End a pause."""
        return await self._context.run(self._api.pause(self.stream, self.name, 0), timeout=timeout)

    async def fetch(self, batch: int, *, timeout: float = 5.0, max_bytes: int = 0) -> list[JsMessage]:
        """Up to `batch` messages: those that are there, or else those that come within `timeout`; perhaps none.

        Raises what the server says against it, and RequestTimeoutError if it says nothing at all.
        """
        pull = Fetch(batch, max_bytes=max_bytes, max_expires=self._max_expires())
        deadline, client = self._client.now() + timeout, self._client
        if kept := await self._take_kept(batch, deadline):
            return self._wrap(kept)
        if batch == 1 and not max_bytes:
            single = await self._single(deadline)
            return [] if single is None else self._wrap([single])
        inbox = await client.subscribe(client.new_inbox(), max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES)
        try:
            due, epoch, limit = True, client.epoch, 0
            while not pull.is_done:
                left = deadline - client.now()
                if due:
                    await client.publish(self._next_subject, pull.ask(left), reply=inbox.subject)
                    if pull.limit != limit:
                        limit = pull.limit
                        await inbox.unsubscribe(limit)
                try:
                    msgs = await inbox.next_msgs(timeout=pull.patience(left), epoch=epoch)
                    due = pull.feed(msgs, deadline - client.now())
                except ConnectionLostError:
                    pull.lost()
                    if pull.messages or client.is_closed:
                        break
                    left = max(deadline - client.now(), 0.0)
                    await client.wait(lambda: client.is_connected, timeout=left, what="a connection to fetch")
                    due, epoch = True, client.epoch
                except RequestTimeoutError:
                    due = pull.silence()
                    if not due:
                        raise
            if not pull.messages and client.is_closed:
                raise ConnectionLostError(f"the client was closed while {self.name} was fetched from")
        except RequestTimeoutError as error:
            if not pull.messages and not pull.statuses:
                raise RequestTimeoutError(f"consumer {self.name}: no answer within {timeout:g} s") from error
        except BaseException:
            self._keep(pull.messages)
            raise
        finally:
            if pull.open or inbox.pending:
                inbox.drain_soon()
                self._adopt(inbox)
            else:
                inbox.end()
        return self._wrap(pull.messages)

    async def next(self, *, timeout: float = 5.0) -> JsMessage:
        """The next message; raises RequestTimeoutError if none comes in time."""
        deadline = self._client.now() + timeout
        kept = await self._take_kept(1, deadline)
        msg = kept[0] if kept else await self._single(deadline)
        if msg is None:
            raise RequestTimeoutError(f"consumer {self.name}: no message within {timeout:g} s")
        return self._wrap([msg])[0]

    def messages(
        self,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = 0,
        threshold: int | None = None,
        expires: float = MAX_EXPIRES,
        heartbeat: float | None = None,
        idle_timeout: float | None = None,
    ) -> Messages:
        """Messages without end: `async for message in consumer.messages()`. See `chunks` for the arguments."""
        return Messages(self, self._pulling(max_messages, max_bytes, threshold, expires, heartbeat), idle_timeout)

    def chunks(
        self,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = 0,
        threshold: int | None = None,
        expires: float = MAX_EXPIRES,
        heartbeat: float | None = None,
        idle_timeout: float | None = None,
    ) -> Chunks:
        """The same in lists, as they arrive: the fast way.

        Pull requests overlap: up to `max_messages` (or `max_bytes`, if given) are asked for, and the rest again when no
        more than `threshold` are left of them (half, unless given). A request lives for `expires` seconds and has
        the server send a `heartbeat`; when three are missed, on_event gets a HeartbeatLostError and the requests are
        sent anew, as after a reconnect. It ends when nothing comes for `idle_timeout` seconds (None: never), and
        raises what the server says against it.
        """
        return Chunks(self, self._pulling(max_messages, max_bytes, threshold, expires, heartbeat), idle_timeout)

    async def consume(
        self,
        callback: Callback,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = 0,
        threshold: int | None = None,
        expires: float = MAX_EXPIRES,
        heartbeat: float | None = None,
    ) -> Consuming:
        """Have `callback` called with each message, one after the other, until `stop` or `drain`.

        An error of the callback is told to on_event, and the message is neither acknowledged nor refused. What ends the
        reading is told to on_event as well, and raised by `stop`. See `chunks` for the other arguments.
        """
        pulling = self._pulling(max_messages, max_bytes, threshold, expires, heartbeat)
        return Consuming(self, pulling, callback)

    # What the three share

    def _pulling(
        self, max_messages: int, max_bytes: int, threshold: int | None, expires: float, heartbeat: float | None
    ) -> Pulling:
        """Ask for no more than the consumer allows, where that is known."""
        config = self.cached_info.config if self.cached_info is not None else None
        if config is not None:
            max_bytes = min(max_bytes, config.max_bytes or max_bytes)
        return Pulling(
            self,
            Flow(
                max_messages=max_messages,
                max_bytes=max_bytes,
                threshold=threshold,
                expires=expires,
                heartbeat=heartbeat,
                most=config.max_batch if config is not None else 0,
                longest=self._max_expires(),
            ),
        )

    def _max_expires(self) -> float:
        config = self.cached_info.config if self.cached_info is not None else None
        return (config.max_expires.total_seconds() if config is not None else 0.0) or math.inf

    def _wrap(self, msgs: list[Msg]) -> list[JsMessage]:
        client, info = self._client, self.cached_info
        is_settled = info is not None and info.config.ack_policy == AckPolicy.NONE
        return [JsMessage(msg, client, is_settled) for msg in msgs]

    async def _single(self, deadline: float) -> Msg | None:
        """One message by the shared inbox; None if none comes in time. Any number of readers may wait at once."""
        client, singles = self._client, self._singles
        body, until = no_wait_body(1), deadline
        with self._lock:
            singles.waiters += 1
        try:
            base, inbox = await self._single_inbox()
            while True:
                left = deadline - client.now()
                if left <= 0 and not inbox.pending:
                    return None
                while not inbox.pending and (number := self._next_single(until)):  # for all who wait: any may be woken
                    await client.publish(self._next_subject, body, reply=f"{base}.{number}")
                try:
                    msg = await inbox.next_msg(timeout=max(left, 0.0), epoch=self._epoch)
                except ConnectionLostError:
                    left = max(deadline - client.now(), 0.0)
                    await client.wait(lambda: client.is_connected, timeout=left, what="a connection to fetch")
                    continue
                with self._lock:
                    found = singles.feed(msg)
                if found is not None:
                    return found
                left = deadline - client.now()
                if left <= MARGIN:
                    return None
                body, until = lingering_body(1, min(expires_within(left), self._max_expires())), deadline
        except RequestTimeoutError:
            return None
        finally:
            self._end_single()

    async def _single_inbox(self) -> tuple[str, Subscription]:
        async with self._turn:
            if self._inbox is None or self._inbox[1].is_over:
                base = self._client.new_inbox()
                inbox = await self._client.subscribe(
                    f"{base}.*", max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES
                )
                self._inbox = base, inbox
            return self._inbox

    def _next_single(self, until: float) -> int:
        """The number of the single pull that is due now; 0 if none is."""
        client, singles = self._client, self._singles
        with self._lock:
            if self._epoch != client.epoch:
                singles.forget()
                self._epoch = client.epoch
            if not singles.is_due(client.now()):
                return 0
            singles.asked(until)
            self._count += 1
            return self._count

    # What was given up

    def _end_single(self) -> None:
        """One reader less. With the last one the single pulls under way are forgotten: what still comes must not come
        unasked, nor too late. What was on its way to them stays for the next reader."""
        self._give_up_inbox(leaving=1)

    def _give_up_inbox(self, *, leaving: int = 0) -> None:
        """Let go of it, unless a reader who leaves is not the last one. In one step: another may come at any moment."""
        with self._lock:
            self._singles.waiters -= leaving
            if leaving and (self._singles.waiters or not self._singles.is_waiting):
                return
            shared, self._inbox = self._inbox, None
            self._singles.forget()
        if shared is not None:
            shared[1].drain_soon()
            self._adopt(shared[1])

    def _keep(self, msgs: list[Msg]) -> None:
        """Messages that could not be handed over: the next call has them first."""
        until = self._ours_until()
        self._kept.extend([(msg, until) for msg in msgs])

    def _adopt(self, subscription: Subscription) -> None:
        """A subscription that ends, with messages on their way."""
        self._adopted.append((subscription, self._ours_until()))

    def _ours_until(self) -> float:
        """When the server will deliver again what arrives now: kept any longer it would be handled twice."""
        if self.cached_info is None:
            return math.inf
        config = self.cached_info.config
        waits = [wait.total_seconds() for wait in (config.ack_wait, *config.backoff[:1]) if wait]
        return self._client.now() + min(waits) if waits and config.ack_policy != AckPolicy.NONE else math.inf

    async def _take_kept(self, count: int, deadline: float) -> list[Msg]:
        """Up to `count` messages that are here already (0: all), and those on their way to calls that were given up."""
        for adopted in list(self._adopted):
            subscription, until = adopted
            await self._ended(subscription, deadline)
            is_ended = subscription.is_ended  # before the take: what comes behind it is for the next look
            self._kept.extend([(msg, until) for msg in subscription.take_now() if not is_status(msg)])
            with self._lock:
                if is_ended and adopted in self._adopted:  # another reader may have been here
                    self._adopted.remove(adopted)
        taken: list[Msg] = []
        now = self._client.now()
        with self._lock:
            while self._kept and (not count or len(taken) < count):
                msg, until = self._kept.popleft()
                if now < until:
                    taken.append(msg)
        return taken

    async def _ended(self, subscription: Subscription, deadline: float) -> None:
        """Wait until nothing more can come: one round trip from when it was given up."""
        client = self._client
        left = min(max(deadline - client.now(), 0.0), ROUND_TRIP)
        with suppress(RequestTimeoutError, ConnectionLostError):
            await client.wait(lambda: subscription.is_ended, timeout=left, what="the end of a subscription")


class Consuming:
    """A callback at work. `stop` ends it at once, `drain` after what has arrived; both wait for the callback."""

    def __init__(self, consumer: Consumer, pulling: Pulling, callback: Callback) -> None:
        self._consumer = consumer
        self._pulling = pulling
        self._callback = callback
        self._is_stopped = False
        self._error: Error | None = None
        self._worker = consumer._client.spawn(self._run, f"consume {consumer.name}")

    @property
    def is_done(self) -> bool:
        """Whether the callback is not called any more."""
        return self._worker.is_done

    async def stop(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """Call back no more. What arrived and was not handled is for the next reader. Raises what ended it before."""
        self._is_stopped = True
        await self.drain(timeout=timeout)

    async def drain(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """Ask for no more and wait until what has arrived is handled. Raises what ended it before."""
        self._pulling.stop()
        if not await self._worker.join(timeout) and not self._worker.is_done:
            if self._worker.is_own:
                return
            raise RequestTimeoutError(f"consume {self._consumer.name}: the callback still runs after {timeout:g} s")
        if self._error is not None:
            raise self._error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _run(self) -> None:
        consumer, left = self._consumer, list[JsMessage]()
        try:
            while (msgs := await self._pulling.following(None)) is not None:
                left = consumer._wrap(msgs)[::-1] + left  # behind what a `stop` left unhandled
                while left and not self._is_stopped:
                    message = left.pop()
                    try:
                        await finish(self._callback(message))
                    except Exception as exc:  # the top of the user's code
                        consumer._client.report(exc)
        except Error as error:
            self._error = error
            consumer._client.report(error)
        finally:
            self._pulling.close([message.raw for message in reversed(left)])
