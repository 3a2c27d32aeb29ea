"""Progress acks (`+WPI`) for messages that the program holds, sent often enough that none is redelivered.

A message is held while a handler works on it, or while it waits for one. The first is always renewed; the second only
while it is certain that the server has not redelivered it, and `is_over` says when that is no longer so: it must not be
handled then. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from contextlib import suppress

from slipstream.client._async.clock import uptime
from slipstream.client._async.tasks import Signal
from slipstream.client.base import FOREVER
from slipstream.errors import ConnectionLostError, RequestTimeoutError
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream.consume.ack_subject import IN_PROGRESS

INTERVAL = 1 / 4  # of the time until redelivery
SHORTEST = 0.005  # seconds between two rounds
LOOK = 1.0  # seconds: so soon another `ack_wait`, of a consumer that was edited, counts

UNKNOWN = -FOREVER  # a time long ago


class ProgressKeeper:
    """The messages of one consumer that are held here, each with the time of its last renewal."""

    def __init__(self, consumer: ConsumerHandle) -> None:
        self._consumer = consumer
        self._client = consumer.client
        self._held: dict[JsMessage, float] = {}
        self._waiting: set[JsMessage] = set()

    def hold(self, message: JsMessage, now: float) -> None:
        """Keep a message that a handler gets now, by `uptime`."""
        self._held[message] = now

    def hold_waiting(self, message: JsMessage) -> None:
        """Keep a message that waits for its handler; it is renewed at once, as it is not known how old it is."""
        self._waiting.add(message)
        self._held[message] = UNKNOWN
        if self._client.is_connected:
            self._renew(message)

    def begin(self, message: JsMessage) -> bool:
        """A handler is to get a message that waited; False if it must not, since the server may have redelivered it."""
        self._waiting.discard(message)
        if self._is_over(message):
            self.release(message)
            return False
        return True

    def release(self, message: JsMessage) -> None:
        """Forget a message: it is settled, or left."""
        self._held.pop(message, None)
        if self._waiting:
            self._waiting.discard(message)

    def held(self) -> list[JsMessage]:
        """All messages that are kept at the moment."""
        return list(self._held)

    async def run(self, ended: Signal) -> None:
        """Renew what is held until `ended` is set for the first time."""
        while await self.next_round(ended):
            self.renew_all()

    async def next_round(self, ended: Signal) -> bool:
        """Wait until it is time to renew; False when `ended` is set, or the client is closed."""
        client, began = self._client, uptime()
        while (left := began + self._consumer.ack_rules.ack_wait * INTERVAL - uptime()) > 0:
            if await ended.wait(0, min(max(left, SHORTEST), LOOK)):
                return False
        if self._held and not client.is_connected:  # as soon as there is a connection again
            with suppress(RequestTimeoutError, ConnectionLostError):
                await client.wait(lambda: client.is_connected, timeout=FOREVER, what="a connection")
        return not client.is_closed and not ended.count

    def renew_all(self) -> None:
        """Renew what is due, if there is a connection."""
        with suppress(ConnectionLostError):  # just now
            self._renew_due()

    def since(self, messages: list[JsMessage]) -> float:
        """A time since which the `ack_wait` of these messages, which are all held, runs at most."""
        return min((self._held.get(message, UNKNOWN) for message in messages), default=UNKNOWN)

    def _renew_due(self) -> None:
        if not self._client.is_connected:
            return
        rules = self._consumer.ack_rules
        for message in self.held():
            since = self._held.get(message, UNKNOWN)
            is_due = uptime() - since >= rules.wait_of(message.num_delivered) * INTERVAL / 2
            if is_due and not (message in self._waiting and self._is_over(message)):
                self._renew(message)

    def _renew(self, message: JsMessage) -> None:
        if not message.is_settled and message in self._held:
            self._client.answer(message.reply, IN_PROGRESS)
            self._held[message] = uptime()

    def _is_over(self, message: JsMessage) -> bool:
        age = uptime() - self._held.get(message, UNKNOWN)
        return not self._consumer.ack_rules.alive([message.raw], age)

    def is_last_delivery(self, message: JsMessage) -> bool:
        """Whether the server will not redeliver it, whatever becomes of it."""
        return self._consumer.ack_rules.is_last(message.num_delivered)
