"""A consumer over the asyncio client: its info, its pause, and its messages by pull requests.

Thin: requests, counting and statuses are decided in `consume.pull`; here they are sent and waited for. Invariant: a
message that arrived is handed over, or kept for the next call (`handover`); it is never acknowledged unless the program
says so. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial

from slipstream.api import AckPolicy, ConsumerInfo
from slipstream.api.times import instant
from slipstream.client._async.clock import uptime
from slipstream.client._async.opening import opens
from slipstream.client._async.tasks import Signal, check_handler
from slipstream.errors import (
    ApiError,
    ConnectionLostError,
    ConsumerGoneError,
    Error,
    RequestTimeoutError,
    StatusError,
    UsageError,
)
from slipstream.jetstream import requests
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.consuming import Consuming, WorkerOptions
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.failures import check_dead_letters
from slipstream.jetstream._async.handover import Handover
from slipstream.jetstream._async.message import Callback, JsMessage
from slipstream.jetstream._async.progress import ProgressKeeper
from slipstream.jetstream._async.pull_loop import MessageLists, Messages, PullLoop
from slipstream.jetstream._async.single_pull import SinglePull
from slipstream.jetstream.consume.error_policy import OnError
from slipstream.jetstream.consume.inbox import MAX_BYTES, MAX_MSGS, retry_pause
from slipstream.jetstream.consume.pull import MAX_EXPIRES, MAX_MESSAGES, Fetch, PullFlow
from slipstream.jetstream.consumer_requests import Pause
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_integer, check_seconds

NOT_FOUND = 404
CHECK_TIMEOUT = 5.0  # seconds for the question whether the consumer exists


class Consumer:
    """One consumer of a stream. For pull consumers: `fetch`, `next`, `messages`, `chunks`, `consume`."""

    def __init__(self, context: JetStreamContext, stream: str, name: str, info: ConsumerInfo | None = None) -> None:
        self._context = context
        self._client = context.client
        self._handle = ConsumerHandle(context, stream, name, info)
        self._handover = Handover(self._handle)
        self._single = SinglePull(self._handle, self._handover)
        self.stream = stream
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.stream!r}>"

    @property
    def cached_info(self) -> ConsumerInfo | None:
        """Configuration and state when they were last asked for; None if they never were."""
        return self._handle.cached_info

    async def info(self, *, timeout: Duration | None = None) -> ConsumerInfo:
        """Configuration and state, as they are now."""
        return await self._handle.info(timeout=timeout)

    async def delete(self, *, timeout: Duration | None = None) -> None:
        """Remove the consumer; the stream keeps its messages."""
        await self._context.run(self._context.consumer_api.delete(self.stream, self.name), timeout=timeout)

    async def pause(self, until: int | datetime, *, timeout: Duration | None = None) -> Pause:
        """Stop deliveries until a time: a datetime, or nanoseconds since the epoch."""
        time = instant(until, "until")
        if time <= 0:
            raise UsageError(f"until must be nanoseconds since the epoch, got {until}; `resume` ends a pause")
        return await self._context.run(self._context.consumer_api.pause(self.stream, self.name, time), timeout=timeout)

    async def resume(self, *, timeout: Duration | None = None) -> Pause:
        """End a pause."""
        return await self._context.run(self._context.consumer_api.pause(self.stream, self.name, 0), timeout=timeout)

    async def reset(self, seq: int | None = None, *, timeout: Duration | None = None) -> int:
        """Redeliver from a sequence, and forget earlier deliveries; returns the next sequence.

        Without a sequence it continues after the ack floor. A sequence must not be before the start of the consumer's
        deliver policy. Servers before nats-server 2.14 do not have it.
        """
        if seq is not None:
            requests.check_seq(seq, "seq", least=1)
        call = self._context.consumer_api.reset(self.stream, self.name, seq or 0)
        return await self._context.run(call, timeout=timeout)

    async def unpin(self, group: str, *, timeout: Duration | None = None) -> None:
        """Let another client of a priority group take over from the one that is pinned."""
        await self._context.run(self._context.consumer_api.unpin(self.stream, self.name, group), timeout=timeout)

    async def step_down(self, *, timeout: Duration | None = None) -> None:
        """Have the leader of the consumer hand over to another replica."""
        await self._context.run(self._context.consumer_api.step_down(self.stream, self.name), timeout=timeout)

    async def fetch(self, batch: int, *, timeout: Duration = 5.0, max_bytes: int = 0) -> list[JsMessage]:
        """Up to `batch` messages: those that are available, or else those that arrive within `timeout`; perhaps none.

        A consumer with `max_ack_pending` delivers no more than that before some are acknowledged: it returns with them.
        Raises a status of the server that is an error, and RequestTimeoutError if the server does not answer at all.
        While a server restarts, or a leader changes, there may be no responder: it is tried again until `timeout`.
        """
        timeout = check_seconds(timeout)
        deadline, failures = self._client.now() + timeout, 0
        while True:
            try:
                return await self._fetch_once(batch, timeout, deadline, max_bytes)
            except ConsumerGoneError as error:
                failures += 1
                await self._retry_or_raise(error, failures, deadline)

    async def _retry_or_raise(self, error: ConsumerGoneError, failures: int, deadline: float) -> None:
        """Wait if a missing responder may be transient; raise the error if the consumer does not exist, or at the end.

        The first retry waits only a moment, and does without the question.
        """
        client = self._client
        left, pause = deadline - client.now(), retry_pause(failures, self.name)
        if failures > 1 and left > 0:
            try:
                await self._handle.info(timeout=min(left, CHECK_TIMEOUT))
            except ApiError as refusal:
                if refusal.code == NOT_FOUND:
                    raise error from refusal
            except Error:
                pass  # JetStream is not available at the moment
        if deadline - client.now() <= pause:
            raise error
        await client.sleep(pause)

    async def _fetch_once(self, batch: int, timeout: float, deadline: float, max_bytes: int) -> list[JsMessage]:
        handover = self._handover
        if kept := (await handover.take_kept(batch, deadline))[0]:
            return kept
        while True:
            most = self._handle.max_ack_pending or batch  # more are not delivered before some are acknowledged
            pull = Fetch(batch, most=most, max_bytes=max_bytes, max_expires=self._handle.max_expires)
            if batch == 1 and not max_bytes:
                single = await self._single.receive(deadline)
                if single is None:
                    return []
                msgs, sent_after = [single[0]], single[1]
            else:
                sent_after = await self._fetch(pull, timeout, deadline)
                msgs = pull.messages
                if not pull.received:
                    return []
            if (msgs := await self._renew(msgs, sent_after)) or self._client.now() >= deadline:
                return handover.hand_over(msgs)
            # All of them were over before they could be read: the server redelivers them.

    async def _renew(self, msgs: list[Msg], sent_after: float) -> list[Msg]:
        """Those that may be handed over; kept when this is cancelled."""
        try:
            return (await self._handover.renew(msgs, sent_after))[0]
        except BaseException:
            self._handover.keep(msgs, sent_after)
            raise

    async def _fetch(self, pull: Fetch, timeout: float, deadline: float) -> float:
        """Pull until it is done or the deadline; returns a time since which the `ack_wait` of its messages runs."""
        client, rules, handover = self._client, self._handle.ack_rules, self._handover
        sent_after = math.inf
        inbox = await client.subscribe(client.new_inbox(), max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES)
        try:
            is_due, epoch, limit, until = True, client.epoch, 0, 0.0
            while not pull.is_done:
                left = deadline - client.now()
                self._handle.mark(sent_after=inbox.made_at)
                if is_due:
                    await client.publish(self._handle.next_subject, pull.request(left), reply=inbox.subject)
                    if pull.limit != limit:  # the server drops the interest with the last frame that can arrive
                        limit = pull.limit
                        await inbox.unsubscribe(limit)
                    is_due, until = False, client.now() + pull.frame_timeout(left)
                try:
                    msgs, since = await inbox.next_all_dated(
                        timeout=max(min(until - client.now(), rules.look_every), 0.0), epoch=epoch
                    )
                    is_due = pull.feed(msgs, deadline - client.now())
                    until = client.now() + pull.frame_timeout(deadline - client.now())
                    sent_after = min(sent_after, since)
                    # What has arrived waits for the rest of its batch.
                    pull.messages, sent_after = await handover.renew(pull.messages, sent_after)
                except StatusError as error:
                    raise self._handle.named(error) from None
                except ConnectionLostError:
                    pull.connection_lost()
                    if pull.messages or client.is_closed:  # an incomplete batch is better than a late one
                        break
                    left = max(deadline - client.now(), 0.0)
                    await client.wait(lambda: client.is_connected, timeout=left, what="a connection to fetch")
                    is_due, epoch = True, client.epoch
                except RequestTimeoutError:
                    if client.now() < until:
                        pull.messages, sent_after = await handover.renew(pull.messages, sent_after)
                        continue
                    is_due = pull.timed_out()
                    if not is_due:
                        raise
            if not pull.messages and client.is_closed:
                raise ConnectionLostError(f"{self._handle}: the client was closed during a fetch")
        except RequestTimeoutError as error:
            if not pull.received and not pull.statuses:
                raise RequestTimeoutError(f"{self._handle}: no answer within {timeout:g} s") from error
        except BaseException:
            handover.keep(pull.messages, sent_after)
            raise
        finally:
            if pull.open or inbox.pending:  # messages may still arrive, and are for the next call
                handover.drain(inbox)
            else:
                inbox.end()
        return sent_after

    async def next(self, *, timeout: Duration = 5.0) -> JsMessage:
        """The next message; raises RequestTimeoutError if none arrives in time."""
        timeout = check_seconds(timeout)
        messages = await self.fetch(1, timeout=timeout)
        if not messages:
            raise RequestTimeoutError(f"{self._handle}: no message within {timeout:g} s")
        return messages[0]

    def messages(
        self,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = 0,
        threshold: int | None = None,
        expires: Duration = MAX_EXPIRES,
        heartbeat: Duration | None = None,
        idle_timeout: Duration | None = None,
    ) -> Messages:
        """Messages without end: `async for message in consumer.messages()`. See `chunks` for the arguments."""
        return Messages(self._pull_loop(max_messages, max_bytes, threshold, expires, heartbeat), idle_timeout)

    def chunks(
        self,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = 0,
        threshold: int | None = None,
        expires: Duration = MAX_EXPIRES,
        heartbeat: Duration | None = None,
        idle_timeout: Duration | None = None,
    ) -> MessageLists:
        """Messages without end, in lists as they arrive: the fast way.

        Pull requests overlap: up to `max_messages` (or `max_bytes`, if set) are requested, and the difference again
        when no more than `threshold` of them are outstanding (default: half). A request lasts `expires` seconds and has
        the server send a `heartbeat`; when two are missed, on_event gets a HeartbeatLostError and new requests are
        sent, as after a reconnect. The loop ends when nothing arrives for `idle_timeout` seconds (None: never), and
        raises a status of the server that is an error.
        """
        return MessageLists(self._pull_loop(max_messages, max_bytes, threshold, expires, heartbeat), idle_timeout)

    @opens
    async def consume(
        self,
        callback: Callback,
        *,
        concurrency: int = 1,
        ordered_by: str | None = None,
        on_error: OnError = "leave",
        auto_ack: bool = False,
        keep_in_progress: bool = True,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = 0,
        threshold: int | None = None,
        expires: Duration = MAX_EXPIRES,
        heartbeat: Duration | None = None,
    ) -> Consuming:
        """Call `callback` with each message until `stop` or `drain`, in up to `concurrency` tasks at once.

        With `ordered_by="subject"` no two messages of a subject are handled at once, and they are handled in their
        order. While a handler works on a message, or a message waits for its subject, it is reported to the server as
        in progress, unless `keep_in_progress` is False. With `auto_ack` a message whose handler returns is
        acknowledged, unless the handler has settled it.

        An exception in the handler is logged with its traceback, reported to on_event, and does not end the loop;
        `on_error` decides what happens to the message: "leave" it unacknowledged, "nak" it with a growing delay, "term"
        it, a policy (`Nak`, `Term`, `DeadLetter`, `Attempts`), or a function of the message and the exception that
        returns one of these. An error that ends the loop is logged, reported, and raised by `wait`. See `chunks` for
        the other arguments.
        """
        check_handler(callback)
        options = WorkerOptions.of(concurrency, ordered_by, on_error, auto_ack, keep_in_progress)
        info = self.cached_info
        if concurrency > 1 and info is not None and info.config.ack_policy == AckPolicy.ALL:
            raise UsageError(
                f"concurrency must be 1 for consumer {self.name!r}, got {concurrency}: its ack policy is 'all', so an "
                "ack would cover messages that other handlers are still working on"
            )
        await check_dead_letters(self._handle, options.policy)
        loop = self._pull_loop(max_messages, max_bytes, threshold, expires, heartbeat)
        return Consuming(self._handle, loop, callback, options)

    @asynccontextmanager
    async def keep_in_progress(self, message: JsMessage) -> AsyncIterator[JsMessage]:
        """Keep a message in progress while a block works on it: `async with consumer.keep_in_progress(message)`.

        For loops over `messages()` whose work on one message may take longer than `ack_wait`; `consume` does it itself.
        """
        keeper, ended = ProgressKeeper(self._handle), Signal()
        keeper.hold(message, uptime())
        self._client.spawn(partial(keeper.run, ended), f"progress of {self.name}")
        try:
            yield message
        finally:
            keeper.release(message)
            ended.set()

    def _pull_loop(
        self, max_messages: int, max_bytes: int, threshold: int | None, expires: Duration, heartbeat: Duration | None
    ) -> PullLoop:
        """A loop that requests no more than the consumer allows, where that is known."""
        check_integer(max_bytes, "max_bytes")
        flow = PullFlow(
            max_messages=max_messages,
            max_bytes=min(max_bytes, self._handle.max_bytes or max_bytes),
            threshold=threshold,
            expires=expires,
            heartbeat=heartbeat,
            max_batch=self._handle.max_batch,
            max_expires=self._handle.max_expires,
            max_waiting=self._handle.max_waiting,
        )
        return PullLoop(self._handle, self._handover, flow)
