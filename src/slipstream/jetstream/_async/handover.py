"""The last step of a pulled message: it is handed over to the program, or kept for the next call.

A call that is cancelled, times out or is left in the middle of a loop may have messages that it did not return, and
its pull requests may bring more while its subscription drains. All of them belong to the next call on the same
consumer: the server regards them as delivered and redelivers them only after `ack_wait`.

Invariants: `hand_over` is the only function that makes a pulled message the program's. No message is dropped while it
is ours, and none is kept beyond its `ack_wait`, when the server redelivers it: kept any longer it would be handled
twice. Nothing is acknowledged unless the program says so. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from slipstream.client._async.client import Subscription
from slipstream.client._async.tasks import Lock
from slipstream.errors import ConnectionLostError, RequestTimeoutError
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.status import is_status
from slipstream.wire import Msg

ROUND_TRIP = 1.0  # seconds that a server may take to confirm the end of a subscription


class Handover:
    """Messages of one consumer that have arrived, whichever call they arrived for."""

    def __init__(self, consumer: ConsumerHandle) -> None:
        self._consumer = consumer
        self._lock = Lock()  # several threads may read at once; it is never held while waiting
        self._kept: deque[tuple[Msg, float]] = deque()  # with the time at which the server redelivers it
        self._draining: list[tuple[Subscription, float]] = []  # of calls that ended, the same

    def hand_over(self, msgs: list[Msg]) -> list[JsMessage]:
        """The messages as the program gets them."""
        consumer, is_settled = self._consumer, not self._consumer.wants_acks
        messages = [JsMessage(msg, consumer.client, is_settled) for msg in msgs]
        consumer.context.note_messages(consumer.stream, messages)
        return messages

    def keep(self, msgs: list[Msg]) -> None:
        """Messages that could not be handed over: the next call returns them first."""
        until = self._ours_until()
        self._kept.extend([(msg, until) for msg in msgs])

    def drain(self, subscription: Subscription) -> None:
        """End a subscription whose call is over; what the server has sent already is for the next call."""
        subscription.drain_soon()
        self._draining.append((subscription, self._ours_until()))

    async def take_kept(self, count: int, deadline: float) -> list[Msg]:
        """Up to `count` messages (0: all) that arrived for earlier calls, or are still on their way to them."""
        # Subscriptions that drain come first: what they bring is older than what a new request would.
        for entry in list(self._draining):
            subscription, until = entry
            await self._wait_for_end(subscription, deadline)
            is_ended = subscription.is_ended  # read before the messages: what arrives behind them is for the next call
            self._kept.extend([(msg, until) for msg in subscription.take_now() if not is_status(msg)])
            with self._lock:
                if is_ended and entry in self._draining:  # another reader may have removed it
                    self._draining.remove(entry)
        taken: list[Msg] = []
        now = self._consumer.client.now()
        with self._lock:
            while self._kept and (not count or len(taken) < count):
                msg, until = self._kept.popleft()
                if now < until:  # otherwise the server redelivers it
                    taken.append(msg)
        return taken

    async def _wait_for_end(self, subscription: Subscription, deadline: float) -> None:
        """Wait until nothing more can arrive: one round trip after its end was requested."""
        client = self._consumer.client
        left = min(max(deadline - client.now(), 0.0), ROUND_TRIP)
        with suppress(RequestTimeoutError, ConnectionLostError):
            await client.wait(lambda: subscription.is_ended, timeout=left, what="the end of a subscription")

    def _ours_until(self) -> float:
        return self._consumer.client.now() + self._consumer.ack_wait
