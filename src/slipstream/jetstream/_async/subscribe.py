"""Subscriptions by subject over the asyncio client: the stream is looked up, the consumer bound or created.

What is checked, and what is created, is decided in `consume.subscribe`. A subscription deletes the consumer that it
created when it ends, and leaves alone one that it was only bound to. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import partial
from typing import Self

from slipstream.api import ConsumerConfig, ConsumerInfo, names
from slipstream.client._async.client import Subscription
from slipstream.client._async.tasks import check_handler
from slipstream.client.options import MAX_PENDING_BYTES, MAX_PENDING_MSGS
from slipstream.errors import (
    ConsumerExistsError,
    ConsumerNameInUseError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    Error,
)
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.fresh_consumers import create_consumer, keep_min
from slipstream.jetstream._async.message import Callback
from slipstream.jetstream._async.push import PushSubscription, delete_and_report
from slipstream.jetstream.consume.inbox import DRAIN_TIMEOUT
from slipstream.jetstream.consume.subscribe import Wanted, check_existing
from slipstream.jetstream.consumer_requests import Action
from slipstream.wire.arguments import Duration, check_seconds, check_timeout


class PullSubscription(Consumer):
    """A pull consumer that was found or created for a subject: `fetch`, `next`, `messages`, `chunks`, `consume`.

    `is_owner`: the consumer was created by this subscription, and is deleted with it.
    """

    def __init__(
        self,
        context: JetStreamContext,
        stream: str,
        name: str,
        info: ConsumerInfo | None = None,
        *,
        is_owner: bool = False,
    ) -> None:
        super().__init__(context, stream, name, info)
        self.is_owner: bool = is_owner

    async def unsubscribe(self, *, timeout: Duration | None = None) -> None:
        """End the subscription. Deletes the consumer if this is its owner, and raises if that fails."""
        timeout = check_timeout(timeout)
        self._single.give_up()
        if self.is_owner:
            self.is_owner = False
            await self.delete(timeout=timeout)

    async def drain(self, *, timeout: Duration = DRAIN_TIMEOUT) -> None:
        """End the subscription when everything that the server has sent has arrived.

        Deletes the consumer if this is its owner; a failure of that is reported to on_event.
        """
        timeout = check_seconds(timeout)
        await self._single.drain(timeout=timeout)
        if self.is_owner:
            self.is_owner = False
            await delete_and_report(self._context, self.stream, self.name, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.unsubscribe()


async def push_subscribe(
    context: JetStreamContext,
    wanted: Wanted,
    *,
    callback: Callback | None,
    max_pending_msgs: int = MAX_PENDING_MSGS,
    max_pending_bytes: int = MAX_PENDING_BYTES,
    timeout: float | None = None,
) -> PushSubscription:
    """Bind to the wanted push consumer, or create it. It is subscribed to first: nothing that is pushed is missed."""
    client, api = context.client, context.consumer_api
    if callback is not None:
        check_handler(callback)
    stream = wanted.stream or await context.stream_name_of(wanted.subject, timeout=timeout)
    info = await _look_up(context, wanted, stream, timeout)

    async def listen(subject: str) -> Subscription:
        return await client.subscribe(
            subject, queue=wanted.group, max_pending_msgs=max_pending_msgs, max_pending_bytes=max_pending_bytes
        )

    is_owner = info is None
    if info is not None:
        await _check_existing(context, wanted, info, timeout)
        subscription = await listen(info.config.deliver_subject)
    else:
        config = wanted.new_config(client.new_inbox())
        subscription = await listen(config.deliver_subject)
        try:
            info = await _create(context, stream, config, timeout)
        except (ConsumerExistsError, ConsumerNameInUseError) as refusal:
            subscription.end()
            is_owner = False
            info = await context.run(api.info(stream, wanted.name), timeout=timeout)
            await _check_existing(context, wanted, info, timeout)
            if not wanted.group:
                text = f"consumer {info.name!r} was created by another program at the same time"
                raise DuplicateSubscriptionError(text) from refusal
            subscription = await listen(info.config.deliver_subject)
        except BaseException:
            subscription.end()
            raise
    if not is_owner and not wanted.group:
        # Once more, now that the subscription is there: what was delivered before it is not missing here.
        try:
            info = await context.run(api.info(stream, info.name), timeout=timeout)
        except BaseException:
            subscription.end()
            raise
    return PushSubscription(context, info, subscription, is_owner=is_owner, callback=callback)


async def pull_subscribe(
    context: JetStreamContext, wanted: Wanted, *, timeout: float | None = None
) -> PullSubscription:
    """Bind to the wanted pull consumer, or create it."""
    api = context.consumer_api
    stream = wanted.stream or await context.stream_name_of(wanted.subject, timeout=timeout)
    if wanted.must_exist:
        try:
            info = await context.run(api.info(stream, wanted.name), timeout=timeout)
        except Error:  # perhaps only its info is forbidden: the first pull request will tell
            return PullSubscription(context, stream, wanted.name)
        await _check_existing(context, wanted, info, timeout)
        return PullSubscription(context, stream, wanted.name, info)
    existing = await _look_up(context, wanted, stream, timeout)
    if existing is None:
        try:
            info = await _create(context, stream, wanted.new_config(context.client.new_inbox()), timeout)
            return PullSubscription(context, stream, info.name, info, is_owner=True)
        except (ConsumerExistsError, ConsumerNameInUseError):
            existing = await context.run(api.info(stream, wanted.name), timeout=timeout)
    await _check_existing(context, wanted, existing, timeout)
    return PullSubscription(context, stream, existing.name, existing)


async def _check_existing(context: JetStreamContext, wanted: Wanted, info: ConsumerInfo, timeout: float | None) -> None:
    """Check an existing consumer; a `min_last_seq` that its server does not keep is kept here."""
    if wanted.config is not None:
        config = await keep_min(context, info.stream_name, wanted.config, timeout=timeout)
        wanted = dataclasses.replace(wanted, config=config)
    check_existing(wanted, info)


async def _create(
    context: JetStreamContext, stream: str, config: ConsumerConfig, timeout: float | None
) -> ConsumerInfo:
    """Create a consumer of which this program is the owner; raises if it exists."""
    api = context.consumer_api
    info = await create_consumer(context, stream, config, partial(api.create_as_documented, stream), timeout=timeout)
    if names.OWNER in config.metadata:
        # The mark has done its work: a second create is rejected from now on, since it has a mark and this has none.
        # Without it the consumer is what the program configured, and found again by `create_consumer`.
        metadata = {key: value for key, value in info.config.metadata.items() if key != names.OWNER}
        unmarked = api.create_as_documented(stream, info.config.replace(metadata=metadata), Action.UPDATE)
        with suppress(Error):  # the mark does no harm
            info = await context.run(unmarked, timeout=timeout)
    return info


async def _look_up(
    context: JetStreamContext, wanted: Wanted, stream: str, timeout: float | None
) -> ConsumerInfo | None:
    """The wanted consumer; None if it is to be created."""
    if not wanted.name:
        return None
    try:
        return await context.run(context.consumer_api.info(stream, wanted.name), timeout=timeout)
    except ConsumerNotFoundError:
        if wanted.must_exist:
            raise
        return None
