"""Trust: one subject by a trusted read and by plain ones, and replicas that can be held on a server with faults."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request

from slipstream import Error, MessageNotFoundError, StaleReadError
from slipstream.console.paging import shown
from slipstream.console.state import ConsoleState
from slipstream.console.views.overview import FAULTS
from slipstream.console.web import Endpoint, Problem, json_body, whole

PLAIN = 12  # reads


async def _trust(state: ConsoleState, request: Request) -> Any:
    """The last message of a subject, by a trusted read and then by plain Direct Gets."""
    name, query = request.path_params["stream"], request.query_params
    stream, subject = state.js.stream(name), query["subject"]
    wanted = whole(query.get("min_last_seq"), "min_last_seq") or (await stream.info()).state.last_seq
    stats, began = state.js.read_stats, time.perf_counter()
    try:
        message = await stream.get_last(subject, min_last_seq=wanted, timeout=5)
        result: dict[str, Any] = {"seq": message.seq, "message": shown(message), "stream": message.stream}
    except MessageNotFoundError:
        result = {"seq": 0, "absent": True}
    except StaleReadError as error:
        result = {"error": str(error)}
    spent, now = time.perf_counter() - began, state.js.read_stats
    path = next((kind for kind in ("at_once", "from_leader", "retried", "failed")
                 if getattr(now, kind) > getattr(stats, kind)), "")  # fmt: skip
    # After the trusted read: a plain one that shows an older message now is stale, whatever is published meanwhile.
    plain = [await _plain(state, name, subject) for _ in range(PLAIN)]
    return {"min_last_seq": wanted, "plain": plain, "replicas": await replicas(state, name),
            "trusted": result | {"ms": round(spent * 1000, 2), "path": path}}  # fmt: skip


async def _plain(state: ConsoleState, stream: str, subject: str) -> dict[str, Any]:
    body, began = msgspec.json.encode({"last_by_subj": subject, "as_of": True}), time.perf_counter()
    answer = await state.client.request(f"{state.js.prefix}.DIRECT.GET.{stream}", body, timeout=5)
    headers = _server_headers(answer.headers.items() if answer.headers else ())
    return {
        "who": headers.get("Slipstream-Responder") or headers.get("Nats-Stream") or "",
        "as_of": int(headers.get("Slipstream-As-Of") or 0),
        "seq": int(headers.get("Nats-Sequence") or 0),
        "ms": round((time.perf_counter() - began) * 1000, 2),
        "found": answer.status is None,
    }


def _server_headers(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers that the server appended to a stored message: a publisher may have set any of them as well."""
    found: dict[str, str] = {}
    for name, value in items:
        if name == "Nats-Stream":  # the first one that a server appends
            found.clear()
        found[name] = value
    return found


async def replicas(state: ConsoleState, stream: str) -> list[Any]:
    """The replicas of a stream on a server with fault commands; none elsewhere."""
    with contextlib.suppress(Error, msgspec.MsgspecError):
        body = msgspec.json.encode({"stream": stream})
        reply = await state.client.request(f"{FAULTS}replicas", body, timeout=1)
        found: list[Any] = msgspec.json.decode(reply.data).get("replicas", [])
        return found
    return []


async def _replicas(state: ConsoleState, request: Request) -> Any:
    return {"replicas": await replicas(state, request.path_params["stream"])}


async def _fault(state: ConsoleState, request: Request) -> Any:
    command = request.path_params["command"]
    if command not in ("hold", "release"):
        raise Problem(404, "the commands are hold and release")
    body = await json_body(request)
    wanted = msgspec.json.encode({"stream": str(body["stream"]), "replica": str(body["replica"])})
    answer = await state.client.request(f"{FAULTS}{command}", wanted)
    found = msgspec.json.decode(answer.data)
    if isinstance(found, dict) and "error" in found:
        raise Problem(409, str(found["error"]))
    return found


ENDPOINTS = (
    Endpoint("/api/trust/{stream}", _trust),
    Endpoint("/api/trust/{stream}/replicas", _replicas),
    Endpoint("/api/faults/{command}", _fault, writes=True),
)
