"""HTTP of the console: errors, JSON responses and request bodies, and the guard in front of every request.

Every endpoint is declared with what it needs: one that changes something is rejected unless the console was started
with `write`, whatever the page shows, and takes a body only of a type that no form of another site can send.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from slipstream import ApiError, Error, KeyNotFoundError, MessageNotFoundError, ObjectNotFoundError, UsageError
from slipstream.console.access import HEADERS, Access

log: logging.Logger = logging.getLogger("slipstream.console")

LARGEST_BODY = 8 * 1024 * 1024
JSON, BYTES = "application/json", "application/octet-stream"
S = TypeVar("S")
_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")


class Problem(Exception):  # noqa: N818
    """A response that is no success: its status, and what the page is told."""

    def __init__(self, status: int, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status: int = status
        self.body: dict[str, str | Any] = {"error": text} | more


class Endpoint(NamedTuple, Generic[S]):
    """An address of the API: what answers it, and whether it changes something."""

    path: str
    handler: Callable[[S, Request], Awaitable[Any]]
    writes: bool = False
    body: str = JSON
    timeout: float | None = 30.0


def answering(endpoint: Endpoint[S], state: S, *, may_write: bool) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint as a function of Starlette: its result becomes JSON, its errors a status and a sentence."""

    async def answer(request: Request) -> Response:
        try:
            _check_names(request)
            if endpoint.writes:
                _check_write(request, endpoint.body, may_write=may_write)
            async with asyncio.timeout(endpoint.timeout):
                found = await endpoint.handler(state, request)
            if isinstance(found, Response):
                return found
            status, body = 200, found
        except ClientDisconnect:  # an upload that was cancelled
            status, body = 400, {"error": "the request was not complete"}
        except Exception as error:
            status, body = _refusal(error)
        return Response(msgspec.json.encode(body), status, media_type=JSON)

    return answer


def _check_names(request: Request) -> None:
    """Names become tokens of subjects: one that cannot be a name reaches no server, and no other subject."""
    for place, name in request.path_params.items():
        if not _NAME.fullmatch(name):
            raise Problem(400, f"{place} must be a name of at most 255 characters without dots, wildcards and spaces")


def _check_write(request: Request, wanted: str, *, may_write: bool) -> None:
    if not may_write:
        raise Problem(403, "this console is read-only; start it with --write to change things")
    kind = request.headers.get("content-type", "").split(";")[0]
    if kind != wanted:
        raise Problem(415, f"the body must be {wanted}, got {kind or 'no type'}")


def _refusal(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body for an error; one that is not ours is logged, without what it was about."""
    if isinstance(error, Problem):
        return error.status, error.body
    if isinstance(error, TimeoutError) and not isinstance(error, Error):
        return 504, {"error": "the server did not answer in time"}
    if isinstance(error, MessageNotFoundError | ObjectNotFoundError | KeyNotFoundError):  # some are KeyErrors
        return 404, {"error": str(error)}
    if isinstance(error, KeyError):
        return 400, {"error": f"{error} is missing"}
    if isinstance(error, UsageError | ValueError | msgspec.MsgspecError):
        return 400, {"error": str(error)}
    if isinstance(error, ApiError):
        return 404 if error.code == 404 else 409, {"error": str(error)}
    if isinstance(error, Error):
        return 502, {"error": str(error)}
    log.error("a request of the console failed", exc_info=error)
    return 500, {"error": f"the console failed ({type(error).__name__}); its log has more"}


async def json_body(request: Request) -> dict[str, Any]:
    """The JSON object that a request has as its body."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > LARGEST_BODY:
            raise Problem(413, f"the body is longer than {LARGEST_BODY} bytes")
    try:
        body = msgspec.json.decode(bytes(data))
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None
    if not isinstance(body, dict):
        raise Problem(400, "the body must be a JSON object")
    return body


def whole(text: Any, name: str, default: int = 0) -> int:
    """A sequence or a count in a query or body."""
    if text is None or text == "":
        return default
    try:
        number = int(text)
    except (TypeError, ValueError):
        raise Problem(400, f"{name} must be a whole number, got {str(text)[:40]!r}") from None
    if isinstance(text, bool) or not 0 <= number < 1 << 63:
        raise Problem(400, f"{name} must be between 0 and 2^63, got {str(text)[:40]!r}")
    return number


def seconds_of(value: Any, name: str, most: float) -> float:
    """A number of seconds in a body; 0 if there is none."""
    try:
        seconds = float(value or 0)
    except (TypeError, ValueError):
        raise Problem(400, f"{name} must be a number of seconds, got {str(value)[:40]!r}") from None
    if not seconds <= most:
        raise Problem(400, f"{name} must be at most {most:.0f} seconds, got {str(value)[:40]!r}")
    return seconds


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


class Guard:
    """Checks every request before the application sees it, and adds the headers of every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # There is no WebSocket here. Any page may ask for one: an answer keeps it out of the log as an error.
            await send({"type": "websocket.close"})
            return

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()
                      if name.lower().encode() not in own or name == "Cache-Control"),
                ]  # fmt: skip
            await send(message)

        await self._checked(Request(scope))(scope, receive, send_safely)

    def _checked(self, request: Request) -> ASGIApp:
        token, path = request.query_params.get("token"), request.url.path
        if path == "/" and token is not None:
            if foreign := self._access.foreign(request.headers):
                return PlainTextResponse(f"{foreign[1]}\n", foreign[0])
            if not self._access.is_token(token):
                return PlainTextResponse("this is not the token of the console\n", 401)
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict", path="/")
            return answer
        if path == "/metrics" and self._access.is_bearer(request.headers):
            return self._app
        if problem := self._access.problem(request.headers, request.cookies):
            return PlainTextResponse(f"{problem[1]}\n", problem[0])
        return self._app
