"""The last step of a pulled message: it is handed over to the program, or kept for the next call.

A call that is cancelled, times out or is left in the middle of a loop may have messages that it did not return, and
its pull requests may bring more while its subscription drains. All of them belong to the next call on the same
consumer: the server regards them as delivered and redelivers them only after `ack_wait`.

Invariants: `hand_over` is the only function that makes a pulled message the program's. No message is dropped while it
is ours, and none is handed over when its `ack_wait` may be over and the server redelivers it: it would be handled
twice. What has waited is renewed first (`consume.prefetch` has the rules). Nothing is acknowledged unless the program
says so. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress

from slipstream.client._async.client import Subscription
from slipstream.client._async.tasks import Lock
from slipstream.errors import ConnectionLostError, RequestTimeoutError
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.ack_subject import IN_PROGRESS
from slipstream.jetstream.consume.prefetch import PullStats
from slipstream.jetstream.consume.status import is_status
from slipstream.wire import Msg

logger = logging.getLogger("slipstream.consumer")

ROUND_TRIP = 1.0  # seconds that a server may take to confirm the end of a subscription


class Handover:
    """Messages of one consumer that have arrived, whichever call they arrived for."""

    def __init__(self, consumer: ConsumerHandle) -> None:
        self._consumer = consumer
        self._lock = Lock()  # several threads may read at once; it is never held while waiting
        self._kept: deque[tuple[Msg, float]] = deque()  # with a time before it was sent
        self._draining: list[tuple[Subscription, float]] = []  # of calls that ended, the same
        self.stats = PullStats()

    def hand_over(self, msgs: list[Msg]) -> list[JsMessage]:
        """The messages as the program gets them."""
        consumer, is_settled = self._consumer, not self._consumer.wants_acks
        codec = consumer.context.codec
        messages = [JsMessage(msg, consumer.client, is_settled, codec) for msg in msgs]
        consumer.context.note_messages(consumer.stream, messages)
        self.stats.messages += len(messages)
        return messages

    def renew(self, msgs: list[Msg], sent_after: float) -> tuple[list[Msg], float]:
        """Those of the messages that may be handed over, and a time since which their `ack_wait` runs at most.

        `sent_after` is a time before they were sent. Where it is long ago, their `ack_wait` is started over, unless
        there is no connection at the moment; where it may be over, none is left.
        """
        deadline, client = self._consumer.ack_deadline, self._consumer.client
        now = client.now()
        if now < deadline.fresh_until(sent_after):
            return msgs, sent_after
        if deadline.is_over(sent_after, now):
            self._drop(len(msgs))
            return [], sent_after
        if not client.is_connected:
            return msgs, sent_after
        for msg in msgs:
            client.answer(msg[2], IN_PROGRESS)
        self.stats.renewed += len(msgs)
        return msgs, now

    def _drop(self, count: int) -> None:
        if not self.stats.expired:
            logger.warning(
                "consumer %r of stream %r: %d messages waited for the program until their ack_wait (%g s) was over and "
                "are left to be redelivered: a single message took long, or the program stood still (said once)",
                self._consumer.name,
                self._consumer.stream,
                count,
                self._consumer.ack_wait,
            )
        self.stats.expired += count

    def keep(self, msgs: list[Msg], sent_after: float) -> None:
        """Messages that could not be handed over: the next call returns them first."""
        self._kept.extend([(msg, sent_after) for msg in msgs])

    def drain(self, subscription: Subscription, sent_after: float) -> None:
        """End a subscription whose call is over; what the server has sent already is for the next call."""
        subscription.drain_soon()
        self._draining.append((subscription, sent_after))

    async def take_kept(self, count: int, deadline: float) -> list[JsMessage]:
        """Up to `count` messages (0: all) that arrived for earlier calls, or are still on their way to them."""
        # Subscriptions that drain come first: what they bring is older than what a new request would.
        for entry in list(self._draining):
            subscription, sent_after = entry
            await self._wait_for_end(subscription, deadline)
            is_ended = subscription.is_ended  # read before the messages: what arrives behind them is for the next call
            self._kept.extend([(msg, sent_after) for msg in subscription.take_now() if not is_status(msg)])
            with self._lock:
                if is_ended and entry in self._draining:  # another reader may have removed it
                    self._draining.remove(entry)
        messages: list[JsMessage] = []
        while not count or len(messages) < count:
            with self._lock:
                if not self._kept:
                    break
                msg, sent_after = self._kept.popleft()
            messages += self.hand_over(self.renew([msg], sent_after)[0])
        return messages

    async def _wait_for_end(self, subscription: Subscription, deadline: float) -> None:
        """Wait until nothing more can arrive: one round trip after its end was requested."""
        client = self._consumer.client
        left = min(max(deadline - client.now(), 0.0), ROUND_TRIP)
        with suppress(RequestTimeoutError, ConnectionLostError):
            await client.wait(lambda: subscription.is_ended, timeout=left, what="the end of a subscription")
