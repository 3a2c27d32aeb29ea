"""Key-Value: buckets, keys as a tree, entries with their history, and edits that check the revision.

A bucket with codecs is shown through them where the console was given them (`--codec`, `--keyring`); the keys of a
keyring stay in this process. Without them its entries are shown as they are stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from slipstream import Error, KeyRevisionError
from slipstream.console.state import ConsoleState
from slipstream.console.views.streams import MOST_ROWS, level
from slipstream.console.web import Endpoint, Problem, event, json_body, seconds_of, whole

MOST_BUCKETS = 1_000
MOST_KEYS = 500  # of a filter
MOST_DECODED = 20_000  # keys of a bucket with codecs, whose names the server cannot group
LONGEST = 64 * 1024
HEX = 4096
LONGEST_TTL = 100 * 366 * 86_400  # seconds
GATHER = 0.2  # seconds within which changes are sent as one event
HEARTBEAT = 20.0  # seconds


async def _buckets(state: ConsoleState, _: Request) -> Any:
    found: list[str] = []
    async for name in state.js.key_values():
        found.append(name)
        if len(found) >= MOST_BUCKETS:
            break
    return sorted(found)


async def _bucket(state: ConsoleState, request: Request) -> Any:
    status = await (await _open(state, request)).status()
    info, config = status.stream_info, status.stream_info.config
    return {
        "bucket": status.bucket,
        "keys": status.num_keys,
        "values": status.values,
        "history": status.history,
        "bytes": info.state.bytes,
        "last": info.state.last_seq,
        "ttl": config.max_age.total_seconds(),
        "value_ttl": bool(config.allow_msg_ttl),
        "replicas": config.num_replicas,
        "description": config.description,
        "stream": config.name,
        "codecs": [_codec_name(codec) for codec in _codecs(state, status.bucket)],
    }


def _codecs(state: ConsoleState, bucket: str) -> tuple[Any, ...]:
    return tuple(state.settings.codecs.get(bucket, ()))


def _codec_name(codec: Any) -> str:
    return type(codec).__name__


async def _open(state: ConsoleState, request: Request) -> Any:
    """A bucket, through its codecs. Handles with codecs are kept: one that decrypts first looks at all names."""
    name = request.path_params["bucket"]
    handles = state.shared.setdefault("buckets", {})
    if name not in handles:
        kv = await state.js.key_value(name)
        for codec in _codecs(state, name):
            kv = kv.with_codec(codec)
        if not _codecs(state, name):
            return kv
        handles[name] = kv
    return handles[name]


async def _keys(state: ConsoleState, request: Request) -> Any:
    """Keys that match a filter: nothing is counted or held but what is shown."""
    bucket, pattern = request.path_params["bucket"], request.query_params.get("filter", "") or ">"
    found: list[str] = []
    is_more = False
    async for key in _names(state, await _open(state, request), bucket, pattern):
        if len(found) >= MOST_KEYS:
            is_more = True
            break
        found.append(key)
    return {"keys": sorted(found), "more": is_more}


async def _names(state: ConsoleState, kv: Any, bucket: str, pattern: str) -> AsyncIterator[str]:
    if _codecs(state, bucket):
        async for key in kv.iter_keys(*([pattern] if pattern != ">" else [])):
            yield key
        return
    prefix = f"$KV.{bucket}."
    async for subject in state.js.stream(f"KV_{bucket}").subjects(prefix + pattern):
        yield subject.removeprefix(prefix)


async def _tree(state: ConsoleState, request: Request) -> Any:
    """One level of the tree of keys: the tokens behind a prefix, with how many keys."""
    bucket, query = request.path_params["bucket"], request.query_params
    prefix = query.get("prefix", "")
    if not _codecs(state, bucket):
        root = f"$KV.{bucket}"
        found = await level(
            state,
            f"KV_{bucket}",
            f"{root}.{prefix}" if prefix else root,
            whole(query.get("offset"), "offset"),
            whole_prefix=root,
        )
        return found | {"prefix": prefix}
    kv, read = await _open(state, request), 0
    tokens: dict[str, list[int]] = {}
    async for key in kv.iter_keys():
        if read >= MOST_DECODED:
            break
        read += 1
        if prefix and not key.startswith(f"{prefix}."):
            continue
        token, dot, _ = key[len(prefix) + 1 if prefix else 0 :].partition(".")
        row = tokens.setdefault(token, [0, 0, 0])
        row[0] += 1
        row[1] |= bool(dot)
        row[2] |= not dot
    rows = [
        {"token": token, "messages": count, "subjects": count, "deeper": bool(deeper), "leaf": bool(leaf)}
        for token, (count, deeper, leaf) in sorted(tokens.items())
    ]
    is_cut = read >= MOST_DECODED
    return {"prefix": prefix, "rows": rows[:MOST_ROWS], "tokens": len(rows), "read": read, "total": read, "next": 0,
            "cut": is_cut}  # fmt: skip


async def _entry(state: ConsoleState, request: Request) -> Any:
    kv, key = await _open(state, request), request.query_params["key"]
    history = await kv.history(key)
    return {"key": key, "history": [shown_entry(entry) for entry in reversed(history)]}


async def _changes(state: ConsoleState, request: Request) -> Response:
    """Keys that change from now on, as events: by a watch, whose consumer ends with the page."""
    kv, pattern = await _open(state, request), request.query_params.get("filter", "")
    watch = await kv.watch(*([pattern] if pattern else []), updates_only=True, meta_only=True)

    async def events() -> AsyncIterator[bytes]:
        try:
            yield event({"watching": True})
            while True:
                try:
                    entries = await watch.next_entries(timeout=HEARTBEAT)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                changes = [
                    {"key": one.key, "revision": one.revision, "operation": str(one.operation)}
                    for one in entries
                    if one is not None
                ]
                if changes:
                    yield event({"changes": changes[-MOST_KEYS:]})
                await asyncio.sleep(GATHER)
        except Error as error:
            yield event({"error": str(error)})
        finally:
            await watch.close()

    return StreamingResponse(events(), media_type="text/event-stream")


async def _put(state: ConsoleState, request: Request) -> Any:
    """Write a key if it is still at the revision that the page shows; 0: if it has no value."""
    kv, body = await _open(state, request), await json_body(request)
    key, last = str(body["key"]), whole(body["last"], "last")
    value = _value(state, request.path_params["bucket"], str(body["value"]))
    seconds = seconds_of(body.get("ttl"), "ttl", LONGEST_TTL)
    ttl = timedelta(seconds=seconds) if seconds > 0 else None
    try:
        revision = await (kv.update(key, value, last=last, ttl=ttl) if last else kv.create(key, value, ttl=ttl))
    except KeyRevisionError as error:
        history = await kv.history(key)
        raise Problem(409, str(error), current=shown_entry(history[-1]) if history else None) from error
    return {"revision": revision}


def _value(state: ConsoleState, bucket: str, text: str) -> Any:
    """A value as the outermost codec takes it: JSON and MessagePack take what JSON text says."""
    codecs = _codecs(state, bucket)
    if codecs and _codec_name(codecs[-1]) in ("Json", "MessagePack"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise Problem(400, f"the value must be JSON: {error}") from None
    return text.encode()


async def _delete(state: ConsoleState, request: Request) -> Any:
    kv, body = await _open(state, request), await json_body(request)
    try:
        return {"revision": await kv.delete(str(body["key"]), last=whole(body["last"], "last"))}
    except KeyRevisionError as error:
        raise Problem(409, str(error)) from error


def shown_entry(entry: Any) -> dict[str, Any]:
    """An entry as the page gets it: text where it is text, else hexadecimal; long values are cut."""
    value = entry.value
    if value is None:
        value = b""
    elif not isinstance(value, bytes):
        value = json.dumps(value, ensure_ascii=False, default=str).encode()
    try:
        text: str | None = (
            value[:LONGEST].decode() if len(value) <= LONGEST else value[:LONGEST].decode(errors="ignore")
        )
    except UnicodeDecodeError:
        text = None
    return {
        "revision": entry.revision,
        "created": entry.created // 1_000_000,
        "operation": str(entry.operation),
        "text": text,
        "hex": None if text is not None else value[:HEX].hex(),
        "size": len(value),
        "cut": len(value) > LONGEST,
        "expires": entry.expires // 1_000_000 if entry.expires > 0 else 0,
    }


ENDPOINTS = (
    Endpoint("/api/buckets", _buckets),
    Endpoint("/api/buckets/{bucket}", _bucket),
    Endpoint("/api/buckets/{bucket}/keys", _keys),
    Endpoint("/api/buckets/{bucket}/tree", _tree),
    Endpoint("/api/buckets/{bucket}/entry", _entry),
    Endpoint("/api/buckets/{bucket}/changes", _changes),
    Endpoint("/api/buckets/{bucket}/put", _put, writes=True),
    Endpoint("/api/buckets/{bucket}/delete", _delete, writes=True),
)
