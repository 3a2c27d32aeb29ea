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
from slipstream.metrics.exposition import CONTENT_TYPE
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.jobs import SLICE_UNITS, Job, Progress
from slipstream.server.engine.monitoring import endpoints
from slipstream.server.engine.monitoring.metrics import metrics
from slipstream.server.engine.ports import Walk
from slipstream.server.loop.process_report import ServerReport

log: logging.Logger = logging.getLogger("slipstream.server")

MAX_HEAD = 8 * 1024
MAX_CONNECTIONS = 100
IDLE = 30.0  # seconds between requests, and for one to arrive
REQUEST_UNITS = 16  # of work (`engine.jobs`) that a request counts for at least
MONITORING = "\0monitoring"  # gets its turns as if it were an account; no account has that name
UNREAD = 64 * 1024  # unsent bytes at which no more requests are answered
JSON, HTML, TEXT = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]  # status, type, body
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Monitor:
    """The endpoints of one server."""

    def __init__(
        self, engine: Engine, clock: Callable[[], int], report: ServerReport, wake: Callable[[], None]
    ) -> None:
        """`wake` has the server take a turn."""
        self._wake = wake
        self._engine, self._clock, self._report = engine, clock, report
        self._base = report.options.http_base_path.rstrip("/")
        self.open = 0
        self._endpoints: dict[str, Callable[[endpoints.Query], Answer | Walk[Answer]]] = {
            "/": self._index,
            "/varz": lambda _: _json(self._report.varz()),
            "/connz": lambda query: _page(endpoints.connz(self._engine, self._clock(), query)),
            "/subsz": lambda query: _page(endpoints.subsz(self._engine, self._clock(), query)),
            "/subscriptionsz": lambda query: _page(endpoints.subsz(self._engine, self._clock(), query)),
            "/accountz": lambda query: _json(endpoints.accountz(self._engine, self._clock(), query)),
            "/jsz": lambda query: _page(endpoints.jsz(self._engine, self._clock(), query)),
            "/healthz": self._healthz,
            "/metrics": self._metrics,
        }

    def connection(self) -> asyncio.Protocol:
        return _HttpConnection(self)

    def answer(self, target: str) -> Walk[Answer]:
        """The answer to a GET, in slices."""
        yield REQUEST_UNITS
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
            page = endpoint(dict(parse_qsl(parts.query, max_num_fields=32)))
            return page if isinstance(page, tuple) else (yield from page)
        except (UsageError, ValueError) as exc:
            return 400, TEXT, f"{exc}\n".encode()

    def start(self, job: Job) -> None:
        """Make a page, in turn with the work for clients. Each connection is an owner of its own."""
        self._engine.jobs.go_on(job, MONITORING, job)
        self._wake()

    def _index(self, _: endpoints.Query) -> Answer:
        names = [name for name in self._endpoints if name not in ("/", "/subscriptionsz")]
        links = "\n".join(f'<li><a href="{html.escape(self._base + name)}">{name[1:]}</a></li>' for name in names)
        name = html.escape(self._engine.settings.server_name)
        page = f"<!doctype html><title>{name}</title><h1>Slipstream: {name}</h1><ul>\n{links}\n</ul>\n"
        return 200, HTML, page.encode()

    def _metrics(self, query: endpoints.Query) -> Walk[Answer]:
        report = self._report
        page = yield from metrics(self._engine, self._clock(), report.varz(), report.commits(), query)
        return 200, CONTENT_TYPE, page

    def _healthz(self, query: endpoints.Query) -> Answer:
        status, body = endpoints.healthz(self._engine, query)
        return status, JSON, msgspec.json.encode(body)


def _page(walk: Walk[dict[str, Any]]) -> Walk[Answer]:
    body = yield from walk
    data = msgspec.json.encode(body)
    yield len(data) // 2048  # the encoding is in one piece
    return 200, JSON, msgspec.json.format(data, indent=2)


def _json(body: dict[str, Any]) -> Answer:
    return 200, JSON, msgspec.json.format(msgspec.json.encode(body), indent=2)


class _Page:
    """A page that is being made, as a job."""

    def __init__(self, walk: Walk[Answer], target: str, answered: Callable[[Answer], None]) -> None:
        self._walk, self._target, self._answered = walk, target, answered
        self._is_wanted = True

    def give_up(self) -> None:
        """The client has left."""
        self._is_wanted = False

    def run(self) -> tuple[Progress, int]:
        units = 0
        if not self._is_wanted:
            self._walk.close()
            return Progress.DONE, 0
        try:
            while units < SLICE_UNITS:
                units += next(self._walk)
        except StopIteration as end:
            self._answered(end.value)
            return Progress.DONE, units
        except Exception:
            log.exception("internal error in the response to %r", self._target[:200])
            self._answered((503, TEXT, b"internal error\n"))
            return Progress.DONE, units
        return Progress.MORE, units


class _HttpConnection(asyncio.Protocol):
    """One connection of an HTTP client."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._is_stuck = False
        self._page: _Page | None = None  # that is being made: requests of one connection are answered in order
        self._is_last = self._is_bare = False
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
        if self._page is not None:
            self._page.give_up()

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
        if len(self._buffer) > 8 * MAX_HEAD and self._transport is not None:  # it sends faster than it is answered
            self._transport.pause_reading()
        while (
            self._transport is not None
            and not self._transport.is_closing()
            and not self._is_stuck
            and self._page is None
        ):
            if len(self._buffer) <= 8 * MAX_HEAD:
                self._transport.resume_reading()
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
        self._page = _Page(self._monitor.answer(target), target, self._answered)
        self._is_last, self._is_bare = close, method == "HEAD"
        self._monitor.start(self._page)

    def _answered(self, answer: Answer) -> None:
        self._page = None
        if self._transport is not None and not self._transport.is_closing():
            self._send(*answer, close=self._is_last, bare=self._is_bare)
            self._set_deadline()
            if self._buffer:
                asyncio.get_running_loop().call_soon(self.data_received, b"")

    def _send(self, status: int, kind: str, body: bytes, *, close: bool, bare: bool = False) -> None:
        assert self._transport is not None
        reason = _REASONS[status]
        head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        head += "Connection: close\r\n\r\n" if close else "\r\n"
        self._transport.write(head.encode() + (b"" if bare else body))
        if close:
            self._transport.close()
