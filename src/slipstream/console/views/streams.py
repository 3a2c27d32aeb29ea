"""Streams: state, copies, subjects as a tree, and the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from slipstream import StreamConfig
from slipstream.console.state import ConsoleState
from slipstream.console.web import Endpoint, Problem, json_body, whole

MOST_CONSUMERS = 200
MOST_SUBJECTS = 200_000  # that a server lists in about a second
SAMPLED, SAMPLED_BYTES = 5_000, 8 * 1024 * 1024
MOST_ROWS = 1_000  # tokens of a level that are shown


async def _stream(state: ConsoleState, request: Request) -> Any:
    stream = state.js.stream(request.path_params["stream"])
    info = await stream.info()
    consumers = []
    if info.state.consumer_count:
        async for one in stream.consumers():
            consumers.append(one.to_dict())
            if len(consumers) >= MOST_CONSUMERS:
                break
    history = state.sampler.stream_history(info.config.name)
    return info.to_dict() | {"consumers": consumers, "history": history}


async def _subjects(state: ConsoleState, request: Request) -> Any:
    """One level of the tree of subjects: the tokens behind a prefix, with how many messages and subjects."""
    query = request.query_params
    return await level(
        state,
        request.path_params["stream"],
        query.get("prefix", ""),
        whole(query.get("offset"), "offset"),
        whole_prefix="",
    )


async def level(
    state: ConsoleState, stream: str, prefix: str, offset: int = 0, *, whole_prefix: str | None = None
) -> dict[str, Any]:
    """The tokens behind a prefix, as far as one page of the server's list of subjects tells: it has 100,000.

    `next` is the offset of the next page, 0 if this was the last; a page adds the counts of several. With very many
    subjects below `whole_prefix`, which is before all of them, the level is that of the last messages: a server takes
    seconds to list a million.
    """
    if whole_prefix is not None and prefix == whole_prefix:
        state_now = (await state.js.stream(stream).info()).state
        if state_now.num_subjects > MOST_SUBJECTS:
            return await _sampled(state, stream, prefix, state_now.last_seq, state_now.num_subjects)
    pattern = f"{prefix}.>" if prefix else ">"
    body = msgspec.json.encode({"subjects_filter": pattern, "offset": offset})
    answer = await state.client.request(f"{state.js.prefix}.STREAM.INFO.{stream}", body, timeout=20)
    found = msgspec.json.decode(answer.data)
    if "error" in found:
        error = found["error"]
        raise Problem(404 if error.get("code") == 404 else 409, str(error.get("description", "the request failed")))
    subjects: dict[str, int] = (found.get("state") or {}).get("subjects") or {}
    total = found.get("total", 0)
    rows = rows_of(prefix, subjects)
    end = offset + len(subjects)
    return {
        "prefix": prefix,
        "rows": rows[:MOST_ROWS],
        "tokens": len(rows),
        "read": end,
        "total": max(total, end),
        "next": end if subjects and end < total else 0,
    }


def rows_of(prefix: str, subjects: Mapping[str, int]) -> list[dict[str, Any]]:
    """Subjects with counts, grouped by the token behind a prefix."""
    skip = len(prefix) + 1 if prefix else 0
    tokens: dict[str, list[int]] = {}
    for subject, messages in subjects.items():
        token, dot, _ = subject[skip:].partition(".")
        row = tokens.setdefault(token, [0, 0, 0, 0])
        row[0] += messages
        row[1] += 1
        row[2] |= bool(dot)
        row[3] |= not dot
    return [
        {"token": token, "messages": messages, "subjects": count, "deeper": bool(deeper), "leaf": bool(leaf)}
        for token, (messages, count, deeper, leaf) in sorted(tokens.items())
    ]


async def _sampled(state: ConsoleState, stream: str, prefix: str, last: int, total: int) -> dict[str, Any]:
    """A level by the last messages alone."""
    found, size = Counter[str](), 0
    async for message in state.js.stream(stream).read(start=max(last - SAMPLED + 1, 1), end=last):
        found[message.subject] += 1
        size += len(message.data)
        if size > SAMPLED_BYTES:
            break
    rows = rows_of(prefix, found)
    return {"prefix": prefix, "rows": rows[:MOST_ROWS], "tokens": len(rows), "read": found.total(), "total": total,
            "next": 0, "sample": found.total()}  # fmt: skip


async def _configure(state: ConsoleState, request: Request) -> Any:
    """Change the configuration of a stream, if it is still the one that the page shows."""
    body = await json_body(request)
    name, shown, wanted = request.path_params["stream"], body["shown"], body["wanted"]
    if not isinstance(shown, dict) or not isinstance(wanted, dict):
        raise Problem(400, "shown and wanted must be JSON objects")
    current = (await state.js.stream(name).info()).config
    if current != StreamConfig.from_dict(shown):
        raise Problem(409, "the configuration was changed meanwhile", current=current.to_dict())
    if wanted.get("name") != name:
        raise Problem(400, f"name must be {name!r}: streams cannot be renamed")
    # A field that the text no longer has gets the default, which the page shows as the difference.
    config = StreamConfig.from_dict(wanted)
    return (await state.js.update_stream(config)).config.to_dict()


ENDPOINTS = (
    Endpoint("/api/streams/{stream}", _stream),
    Endpoint("/api/streams/{stream}/subjects", _subjects),
    Endpoint("/api/streams/{stream}/config", _configure, writes=True),
)
