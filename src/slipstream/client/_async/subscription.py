"""Messages and subscriptions of the asyncio driver.

Invariant: nothing is taken from a mailbox while its reader waits, so a cancelled reader loses nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

from slipstream.client._async.clock import uptime
from slipstream.client._async.connection import Connection
from slipstream.client._async.tasks import finish
from slipstream.client.base import BaseMessage, BaseSubscription, HeadersLike, connection_lost, drain_timeout, timed_out
from slipstream.client.mailbox import Mailbox
from slipstream.client.raw_columns import Packed
from slipstream.client.reporter import failure_of
from slipstream.client.silence import SilenceAlarm
from slipstream.codecs import Codec
from slipstream.errors import Error, SlowConsumerError
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_seconds


class SubscriptionClient(Protocol):
    """What messages and subscriptions need of their client."""

    async def publish(
        self, subject: str, payload: object = b"", *, reply: str = "", headers: HeadersLike | None = None
    ) -> None: ...

    @property
    def codec(self) -> Codec[Any]: ...

    async def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None: ...

    def now(self) -> float: ...

    @property
    def is_closed(self) -> bool: ...


class Message(BaseMessage[SubscriptionClient]):
    """One message."""

    async def respond(self, payload: object = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish an answer to the reply subject: bytes, or an object, which the codec encodes."""
        await self._client.publish(self._answer_to(), payload, headers=headers)


Callback = Callable[[Message], Awaitable[None] | None]


