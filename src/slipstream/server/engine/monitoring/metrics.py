"""The page `/metrics`: everything that `/varz` and `/jsz` report, reads by replica, and commits, for Prometheus.

It is a walk (`ports.Walk`): made in slices, however many streams and consumers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slipstream.metrics.exposition import Exposition, Histogram, label_set
from slipstream.metrics.server import FAMILIES, add_account, add_consumer, add_server, add_stream, stream_labels
from slipstream.server.engine.api.consumers import consumer_info
from slipstream.server.engine.api.responses import stream_info
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.monitoring import endpoints
from slipstream.server.engine.ports import Walk
from slipstream.server.engine.streams.stream import Stream


class CommitReport(NamedTuple):
    """How the commits of one store went."""

    storage: str
    seconds: Histogram
    changes: Histogram
    failures: int


def metrics(
    engine: Engine, now: int, varz: Mapping[str, Any], commits: Iterable[CommitReport], query: endpoints.Query
) -> Walk[bytes]:
    """The page. `streams=0` leaves out streams and consumers, `consumers=0` consumers."""
    page = Exposition(FAMILIES)
    add_server(page, varz)
    for report in commits:
        labels = label_set(storage=report.storage)
        page.add_histogram("commit_seconds", report.seconds, labels)
        page.add_histogram("commit_changes", report.changes, labels)
        page.add("commit_failures_total", report.failures, labels)
    yield 16
    if engine.settings.jetstream and query.get("streams") != "0":
        yield from _streams(page, engine, now, query.get("consumers") != "0")
    parts: list[bytes] = []
    for part in page.pieces():
        parts.append(part)
        yield 1 + len(part) // 4096
    return b"".join(parts)


def _streams(page: Exposition, engine: Engine, now: int, consumers: bool) -> Walk[None]:
    for account in list(engine.accounts):
        if not engine.has_jetstream(account.name):
            continue
        add_account(page, account.name, endpoints.jetstream_stats(engine, account), len(account.streams))
        yield 4 + len(account.streams) // 4
        for name in sorted(account.streams):
            stream = account.streams.get(name)
            if stream is None:  # deleted since
                continue
            labels = stream_labels(account.name, name)
            add_stream(page, labels, stream_info(stream, now))
            _add_reads(page, labels, stream)
            yield 20
            for one in list(stream.consumers.items.values()) if consumers else ():
                add_consumer(page, labels, consumer_info(one))
                yield 10


def _add_reads(page: Exposition, labels: str, stream: Stream) -> None:
    for peer in stream.replicas.peers:
        own, reads = f"{labels},{label_set(replica=peer.peer)}", peer.reads
        for kind, count in (("single", reads.single), ("batch", reads.batch), ("last", reads.last)):
            page.add("stream_reads_total", count, f'{own},kind="{kind}"')
        page.add("stream_reads_waited_total", reads.waited, own)
        page.add("stream_reads_rejected_total", reads.rejected, own)
        page.add("stream_reads_redirected_total", reads.redirected, own)
