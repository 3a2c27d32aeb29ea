"""A consumer's message over the asyncio client, with its five kinds of acknowledgement.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.client._async.client import Client
from slipstream.errors import NoRespondersError
from slipstream.jetstream.consume.ack_subject import ACK, IN_PROGRESS, BaseJsMessage, nak_body, split_reply, term_body
from slipstream.wire import parse_status
from slipstream.wire.arguments import Duration, check_seconds


class JsMessage(BaseJsMessage[Client]):
    """One message of a consumer. Once it is settled (`ack`, `nak` or `term` was sent) further acks do nothing."""

    async def ack(self) -> None:
        """Acknowledge it. Sent at once, not waited for: a message whose ack is lost is redelivered."""
        if not self.is_settled:  # `_settle`, without a call
            reply = self._msg.reply
            if reply[:8] != "$JS.ACK.":
                split_reply(reply)
            is_full = self._client.answer(reply, ACK)
            self.is_settled = True
            if is_full:
                await self._client.ready()

    async def ack_sync(self, *, timeout: Duration = 5.0) -> None:
        """Acknowledge it, and return when the server has confirmed that."""
        timeout = check_seconds(timeout)
        if self.is_settled:
            return
        split_reply(self.reply)
        what = f"the answer to the ack of {self.subject!r}"
        status = parse_status((await self._client.exchange(self.reply, ACK, timeout=timeout, what=what)).header)
        if status is not None and status.code == 503:
            raise NoRespondersError(self.reply, "the consumer of the message no longer exists")
        self.is_settled: bool = True

    async def nak(self, delay: Duration | None = None) -> None:
        """Negatively acknowledge it: the server redelivers it, at once or after `delay` (a timedelta, or seconds)."""
        if not self.is_settled:
            self._settle(nak_body(delay))

    async def term(self, reason: str = "") -> None:
        """Terminate it: it cannot be handled, and the server does not redeliver it."""
        if not self.is_settled:
            self._settle(term_body(reason))

    async def in_progress(self) -> None:
        """Report progress: `ack_wait` starts over, and with it the time until redelivery."""
        if not self.is_settled:
            split_reply(self.reply)
            self._client.answer(self.reply, IN_PROGRESS)

    def _settle(self, body: bytes) -> None:
        """Send a terminal ack. An error leaves the message unsettled."""
        reply = self._msg.reply
        if reply[:8] != "$JS.ACK.":
            split_reply(reply)  # raises, and says what is wrong with it
        self._client.answer(reply, body)
        self.is_settled = True


Callback = Callable[[JsMessage], object]
