"""Spans as an exporter in memory sees them: one trace from a publish through a worker to a Key-Value put."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import slipstream
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.otel import instrument, traced_batch, uninstrument

PROVIDER = TracerProvider()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(provider)
    try:
        yield exporter
    finally:
        uninstrument()
        provider.shutdown()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with slipstream.Server() as server:
        yield server.url


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def only(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = named(exporter, name)
    return span


def of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


async def test_one_trace_leads_from_publish_through_a_worker_to_a_put(url: str, spans: InMemorySpanExporter) -> None:
    async with slipstream.connect(url) as client:
        js = client.jetstream()
        stream = await js.create_stream("TRACED", subjects=["traced.>"])
        kv = await js.create_key_value("traced")
        done = asyncio.Event()

        async def handle(message: slipstream.JsMessage) -> None:
            await kv.put("k", message.data)
            await message.ack()
            done.set()

        consumer = await stream.create_consumer("w")
        async with consumer.consume(handle):
            await js.publish("traced.1", b"abc", headers={"Own": ["kept", "both"]})
            await asyncio.wait_for(done.wait(), 20)
        message = await stream.get(1)
        await js.delete_stream("TRACED")
    sent, handled, put = only(spans, "send traced.1"), only(spans, "process w"), only(spans, "put traced")
    assert len({of(span)[0] for span in (sent, handled, put)}) == 1
    assert handled.parent is not None
    assert put.parent is not None
    assert handled.parent.span_id == of(sent)[1]
    assert put.parent.span_id == of(handled)[1]
    assert (sent.kind, handled.kind, put.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT)
    attributes: Any = sent.attributes
    assert attributes["messaging.system"] == "nats"
    assert attributes["messaging.destination.name"] == "traced.1"
    assert attributes["messaging.message.body.size"] == 3
    assert attributes["nats.stream"] == "TRACED"
    assert message.headers.get_all("Own") == ["kept", "both"]
    trace_id, span_id = of(sent)
    assert message.headers["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert not [span for span in spans.get_finished_spans() if "$JS" in span.name]


def test_redeliveries_link_to_the_delivery_before(url: str, spans: InMemorySpanExporter) -> None:
    with slipstream.connect_blocking(url) as client:
        js = client.jetstream()
        stream = js.create_stream("AGAIN", subjects=["again"])
        done = threading.Event()

        def handle(message: slipstream.BlockingJsMessage) -> None:
            if message.num_delivered < 3:
                raise ValueError("not yet")
            message.ack()
            done.set()

        consumer = stream.create_consumer("w2")
        with consumer.consume(handle, on_error=slipstream.Nak(0)):
            js.publish("again", b"x")
            assert done.wait(20)
        js.delete_stream("AGAIN")
    first, second, third = named(spans, "process w2")
    assert [len(span.links) for span in (first, second, third)] == [0, 1, 1]
    assert second.links[0].context.span_id == of(first)[1]
    assert third.links[0].context.span_id == of(second)[1]
    assert first.attributes is not None
    assert first.attributes["error.type"] == "ValueError"
    assert not first.status.is_ok
    assert {of(span)[0] for span in (first, second, third)} == {of(only(spans, "send again"))[0]}


def test_fetches_requests_and_publishers_have_spans(url: str, spans: InMemorySpanExporter) -> None:
    with slipstream.connect_blocking(url) as client:
        js = client.jetstream()
        stream = js.create_stream("MORE", subjects=["more.>"])
        with js.publisher() as publisher:
            publisher.publish("more.1", b"x")
            publisher.publish("more.2", b"x", headers={"traceparent": "mine"})
        messages = stream.create_consumer("w3").fetch(2, timeout=5)
        assert messages[1].headers["traceparent"] == "mine"
        receive = only(spans, "receive w3")
        assert [link.context.span_id for link in receive.links] == [of(only(spans, "send more.1"))[1]]
        assert receive.attributes is not None
        assert receive.attributes["messaging.batch.message_count"] == 2
        with pytest.raises(slipstream.NoRespondersError):
            client.request("nobody.there", b"", timeout=5)
        failed = only(spans, "request nobody.there")
        assert failed.attributes is not None
        assert failed.attributes["error.type"] == "NoRespondersError"
        kv = js.create_key_value("more")
        revision = kv.put("k", b"v")
        assert kv.get("k").revision == revision
        with pytest.raises(slipstream.KeyNotFoundError):
            kv.get("none")
        assert len(named(spans, "get more")) == 2
        js.delete_stream("MORE")


def test_a_spark_batch_has_a_span(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", lambda *_: provider.get_tracer("test"))
    seen: list[Any] = []
    traced_batch(lambda frame, number: seen.append((frame, number)), name="orders")("frame", 7)
    assert seen == [("frame", 7)]
    span = only(spans, "process batch orders")
    assert span.attributes is not None
    assert span.attributes["spark.batch.id"] == 7


def test_without_it_nothing_is_wrapped() -> None:
    original = JetStream.__dict__["publish"]
    instrument(PROVIDER)
    instrument(PROVIDER)
    assert JetStream.__dict__["publish"] is not original
    uninstrument()
    assert JetStream.__dict__["publish"] is original
