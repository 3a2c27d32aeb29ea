"""Metrics of a run for Prometheus: a page made from what the run knows, and an HTTP server for it.

A scrape asks neither Spark nor a NATS server: it shows what the supervision of the queries has last seen. The endpoint
listens on the loopback interface unless an address is named, since it asks for no password.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from slipstream.errors import UsageError
from slipstream.metrics.exposition import CONTENT_TYPE, Exposition, Family, label_set
from slipstream.spark.pipelines.state import QueryState

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
FAMILIES = {
    "up": Family("gauge", "1 while the query runs, 0 while it waits for a restart or has been given up."),
    "failed": Family("gauge", "1 if the query failed for good and is not restarted."),
    "rows_read_total": Family("counter", "Messages that the query has read in this run."),
    "rows_written_total": Family("counter", "Rows for the target, those that it rejected included, in this run."),
    "rows_late_total": Family("counter", "Rows that arrived behind the watermark and were dropped, in this run."),
    "batches_total": Family("counter", "Micro-batches with rows in this run."),
    "failures_total": Family("counter", "Failures of the query in this run, also those it recovered from."),
    "batch": Family("gauge", "Number of the last micro-batch with rows."),
    "batch_seconds": Family("gauge", "Duration of the last micro-batch with rows."),
    "batch_timestamp_seconds": Family("gauge", "When the last micro-batch with rows ended, as Unix time."),
    "lag_messages": Family("gauge", "Messages that the query has still to read."),
    "lag_seconds": Family("gauge", "Age of the oldest message that the query has still to read."),
    "dead_letters": Family("gauge", "Dead letters of the output or source in the dead-letter stream."),
    "skipped_messages": Family("gauge", "Messages that were removed before they were read."),
    "state_rows": Family("gauge", "Rows in the state of the query, such as groups of an aggregate."),
}


def metrics_page(
    pipeline: str, states: Mapping[str, QueryState], lags: Mapping[str, int], running: Mapping[str, bool]
) -> bytes:
    """The page for these queries."""
    page = Exposition(FAMILIES, prefix="slipstream_pipeline_")
    for name, one in states.items():
        labels = label_set(pipeline=pipeline, output=name)
        page.add("up", int(running.get(name, False)), labels)
        page.add("failed", int(one.is_failed), labels)
        page.add("rows_read_total", one.rows, labels)
        if one.written >= 0:
            page.add("rows_written_total", one.written, labels)
        page.add("rows_late_total", one.late, labels)
        page.add("batches_total", one.batches, labels)
        page.add("failures_total", one.failures, labels)
        if one.batch >= 0:
            page.add("batch", one.batch, labels)
            page.add("batch_seconds", one.batch_seconds, labels)
        if one.at:
            page.add("batch_timestamp_seconds", datetime.fromisoformat(one.at).timestamp(), labels)
        if name in lags:
            page.add("lag_messages", lags[name], labels)
            page.add("lag_seconds", round(one.lag_seconds, 3), labels)
        page.add("dead_letters", one.dead, labels)
        page.add("skipped_messages", one.skipped, labels)
        page.add("state_rows", one.state_rows, labels)
    return page.encode()


def parse_address(text: str) -> tuple[str, int]:
    """`port`, `host:port` or `[IPv6]:port` as host and port; a port alone is on the loopback interface."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
        raise UsageError(f"metrics must be a port or host:port, such as 9465 or 0.0.0.0:9465, got {text!r}")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)


@contextmanager
def metrics_endpoint(address: str, page: Callable[[], bytes]) -> Iterator[str]:
    """Serve the page at `/metrics` meanwhile; yields its URL, empty if there is no address."""
    if not address:
        yield ""
        return
    host, port = parse_address(address)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0  # for a request to arrive

        def do_GET(self) -> None:
            is_page = urlsplit(self.path).path == "/metrics"
            body = page() if is_page else b"the metrics are at /metrics\n"
            self.send_response(200 if is_page else 404)
            self.send_header("Content-Type", CONTENT_TYPE if is_page else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Scrapes are not logged."""

    class Endpoint(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        server = Endpoint((host, port), Handler)
    except OSError as error:
        raise UsageError(f"metrics cannot be served on {host}:{port}: {error.strerror or error}") from error
    serving = threading.Thread(target=server.serve_forever, name="pipeline-metrics", daemon=True)
    serving.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        serving.join(10)
