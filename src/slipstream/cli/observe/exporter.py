"""`slipstream exporter`: the metrics of any NATS server for Prometheus.

It asks the monitoring endpoints of one or more servers (`--monitor`), or else JetStream's API over a connection, which
also works where no monitoring port can be reached; that shows the account of the login, and not the server as a whole.
Servers are asked when Prometheus asks, one scrape at a time. A server that does not answer has `slipstream_up 0`.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import urlsplit

from slipstream import BlockingClient
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.errors import Error, UsageError
from slipstream.metrics.exposition import CONTENT_TYPE, Exposition, label_set
from slipstream.metrics.monitoring import report_request
from slipstream.metrics.server import (
    FAMILIES,
    add_account,
    add_consumer,
    add_jsz,
    add_server,
    add_stream,
    stream_labels,
)

LARGEST = 256 * 1024 * 1024  # bytes of a report
FRESH = 1.0  # seconds for which a page is served again


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "exporter",
        _run,
        "serve the metrics of a NATS server to Prometheus",
        examples="  slipstream exporter --monitor http://127.0.0.1:8222\n  slipstream exporter -s nats://hub:4222",
    )
    parser.add_argument(
        "--monitor",
        action="append",
        default=[],
        metavar="URL",
        help="monitoring URL of a server; may be repeated (default: use the JetStream API)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=7778, help="port to listen on, 0 for a free one (default: 7778)")
    parser.add_argument(
        "--account", default="", metavar="NAME", help="label of the account (default: that of the login)"
    )
    parser.add_argument("--no-consumers", action="store_true", help="leave out consumers")
    parser.add_argument("--once", action="store_true", help="print the page and exit")


def _port(text: str) -> int:
    port = values.whole(text)
    if port > 65535:
        raise argparse.ArgumentTypeError(f"port must be at most 65535, got {port}")
    return port


class Source(Protocol):
    """Something to ask for metrics."""

    name: str

    def fill(self, page: Exposition, timeout: float) -> None:
        """Add its samples; raises where it cannot."""

    def close(self) -> None:
        """Nothing more is asked."""


class MonitorSource:
    """The monitoring endpoints of a server."""

    def __init__(self, url: str, *, consumers: bool) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--monitor must be an http or https URL, got {url!r}")
        self._url, self._consumers = url.rstrip("/"), consumers
        self.name: str = parts.netloc.rpartition("@")[2]  # without a password

    def fill(self, page: Exposition, timeout: float) -> None:
        """Read `/varz` and `/jsz`."""
        add_server(page, self._read("/varz", timeout))
        add_jsz(page, self._read(f"/jsz?streams=1&config=1&consumers={int(self._consumers)}", timeout))

    def close(self) -> None:
        """Each request has its own connection."""

    def _read(self, path: str, timeout: float) -> dict[str, Any]:
        with urllib.request.urlopen(report_request(self._url, path), timeout=timeout) as answer:
            body = answer.read(LARGEST + 1)
        if len(body) > LARGEST:
            raise ValueError(f"the response to {path} exceeds {LARGEST} bytes")
        report: dict[str, Any] = json.loads(body)
        return report


class ApiSource:
    """JetStream's API, over a connection that is opened again when it is lost."""

    def __init__(self, shell: Shell, *, account: str, consumers: bool) -> None:
        self._shell, self._account, self._consumers = shell, account, consumers
        self._client: BlockingClient | None = None
        self.name = "api"

    def fill(self, page: Exposition, timeout: float) -> None:
        """List the streams and consumers of the account."""
        if self._client is None or self._client.is_closed:
            self._client = self._shell.connect()
        js, server = self._shell.jetstream(self._client), self._client.server_info
        page.add("server_info", 1, label_set(id=server.server_id, name=server.server_name, version=server.version))
        streams = list(js.streams(timeout=timeout))
        account = self._account or "$G"
        add_account(page, account, js.account_info(timeout=timeout).to_dict(), len(streams))
        for info in streams:
            labels = stream_labels(account, info.config.name)
            add_stream(page, labels, info.to_dict())
            if self._consumers and info.state.consumer_count:
                with suppress(Error):  # deleted since
                    for consumer in js.stream(info.config.name).consumers(timeout=timeout):
                        add_consumer(page, labels, consumer.to_dict())

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


class Exporter:
    """Pages of several sources; one is made at a time, and served again to scrapes that follow at once."""

    def __init__(self, sources: Iterable[Source], timeout: float) -> None:
        self._sources, self._timeout = list(sources), timeout
        self._lock = threading.Lock()
        self._page, self._made = b"", -FRESH

    def page(self) -> bytes:
        """The page as of now."""
        with self._lock:
            if time.monotonic() - self._made >= FRESH:
                self._page, self._made = self._make(), time.monotonic()
            return self._page

    def close(self) -> None:
        """Close the connections."""
        for source in self._sources:
            source.close()

    def _make(self) -> bytes:
        many = len(self._sources) > 1
        merged = Exposition(FAMILIES)
        for source in self._sources:
            own = Exposition(FAMILIES)
            labels, began = label_set(target=source.name) if many else "", time.monotonic()
            try:
                source.fill(own, self._timeout)
            # A target may answer anything: one that is no NATS server must not take the others off the page.
            except Exception:  # half a report is none
                own = Exposition(FAMILIES)
                own.add("up", 0)
            else:
                own.add("up", 1)
            own.add("scrape_seconds", round(time.monotonic() - began, 6))
            merged.merge(own, labels)
        return merged.encode()


def _run(shell: Shell) -> None:
    options = shell.options
    consumers = not options.no_consumers
    sources: list[Source] = [MonitorSource(url, consumers=consumers) for url in options.monitor]
    exporter = Exporter(sources or [ApiSource(shell, account=options.account, consumers=consumers)], shell.timeout)
    with closing(exporter):
        if options.once:
            print(exporter.page().decode(), end="")
        else:
            _serve(shell, exporter)


def _serve(shell: Shell, exporter: Exporter) -> None:
    with serve(exporter, shell.options.host, shell.options.port) as server:
        host, port = server.server_address[:2]
        shell.out.note(f"metrics are served on http://{host!s}:{port}/metrics")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def serve(exporter: Exporter, host: str, port: int) -> ThreadingHTTPServer:
    """The HTTP server of an exporter, listening."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0  # for a request to arrive

        def do_GET(self) -> None:
            is_page = urlsplit(self.path).path == "/metrics"
            body = exporter.page() if is_page else b"the metrics are at /metrics\n"
            self.send_response(200 if is_page else 404)
            self.send_header("Content-Type", CONTENT_TYPE if is_page else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Scrapes are not logged."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    server.daemon_threads = True
    return server
