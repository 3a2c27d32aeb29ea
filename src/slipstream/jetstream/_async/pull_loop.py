"""Pull requests of one consumer over the asyncio client: `Pulling` keeps them in flight and gives what they bring.

What it holds and cannot hand over it gives back to its consumer. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slipstream.client._async.client import Subscription
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
from slipstream.jetstream.consume.ordered import backoff
from slipstream.jetstream.consume.pull import Flow
from slipstream.jetstream.consume.sinks import MAX_BYTES, MAX_MSGS
from slipstream.jetstream.consume.status import HeartbeatMonitor
from slipstream.wire import Msg

if TYPE_CHECKING:
    from slipstream.jetstream._async.consumer import Consumer


class Pulling:
    """An endless read of a pull consumer, that survives reconnects, restarts and changes of the leader."""

    def __init__(self, consumer: Consumer, flow: Flow) -> None:
        self._consumer = consumer
        self._client = consumer._client
        self._flow = flow
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._epoch = -1
        self._pulse = HeartbeatMonitor(flow.heartbeat, self._client.now())
        self._away_since = self._client.now()
        self._failures = 0  # in a row
        self._error: Error | None = None
        self.is_stopped = False  # ask for no more; what is here is still handed over

    async def next(self, deadline: float) -> list[Msg] | None:
        """The messages that come next; None at the end: stopped, or the client closed. Raises RequestTimeoutError at
        the deadline, and what the server says against it. Nothing is taken while it waits."""
        kept = await self._consumer._take_kept(0, deadline)
        if kept:
            return kept
        self._pulse.pause(self._client.now() - self._away_since)  # while nobody listened nothing could be heard
        try:
            while True:
                if self._error is not None:
                    await self._judge(self._error, deadline)
                    self._error = None
                if not self.is_stopped:
                    await self._ask()
                if self._subscription is None:
                    return None
                try:
                    msgs = await self._receive(self._subscription, deadline)
                except Error:
                    if self._subscription.is_over:  # by order of ours, or the client was closed
                        return None
                    raise
                msgs, self._error = self._flow.feed(msgs)
                if msgs:
                    self._failures = 0
                    if not self.is_stopped:
                        await self._ask_more(msgs)
                    return msgs
        finally:
            self._away_since = self._client.now()

    async def following(self, idle_timeout: float | None) -> list[Msg] | None:
        """As `next`; None also when nothing comes for so many seconds (None: never)."""
        while True:
            try:
                return await self.next(self._client.now() + (FOREVER if idle_timeout is None else idle_timeout))
            except RequestTimeoutError:
                if idle_timeout is not None:
                    return None

    async def _receive(self, subscription: Subscription, deadline: float) -> list[Msg]:
        client, now = self._client, self._client.now()
        silence = self._pulse.left(now)
        try:
            msgs = await subscription.next_msgs(timeout=max(min(deadline - now, silence), 0.0), epoch=self._epoch)
        except RequestTimeoutError:
            if self._pulse.left(client.now()) > 0:
                raise
            client.report(
                HeartbeatLostError(f"consumer {self._consumer.name}: no sign of life for {silence:.3g} s, asking again")
            )
            self._flow.reset()
            self._pulse.hear(client.now())
            return []
        except ConnectionLostError:
            if client.is_closed:
                raise
            await client.wait(lambda: client.is_connected, timeout=max(deadline - now, 0.0), what="a connection")
            return []  # asked anew: the epoch is another
        except SlowConsumerError as error:
            client.report(error)  # the server delivers again what was dropped
            return []
        self._pulse.hear(client.now())
        return msgs

    async def _ask(self) -> None:
        """Send the request that is due; all that were sent to another connection are void."""
        client = self._client
        if self._subscription is None:
            self._inbox = client.new_inbox()
            self._subscription = await client.subscribe(
                f"{self._inbox}.*", max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES
            )
            if self.is_stopped:  # meanwhile, by another thread, which found nothing to end
                self._subscription.drain_soon()
        if not client.is_connected:  # it is asked when there is a connection again, and takes no room until then
            return
        if self._epoch != client.epoch:
            self._epoch = client.epoch
            self._flow.reset()
            self._pulse.hear(client.now())
        if body := self._flow.request():
            await client.publish(self._consumer._next_subject, body, reply=f"{self._inbox}.{self._flow.token}")

    async def _ask_more(self, msgs: list[Msg]) -> None:
        """Ask while the messages are handled; they are not lost when that fails or is cancelled."""
        try:
            await self._ask()
        except BaseException as error:
            if isinstance(error, ConnectionLostError) and not self._client.is_closed:
                return  # asked again with the next connection
            self._consumer._keep(msgs)
            raise

    async def _judge(self, error: Error, deadline: float) -> None:
        """Raise an error, or rest and go on if it may pass: nobody answers for a consumer whose leader changes."""
        if not isinstance(error, ConsumerGoneError):
            raise error
        self._failures += 1
        client = self._client
        left = max(deadline - client.now(), 0.0)
        pause = min(backoff(self._failures, self._inbox), left)
        with suppress(RequestTimeoutError, ConnectionLostError):
            await client.wait(lambda: self.is_stopped, timeout=pause, what="the consumer to answer again")
        if self._failures < 3:
            return
        try:
            await self._consumer.info(timeout=min(left, 5.0))
        except ApiError as refusal:
            if refusal.code == 404:
                raise error from refusal
        except Error:
            return  # JetStream is not there at the moment

    def stop(self) -> None:
        """Ask for no more. What the server has sent is still handed over."""
        self.is_stopped = True
        if self._subscription is not None:
            self._subscription.drain_soon()

    def close(self, left: list[Msg]) -> None:
        """The reader has gone and did not take `left`; what still comes is for the next reader of the consumer."""
        self._consumer._keep(left)
        subscription, self._subscription = self._subscription, None
        self.is_stopped = True
        if subscription is not None:
            subscription.drain_soon()
            self._consumer._adopt(subscription)
