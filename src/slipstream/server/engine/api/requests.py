"""Decoders of API request bodies, with nats-server's errors, and the result type of handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from slipstream.api import NOT_JSON, StreamConfig, read_json
from slipstream.api.names import REQUIRED_API_LEVEL
from slipstream.errors import ApiError, ErrorCode, StreamNameMismatchError
from slipstream.server.engine.journal import Journal
from slipstream.server.engine.ports import Walk
from slipstream.server.engine.streams import config as rules
from slipstream.server.engine.streams.features import API_LEVEL
from slipstream.server.engine.streams.publish_headers import is_number
from slipstream.wire import Headers

T = TypeVar("T")
Work = dict[str, Any] | Exception  # what came of a change that took many turns

Count = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Outcome(msgspec.Struct):
    """The result of a handler: the fields of the response, and the journal whose open group it waits for. With `later`
    the fields are computed when the response is sent."""

    fields: dict[str, Any]
    journal: Journal | None = None
    later: Callable[[], dict[str, Any]] | None = None
    # Begins a search for the fields, once the open group of the journal (if it is given) is decided.
    search: Callable[[], Walk[dict[str, Any]]] | None = None
    # Begins a change that takes many turns, likewise; it calls its argument with the fields or an error in the end.
    work: Callable[[Callable[[Work], None]], None] | None = None


def level_suffices(header: bytes) -> bool:
    """Whether this server has the API level that a request's header requires, if any."""
    # A client may send any bytes as its header.
    if b"Nats-Required-Api-Level" not in header or not header.startswith(b"NATS/1.0"):
        return True
    wanted = Headers.parse(header).get(REQUIRED_API_LEVEL) or "0"
    return is_number(wanted) and int(wanted) <= API_LEVEL


def is_empty(payload: bytes) -> bool:
    stripped = payload.strip()
    if stripped in (b"", b"{}"):
        return True
    try:
        return stripped[:1] == b"{" and msgspec.json.decode(stripped) == {}
    except NOT_JSON:
        return False


def decode(payload: bytes, kind: type[T]) -> T:
    try:
        return read_json(payload, kind)
    except NOT_JSON as exc:
        raise ErrorCode.INVALID_JSON.error(err=_json_text(exc)) from exc


def optional(payload: bytes, kind: type[T]) -> T:
    """Decode an optional body; one that is not a JSON object counts as missing, as on nats-server."""
    return decode(payload, kind) if payload.lstrip()[:1] in (b"{", b"[") else kind()


def stream_config(payload: bytes, name: str) -> tuple[StreamConfig, bool]:
    """The configuration in a request, and whether the request is pedantic."""
    body: dict[str, Any] = decode(payload, dict) if payload.strip() not in (b"", b"null") else {}
    config = rules.parse(body)
    if config.name != name:
        raise StreamNameMismatchError
    if "\\" in name or "/" in name:
        raise ErrorCode.STREAM_NAME_CONTAINS_PATH_SEPARATORS.error()
    return config, body.get("pedantic") is True


def _json_text(error: Exception) -> str:
    text = str(error)
    if text.startswith("Object contains unknown field"):
        field = text.split("`")[1]
        return f'json: unknown field "{field}"'
    return text


def error_body(error: ApiError) -> dict[str, object]:
    """The error object of the API."""
    return {"code": error.code, "err_code": error.err_code, "description": error.description}
