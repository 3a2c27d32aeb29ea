"""Delivery of pulled messages to the program: each is returned by a call, or kept for the next call.

A call that is cancelled, times out or is left in the middle of a loop may have messages that it did not return, and
its pull requests may bring more while its subscription drains. All of them belong to the next call on the same
consumer, or to one that waits already: the server regards them as delivered and redelivers them only after `ack_wait`.

Invariants: `hand_over` is the only function that makes a pulled message the program's, and only of messages that
`renew` has let through: none whose `ack_wait` may be over, so that the server redelivers it and it would be handled
twice; but all that the server would not redeliver (`consume.prefetch` has the rules). No message is dropped while it is
ours. Nothing is acknowledged unless the program says so. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from contextlib import suppress
from itertools import repeat
from typing import NamedTuple

from slipstream.client._async.client import Subscription
from slipstream.client._async.clock import uptime
from slipstream.client._async.tasks import Lock
from slipstream.errors import ConnectionLostError, RequestTimeoutError, SlowConsumerError
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.ack_subject import IN_PROGRESS
from slipstream.jetstream.consume.prefetch import PullStats
from slipstream.jetstream.consume.status import is_status
from slipstream.wire import Msg

logger = logging.getLogger("slipstream.consumer")

ROUND_TRIP = 1.0  # seconds that a server may take to confirm the end of a subscription, or renewals


class Report(NamedTuple):
    """Messages that were reported to be in progress: when that began, was done, over which connection, and which."""

    begin: float
    reported: float
    epoch: int
    replies: frozenset[str]


class Handover:
    """Messages of one consumer that have arrived, whichever call they arrived for."""

    def __init__(self, consumer: ConsumerHandle) -> None:
        self._consumer = consumer
        self._lock = Lock()  # several threads may read at once; it is never held while waiting
        self._kept: deque[tuple[list[Msg], float]] = deque()  # with a time before they were sent
        self._draining: list[Subscription] = []  # of calls that ended
        self._took = 0.0  # seconds until the last renewal was confirmed
        self._late: Report | None = None  # the last one that the server did not confirm in time
        self.stats: PullStats = PullStats()

    def hand_over(self, msgs: list[Msg]) -> list[JsMessage]:
        """The messages as the program gets them."""
        consumer, is_settled = self._consumer, not self._consumer.wants_acks
        codec = consumer.context.codec
        messages = list(map(JsMessage, msgs, repeat(consumer.client), repeat(is_settled), repeat(codec)))
        consumer.context.note_messages(consumer.stream, messages)
        self.stats.messages += len(messages)
        return messages

    async def renew(self, msgs: list[Msg], sent_after: float) -> tuple[list[Msg], float]:
        """Those of the messages that may be handed over now, and a time since which their `ack_wait` runs at most.

        `sent_after` is a time before they were sent. Where it is long ago, their `ack_wait` is started over, unless
        there is no connection at the moment.
        """
        client = self._consumer.client
        if msgs and not self._consumer.ack_rules.is_fresh(uptime() - sent_after, self.round_trip):
            msgs = self._drop_redelivered(msgs, sent_after)
            if msgs and client.is_connected:
                sent_after = await self._report_progress(msgs, sent_after)
                msgs = self._drop_redelivered(msgs, sent_after)  # should that have taken long
        return msgs, sent_after

    async def _report_progress(self, msgs: list[Msg], sent_after: float) -> float:
        """Have the server start their `ack_wait` over; since when it runs: `sent_after` if that is not confirmed.

        It waits: reports that are queued behind a handler which blocks the event loop would come too late. A report
        that the server did not confirm in time is not repeated for each message; it counts when it is confirmed later.
        """
        client, rules, late = self._consumer.client, self._consumer.ack_rules, self._late
        if late is not None and late.epoch == client.epoch and late.replies.issuperset(msg.reply for msg in msgs):
            if client.sent_after >= late.reported:
                return max(late.begin, sent_after)
            if uptime() - late.reported < rules.renew_after:
                return sent_after
        epoch, begin = client.epoch, uptime()
        for msg in msgs:
            client.answer(msg.reply, IN_PROGRESS)
        self.stats.renewed += len(msgs)
        reported = uptime()  # the PONG to a PING that is sent from now on is behind the reports
        client.mark(interval=0.0)
        # Those that are over already, and may not be dropped, do not wait long.
        timeout = max(rules.left(reported - sent_after), rules.look_every)
        with suppress(RequestTimeoutError, ConnectionLostError):
            await client.wait(
                lambda: client.sent_after >= reported or client.epoch != epoch,
                timeout=min(timeout, max(ROUND_TRIP, 4 * client.round_trip)),
                what="messages to be renewed",
            )
        if client.epoch == epoch and client.sent_after >= reported:
            self._took = uptime() - begin
            return begin
        self._late = Report(begin, reported, epoch, frozenset(msg.reply for msg in msgs))
        return sent_after

    @property
    def round_trip(self) -> float:
        """How old a message would be at least when a renewal is confirmed: seconds."""
        return max(self._consumer.client.round_trip, self._took)

    def _drop_redelivered(self, msgs: list[Msg], sent_after: float) -> list[Msg]:
        rules = self._consumer.ack_rules
        alive = rules.alive(msgs, uptime() - sent_after)
        if (count := len(msgs) - len(alive)) and not self.stats.expired:
            logger.warning(
                "consumer %r of stream %r: %d messages waited for the program until their ack_wait (%g s) had passed "
                "and will be redelivered: a single message took long, or the program was stalled (logged once)",
                self._consumer.name,
                self._consumer.stream,
                count,
                rules.ack_wait,
            )
        self.stats.expired += count
        return alive

    def keep(self, msgs: list[Msg], sent_after: float) -> None:
        """Messages that could not be handed over: the next call returns them first."""
        if msgs:
            self._kept.append((msgs, sent_after))

    def take_back(self, messages: list[JsMessage], sent_after: float) -> None:
        """Keep messages that were handed over to a loop, from which the program did not take them."""
        self.stats.messages -= len(messages)
        self.keep([message.raw for message in messages], sent_after)

    def drain(self, subscription: Subscription) -> None:
        """End a subscription whose call is over; what the server has sent already is for the next call."""
        subscription.drain_soon()
        self._draining.append(subscription)

    @property
    def has_kept(self) -> bool:
        """Whether `take_kept` may find something."""
        return bool(self._kept or self._draining)

    async def take_kept(self, count: int, deadline: float) -> tuple[list[JsMessage], float]:
        """Up to `count` messages (0: all) that arrived for earlier calls, or are still on their way to them.

        With a time since which their `ack_wait` runs at most.
        """
        await self._collect(deadline)
        found: list[Msg] = []
        since = math.inf
        while not count or len(found) < count:
            with self._lock:
                if not self._kept:
                    break
                msgs, sent_after = self._kept.popleft()
                if count and len(msgs) > (left := count - len(found)):
                    self._kept.appendleft((msgs[left:], sent_after))
                    msgs = msgs[:left]
            try:
                msgs, sent_after = await self.renew(msgs, sent_after)
            except BaseException:
                self._kept.extendleft(((msgs, sent_after), (found, since)))
                raise
            found += msgs
            since = min(since, sent_after)
        return self.hand_over(found), since

    async def _collect(self, deadline: float) -> None:
        """Keep what has arrived for subscriptions that drain: it is older than what a new request would bring."""
        for subscription in list(self._draining):
            await self._wait_for_end(subscription, deadline)
            with suppress(SlowConsumerError):  # reported when it happened
                msgs, sent_after = subscription.take_now()
                self.keep([msg for msg in msgs if not is_status(msg)], sent_after)
            with self._lock:
                if subscription.is_over and subscription in self._draining:  # another reader may have removed it
                    self._draining.remove(subscription)

    async def _wait_for_end(self, subscription: Subscription, deadline: float) -> None:
        """Wait until nothing more can arrive: one round trip after its end was requested."""
        client = self._consumer.client
        left = min(max(deadline - client.now(), 0.0), ROUND_TRIP)
        with suppress(RequestTimeoutError, ConnectionLostError):
            await client.wait(lambda: subscription.is_ended, timeout=left, what="the end of a subscription")
