"""Consumers: one with its statistics over time, pause and resume, and reset to a sequence or time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from starlette.requests import Request

from slipstream import Error, NoRespondersError, RequestTimeoutError
from slipstream.console.paging import first_at
from slipstream.console.state import ConsoleState
from slipstream.console.views.messages import moment
from slipstream.console.web import Endpoint, Problem, json_body, seconds_of, whole

LONGEST_PAUSE = 366 * 86_400  # seconds


async def _consumer(state: ConsoleState, request: Request) -> Any:
    stream, name = request.path_params["stream"], request.path_params["consumer"]
    info = await (await state.js.stream(stream).consumer(name)).info()
    return info.to_dict() | {"history": state.sampler.consumer_history(stream, name)}


async def _pause(state: ConsoleState, request: Request) -> Any:
    stream, name = request.path_params["stream"], request.path_params["consumer"]
    consumer = await state.js.stream(stream).consumer(name)
    seconds = seconds_of((await json_body(request)).get("seconds"), "seconds", LONGEST_PAUSE)
    if seconds <= 0:
        await consumer.resume()
    else:
        await consumer.pause(datetime.now(UTC) + timedelta(seconds=seconds))
    return {"paused": (await consumer.info()).paused}


async def _reset(state: ConsoleState, request: Request) -> Any:
    """Go back or forward to a sequence, or to the first message at or after a time.

    Servers since nats-server 2.14 do that themselves. For an older one the consumer must be deleted and made again,
    which loses its counters and whatever subscribes to it by its creation time: only with `recreate`.
    """
    stream_name, name = request.path_params["stream"], request.path_params["consumer"]
    body = await json_body(request)
    stream = state.js.stream(stream_name)
    seq = whole(body.get("seq"), "seq")
    if text := body.get("time"):
        last = (await stream.info()).state.last_seq
        seq = await first_at(stream, moment(str(text)), "", least=last) or last + 1
    if not seq:
        raise Problem(400, "seq or time must be set")
    if body.get("recreate"):
        return await _recreate(state, stream_name, name, seq)
    answer_to = f"{state.js.prefix}.CONSUMER.RESET.{stream_name}.{name}"
    try:
        answer = await state.client.request(answer_to, msgspec.json.encode({"seq": seq}), timeout=5)
    except (NoRespondersError, RequestTimeoutError):
        text = "this server cannot reset a consumer; it can be deleted and recreated, which loses its counters"
        raise Problem(409, text, recreate=True) from None
    found = msgspec.json.decode(answer.data)
    if "error" in found:
        raise Problem(409, str(found["error"].get("description", "the server rejected the reset")))
    return {"seq": seq, "pending": found.get("num_pending", 0)}


async def _recreate(state: ConsoleState, stream_name: str, name: str, seq: int) -> Any:
    """Delete a consumer and make it again at a sequence; one that cannot be made so is put back where it was."""
    stream = state.js.stream(stream_name)
    info = await (await stream.consumer(name)).info()
    start: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_time": None}
    await stream.delete_consumer(name)
    try:
        await stream.create_consumer(replace(info.config, **start, opt_start_seq=seq))
    except Error as error:
        await stream.create_consumer(replace(info.config, **start, opt_start_seq=info.ack_floor.stream_seq + 1))
        raise Problem(409, f"it was not reset, and begins behind what it had acknowledged: {error}") from error
    found = await (await stream.consumer(name)).info()
    return {"seq": seq, "pending": found.num_pending}


ENDPOINTS = (
    Endpoint("/api/consumers/{stream}/{consumer}", _consumer),
    Endpoint("/api/consumers/{stream}/{consumer}/pause", _pause, writes=True),
    Endpoint("/api/consumers/{stream}/{consumer}/reset", _reset, writes=True),
)
