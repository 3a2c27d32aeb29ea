"""`/metrics`: what a Prometheus parser reads of it, against what the server's own reports and a client say."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

import slipstream
from slipstream.server import Server
from slipstream.server.engine.jobs import SLICE_UNITS
from slipstream.server.engine.monitoring import metrics as module
from slipstream.testing import TestServer

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(url: str, path: str = "/metrics") -> Samples:
    with urllib.request.urlopen(f"{url}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found: Samples = {}
    for family in parse(text):
        for sample in family.samples:
            key = (sample.name.removeprefix("slipstream_"), frozenset(sample.labels.items()))
            assert key not in found, f"{key} occurs twice"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    found = [
        number for (own, pairs), number in samples.items() if own == name and labels.items() <= dict(pairs).items()
    ]
    assert len(found) == 1, f"{len(found)} samples of {name} with {labels}"
    return found[0]


def test_the_page_has_streams_consumers_lag_commits_and_reads() -> None:
    server = TestServer(server=Server(http_port=0, faults=True))
    with server, slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"], num_replicas=3, max_bytes=1_000_000)
        js.create_stream("COPY", mirror=slipstream.StreamSource("ORDERS"))
        consumer = stream.create_consumer("workers")
        server.hold("ORDERS", stream.info().cluster["replicas"][0]["name"])
        for number in range(5):
            js.publish(f"orders.{number}", b"x")
        for message in consumer.fetch(2, timeout=5):
            if message.seq == 1:
                message.ack_sync()
        stream.get(3, min_last_seq=5)  # the held replica leaves it to the leader
        list(stream.read(end=5))
        stream.get_last_many(["orders.1", "orders.2"], min_last_seq=5)
        samples = read(server.server.http_url)
        assert value(samples, "stream_messages", stream="ORDERS") == 5
        assert value(samples, "stream_max_bytes", stream="ORDERS") == 1_000_000
        assert value(samples, "stream_subjects", stream="ORDERS") == 5
        assert value(samples, "consumer_lag_messages", consumer="workers", stream="ORDERS") == 4
        assert value(samples, "consumer_pending_messages", consumer="workers") == 3
        assert value(samples, "consumer_ack_pending_messages", consumer="workers") == 1
        held, current = sorted(
            (number for (name, _), number in samples.items() if name == "stream_replica_lag_messages"), reverse=True
        )
        assert (held, current) == (5, 0)
        assert value(samples, "stream_mirror_lag_messages", stream="COPY", of="ORDERS") == 0
        assert value(samples, "connections") == 1
        assert value(samples, "http_requests_total", path="/metrics") == 1
        reads = {
            kind: sum(
                number
                for (name, pairs), number in samples.items()
                if name == "stream_reads_total" and ("kind", kind) in pairs
            )
            for kind in ("single", "batch", "last")
        }
        assert min(reads.values()) >= 1
        assert value(samples, "commit_seconds_count", storage="file") >= 5
        assert value(samples, "commit_changes_sum", storage="file") >= 7
        assert value(samples, "commit_changes_count", storage="memory") == 0
        assert value(samples, "commit_failures_total", storage="file") == 0
        assert value(samples, "account_streams") == 2
        assert not [
            key for key in read(server.server.http_url, "/metrics?consumers=0") if key[0].startswith("consumer_")
        ]
        assert not [key for key in read(server.server.http_url, "/metrics?streams=0") if key[0].startswith("stream_")]


def test_waiting_and_rejected_reads_are_counted() -> None:
    server = TestServer(server=Server(http_port=0, faults=True))
    with server, slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream("S", subjects=["s"])
        js.publish("s", b"1")
        answer = client.request("$JS.API.DIRECT.GET.S", b'{"seq":1,"min_last_seq":9}', timeout=5)
        assert answer.status is not None
        assert answer.status.code == 412
        samples = read(server.server.http_url)
        assert value(samples, "stream_reads_waited_total", stream="S") == 1
        assert value(samples, "stream_reads_rejected_total", stream="S") == 1


def test_a_server_without_jetstream_has_metrics_too() -> None:
    with Server(http_port=0, jetstream=False) as server:
        samples = read(server.http_url)
        assert value(samples, "connections") == 0
        assert not [key for key in samples if key[0].startswith(("stream_", "account_"))]


def test_the_page_is_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of the walk is longer than a slice, whatever the number of streams."""
    with Server(http_port=0) as server, slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        for number in range(40):
            js.create_stream(f"S{number}", subjects=[f"s.{number}"], storage="memory")
        for number in range(20):
            js.stream("S0").create_consumer(f"c{number}", mem_storage=True)
        seen: list[int] = []
        walk = module.metrics

        def watched(*args: Any) -> Any:
            inner = walk(*args)
            while True:
                try:
                    units = next(inner)
                except StopIteration as end:
                    return end.value
                seen.append(units)
                yield units

        monkeypatch.setattr("slipstream.server.loop.monitoring.metrics", watched)
        samples = read(server.http_url)
        assert len([key for key in samples if key[0] == "stream_messages"]) == 40
        assert max(seen) <= SLICE_UNITS
        assert len([key for key in samples if key[0] == "consumer_lag_messages"]) == 20
        assert len(seen) > 100
