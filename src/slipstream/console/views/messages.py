"""Messages: pages, the tail, a search in payloads, and publishing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from slipstream import Error, Headers, MessageNotFoundError, Stream
from slipstream.console.paging import PAGE, after, before, first_at, shown
from slipstream.console.state import ConsoleState
from slipstream.console.web import Endpoint, Problem, event, json_body, whole

MOST_HITS = 50
SEARCHED = 200_000  # messages of one search; the page goes on from there when asked to
REPORT_EVERY = 5_000
# Headers that tell the server what to do with a message: a copy of it must not do that again.
INSTRUCTIONS = ("nats-msg-id", "nats-expected-", "nats-batch-", "nats-rollup", "nats-ttl", "nats-schedule")


def moment(text: str) -> datetime:
    """A time in a query, in UTC unless it says otherwise."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Problem(400, f"time must be like 2026-01-31T12:00:00Z, got {text[:40]!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


async def _messages(state: ConsoleState, request: Request) -> Any:
    query = request.query_params
    stream, subject = state.js.stream(request.path_params["stream"]), query.get("subject", "")
    found_state = (await stream.info()).state
    last, first = found_state.last_seq, found_state.first_seq
    if text := query.get("time"):
        seq = await first_at(stream, moment(text), subject, least=last)
        found = await after(stream, seq, subject, least=last) if seq else []
    elif "before" in query:
        upto = min(whole(query["before"], "before"), last + 1)
        found = await before(stream, upto, subject, first=first, least=last)
    elif "after" in query:
        found = await after(stream, whole(query["after"], "after"), subject, least=last)
    else:
        found = await before(stream, last + 1, subject, first=first, least=last)
    return {"first": first, "last": last, "count": found_state.messages, "messages": found,
            "page": PAGE}  # fmt: skip


async def _at(state: ConsoleState, request: Request) -> Any:
    """The first sequence at or after a time; 0 if there is none yet."""
    stream = state.js.stream(request.path_params["stream"])
    last = (await stream.info()).state.last_seq
    return {"seq": await first_at(stream, moment(request.query_params["time"]), "", least=last), "last": last}


async def _search(state: ConsoleState, request: Request) -> Response:
    """Messages whose payload, subject or header contains a text, as events: what was found, and how far it is."""
    query = request.query_params
    stream, subject, text = state.js.stream(request.path_params["stream"]), query.get("subject", ""), query["text"]
    if not text:
        raise Problem(400, "text must not be empty")
    last = (await stream.info()).state.last_seq
    start = max(whole(query.get("start"), "start", 1), 1)
    return StreamingResponse(_found(stream, subject, text, start, last), media_type="text/event-stream")


async def _found(stream: Stream, subject: str, text: str, start: int, last: int) -> AsyncIterator[bytes]:
    wanted, seq, looked, hits = text.encode(), start, 0, 0
    try:
        if start <= last:
            async for message in stream.read(start=start, end=last, subject=subject, min_last_seq=last):
                seq, looked = message.seq + 1, looked + 1
                if wanted in message.data or text in message.subject or (message.header and wanted in message.header):
                    hits += 1
                    yield event({"hit": shown(message)})
                if not looked % REPORT_EVERY:
                    yield event({"at": message.seq, "last": last, "looked": looked})
                if hits >= MOST_HITS or looked >= SEARCHED:
                    break
            else:
                seq = last + 1
    except Error as error:
        yield event({"error": str(error)})
    yield event({"end": True, "looked": looked, "next": seq if seq <= last else 0, "last": last})


async def _publish(state: ConsoleState, request: Request) -> Any:
    """Publish a message. With `copy` its payload and headers are those of a stored one, byte for byte."""
    body = await json_body(request)
    subject, data, headers = str(body["subject"]), str(body.get("data", "")).encode(), Headers()
    if (copy := body.get("copy")) is not None:
        if not isinstance(copy, dict):
            raise Problem(400, "copy must be a JSON object with stream and seq")
        original = await _original(state, str(copy["stream"]), whole(copy["seq"], "seq"))
        data = original.data
        for name, value in original.headers.items() if original.header else ():
            if not name.lower().startswith(INSTRUCTIONS):
                headers.add(name, value)
    else:
        for name, value in _pairs(body.get("headers") or []):
            headers.add(name, value)
    ack = await state.js.publish(subject, data, headers=headers or None)
    return {"stream": ack.stream, "seq": ack.seq, "duplicate": ack.duplicate}


def _pairs(found: Any) -> list[tuple[str, str]]:
    if isinstance(found, dict):
        found = list(found.items())
    if not isinstance(found, list) or not all(isinstance(one, list | tuple) and len(one) == 2 for one in found):
        raise Problem(400, "headers must be a list of pairs")
    return [(str(name), str(value)) for name, value in found]


async def _original(state: ConsoleState, stream: str, seq: int) -> Any:
    try:
        return await state.js.stream(stream).get(seq)
    except MessageNotFoundError:
        raise Problem(404, f"message {seq} of stream {stream!r} no longer exists") from None


ENDPOINTS = (
    Endpoint("/api/streams/{stream}/messages", _messages),
    Endpoint("/api/streams/{stream}/at", _at),
    Endpoint("/api/streams/{stream}/search", _search),
    Endpoint("/api/publish", _publish, writes=True),
)
