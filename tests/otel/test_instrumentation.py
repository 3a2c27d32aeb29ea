"""Spans as an exporter in memory sees them: one trace from a publish through a worker to a Key-Value put."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import slipstream
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.otel import instrument, processing, traced_batch, uninstrument

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


async def test_core_messages_and_requests_are_one_trace(url: str, spans: InMemorySpanExporter) -> None:
    async with slipstream.connect(url) as client:
        done = asyncio.Event()

        async def forward(message: slipstream.Message) -> None:
            await client.publish("core.second", message.data)

        async def answer(message: slipstream.Message) -> None:
            await message.respond(b"done")

        async def ask(message: slipstream.Message) -> None:
            await client.request("core.ask", message.data, timeout=10)
            done.set()

        await client.subscribe("core.first", callback=forward)
        await client.subscribe("core.second", callback=ask)
        await client.subscribe("core.ask", callback=answer, queue="workers")
        await client.flush()
        await client.publish("core.first", b"x", headers={"Own": "kept"})
        await asyncio.wait_for(done.wait(), 20)
    names = ["send core.first", "process core.first", "send core.second", "process core.second", "request core.ask",
             "process core.ask"]  # fmt: skip
    chain = [only(spans, name) for name in names]
    assert len({of(span)[0] for span in chain}) == 1
    for before, after in pairwise(chain):
        assert after.parent is not None
        assert after.parent.span_id == of(before)[1], after.name
    assert chain[-1].kind == SpanKind.SERVER
    assert chain[1].kind == SpanKind.CONSUMER
    assert chain[-1].attributes is not None
    assert chain[-1].attributes["messaging.consumer.group.name"] == "workers"
    assert not [span for span in spans.get_finished_spans() if "_INBOX" in span.name or "$" in span.name]


def test_services_and_callbacks_that_fail_are_in_the_trace_of_their_request(
    url: str, spans: InMemorySpanExporter
) -> None:
    with slipstream.connect_blocking(url) as client, client.add_service("sums", "1.0.0") as service:

        def add(numbers: list[int]) -> int:  # takes the body: it never sees the headers
            return sum(numbers)

        def fail(_: slipstream.BlockingServiceRequest) -> None:
            raise slipstream.ServiceError(409, "not today")

        service.add_endpoint("add", add, subject="sums.add")
        service.add_endpoint("fail", fail, subject="sums.fail")
        assert client.request("sums.add", b"[1, 2]", timeout=10).data == b"3"
        client.request("sums.fail", b"", timeout=10)
    served, asked = only(spans, "process sums.add"), only(spans, "request sums.add")
    assert served.parent is not None
    assert served.parent.span_id == of(asked)[1]
    assert served.kind == SpanKind.SERVER
    failed = only(spans, "process sums.fail")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ServiceError"
    assert not failed.status.is_ok


async def test_work_in_a_loop_is_a_child_of_the_publish(url: str, spans: InMemorySpanExporter) -> None:
    async with slipstream.connect(url) as client:
        js = client.jetstream()
        stream = await js.create_stream("LOOP", subjects=["loop"])
        kv = await js.create_key_value("loop")
        await js.publish("loop", b"x")
        provider = spans_provider(spans)
        async for message in (await stream.create_consumer("w4")).messages():
            with processing(message, name="loops", tracer_provider=provider):
                await kv.put("k", b"1")
                await message.ack()
            break
        async for message in stream.ordered_consumer():
            with processing(message, tracer_provider=provider):
                break
        with pytest.raises(ValueError, match="broken"), processing(await stream.get(1), tracer_provider=provider):
            raise ValueError("broken")
        await js.delete_stream("LOOP")
    sent, put = only(spans, "send loop"), only(spans, "put loop")
    worked = only(spans, "process loops")
    assert worked.parent is not None
    assert put.parent is not None
    assert (worked.parent.span_id, put.parent.span_id) == (of(sent)[1], of(worked)[1])
    ordered, stored = named(spans, "process loop")
    assert {of(span)[0] for span in (ordered, stored)} == {of(sent)[0]}
    assert not stored.status.is_ok


def spans_provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


def test_members_of_an_atomic_batch_carry_their_context(url: str, spans: InMemorySpanExporter) -> None:
    with slipstream.connect_blocking(url) as client:
        js = client.jetstream()
        stream = js.create_stream("ATOMIC", subjects=["atomic"], allow_atomic=True)
        with js.atomic_batch() as batch:
            batch.publish("atomic", b"1")
            batch.publish("atomic", b"2")
        members = [stream.get(seq) for seq in (1, 2)]
        js.delete_stream("ATOMIC")
    sent = named(spans, "send atomic")
    assert len(sent) == 2
    for message, span in zip(members, sent, strict=True):
        assert f"{of(span)[1]:016x}" in message.headers["traceparent"]


class Rows:
    """What `traced_batch` asks of a Spark data frame."""

    columns = ("subject", "headers", "data")

    def __init__(self, carried: list[str]) -> None:
        self._carried, self.asked = carried, ""

    def selectExpr(self, expression: str) -> Rows:  # noqa: N802
        self.asked = expression
        return self

    def where(self, _: str) -> Rows:
        return self

    def distinct(self) -> Rows:
        return self

    def limit(self, _: int) -> Rows:
        return self

    def collect(self) -> list[tuple[str]]:
        return [(text,) for text in self._carried]


def test_a_batch_links_to_the_publishes_of_its_messages(
    url: str, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slipstream.connect_blocking(url) as client:
        js = client.jetstream()
        stream = js.create_stream("BATCH", subjects=["batch"])
        js.publish("batch", b"x")
        carried = stream.get(1).headers["traceparent"]
        kv = js.create_key_value("batch")
        provider = spans_provider(spans)
        monkeypatch.setattr(trace, "get_tracer", lambda *_: provider.get_tracer("test"))
        rows = Rows([carried, "nonsense"])
        traced_batch(lambda _, number: kv.put("k", str(number).encode()), links=True)(rows, 3)
        js.delete_stream("BATCH")
    assert "traceparent" in rows.asked
    batch, put = only(spans, "process batch"), only(spans, "put batch")
    assert [link.context.span_id for link in batch.links] == [of(only(spans, "send batch"))[1]]
    assert put.parent is not None
    assert put.parent.span_id == of(batch)[1]
