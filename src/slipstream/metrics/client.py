"""Metrics of a program that uses the client, collected when they are asked for: nothing is counted for their sake.

`ClientMetrics` reads the statistics that a connection and its workers keep anyway. It can be registered with
prometheus_client, or render its own page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from slipstream.metrics.exposition import Exposition, Family, label_set

CLIENT_FAMILIES: dict[str, Family] = {
    "client_sent_messages_total": Family("counter", "Messages that the connection sent."),
    "client_sent_bytes_total": Family("counter", "Bytes of messages that the connection sent."),
    "client_received_messages_total": Family("counter", "Messages that the connection received."),
    "client_received_bytes_total": Family("counter", "Bytes of messages that the connection received."),
    "client_reconnects_total": Family("counter", "Reconnections."),
    "client_published_total": Family("counter", "Messages published to streams."),
    "client_acked_total": Family("counter", "Published messages that a stream acknowledged."),
    "client_duplicates_total": Family("counter", "Acknowledged messages that the stream had already."),
    "client_trusted_reads_total": Family("counter", "Trusted reads, by what made the answer one to trust."),
    "client_server_moves_total": Family("counter", "Moves to another server because a read was not answered."),
    "worker_handled_total": Family("counter", "Messages whose handler returned."),
    "worker_failed_total": Family("counter", "Messages whose handler raised."),
    "worker_redelivered_total": Family("counter", "Handled or failed messages that were not the first delivery."),
    "worker_dead_lettered_total": Family("counter", "Messages stored as dead letters."),
    "worker_in_flight": Family("gauge", "Messages in handlers."),
    "worker_waiting": Family("gauge", "Messages that wait for an earlier one of their subject."),
    "worker_lag_messages": Family("gauge", "Messages the consumer had left to deliver, with the newest one handled."),
    "worker_handler_seconds": Family("summary", "Time in handlers."),
}


class ConnectionStatistics(Protocol):
    """`client.stats`."""

    @property
    def in_msgs(self) -> int: ...
    @property
    def in_bytes(self) -> int: ...
    @property
    def out_msgs(self) -> int: ...
    @property
    def out_bytes(self) -> int: ...
    @property
    def reconnects(self) -> int: ...


class Connection(Protocol):
    """A client."""

    @property
    def stats(self) -> ConnectionStatistics: ...


class JetStreamLike(Protocol):
    """`client.jetstream()`, of either driver."""

    @property
    def client(self) -> Connection: ...
    @property
    def publish_stats(self) -> Any: ...
    @property
    def read_stats(self) -> Any: ...


class WorkerLike(Protocol):
    """A running `consume()`, of either driver."""

    @property
    def stats(self) -> Any: ...


class ClientMetrics:
    """Metrics of one connection, and of the workers that `watch` was called with.

    `REGISTRY.register(ClientMetrics(js))` adds them to those that prometheus_client serves; `page()` renders them
    without it. `labels` are added to every sample: a program with two connections needs them to tell them apart.
    """

    def __init__(self, js: JetStreamLike, *, prefix: str = "slipstream_", **labels: str) -> None:
        self._js, self._prefix, self._labels = js, prefix, labels
        self._workers: dict[str, list[Any]] = {}

    def __repr__(self) -> str:
        return f"<ClientMetrics of {self._js!r}, {sum(map(len, self._workers.values()))} workers>"

    def watch(self, worker: WorkerLike, name: str) -> None:
        """Add a worker. Those of one name are added up; what a worker has counted stays when it ends."""
        self._workers.setdefault(name, []).append(worker.stats)

    def page(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        page = Exposition(CLIENT_FAMILIES, prefix=self._prefix)
        for name, value, labels in self._samples():
            page.add(name, value, label_set(**self._labels, **labels))
        for name, stats in self._workers.items():
            count, total = _handlers(stats)
            page.add_summary("worker_handler_seconds", count, total, label_set(**self._labels, worker=name))
        return page.encode()

    def collect(self) -> Iterator[Any]:
        """For prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        made: dict[str, Any] = {}
        for name, value, labels in self._samples():
            kind, text = CLIENT_FAMILIES[name]
            family = made.get(name)
            if family is None:
                new = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                family = made[name] = new(self._prefix + name, text, labels=[*self._labels, *labels])
            family.add_metric([*self._labels.values(), *labels.values()], value)
        yield from made.values()
        if self._workers:
            name = "worker_handler_seconds"
            summary = SummaryMetricFamily(
                self._prefix + name, CLIENT_FAMILIES[name].help, labels=[*self._labels, "worker"]
            )
            for worker, stats in self._workers.items():
                count, total = _handlers(stats)
                summary.add_metric([*self._labels.values(), worker], count_value=count, sum_value=total)
            yield summary

    def describe(self) -> list[Any]:
        """For prometheus_client: registering collects nothing."""
        return []

    def _samples(self) -> Iterator[tuple[str, float, dict[str, str]]]:
        core, published, reads = self._js.client.stats, self._js.publish_stats, self._js.read_stats
        for name, value in (
            ("sent_messages", core.out_msgs),
            ("sent_bytes", core.out_bytes),
            ("received_messages", core.in_msgs),
            ("received_bytes", core.in_bytes),
            ("reconnects", core.reconnects),
            ("published", published.published),
            ("acked", published.acked),
            ("duplicates", published.duplicates),
            ("server_moves", reads.moves),
        ):
            yield f"client_{name}_total", value, {}
        for path in ("at_once", "retried", "from_leader", "failed"):
            yield "client_trusted_reads_total", getattr(reads, path), {"path": path}
        for worker, stats in self._workers.items():
            labels = {"worker": worker}
            for field in ("handled", "failed", "redelivered", "dead_lettered"):
                yield f"worker_{field}_total", sum(getattr(one, field) for one in stats), labels
            for field in ("in_flight", "waiting"):
                yield f"worker_{field}", sum(getattr(one, field) for one in stats), labels
            yield "worker_lag_messages", max(one.lag for one in stats), labels


def _handlers(stats: list[Any]) -> tuple[int, float]:
    """How many handlers ended, and the time they took."""
    return sum(one.handled + one.failed for one in stats), sum(one.seconds for one in stats)
