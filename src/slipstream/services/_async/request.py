"""A request to an endpoint, over the asyncio client. The blocking twin is generated from this file."""

from __future__ import annotations

from slipstream.client._async.client import Client
from slipstream.client.base import BaseMessage, HeadersLike
from slipstream.services.protocol import error_headers

SMALL = 4096  # bytes: such an answer is sent the quick way


class ServiceRequest(BaseMessage[Client]):
    """One request: `data`, `json(Order)`, `headers`, `subject`; `respond` or `respond_error` answers it."""

    is_answered: bool = False
    error: str = ""  # what `respond_error` was called with

    async def respond(self, payload: object = b"", *, headers: HeadersLike | None = None) -> None:
        """Answer it: with bytes, or with an object, which the codec encodes."""
        client, reply = self._client, self._answer_to()
        if headers is None and isinstance(payload, bytes) and len(payload) <= min(SMALL, client.max_payload):
            client.answer(reply, payload)
            if client.is_full:
                await client.ready()
        else:
            await client.publish(reply, payload, headers=headers)
        self.is_answered = True

    async def respond_error(
        self, code: int, description: str, *, data: object = b"", headers: HeadersLike | None = None
    ) -> None:
        """Answer it with an error, which the caller finds in two headers. Counts as an error of the endpoint."""
        block = error_headers(code, description, headers)
        self.error = f"{code}:{description}"
        await self.respond(data, headers=block)
