"""State that the views of the console share: its settings, its connection and its samples."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import slipstream
from slipstream import Error
from slipstream.console.sampler import Sampler
from slipstream.console.web import Problem

log: logging.Logger = logging.getLogger("slipstream.console")
RETRY = 0.5  # seconds between two looks for a server that is not there yet

Arguments = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a console was started. Nothing of it is ever sent to a page but what the views pick."""

    connect: Arguments = field(default_factory=dict, repr=False)  # arguments of `connect`
    jetstream: Arguments = field(default_factory=dict)  # of `client.jetstream`
    find: Callable[[], tuple[Arguments, Arguments] | None] | None = field(default=None, repr=False)
    """Instead of these, for a server that starts later: the arguments, or None while there are none."""
    write: bool = False
    monitors: Sequence[str] = field(default=(), repr=False)  # monitoring URLs, which may have a password
    codecs: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)  # bucket -> codecs, outwards
    pipelines: Sequence[str] = ()  # files
    pipeline_servers: str = field(default="", repr=False)


class ConsoleState:
    """One console: its settings, and its connection while it has one."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._client: slipstream.Client | None = None
        self._js: slipstream.JetStream | None = None
        self._sampler: Sampler | None = None
        self._problem = "the console is not connected yet"
        self.shared: dict[str, Any] = {}  # what views keep between requests

    @property
    def client(self) -> slipstream.Client:
        """The connection."""
        if self._client is None:
            raise Problem(503, self._problem)
        return self._client

    @property
    def js(self) -> slipstream.JetStream:
        """JetStream of the connection."""
        if self._js is None:
            raise Problem(503, self._problem)
        return self._js

    @property
    def sampler(self) -> Sampler:
        """Samples of the account."""
        if self._sampler is None:
            raise Problem(503, self._problem)
        return self._sampler

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connected within the block; where the server is looked for, as soon as it is found."""
        async with contextlib.AsyncExitStack() as stack:
            if self.settings.find is None:
                await self._connect(stack, self.settings.connect, self.settings.jetstream)
                yield
                return
            task = asyncio.create_task(self._connect_later(stack, self.settings.find))
            try:
                yield
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _connect_later(
        self, stack: contextlib.AsyncExitStack, find: Callable[[], tuple[Arguments, Arguments] | None]
    ) -> None:
        while True:
            try:
                if (found := await asyncio.to_thread(find)) is not None:
                    await self._connect(stack, *found)
                    return
            except (Error, OSError) as error:
                self._problem = f"the console is not connected: {error}"
            await asyncio.sleep(RETRY)

    async def _connect(self, stack: contextlib.AsyncExitStack, arguments: Arguments, jetstream: Arguments) -> None:
        # A server that went away is shown in the page: beside a server or a pipeline the log is theirs.
        quiet = {"on_event": lambda event: log.info("%s: %s", event.server, event.kind), **arguments}
        client = await stack.enter_async_context(slipstream.connect(**quiet))
        self._client, self._js = client, client.jetstream(**jetstream)
        self._sampler = Sampler(client, self._js, self.settings.monitors)
        stack.callback(self._forget)

    def _forget(self) -> None:
        self.sampler.close()
        self._client = self._js = self._sampler = None
        self._problem = "the console is ending"