class Subscription(BaseSubscription):
    """Messages of one subject: `async for message in subscription`, `next`, or `next_chunk` for all that arrived."""

    def __init__(
        self, client: SubscriptionClient, connection: Connection, box: Mailbox, callback: Callback | None = None
    ) -> None:
        super().__init__(box)
        box.made_at = uptime()
        self._client = client
        self._connection = connection
        self._waiting: list[asyncio.Future[None]] = []
        self._caller: asyncio.Task[None] | None = None  # the task that calls back
        if callback is not None:
            self._caller = connection.spawn(self._call_back(callback), f"callback of {box.subject}")

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
        while (msg := box.take_if_any()) is None:
            if box.is_over:
                raise StopAsyncIteration
            if box.is_ended:
                raise box.ending()
            await self._more()
        return Message(msg, self._client)

    async def next(self, *, timeout: Duration = 5.0) -> Message:
        """The next message. Raises RequestTimeoutError, or SlowConsumerError where messages had to be dropped."""
        timeout = check_seconds(timeout)
        await self._ready(timeout)
        return Message(self._box.take(), self._client)

    async def next_chunk(self, *, timeout: Duration = 5.0) -> list[Message]:
        """Every message that has arrived, at least one. Raises as `next` does."""
        timeout = check_seconds(timeout)
        await self._ready(timeout)
        client = self._client
        return [Message(msg, client) for msg in self._box.take_all()]

    async def unsubscribe(self, max_msgs: int = 0) -> None:
        """End the subscription, at once or after `max_msgs` messages in all. Pending messages can still be taken."""
        self._connection.unsubscribe(self._box, max_msgs)

    async def drain(self, *, timeout: Duration = 5.0) -> None:
        """End the subscription after everything that the server has sent for it.

        Returns when all of it has arrived and, with a callback, was handled; iteration ends after what is pending.
        """
        timeout = check_seconds(timeout)
        client, box, caller = self._client, self._box, self._caller
        deadline = client.now() + timeout
        ping = self._connection.session.drain(box)
        self._connection.write_soon()
        await client.wait(lambda: ping.is_answered, timeout=timeout, what=f"the drain of {box.subject!r}")
        if caller is None or caller is asyncio.current_task():
            return
        await asyncio.wait((caller,), timeout=max(0.0, deadline - client.now()))
        if not caller.done():
            raise drain_timeout([box], timeout)

    # For the layers above, which take the parser's events

    async def next_msg(self, *, timeout: float, epoch: int) -> Msg:
        """As `next`. Raises ConnectionLostError once all is taken and the connection of that `epoch` is lost."""
        await self._ready(timeout, epoch)
        return self._box.take()

    async def next_msgs(self, *, timeout: float, epoch: int) -> list[Msg]:
        """As `next_chunk`. Raises as `next_msg` does."""
        await self._ready(timeout, epoch)
        return self._box.take_all()

    async def next_dated(self, *, timeout: float, epoch: int) -> tuple[Msg, float]:
        """As `next_msg`, with a time by `uptime` before it was sent, if it was requested over this subscription."""
        await self._ready(timeout, epoch)
        return self._box.take_dated()

    async def next_all_dated(self, *, timeout: float, epoch: int) -> tuple[list[Msg], float]:
        """As `next_msgs`, with such a time for all of them."""
        await self._ready(timeout, epoch)
        return self._box.take_all_dated()

    async def next_pieces(self, *, timeout: float, epoch: int) -> list[list[Msg] | Packed]:
        """As `next_msgs`, with messages in columns where `pack` asked for them."""
        await self._ready(timeout, epoch)
        return self._box.take_pieces()

    def pack(self, reply_prefix: str) -> None:
        """Deliver messages with such reply subjects in columns from now on."""
        self._connection.session.subscriptions.pack(self._box, reply_prefix)

    def answer_on_arrival(self, subject_of: Callable[[Msg], str]) -> None:
        """Answer messages that want no more than that as they arrive: see `Subscriptions.answer_on_arrival`."""
        self._connection.session.subscriptions.answer_on_arrival(self._box, subject_of)

    def take_now(self) -> tuple[list[Msg], float]:
        """Every message that has arrived, perhaps none, without waiting, and a time as `next_dated` has it."""
        return self._box.take_all_dated() if self._box.items else ([], math.inf)

    def watch_silence(self, timeout: float, call: Callable[[], None]) -> None:
        """Call a function each time that nothing has arrived for `timeout` seconds, until the end of the subscription.

        Once per silence; the time without a connection does not count. The function is called on the client's loop.
        """
        connection = self._connection
        connection.watch(SilenceAlarm(self._box, connection.session, timeout, call, now=self._client.now()))

    def drain_soon(self) -> None:
        """End the subscription as `drain` does, without waiting: what the server has sent can be taken later."""
        if not self._box.is_ended and not self._client.is_closed:
            self._connection.session.drain(self._box)
            self._connection.write_soon()

    def end(self) -> None:
        """End the subscription at once, as `unsubscribe` does, where there is no way to wait."""
        if not self._client.is_closed:
            self._connection.unsubscribe(self._box, 0)

    # Waiting

    async def _ready(self, timeout: float, epoch: int | None = None) -> None:
        box, session = self._box, self._connection.session
        if box.is_ready:
            return
        try:
            async with asyncio.timeout(timeout):
                while not box.is_ready:
                    if epoch is not None and session.epoch != epoch:
                        raise connection_lost(session)
                    await self._more()
        except TimeoutError:
            if not box.is_ready:
                raise timed_out(f"a message on {box.subject!r}", timeout) from None

    async def _more(self) -> None:
        """Wait for one wake-up. Nothing is taken here, so a cancelled reader loses nothing."""
        future = self._connection.loop.create_future()
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

    async def _call_back(self, callback: Callback) -> None:
        """Hand the messages to a callback, one by one."""
        while True:
            try:
                message = await self.__anext__()
            except SlowConsumerError:
                continue  # reported when the gap began
            except (StopAsyncIteration, Error):
                return  # the end; an error was reported by its cause
            try:
                await finish(callback(message))
            except (SystemExit, KeyboardInterrupt):
                raise  # the event loop ends with it
            except BaseException as exc:  # the user's code
                connection = self._connection
                if connection.is_own_end(exc):
                    raise
                what = f"the callback of the subscription of {self.subject!r}"
                connection.reporter.callback_failed(str(connection.session.server), what, failure_of(exc))
