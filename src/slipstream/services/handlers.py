"""Handlers of requests: what a function takes and returns, read from its annotations once per endpoint.

A handler takes the request (a parameter without annotation, or annotated as a service request), the decoded body (any
other annotation), both, or nothing. One that takes the request alone answers it itself, now or later, unless it returns
something. Of all others the result is the answer, None included: their caller would wait in vain. Bodies and results
are decoded and encoded by the codec of the connection, but for bytes; text goes as it is unless a codec was chosen.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_type_hints

from slipstream.client.base import BaseMessage
from slipstream.codecs import Codec
from slipstream.codecs.payloads import DEFAULT_CODEC, JSON, encode_payload
from slipstream.errors import UsageError
from slipstream.wire import Headers

_REQUEST_NAMES = ("ServiceRequest", "BlockingServiceRequest")


class Handler(NamedTuple):
    """A function, and how to call it."""

    function: Callable[..., Any]
    request_at: int  # the position of the request; -1 if the function does not take it
    body_at: int  # of the decoded body; -1 if it takes none
    body_type: Any
    takes_request: bool  # and nothing else: it answers by itself when it returns None
    is_async: bool
    is_empty: bool  # None is an empty payload, not a JSON null

    def arguments(self, request: BaseMessage[Any], codec: Codec[Any]) -> tuple[object, ...]:
        """The arguments of a call; raises MessageDecodeError for a body that is not of its type."""
        if self.body_at < 0:
            return (request,) if self.request_at == 0 else ()
        body = self._body(request, codec)
        if self.request_at < 0:
            return (body,)
        return (request, body) if self.request_at == 0 else (body, request)

    def _body(self, request: BaseMessage[Any], codec: Codec[Any]) -> object:
        if self.body_type is bytes:
            return request.data
        if self.body_type is str and codec is DEFAULT_CODEC:
            return request.text()
        return request.decode(self.body_type)

    def answer(self, request: BaseMessage[Any], result: object, codec: Codec[Any]) -> tuple[bytes, Headers | None]:
        """The payload and headers of the answer for a result."""
        if isinstance(result, bytes):
            return result, None
        if result is None and self.is_empty:
            return b"", None
        if codec is DEFAULT_CODEC:  # it refuses both, which an annotation says are meant
            if isinstance(result, str):
                return result.encode(), None
            codec = JSON if result is None else codec
        return encode_payload(codec, request.subject, result, None)


def read_handler(handler: Callable[..., Any], *, may_be_async: bool) -> Handler:
    """How to call a handler; raises UsageError for one that cannot be called with a request."""
    name = getattr(handler, "__qualname__", repr(handler))
    if not callable(handler):
        raise UsageError(f"handler must be callable, got {handler!r}")
    function = _function(handler)
    is_async = inspect.iscoroutinefunction(function)
    if is_async and not may_be_async:
        raise UsageError(f"handler {name} must be a plain function with the blocking client, got a coroutine function")
    try:
        parameters = [
            one
            for one in inspect.signature(handler).parameters.values()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
        ]
    except ValueError:  # written in C, without a signature
        parameters = [inspect.Parameter("request", inspect.Parameter.POSITIONAL_ONLY)]
    hints = _hints(function, name, [one.name for one in parameters])
    kinds = [hints.get(one.name, BaseMessage) for one in parameters]
    requests = [at for at, kind in enumerate(kinds) if _is_request(kind)]
    bodies = [at for at in range(len(kinds)) if at not in requests]
    if len(requests) > 1 or len(bodies) > 1:
        shown = ", ".join(one.name for one in parameters)
        raise UsageError(f"handler {name} must take a request, a body, both or nothing, got ({shown})")
    result = hints.get("return", None)
    return Handler(
        handler,
        request_at=requests[0] if requests else -1,
        body_at=bodies[0] if bodies else -1,
        body_type=kinds[bodies[0]] if bodies else None,
        takes_request=bool(requests) and not bodies,
        is_async=is_async,
        is_empty=result in (None, type(None)),
    )


def _is_request(kind: Any) -> bool:
    if isinstance(kind, str):  # it was imported for type checkers only
        return kind.strip("'\"").rpartition(".")[2] in _REQUEST_NAMES
    return isinstance(kind, type) and issubclass(kind, BaseMessage)


def _function(handler: Any) -> Any:
    """The function behind a partial, a bound method or an object that can be called."""
    while isinstance(handler, partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    if inspect.isroutine(handler) or inspect.isclass(handler):
        return handler
    return type(handler).__call__


def _hints(function: Any, name: str, wanted: list[str]) -> dict[str, Any]:
    annotations: dict[str, Any] = getattr(function, "__annotations__", {})
    try:
        return get_type_hints(function, localns=_closure(function))
    except (NameError, AttributeError, TypeError) as exc:
        if all(_is_request(annotations.get(one, BaseMessage)) for one in wanted):
            return annotations
        raise UsageError(
            f"annotations of handler {name} must name types that can be looked up from its module: {exc}"
        ) from exc


def _closure(function: Any) -> dict[str, Any]:
    """The variables of enclosing functions that the handler uses: its types may be among them."""
    try:
        return dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):  # not a Python function, or a variable without a value yet
        return {}
