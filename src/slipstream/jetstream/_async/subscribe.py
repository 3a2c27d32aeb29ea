"""Subscribing by subject over the asyncio client: the stream is looked up, the consumer bound or created.

What is checked, and what is created, is decided in `workflow`. What a subscription created it deletes when it ends;
what it was only bound to it leaves alone. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from slipstream.api import ConsumerConfig, ConsumerInfo
from slipstream.client._async.client import Subscription
from slipstream.client.options import MAX_PENDING_BYTES, MAX_PENDING_MSGS
from slipstream.errors import (
    ConsumerExistsError,
    ConsumerNameInUseError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    Error,
)
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.message import Callback
from slipstream.jetstream._async.ordered import OrderedConsumer
from slipstream.jetstream._async.push import DRAIN_TIMEOUT, PushSubscription
from slipstream.jetstream.consume.ordered import HEARTBEAT
from slipstream.jetstream.consume.subscribe import Wanted, check_existing

if TYPE_CHECKING:
    from slipstream.jetstream._async.jetstream import JetStream


class PullSubscription(Consumer):
    """A pull consumer that was found or made for a subject: `fetch`, `next`, `messages`, `chunks`, `consume`.

    `is_owner`: the consumer was created by this subscription, and goes with it.
    """

    def __init__(
        self, js: JetStream, stream: str, name: str, info: ConsumerInfo | None = None, *, is_owner: bool = False
    ) -> None:
        super().__init__(js, stream, name, info)
        self.is_owner = is_owner

    async def unsubscribe(self, *, timeout: float | None = None) -> None:
        """End it. Deletes the consumer if it is its owner, and raises if that fails."""
        self._give_up_inbox()
        if self.is_owner:
            self.is_owner = False
            await self.delete(timeout=timeout)

    async def drain(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """End it, after which nothing more comes. Deletes the consumer if it is its owner; on_event is told if that
        fails."""
        if self._inbox is not None:
            await self._inbox[1].drain(timeout=timeout)
        if not self.is_owner:
            return
        self.is_owner = False
        try:
            await self.delete(timeout=timeout)
        except Error as error:
            error.add_note(f"while the consumer {self.name} was deleted at the end of its subscription")
            self._client.report(error)


async def subscribe(
    js: JetStream,
    wanted: Wanted,
    *,
    callback: Callback | None,
    max_pending_msgs: int = MAX_PENDING_MSGS,
    max_pending_bytes: int = MAX_PENDING_BYTES,
    timeout: float | None = None,
) -> PushSubscription:
    """Bind to the consumer that is wanted, or create it; the NATS subscription comes first."""
    client, api = js.client, js._consumer_api
    stream = wanted.stream or (await js.stream_of(wanted.subject, timeout=timeout)).name
    info = await _look_up(js, wanted, stream, timeout)

    async def listen(subject: str) -> Subscription:
        return await client.subscribe(
            subject, queue=wanted.group, max_pending_msgs=max_pending_msgs, max_pending_bytes=max_pending_bytes
        )

    is_owner = info is None
    if info is not None:
        check_existing(wanted, info)
        subscription = await listen(info.config.deliver_subject)
    else:
        config = wanted.new_config(client.new_inbox())
        subscription = await listen(config.deliver_subject)
        try:
            info = await js.run(api.create_as_documented(stream, config), timeout=timeout)
        except (ConsumerExistsError, ConsumerNameInUseError) as refusal:
            subscription.end()
            is_owner = False
            info = await js.run(api.info(stream, wanted.name), timeout=timeout)
            check_existing(wanted, info)
            if not wanted.group:
                text = f"consumer {info.name!r} was created by another program at the same time"
                raise DuplicateSubscriptionError(text) from refusal
            subscription = await listen(info.config.deliver_subject)
        except BaseException:
            subscription.end()
            raise
    found = PushSubscription(js, info, subscription, is_owner=is_owner)
    if callback is not None:
        found._call_back(callback)
    return found


async def pull_subscribe(js: JetStream, wanted: Wanted, *, timeout: float | None = None) -> PullSubscription:
    """Bind to the consumer that is wanted, or create it."""
    api = js._consumer_api
    stream = wanted.stream or (await js.stream_of(wanted.subject, timeout=timeout)).name
    if wanted.must_exist:
        try:
            info = await js.run(api.info(stream, wanted.name), timeout=timeout)
        except Error:  # it may be that only the info is not ours to see: the first pull tells
            return PullSubscription(js, stream, wanted.name)
        check_existing(wanted, info)
        return PullSubscription(js, stream, wanted.name, info)
    existing = await _look_up(js, wanted, stream, timeout)
    if existing is None:
        try:
            info = await js.run(api.create_as_documented(stream, wanted.new_config("")), timeout=timeout)
            return PullSubscription(js, stream, info.name, info, is_owner=True)
        except (ConsumerExistsError, ConsumerNameInUseError):
            existing = await js.run(api.info(stream, wanted.name), timeout=timeout)
    check_existing(wanted, existing)
    return PullSubscription(js, stream, existing.name, existing)


async def _look_up(js: JetStream, wanted: Wanted, stream: str, timeout: float | None) -> ConsumerInfo | None:
    """The consumer that is wanted; None if it is to be created."""
    if not wanted.name:
        return None
    try:
        return await js.run(js._consumer_api.info(stream, wanted.name), timeout=timeout)
    except ConsumerNotFoundError:
        if wanted.must_exist:
            raise
        return None


class Subscribing:
    """The part of `JetStream` that subscribes."""

    async def subscribe(
        self,
        subject: str = "",
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        queue: str = "",
        config: ConsumerConfig | None = None,
        callback: Callback | None = None,
        max_pending_msgs: int = MAX_PENDING_MSGS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        timeout: float | None = None,
    ) -> PushSubscription:
        """Have messages pushed: those of `subject`, from the one stream that listens on it or from `stream`.

        `consumer` names an existing push consumer; `durable` one that is created if it is not there; with neither an
        ephemeral one is created, as `config` says. `queue` makes the subscription a member of a group that shares the
        messages (without another name the group's name is the durable's). Messages are read from the subscription, or
        handed to `callback` one after the other.

        Raises a subclass of SubscribeError for what does not fit together, StreamLookupError or ConsumerNotFoundError
        for what is not there.
        """
        wanted = Wanted(subject, stream, consumer, durable, queue, is_pull=False, config=config)
        return await subscribe(
            cast("JetStream", self),
            wanted,
            callback=callback,
            max_pending_msgs=max_pending_msgs,
            max_pending_bytes=max_pending_bytes,
            timeout=timeout,
        )

    async def pull_subscribe(
        self,
        subject: str = "",
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        config: ConsumerConfig | None = None,
        timeout: float | None = None,
    ) -> PullSubscription:
        """The same for a pull consumer, whose messages are fetched."""
        wanted = Wanted(subject, stream, consumer, durable, is_pull=True, config=config)
        return await pull_subscribe(cast("JetStream", self), wanted, timeout=timeout)

    async def ordered(
        self,
        subject: str,
        *,
        stream: str = "",
        start_seq: int = 0,
        start_time: int | None = None,
        deliver_policy: str = "",
        headers_only: bool = False,
        heartbeat: float = HEARTBEAT,
        timeout: float | None = None,
    ) -> OrderedConsumer:
        """An ordered consumer of `subject`, of the one stream that listens on it or of `stream`.

        See `Stream.ordered_consumer`, which does the same for several subjects.
        """
        js = cast("JetStream", self)
        found = js.stream(stream) if stream else await js.stream_of(subject, timeout=timeout)
        return found.ordered_consumer(
            subject,
            start_seq=start_seq,
            start_time=start_time,
            deliver_policy=deliver_policy,
            headers_only=headers_only,
            heartbeat=heartbeat,
        )
