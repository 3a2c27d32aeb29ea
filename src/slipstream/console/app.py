"""The console's web application: a page without a build step, a JSON API, and live figures as server-sent events.

Everything below `/api` reads; what changes something is a POST or DELETE and is refused here unless the console was
started with `write`, whatever the page shows. Nothing of a payload is ever part of a page: the browser gets JSON and
makes text nodes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import slipstream
from slipstream import ApiError, Error, KeyRevisionError, MessageNotFoundError, StreamConfig, UsageError
from slipstream.console.access import HEADERS, Access
from slipstream.console.messages import PAGE, after, before, shown
from slipstream.console.sampler import Sampler

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
LARGEST_BODY = 8 * 1024 * 1024
MOST_KEYS = 500
MOST_SUBJECTS = 20_000
FAULTS = "$SLIPSTREAM.FAULTS."
Handler = Callable[[Request], Awaitable[Any]]


class _Problem(Exception):  # noqa: N818
    """A response that is no success."""

    def __init__(self, status: int, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.body = status, {"error": text} | more


class Console:
    """One console: an account of a server, and who may look at it."""

    def __init__(self, arguments: dict[str, Any], jetstream: dict[str, Any], access: Access, *, write: bool) -> None:
        """`arguments` are those of `connect`, `jetstream` those of `client.jetstream`."""
        self._arguments, self._jetstream = arguments, jetstream
        self.access, self.write = access, write
        self._client: slipstream.Client | None = None
        self._js: slipstream.JetStream | None = None
        self._sampler: Sampler | None = None

    @property
    def js(self) -> slipstream.JetStream:
        if self._js is None:
            raise _Problem(503, "the console is not connected")
        return self._js

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Connected while the application runs."""
        async with slipstream.connect(**self._arguments) as client:
            self._client, self._js = client, client.jetstream(**self._jetstream)
            self._sampler = Sampler(self._js)
            try:
                yield
            finally:
                self._sampler.close()
                self._client = self._js = self._sampler = None

    def app(self) -> ASGIApp:
        """The application."""
        get, post = ["GET"], ["POST"]
        routes = [
            Route("/", self._index, methods=get),
            Route("/static/{name}", self._static, methods=get),
            Route("/api/live", self._live, methods=get),
        ]
        reads: dict[str, Handler] = {
            "/api/about": self._about,
            "/api/streams/{stream}": self._stream,
            "/api/streams/{stream}/subjects": self._subjects,
            "/api/streams/{stream}/messages": self._messages,
            "/api/buckets": self._buckets,
            "/api/buckets/{bucket}": self._bucket,
            "/api/buckets/{bucket}/keys": self._keys,
            "/api/buckets/{bucket}/entry": self._entry,
            "/api/objects": self._stores,
            "/api/objects/{bucket}": self._objects,
            "/api/trust/{stream}": self._trust,
        }
        writes: dict[str, Handler] = {
            "/api/publish": self._publish,
            "/api/buckets/{bucket}/put": self._put,
            "/api/buckets/{bucket}/delete": self._delete,
            "/api/consumers/{stream}/{consumer}/pause": self._pause,
            "/api/faults/{command}": self._fault,
            "/api/streams/{stream}/config": self._configure,
            "/api/objects/{bucket}/upload": self._upload,
        }
        routes += [Route(path, self._json(handler), methods=get) for path, handler in reads.items()]
        routes += [Route(path, self._json(self._writing(handler)), methods=post) for path, handler in writes.items()]
        routes.append(Route("/api/objects/{bucket}/download", self._download, methods=get))
        return _Guard(Starlette(routes=routes, lifespan=self.lifespan), self.access)

    # Pages.

    async def _index(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def _static(self, request: Request) -> Response:
        path = STATIC / request.path_params["name"]
        if path.parent != STATIC or path.suffix not in TYPES or not path.is_file():
            return PlainTextResponse("no such file\n", 404)
        return FileResponse(path, media_type=TYPES[path.suffix])

    def _json(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            status, body = 200, None
            try:
                async with asyncio.timeout(30):
                    body = await handler(request)
            except _Problem as problem:
                status, body = problem.status, problem.body
            except TimeoutError:
                status, body = 504, {"error": "the server did not answer in time"}
            except KeyError as error:
                status, body = 400, {"error": f"{error} is missing"}
            except (UsageError, ValueError, msgspec.MsgspecError) as error:
                status, body = 400, {"error": str(error)}
            except ApiError as error:
                status, body = 404 if error.code == 404 else 409, {"error": str(error)}
            except MessageNotFoundError as error:
                status, body = 404, {"error": str(error)}
            except Error as error:
                status, body = 502, {"error": str(error)}
            return Response(msgspec.json.encode(body), status, media_type="application/json")

        return answer

    def _writing(self, handler: Handler) -> Handler:
        async def checked(request: Request) -> Any:
            if not self.write:
                raise _Problem(403, "this console is read-only; start it with --write to change things")
            # No form of another site can send these.
            kind = request.headers.get("content-type", "").split(";")[0]
            if kind != ("application/octet-stream" if handler == self._upload else "application/json"):
                raise _Problem(415, f"the body must not be {kind or 'without a type'}")
            return await handler(request)

        return checked

    @staticmethod
    async def _body(request: Request) -> dict[str, Any]:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > LARGEST_BODY:
                raise _Problem(413, f"the body is longer than {LARGEST_BODY} bytes")
        body = msgspec.json.decode(bytes(data))
        if not isinstance(body, dict):
            raise _Problem(400, "the body must be a JSON object")
        return body

    # Live figures.

    async def _live(self, _: Request) -> Response:
        sampler = self._sampler
        if sampler is None:
            return PlainTextResponse("not connected\n", 503)

        async def events() -> AsyncIterator[bytes]:
            async for sample in sampler.watch():
                yield b"data: %b\n\n" % msgspec.json.encode(sample)

        return StreamingResponse(events(), media_type="text/event-stream")

    # Reads.

    async def _about(self, _: Request) -> Any:
        assert self._client is not None
        server = self._client.server_info
        try:
            answer = await self._client.request(f"{FAULTS}now", b"{}", timeout=1)
            faults = b"error" not in answer.data
        except Error:
            faults = False
        return {
            "server": server.server_name,
            "version": server.version,
            "write": self.write,
            "faults": faults,
            "console": slipstream.__version__,
        }

    async def _stream(self, request: Request) -> Any:
        stream = self.js.stream(request.path_params["stream"])
        info = await stream.info()
        consumers = []
        if info.state.consumer_count:
            async for one in stream.consumers():
                consumers.append(one.to_dict())
                if len(consumers) >= 200:
                    break
        return info.to_dict() | {"consumers": consumers}

    async def _subjects(self, request: Request) -> Any:
        """One level of the tree of subjects: the tokens behind a prefix, with how many messages and subjects."""
        prefix = request.query_params.get("prefix", "")
        pattern = f"{prefix}.>" if prefix else ">"
        info = await self.js.stream(request.path_params["stream"]).info(subjects_filter=pattern)
        skip = len(prefix) + 1 if prefix else 0
        level: dict[str, list[int]] = {}
        for count, (subject, messages) in enumerate(info.state.subjects.items()):
            if count >= MOST_SUBJECTS:
                break
            token, dot, _ = subject[skip:].partition(".")
            found = level.setdefault(token, [0, 0, 0])
            found[0] += messages
            found[1] += 1
            found[2] |= bool(dot)
        rows = [
            {"token": token, "messages": messages, "subjects": subjects, "deeper": bool(deeper)}
            for token, (messages, subjects, deeper) in sorted(level.items())
        ]
        return {
            "prefix": prefix,
            "rows": rows[:1000],
            "cut": len(info.state.subjects) > MOST_SUBJECTS or len(rows) > 1000,
        }

    async def _messages(self, request: Request) -> Any:
        query = request.query_params
        stream, subject = self.js.stream(request.path_params["stream"]), query.get("subject", "")
        state = (await stream.info()).state
        last = state.last_seq
        if moment := query.get("time"):
            start = datetime.fromisoformat(moment)
            start = start if start.tzinfo else start.replace(tzinfo=UTC)
            found = []
            async for message in stream.read(start_time=start, subject=subject, min_last_seq=last):
                found = await after(stream, message.seq, subject, least=last)
                break
        elif "before" in query:
            upto = min(int(query["before"]), last + 1)
            found = await before(stream, upto, subject, first=state.first_seq, least=last)
        elif "after" in query:
            found = await after(stream, int(query["after"]), subject, least=last)
        else:
            found = await before(stream, last + 1, subject, first=state.first_seq, least=last)
        return {
            "first": state.first_seq,
            "last": state.last_seq,
            "messages": [shown(message) for message in found],
            "page": PAGE,
        }

    async def _buckets(self, _: Request) -> Any:
        found = []
        async for name in self.js.key_values():
            found.append(name)
            if len(found) >= 1000:
                break
        return sorted(found)

    async def _bucket(self, request: Request) -> Any:
        status = await (await self._open(request)).status()
        state = status.stream_info.state
        return {
            "bucket": status.bucket,
            "keys": status.num_keys,
            "values": status.values,
            "history": status.history,
            "bytes": state.bytes,
            "last": state.last_seq,
            "ttl": status.stream_info.config.max_age.total_seconds(),
            "description": status.stream_info.config.description,
        }

    async def _open(self, request: Request) -> Any:
        return await self.js.key_value(request.path_params["bucket"])

    async def _keys(self, request: Request) -> Any:
        """Keys that match, page by page from the stream's subjects: nothing is counted or held but what is shown."""
        bucket, pattern = request.path_params["bucket"], request.query_params.get("filter", "") or ">"
        prefix = f"$KV.{bucket}."
        found: list[str] = []
        is_more = False
        async for subject in self.js.stream(f"KV_{bucket}").subjects(prefix + pattern):
            if len(found) >= MOST_KEYS:
                is_more = True
                break
            found.append(subject.removeprefix(prefix))
        return {"keys": sorted(found), "more": is_more}

    async def _entry(self, request: Request) -> Any:
        kv, key = await self._open(request), request.query_params["key"]
        history = await kv.history(key)
        return {"key": key, "history": [_entry_shown(entry) for entry in reversed(history)]}

    async def _stores(self, _: Request) -> Any:
        return sorted([name async for name in self.js.object_stores()])

    async def _objects(self, request: Request) -> Any:
        store = await self.js.object_store(request.path_params["bucket"])
        found: list[dict[str, Any]] = []
        async for one in store.list():
            found.append({"name": one.name, "size": one.size, "chunks": one.chunks, "digest": one.digest,
                          "mtime": one.mtime // 10**6, "description": one.description})  # fmt: skip
            if len(found) >= 1000:
                break
        return sorted(found, key=lambda one: str(one["name"]))

    async def _download(self, request: Request) -> Response:
        try:
            store = await self.js.object_store(request.path_params["bucket"])
            reader = await store.get(request.query_params["name"])
        except (Error, KeyError, _Problem) as error:
            return PlainTextResponse(f"{error}\n", 404)
        headers = {
            "Content-Disposition": "attachment; filename=object.bin",
            "Content-Length": str(reader.info.size),
            "Content-Security-Policy": "sandbox; default-src 'none'",
        }
        return StreamingResponse(reader, media_type="application/octet-stream", headers=headers)

    async def _trust(self, request: Request) -> Any:
        """The last message of a subject, by a trusted read and then by plain Direct Gets."""
        stream_name, query = request.path_params["stream"], request.query_params
        stream, subject = self.js.stream(stream_name), query["subject"]
        wanted = int(query.get("min_last_seq", "0") or 0)
        assert self._client is not None
        if not wanted:
            wanted = (await stream.info()).state.last_seq
        before_stats, began = self.js.read_stats, time.perf_counter()
        result: dict[str, Any] = {}
        try:
            message = await stream.get_last(subject, min_last_seq=wanted, timeout=5)
            result = {"seq": message.seq, "message": shown(message), "stream": message.stream}
        except MessageNotFoundError:
            result = {"seq": 0, "absent": True}
        except slipstream.StaleReadError as error:
            result = {"error": str(error)}
        spent, stats = time.perf_counter() - began, self.js.read_stats
        path = next((name for name in ("at_once", "from_leader", "retried", "failed")
                     if getattr(stats, name) > getattr(before_stats, name)), "")  # fmt: skip
        # After the trusted read: a plain one that shows an older message now is stale, whatever is published meanwhile.
        plain = []
        body = msgspec.json.encode({"last_by_subj": subject, "as_of": True})
        for _ in range(12):
            began = time.perf_counter()
            answer = await self._client.request(f"{self.js.prefix}.DIRECT.GET.{stream_name}", body, timeout=5)
            headers: Any = answer.headers or {}
            plain.append(
                {
                    "who": headers.get("Slipstream-Responder") or headers.get("Nats-Stream") or "",
                    "as_of": int(headers.get("Slipstream-As-Of") or 0),
                    "seq": int(headers.get("Nats-Sequence") or 0),
                    "ms": round((time.perf_counter() - began) * 1000, 2),
                    "found": answer.status is None,
                }
            )
        replicas: list[Any] = []
        with contextlib.suppress(Error, msgspec.MsgspecError):
            request_body = msgspec.json.encode({"stream": stream_name})
            reply = await self._client.request(f"{FAULTS}replicas", request_body, timeout=1)
            replicas = msgspec.json.decode(reply.data).get("replicas", [])
        return {"min_last_seq": wanted, "plain": plain, "replicas": replicas,
                "trusted": result | {"ms": round(spent * 1000, 2), "path": path}}  # fmt: skip

    # Writes.

    async def _publish(self, request: Request) -> Any:
        body = await self._body(request)
        headers = {str(name): str(value) for name, value in (body.get("headers") or {}).items()}
        ack = await self.js.publish(str(body["subject"]), str(body.get("data", "")).encode(), headers=headers or None)
        return {"stream": ack.stream, "seq": ack.seq, "duplicate": ack.duplicate}

    async def _configure(self, request: Request) -> Any:
        """Change the configuration of a stream, if it is still the one that the page shows."""
        body = await self._body(request)
        name, shown_config, wanted = request.path_params["stream"], body["shown"], body["wanted"]
        current = (await self.js.stream(name).info()).config
        if current != StreamConfig.from_dict(shown_config):
            raise _Problem(409, "the configuration was changed meanwhile", current=current.to_dict())
        if wanted.get("name") != name:
            raise _Problem(400, f"name must be {name!r}: streams cannot be renamed")
        config = StreamConfig.from_dict(current.to_dict() | wanted)
        return (await self.js.update_stream(config)).config.to_dict()

    async def _upload(self, request: Request) -> Any:
        """Store an object, in pieces as they arrive."""
        store = await self.js.object_store(request.path_params["bucket"])
        info = await store.put(request.query_params["name"], request.stream())
        return {"name": info.name, "size": info.size}

    async def _put(self, request: Request) -> Any:
        """Write a key if it is still at the revision that the page shows; 0: if it has no value."""
        kv, body = await self._open(request), await self._body(request)
        key, value, last = str(body["key"]), str(body["value"]).encode(), int(body["last"])
        try:
            revision = await (kv.update(key, value, last=last) if last else kv.create(key, value))
        except KeyRevisionError as error:
            history = await kv.history(key)
            raise _Problem(409, str(error), current=_entry_shown(history[-1]) if history else None) from error
        return {"revision": revision}

    async def _delete(self, request: Request) -> Any:
        kv, body = await self._open(request), await self._body(request)
        try:
            return {"revision": await kv.delete(str(body["key"]), last=int(body["last"]))}
        except KeyRevisionError as error:
            raise _Problem(409, str(error)) from error

    async def _pause(self, request: Request) -> Any:
        stream, name = request.path_params["stream"], request.path_params["consumer"]
        consumer = await self.js.stream(stream).consumer(name)
        seconds = float((await self._body(request)).get("seconds", 0))
        if seconds <= 0:
            await consumer.resume()
        else:
            await consumer.pause(datetime.now(UTC) + timedelta(seconds=seconds))
        return {"paused": (await consumer.info()).paused}

    async def _fault(self, request: Request) -> Any:
        command = request.path_params["command"]
        if command not in ("hold", "release"):
            raise _Problem(404, "the commands are hold and release")
        assert self._client is not None
        answer = await self._client.request(f"{FAULTS}{command}", msgspec.json.encode(await self._body(request)))
        return msgspec.json.decode(answer.data)


def _entry_shown(entry: Any) -> dict[str, Any]:
    value = entry.value or b""
    try:
        text: str | None = value[:65536].decode()
    except UnicodeDecodeError:
        text = None
    return {
        "revision": entry.revision,
        "created": entry.created // 1_000_000,
        "operation": str(entry.operation),
        "text": text,
        "hex": None if text is not None else value[:4096].hex(),
        "size": len(value),
        "expires": entry.expires // 1_000_000 if entry.expires > 0 else 0,
    }


class _Guard:
    """Checks every request before the application sees it, and adds the headers of every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is no WebSocket here
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

        request = Request(scope)
        await self._checked(request)(scope, receive, send_safely)

    def _checked(self, request: Request) -> ASGIApp:
        token = request.query_params.get("token")
        if request.url.path == "/" and token is not None:
            if foreign := self._access.foreign(request.headers):
                return PlainTextResponse(f"{foreign[1]}\n", foreign[0])
            if not self._access.is_token(token):
                return PlainTextResponse("this is not the token of the console\n", 401)
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict", path="/")
            return answer
        if problem := self._access.problem(request.headers, request.cookies):
            return PlainTextResponse(f"{problem[1]}\n", problem[0])
        return self._app
