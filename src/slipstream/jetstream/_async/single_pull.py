"""Pull requests for one message each, over one inbox that all readers of a consumer share.

A program that takes message after message would otherwise subscribe and unsubscribe for each. A message does not say
which request it answers, so any reader takes whatever arrives first (`SingleRequests` does the counting). With the last
reader the requests in flight are given up together with the inbox: what they bring is for the next call. The blocking
twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.client._async.client import Subscription
from slipstream.client._async.tasks import Guard, Lock
from slipstream.errors import ConnectionLostError, RequestTimeoutError, StatusError
from slipstream.jetstream._async.consumer_handle import ConsumerHandle
from slipstream.jetstream._async.handover import Handover
from slipstream.jetstream.consume.inbox import MAX_BYTES, MAX_MSGS
from slipstream.jetstream.consume.pull import MARGIN, SingleRequests, expires_within, lingering_body, no_wait_body
from slipstream.wire import Msg


class SinglePull:
    """One message at a time; any number of readers may wait at once."""

    def __init__(self, consumer: ConsumerHandle, handover: Handover) -> None:
        self._inbox: tuple[str, Subscription] | None = None  # with its base
        self._consumer = consumer
        self._client = consumer.client
        self._handover = handover
        self._requests = SingleRequests()
        self._subscribing = Guard()  # one reader makes the inbox, the others wait for it
        self._lock = Lock()  # for what several threads may count at once; it is never held while waiting
        self._count = 0  # requests so far: the last token of their reply subjects
        self._epoch = 0  # the connection that the requests in flight were sent over

    def __del__(self) -> None:
        inbox = self._inbox
        if inbox is not None:  # programs make a consumer for each call, and clients live long
            self._client.run_here(inbox[1].end)

    async def receive(self, deadline: float) -> tuple[Msg, float] | None:
        """The next message, and a time before it was sent; None if none arrives in time.

        Raises a status of the server that is an error.
        """
        client, requests = self._client, self._requests
        body, until = no_wait_body(1), deadline  # the first request only asks for what is available: it ends at once
        with self._lock:
            requests.waiters += 1
        try:
            base, inbox = await self._subscribe()
            while True:
                left = deadline - client.now()
                if left <= 0 and not inbox.pending:  # what has arrived is taken even at the deadline
                    return None
                # Requests for all readers that wait: any of them may be woken by the next message.
                self._consumer.mark(sent_after=inbox.made_at)
                while not inbox.pending and (number := self._next_request(until)):
                    await client.publish(self._consumer.next_subject, body, reply=f"{base}.{number}")
                try:
                    timeout = max(min(left, self._consumer.ack_rules.look_every), 0.0)
                    msg, sent_after = await inbox.next_dated(timeout=timeout, epoch=self._epoch)
                except RequestTimeoutError:
                    continue  # at the deadline it ends above
                except ConnectionLostError:
                    left = max(deadline - client.now(), 0.0)
                    await client.wait(lambda: client.is_connected, timeout=left, what="a connection to fetch")
                    continue
                with self._lock:
                    found = requests.feed(msg)
                if found is not None:
                    return found, sent_after
                left = deadline - client.now()
                if left <= MARGIN:  # too short for a request to expire, and its status to arrive, in time
                    return None
                body, until = lingering_body(1, min(expires_within(left), self._consumer.max_expires)), deadline
        except RequestTimeoutError:
            return None
        except StatusError as error:
            raise self._consumer.named(error) from None
        finally:
            self._give_up(leaving=1)

    def give_up(self) -> None:
        """End the requests in flight; what they bring is for the next call."""
        self._give_up(leaving=0)

    async def drain(self, *, timeout: float) -> None:
        """End the inbox when everything the server has sent has arrived."""
        if self._inbox is not None:
            await self._inbox[1].drain(timeout=timeout)

    async def _subscribe(self) -> tuple[str, Subscription]:
        async with self._subscribing:
            if self._inbox is None or self._inbox[1].is_over:
                base = self._client.new_inbox()
                inbox = await self._client.subscribe(
                    f"{base}.*", max_pending_msgs=MAX_MSGS, max_pending_bytes=MAX_BYTES
                )
                self._inbox = base, inbox
            return self._inbox

    def _next_request(self, until: float) -> int:
        """The number of the request that is due now; 0 if none is."""
        client, requests = self._client, self._requests
        with self._lock:
            if self._epoch != client.epoch:
                requests.forget()
                self._epoch = client.epoch
            if not requests.is_due(client.now()):
                return 0
            requests.asked(until)
            self._count += 1
            return self._count

    def _give_up(self, *, leaving: int) -> None:
        """Let go of the inbox, unless a reader that leaves is not the last one or no request is in flight.

        In one step under the lock: another reader may begin at any moment.
        """
        with self._lock:
            self._requests.waiters -= leaving
            if leaving and (self._requests.waiters or not self._requests.is_waiting):
                return
            shared, self._inbox = self._inbox, None
            self._requests.forget()
        if shared is not None:
            self._handover.drain(shared[1])
