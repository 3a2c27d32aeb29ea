"""Objects: lists, previews, downloads and uploads.

What is stored is never shown by the browser as a document: a download is an attachment in a sandbox, and a preview is
text, hexadecimal, or one of four kinds of picture, recognised by its first bytes and served under that type alone.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from slipstream.console.state import ConsoleState
from slipstream.console.web import BYTES, Endpoint, Problem

MOST_OBJECTS = 1_000
MOST_UNREADABLE = 20
PREVIEW = 64 * 1024
HEX = 4096
LARGEST_PICTURE = 8 * 1024 * 1024
PICTURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
SANDBOX = "sandbox; default-src 'none'"


async def _stores(state: ConsoleState, _: Request) -> Any:
    found: list[str] = []
    async for name in state.js.object_stores():
        found.append(name)
        if len(found) >= MOST_OBJECTS:
            break
    return sorted(found)


async def _objects(state: ConsoleState, request: Request) -> Any:
    store = await state.js.object_store(request.path_params["bucket"])
    found: list[dict[str, Any]] = []
    unreadable: list[str] = []
    async for one in store.list(malformed=lambda error: unreadable.append(str(error))):
        if len(found) >= MOST_OBJECTS:
            break
        found.append({"name": one.name, "size": one.size, "chunks": one.chunks, "digest": one.digest,
                      "mtime": one.mtime // 10**6, "description": one.description,
                      "link": bool(one.link)})  # fmt: skip
    status = await store.status()
    return {"objects": sorted(found, key=lambda one: str(one["name"])), "more": len(found) >= MOST_OBJECTS,
            "unreadable": unreadable[:MOST_UNREADABLE], "bytes": status.size, "sealed": status.sealed}  # fmt: skip


async def _start(state: ConsoleState, request: Request, most: int) -> tuple[Any, bytes]:
    """The description of an object, and its first bytes."""
    store = await state.js.object_store(request.path_params["bucket"])
    reader = await store.get(request.query_params["name"])
    data = bytearray()
    pieces: Any = aiter(reader)
    async with aclosing(pieces):
        async for piece in pieces:
            data += piece
            if len(data) >= most:
                break
    return reader.info, bytes(data[:most])


def _picture(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in PICTURES.items() if data.startswith(magic)), "")


async def _preview(state: ConsoleState, request: Request) -> Any:
    info, data = await _start(state, request, PREVIEW)
    try:
        text: str | None = data.decode() if info.size <= PREVIEW else data.decode(errors="ignore")
    except UnicodeDecodeError:
        text = None
    if text is not None and "\0" in text:
        text = None
    kind = _picture(data) if info.size <= LARGEST_PICTURE else ""
    return {"text": text, "hex": None if text is not None else data[:HEX].hex(), "size": info.size,
            "cut": info.size > (PREVIEW if text is not None else HEX), "picture": kind}  # fmt: skip


async def _show_picture(state: ConsoleState, request: Request) -> Response:
    info, data = await _start(state, request, LARGEST_PICTURE)
    kind = _picture(data)
    if not kind or info.size > LARGEST_PICTURE:
        raise Problem(415, "this object is not a displayable picture")
    return Response(data, media_type=kind, headers={"Content-Security-Policy": SANDBOX})


async def _download(state: ConsoleState, request: Request) -> Response:
    store = await state.js.object_store(request.path_params["bucket"])
    reader = await store.get(request.query_params["name"])
    name = quote(reader.info.name.rpartition("/")[2] or "object.bin", safe="")
    headers = {
        "Content-Disposition": f"attachment; filename=object.bin; filename*=UTF-8''{name}",
        "Content-Length": str(reader.info.size),
        "Content-Security-Policy": SANDBOX,
    }
    return StreamingResponse(reader, media_type=BYTES, headers=headers)


async def _upload(state: ConsoleState, request: Request) -> Any:
    """Store an object, in pieces as they arrive."""
    store = await state.js.object_store(request.path_params["bucket"])
    info = await store.put(request.query_params["name"], request.stream())
    return {"name": info.name, "size": info.size}


ENDPOINTS = (
    Endpoint("/api/objects", _stores),
    Endpoint("/api/objects/{bucket}", _objects),
    Endpoint("/api/objects/{bucket}/preview", _preview),
    Endpoint("/api/objects/{bucket}/picture", _show_picture),
    Endpoint("/api/objects/{bucket}/download", _download),
    Endpoint("/api/objects/{bucket}/upload", _upload, writes=True, body=BYTES, timeout=None),
)
