"""Loops over the messages of a pull consumer, for the asyncio client: one by one, or in lists as they arrive.

Objects, not generators: a loop that is left by `break` ends at once, when nothing refers to it any more. An async
generator would be closed by the event loop, a moment later, when the next call may have asked already and would get
newer messages than those that the loop had not taken. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream._async.pull_loop import Pulling

if TYPE_CHECKING:
    from slipstream.jetstream._async.consumer import Consumer


class Chunks:
    """What `Consumer.chunks` gives: messages in lists. `aclose` ends it, and so does letting go of it."""

    def __init__(self, consumer: Consumer, pulling: Pulling, idle_timeout: float | None) -> None:
        self._consumer = consumer
        self._pulling: Pulling | None = pulling
        self._idle_timeout = idle_timeout
        self._left: list[JsMessage] = []  # not handed over, the next one last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[JsMessage]:
        return await self._chunk()

    async def aclose(self) -> None:
        """What was not taken is there for the next call of the consumer."""
        self._end()

    async def _chunk(self) -> list[JsMessage]:
        pulling = self._pulling
        if pulling is None:
            raise StopAsyncIteration
        try:
            msgs = await pulling.following(self._idle_timeout)
        except BaseException:
            self._end()
            raise
        if msgs is None:
            self._end()
            raise StopAsyncIteration
        return self._consumer._wrap(msgs)

    def _end(self) -> None:
        pulling, self._pulling = self._pulling, None
        left, self._left = self._left, []
        if pulling is not None:
            pulling.close([message.raw for message in reversed(left)])

    def __del__(self) -> None:
        if self._pulling is not None:
            self._consumer._client.run_here(self._end)


class Messages(Chunks):
    """What `Consumer.messages` gives: messages one by one."""

    async def __anext__(self) -> JsMessage:  # type: ignore[override]  # the same, in other pieces
        if not self._left:
            self._left = (await self._chunk())[::-1]
        return self._left.pop()
