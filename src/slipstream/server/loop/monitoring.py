"""HTTP server of the monitoring endpoints: nats-server's JSON, served on the server's own loop.

A minimal HTTP/1.1: GET and HEAD, responses with a length, connections kept open. Everything that a client sends is
bounded, in bytes and in time; nothing that it sends can change the server.
"""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec

from slipstream.errors import UsageError
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.monitoring import endpoints
from slipstream.server.loop.process_report import ServerReport

log = logging.getLogger("slipstream.server")

MAX_HEAD = 8 * 1024
MAX_CONNECTIONS = 100
IDLE = 30.0  # seconds between requests, and for one to arrive
UNREAD = 64 * 1024  # unsent bytes at which no more requests are answered
JSON, HTML, TEXT = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]  # status, type, body
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Monitor:
    """The endpoints of one server."""

    def __init__(self, engine: Engine, clock: Callable[[], int], report: ServerReport) -> None:
        self._engine, self._clock, self._report = engine, clock, report
        self._base = report.options.http_base_path.rstrip("/")
        self.open = 0
        self._endpoints: dict[str, Callable[[endpoints.Query], Answer]] = {
            "/": self._index,
            "/varz": lambda _: _json(self._report.varz()),
            "/connz": lambda query: _json(endpoints.connz(self._engine, self._clock(), query)),
            "/subsz": lambda query: _json(endpoints.subsz(self._engine, self._clock(), query)),
            "/subscriptionsz": lambda query: _json(endpoints.subsz(self._engine, self._clock(), query)),
            "/accountz": lambda query: _json(endpoints.accountz(self._engine, self._clock(), query)),
            "/jsz": lambda query: _json(endpoints.jsz(self._engine, self._clock(), query)),
            "/healthz": self._healthz,
        }

    def connection(self) -> asyncio.Protocol:
        return _HttpConnection(self)

    def answer(self, target: str) -> Answer:
        """The answer to a GET."""
        try:
            parts = urlsplit(target)
        except ValueError:
            return 404, TEXT, b"404 page not found\n"
        path = parts.path if not self._base or not parts.path.startswith(self._base) else parts.path[len(self._base) :]
        path = path.rstrip("/") or "/"
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            return 404, TEXT, b"404 page not found\n"
        self._report.requests[path] = self._report.requests.get(path, 0) + 1
        try:
            return endpoint(dict(parse_qsl(parts.query, max_num_fields=32)))
        except (UsageError, ValueError) as exc:
            return 400, TEXT, f"{exc}\n".encode()

    def _index(self, _: endpoints.Query) -> Answer:
        names = [name for name in self._endpoints if name not in ("/", "/subscriptionsz")]
        links = "\n".join(f'<li><a href="{html.escape(self._base + name)}">{name[1:]}</a></li>' for name in names)
        name = html.escape(self._engine.settings.server_name)
        page = f"<!doctype html><title>{name}</title><h1>Slipstream: {name}</h1><ul>\n{links}\n</ul>\n"
        return 200, HTML, page.encode()

    def _healthz(self, query: endpoints.Query) -> Answer:
        status, body = endpoints.healthz(self._engine, query)
        return status, JSON, msgspec.json.encode(body)


def _json(body: dict[str, Any]) -> Answer:
    return 200, JSON, msgspec.json.format(msgspec.json.encode(body), indent=2)


class _HttpConnection(asyncio.Protocol):
    """One connection of an HTTP client."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._is_stuck = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(high=UNREAD // 2)
        self._monitor.open += 1
        if self._monitor.open > MAX_CONNECTIONS:
            transport.close()
        self._set_deadline()

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._deadline = asyncio.get_running_loop().call_later(IDLE, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._monitor.open -= 1
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None

    def pause_writing(self) -> None:
        """The client does not read its responses: answer no more requests until it does."""
        self._is_stuck = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_stuck = False
        if self._transport is not None:
            self._transport.resume_reading()
            self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._transport is not None and not self._transport.is_closing() and not self._is_stuck:
            end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
            if end < 0:
                if len(self._buffer) >= MAX_HEAD:
                    self._send(400, TEXT, b"the request is too long\n", close=True)
                return
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            self._request(head.decode("latin-1"))
            if self._transport is not None and self._transport.get_write_buffer_size() > UNREAD:
                asyncio.get_running_loop().call_soon(self.data_received, b"")  # uvloop calls pause_writing later
                return

    def _request(self, head: str) -> None:
        line, *fields = head.split("\r\n")
        method, _, rest = line.partition(" ")
        target, _, version = rest.partition(" ")
        names = {name.strip().lower(): value.strip().lower() for name, _, value in (f.partition(":") for f in fields)}
        close = version != "HTTP/1.1" or "close" in names.get("connection", "")
        if method not in ("GET", "HEAD"):
            self._send(405, TEXT, b"the method must be GET or HEAD\n", close=True)  # a body may follow
            return
        if not version.startswith("HTTP/1.") or names.get("content-length", "0") != "0" or "transfer-encoding" in names:
            self._send(400, TEXT, b"the request must be HTTP/1 without a body\n", close=True)
            return
        try:
            status, kind, body = self._monitor.answer(target)
        except Exception:
            log.exception("internal error in the response to %r", target[:200])
            status, kind, body = 503, TEXT, b"internal error\n"
        self._send(status, kind, body, close=close, bare=method == "HEAD")
        self._set_deadline()

    def _send(self, status: int, kind: str, body: bytes, *, close: bool, bare: bool = False) -> None:
        assert self._transport is not None
        reason = _REASONS[status]
        head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        head += "Connection: close\r\n\r\n" if close else "\r\n"
        self._transport.write(head.encode() + (b"" if bare else body))
        if close:
            self._transport.close()
