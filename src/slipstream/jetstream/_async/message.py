"""A consumer's message as asyncio programs hold it: to be acknowledged in one of five ways.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from slipstream.client._async.client import Client
from slipstream.errors import NoRespondersError
from slipstream.jetstream.consume.ack_subject import ACK, IN_PROGRESS, BaseJsMessage, nak_body, split_reply, term_body
from slipstream.jetstream.requests import Answer
from slipstream.wire import parse_status


class JsMessage(BaseJsMessage[Client]):
    """One message of a consumer. Once it is settled (acked, refused, terminated) further acks do nothing."""

    async def ack(self) -> None:
        """It was handled. Sent at once, not waited for: a message whose ack is lost comes again."""
        if not self.is_settled:
            self._settle(ACK)
            if self._client.is_full:
                await self._client.ready()

    async def ack_sync(self, *, timeout: float = 5.0) -> None:
        """It was handled, and the server knows: returns when it has said so."""
        if self.is_settled:
            return
        split_reply(self.reply)
        answer = Answer()
        token = self._client.start(self.reply, ACK, answer)
        try:
            await self._client.wait(answer.ready, timeout=timeout, what=f"the answer to the ack of {self.subject!r}")
        finally:
            self._client.cancel(token)
        status = parse_status(answer.take().header)
        if status is not None and status.code == 503:
            raise NoRespondersError(self.reply, "the consumer of the message is gone")
        self.is_settled = True

    async def nak(self, delay: float | timedelta | None = None) -> None:
        """It was not handled and shall come again, at once or after `delay` (seconds)."""
        if not self.is_settled:
            self._settle(nak_body(delay))

    async def term(self, reason: str = "") -> None:
        """It cannot be handled and shall not come again."""
        if not self.is_settled:
            self._settle(term_body(reason))

    async def in_progress(self) -> None:
        """It is still being handled: the time until it comes again begins anew."""
        if not self.is_settled:
            split_reply(self.reply)
            self._client.answer(self.reply, IN_PROGRESS)

    def _settle(self, body: bytes) -> None:
        """Send a terminal ack. Settled is what was sent: an error leaves it open."""
        reply = self._msg[2]
        if reply[:8] != "$JS.ACK.":
            split_reply(reply)  # raises, and says what is wrong with it
        self._client.answer(reply, body)
        self.is_settled = True


Callback = Callable[[JsMessage], object]
