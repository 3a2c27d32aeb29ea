"""Metrics of a client: what prometheus_client collects of them, and the page they make themselves."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

import slipstream


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("slipstream_"), sample.labels.get("path") or sample.labels.get("worker", "")): (
            sample.value
        )
        for family in parse(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.fixture
def url() -> object:
    with slipstream.Server() as server:
        yield server.url


def test_publishes_reads_and_handlers_are_counted(url: str) -> None:
    with slipstream.connect_blocking(url) as client:
        js = client.jetstream()
        stream = js.create_stream("S", subjects=["s.>"])
        ack = js.publish("s.1", b"a", msg_id="1")
        js.publish("s.1", b"a", msg_id="1")
        with pytest.raises(slipstream.WrongLastSequenceError):
            js.publish("s.1", b"b", expected_last_seq=9)
        with js.publisher() as publisher:
            for number in range(10):
                publisher.publish(f"s.{number}", b"x")
        stream.get(1, min_last_seq=ack.seq)
        metrics = slipstream.ClientMetrics(js, app="test")
        seen: list[int] = []
        done = threading.Event()

        def handle(message: slipstream.BlockingJsMessage) -> None:
            seen.append(message.seq)
            if len(seen) >= 12:
                done.set()
            if message.seq == 3 and message.num_delivered == 1:
                raise ValueError("the first time it fails")

        consumer = stream.create_consumer("w")
        with consumer.consume(handle, on_error=slipstream.Nak(0)) as worker:
            metrics.watch(worker, "w")
            assert done.wait(20)
        registry = CollectorRegistry()
        registry.register(metrics)
        for found in (samples(generate_latest(registry).decode()), samples(metrics.page().decode())):
            assert found["client_published_total", ""] == 13
            assert found["client_acked_total", ""] == 12
            assert found["client_duplicates_total", ""] == 1
            assert sum(value for (name, _), value in found.items() if name == "client_trusted_reads_total") == 1
            assert found["worker_handled_total", "w"] == 11
            assert found["worker_failed_total", "w"] == 1
            assert found["worker_redelivered_total", "w"] == 1
            assert found["worker_handler_seconds_count", "w"] == 12
            assert found["worker_handler_seconds_sum", "w"] > 0


def test_an_abandoned_publisher_is_counted_too(url: str) -> None:
    with slipstream.connect_blocking(url) as client:
        js = client.jetstream()
        js.create_stream("S", subjects=["s.>"])
        with pytest.raises(KeyError), js.publisher() as publisher:  # noqa: PT012
            publisher.publish("s.1", b"x")
            raise KeyError
        assert js.publish_stats.published == 1
