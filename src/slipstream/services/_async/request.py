"""A request to an endpoint, over the asyncio client. The blocking twin is generated from this file."""

from __future__ import annotations

from slipstream.client._async.subscription import Message
from slipstream.client.base import HeadersLike
from slipstream.services.protocol import error_headers


class ServiceRequest(Message):
    """One request: `data`, `json(Order)`, `headers`, `subject`; `respond` or `respond_error` answers it."""

    is_answered: bool = False
    error: str = ""  # what `respond_error` was called with

    async def respond(self, payload: object = b"", *, headers: HeadersLike | None = None) -> None:
        """Answer it: with bytes, or with an object, which the codec encodes."""
        await Message.respond(self, payload, headers=headers)
        self.is_answered = True

    async def respond_error(
        self, code: int, description: str, *, data: object = b"", headers: HeadersLike | None = None
    ) -> None:
        """Answer it with an error, which the caller finds in two headers. Counts as an error of the endpoint."""
        block = error_headers(code, description, headers)
        self.error = f"{code}:{description}"
        await self.respond(data, headers=block)
