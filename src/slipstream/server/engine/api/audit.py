"""Audit advisories of the JetStream API: who asked for what, and the response, on `$JS.EVENT.ADVISORY.API`.

An advisory is sent to the subscribers of the account in which the request was made, after the response, and like the
response once everything it reports is durable. Reads of messages (Message Get, Direct Get, pulls) are not audited: an
advisory shows configurations and states, never the content of a stream, and of the client no secret.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from slipstream.errors import ApiError
from slipstream.server.engine.api.advisories import PREFIX, Advisories
from slipstream.server.engine.core.routing import AccountRouter
from slipstream.server.engine.journal import ReplyPort, Source

AUDIT_SUBJECT = f"{PREFIX}.API"
MAX_SHOWN = 64 * 1024  # characters of the request and of the response: both may be as long as a message


class AuditedRequest(NamedTuple):
    """A request, as its advisory shows it."""

    server: str
    client: dict[str, Any] | None  # None: the server itself asked, for a republished message
    subject: str
    payload: bytes


class AuditAdvisory:
    """The advisory about one request; it waits in the journal like the response."""

    __slots__ = ("_advisories", "_answer", "_request", "_response", "_router")

    def __init__(
        self, advisories: Advisories, router: AccountRouter, response: Source, request: AuditedRequest, answer: bytes
    ) -> None:
        """`answer` is the response, or empty if it is made when it is sent."""
        self._advisories, self._router = advisories, router
        self._response, self._request, self._answer = response, request, answer

    @property
    def reply_port(self) -> ReplyPort:
        return self._router

    def ack(self, seq: int) -> tuple[str, int]:
        """The advisory, when the response has been sent."""
        text = self._encode(self._answer.decode() if self._answer else self._response.ack(seq)[0])
        return text, len(text.encode())

    def failure(self, error: ApiError) -> bytes:
        return self._encode(self._response.failure(error).decode()).encode()

    def _encode(self, response: str) -> str:
        server, client, subject, payload = self._request
        request = payload[: 4 * MAX_SHOWN].decode(errors="replace")[:MAX_SHOWN]
        fields = {"server": server, "client": client, "subject": subject, "request": request or None}
        fields |= {"response": response[:MAX_SHOWN]}
        shown = {name: value for name, value in fields.items() if value is not None}
        return self._advisories.encode("api_audit", self._router.now, shown).decode()
