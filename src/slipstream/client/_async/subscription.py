"""What asyncio readers hold: messages, and subscriptions to take them from.

Invariant: nothing is taken from a mailbox while its reader waits, so a cancelled reader loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from slipstream.client.base import BaseMessage, HeadersLike, lost_meanwhile, not_taken, timed_out
from slipstream.client.mailbox import Mailbox
from slipstream.client.raw_columns import Packed
from slipstream.wire import Msg

if TYPE_CHECKING:
    from slipstream.client._async.client import Client


class Message(BaseMessage["Client"]):
    """One message."""

    async def respond(self, payload: bytes = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish an answer to whoever asked."""
        await self._client.publish(self._answer_to(), payload, headers=headers)


Callback = Callable[[Message], Awaitable[None] | None]


class Subscription:
    """Messages of one subject: `async for message in subscription`, `next`, or `next_chunk` for all that is there."""

    def __init__(self, client: Client, box: Mailbox) -> None:
        self._client = client
        self._box = box
        self._waiting: list[asyncio.Future[None]] = []
        self._caller: asyncio.Task[None] | None = None  # hands the messages to a callback

    @property
    def subject(self) -> str:
        """The subject or filter."""
        return self._box.subject

    @property
    def pending(self) -> int:
        """Messages that arrived and were not taken yet."""
        return self._box.pending

    @property
    def dropped(self) -> int:
        """Messages that were dropped because too many waited to be taken."""
        return self._box.dropped

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        box = self._box
        while not box.items:
            if box.is_over:
                raise StopAsyncIteration
            if box.is_ended:
                raise box.ending()
            await self._more()
        return Message(box.take(), self._client)

    async def next(self, *, timeout: float = 5.0) -> Message:
        """The next message. Raises RequestTimeoutError, or SlowConsumerError where messages had to be dropped."""
        await self._ready(timeout)
        return Message(self._box.take(), self._client)

    async def next_chunk(self, *, timeout: float = 5.0) -> list[Message]:
        """Every message that is there, at least one. Raises as `next` does."""
        await self._ready(timeout)
        client = self._client
        return [Message(msg, client) for msg in self._box.take_all()]

    async def next_msgs(self, *, timeout: float, epoch: int) -> list[Msg]:
        """As `next_chunk`, as the parser made them, for the rooms above. Raises ConnectionLostError once all is taken
        and the connection is not the one counted as `epoch` any more."""
        await self._ready(timeout, epoch)
        return self._box.take_all()

    async def next_pieces(self, *, timeout: float, epoch: int) -> list[list[Msg] | Packed]:
        """As `next_msgs`, with packs as they came, once `pack` was called."""
        await self._ready(timeout, epoch)
        return self._box.take_pieces()

    def pack(self, reply_prefix: str) -> None:
        """Have messages with such reply subjects in packs from now on: for rooms above that take many at once."""
        self._client._core.pack(self._box, reply_prefix)

    async def next_msg(self, *, timeout: float, epoch: int) -> Msg:
        """The same for one: others may wait for the rest."""
        await self._ready(timeout, epoch)
        return self._box.take()

    def take_now(self) -> list[Msg]:
        """What is here, without waiting; nothing if that is nothing."""
        return self._box.take_all() if self._box.items else []

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will come; what is here can still be taken."""
        return self._box.is_ended

    @property
    def is_over(self) -> bool:
        """Whether nothing is here and nothing will come."""
        return self._box.is_ended and not self._box.items

    def drain_soon(self) -> None:
        """End the subscription as `drain` does, without waiting for it: what the server has sent can be taken later."""
        if not self._box.is_ended and not self._client.is_closed:
            self._client._core.drain(self._box)
            self._client._write_soon()

    def end(self) -> None:
        """End the subscription at once, as `unsubscribe` does, wherever there is no way to wait."""
        if not self._client.is_closed:
            self._client._unsubscribe(self._box, 0)

    async def unsubscribe(self, max_msgs: int = 0) -> None:
        """End the subscription, at once or after `max_msgs` messages in all. What is there can still be taken."""
        self._client._unsubscribe(self._box, max_msgs)

    async def drain(self, *, timeout: float = 5.0) -> None:
        """End the subscription after everything that the server has sent for it.

        Returns when all of it is here and, with a callback, handled; iteration ends after what is here.
        """
        client, box, caller = self._client, self._box, self._caller
        deadline = client.now() + timeout
        await client._drained(box, timeout)
        if caller is None or caller is asyncio.current_task():
            return
        await asyncio.wait((caller,), timeout=max(0.0, deadline - client.now()))
        if not caller.done():
            raise not_taken([box], timeout)

    async def _ready(self, timeout: float, epoch: int | None = None) -> None:
        box, core = self._box, self._client._core
        if box.is_ready:
            return
        try:
            async with asyncio.timeout(timeout):
                while not box.is_ready:
                    if epoch is not None and core.epoch != epoch:
                        raise lost_meanwhile(core)
                    await self._more()
        except TimeoutError:
            if not box.is_ready:
                raise timed_out(f"subscription of {box.subject!r}", timeout) from None

    async def _more(self) -> None:
        """Wait for one wake-up. Nothing is taken here, so a cancelled reader loses nothing."""
        future = self._client._loop.create_future()
        self._waiting.append(future)
        self._box.wake_with(self._wake)
        try:
            await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
