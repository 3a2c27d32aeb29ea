"""The consumers of a stream over the asyncio client: made, found, listed, deleted, or read in order without a name.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from slipstream.api import ConsumerConfig, ConsumerInfo, ReplayPolicy
from slipstream.jetstream import requests
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.ordered import OrderedConsumer
from slipstream.jetstream.consume import ordered
from slipstream.jetstream.consumer_requests import Action

if TYPE_CHECKING:
    from slipstream.jetstream._async.jetstream import JetStream


class StreamConsumers:
    """What a `Stream` knows of its consumers."""

    _js: JetStream
    name: str

    async def create_consumer(self, config: ConsumerConfig | str, *, timeout: float | None = None) -> Consumer:
        """Make a consumer: a durable pull consumer of that name, or as configured.

        Raises ConsumerExistsError if there is one of that name with another configuration.
        """
        return await self._make_consumer(config, Action.CREATE, timeout)

    async def update_consumer(self, config: ConsumerConfig, *, timeout: float | None = None) -> Consumer:
        """Change a consumer; raises ConsumerDoesNotExistError if there is none of that name."""
        return await self._make_consumer(config, Action.UPDATE, timeout)

    async def create_or_update_consumer(
        self, config: ConsumerConfig | str, *, timeout: float | None = None
    ) -> Consumer:
        """Make a consumer, or change the one of that name."""
        return await self._make_consumer(config, Action.CREATE_OR_UPDATE, timeout)

    async def _make_consumer(self, config: ConsumerConfig | str, action: Action, timeout: float | None) -> Consumer:
        if isinstance(config, str):
            config = ConsumerConfig(durable_name=requests.check_name(config, "consumer"))
        info = await self._js.run(self._js._consumer_api.create(self.name, config, action), timeout=timeout)
        return Consumer(self._js, self.name, info.name, info)

    async def consumer(self, name: str, *, timeout: float | None = None) -> Consumer:
        """An existing consumer; raises ConsumerNotFoundError if there is none of that name."""
        info = await self._js.run(self._js._consumer_api.info(self.name, name), timeout=timeout)
        return Consumer(self._js, self.name, name, info)

    async def delete_consumer(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a consumer; the stream keeps its messages."""
        await self._js.run(self._js._consumer_api.delete(self.name, name), timeout=timeout)

    async def consumer_names(self, *, timeout: float | None = None) -> AsyncIterator[str]:
        """The names of all consumers, asked for page by page."""
        async for name in self._js.each(partial(self._js._consumer_api.names, self.name), timeout=timeout):
            yield name

    async def consumers(self, *, timeout: float | None = None) -> AsyncIterator[ConsumerInfo]:
        """The infos of all consumers, asked for page by page."""
        async for info in self._js.each(partial(self._js._consumer_api.list, self.name), timeout=timeout):
            yield info

    def ordered_consumer(
        self,
        subjects: str | Sequence[str] = (),
        *,
        start_seq: int = 0,
        start_time: int | None = None,
        deliver_policy: str = "",
        headers_only: bool = False,
        replay_policy: str = ReplayPolicy.INSTANT.value,
        metadata: Mapping[str, str] | None = None,
        heartbeat: float = ordered.HEARTBEAT,
    ) -> OrderedConsumer:
        """Messages in order, each once, whatever happens to connection and server: `async for message in …`.

        Those of `subjects` (one filter or several; none: all), from the beginning, from a sequence, from a time
        (nanoseconds since the epoch), or as `deliver_policy` says (`new`, `last`, `last_per_subject`). Nothing is asked
        of the server before the first read, `start` or `async with`.
        """
        config = ordered.template(
            subjects,
            start_seq=start_seq,
            start_time=start_time,
            deliver_policy=deliver_policy,
            headers_only=headers_only,
            replay_policy=replay_policy,
            metadata=metadata,
        )
        return OrderedConsumer(self._js, self.name, config, heartbeat=heartbeat)
