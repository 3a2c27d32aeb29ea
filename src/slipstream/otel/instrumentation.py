"""Wrappers of the client's methods, by the messaging conventions of OpenTelemetry.

| call | span | kind |
|---|---|---|
| `js.publish`, `publisher.publish` | `send <subject>` | producer |
| `nc.request` | `request <subject>` | client |
| `consumer.fetch`, `consumer.next` | `receive <consumer>`, linked to the messages | client |
| handlers of `consume` | `process <consumer>`, child of the message's producer | consumer |
| `kv.get`, `put`, `create`, `update`, `delete`, `purge`, `history` | `<operation> <bucket>` | client |
| `traced_batch(function)` for `foreachBatch` | `process batch` | consumer |

A redelivered message has a span for each delivery; each links to the one before, where this process handled it.
Requests that the client makes by itself (the JetStream API) have no spans of their own.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer, TracerProvider

from slipstream.version import VERSION
from slipstream.wire import Headers

REMEMBERED = 10_000  # deliveries, to link the next one of the same message to

_KV = ("get", "put", "create", "update", "delete", "purge", "history")
_DRIVERS = ("_async", "_sync")

_originals: list[tuple[type, str, Any]] = []
_deliveries: OrderedDict[tuple[str, str, int], SpanContext] = OrderedDict()


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace every client of this process from now on; without a provider by the global one. Once is enough."""
    if _originals:
        return
    tracer = trace.get_tracer("slipstream", VERSION, tracer_provider)
    for driver in _DRIVERS:
        js = _class(f"jetstream.{driver}.jetstream", "JetStream")
        _wrap(js, "publish", functools.partial(_publish, tracer))
        _wrap(_class(f"jetstream.{driver}.publisher", "Publisher"), "publish", functools.partial(_publish, tracer))
        _wrap(_class(f"client.{driver}.client", "Client"), "request", functools.partial(_request, tracer))
        consumer = _class(f"jetstream.{driver}.consumer", "Consumer")
        for name in ("fetch", "next"):
            _wrap(consumer, name, functools.partial(_receive, tracer))
        _wrap_consume(consumer, tracer)
        for name in _KV:
            _wrap(_class(f"kv.{driver}.key_value", "KeyValue"), name, functools.partial(_key_value, tracer, name))


def uninstrument() -> None:
    """Put the original methods back."""
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)
    _deliveries.clear()


def traced_batch(function: Callable[..., Any], *, name: str = "") -> Callable[..., Any]:
    """A function for Spark's `foreachBatch`, with a span for each batch."""

    @functools.wraps(function)
    def batch(frame: Any, number: int) -> Any:
        tracer = trace.get_tracer("slipstream", VERSION)
        attributes: dict[str, Any] = {
            "messaging.system": "nats",
            "messaging.operation.type": "process",
            "spark.batch.id": number,
        }
        with tracer.start_as_current_span(
            f"process batch {name}".strip(), kind=SpanKind.CONSUMER, attributes=attributes
        ):
            return function(frame, number)

    return batch


def _class(module: str, name: str) -> type:
    found: type = getattr(import_module(f"slipstream.{module}"), name)
    return found


# Of a call (self, args, kwargs): its span, a context manager that gives what to call with the result; None for no span.
Plan = Callable[..., Any]


def _wrap(owner: type, name: str, plan: Plan) -> None:
    """Replace a method by one that runs within the span of `plan(self, args, kwargs)`."""
    original = owner.__dict__[name]
    _originals.append((owner, name, original))
    if inspect.iscoroutinefunction(inspect.unwrap(original)):

        @functools.wraps(original)
        async def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
            entered = plan(self, args, kwargs)
            if entered is None:
                return await original(self, *args, **kwargs)
            with entered as done:
                result = await original(self, *args, **kwargs)
                done(result)
                return result

    else:

        @functools.wraps(original)
        def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
            entered = plan(self, args, kwargs)
            if entered is None:
                return original(self, *args, **kwargs)
            with entered as done:
                result = original(self, *args, **kwargs)
                done(result)
                return result

    setattr(owner, name, traced)


@contextmanager
def _span(
    tracer: Tracer, name: str, kind: SpanKind, attributes: Mapping[str, Any], finish: Callable[[Span, Any], None]
) -> Iterator[Callable[[Any], None]]:
    """A current span; `finish` takes the result of the call."""
    base = {"messaging.system": "nats", **attributes}
    with tracer.start_as_current_span(name, kind=kind, attributes=base) as span:
        try:
            yield lambda result: finish(span, result)
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise


def _nothing(_: Span, __: Any) -> None:
    """Nothing more is known from the result."""


def _carry(kwargs: dict[str, Any]) -> None:
    """Add the current context to the headers of a call, unless they have one. The caller's headers stay as they are."""
    fields: dict[str, str] = {}
    propagate.inject(fields)
    headers = Headers(kwargs.get("headers"))  # a copy
    names = {name.lower() for name in headers}
    for name, value in fields.items():
        if name.lower() not in names:
            headers.add(name, value)
    kwargs["headers"] = headers


def _publish(tracer: Tracer, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    subject = str(args[0] if args else kwargs.get("subject", ""))
    payload = args[1] if len(args) > 1 else kwargs.get("payload", b"")
    attributes: dict[str, Any] = {
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": subject,
    }
    if isinstance(payload, bytes):
        attributes["messaging.message.body.size"] = len(payload)

    def finish(span: Span, ack: Any) -> None:
        if hasattr(ack, "seq") and hasattr(ack, "stream"):
            span.set_attribute("nats.stream", ack.stream)
            span.set_attribute("messaging.message.id", str(ack.seq))

    return _carrying(_span(tracer, f"send {subject}", SpanKind.PRODUCER, attributes, finish), kwargs)


def _request(tracer: Tracer, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    subject = str(args[0] if args else kwargs.get("subject", ""))
    if subject.startswith("$"):  # the client's own, of the JetStream API
        return None
    attributes = {"messaging.operation.type": "send", "messaging.operation.name": "request",
                  "messaging.destination.name": subject}  # fmt: skip
    return _carrying(_span(tracer, f"request {subject}", SpanKind.CLIENT, attributes, _nothing), kwargs)


@contextmanager
def _carrying(span: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    with span as done:
        _carry(kwargs)
        yield done


def _receive(tracer: Tracer, consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    attributes = {
        "messaging.operation.type": "receive",
        "messaging.operation.name": "fetch",
        "messaging.destination.name": consumer.stream,
        "messaging.consumer.group.name": consumer.name,
    }

    def finish(span: Span, result: Any) -> None:
        messages = result if isinstance(result, list) else [result]
        span.set_attribute("messaging.batch.message_count", len(messages))
        for message in messages[:128]:
            context = _context_of(message)
            if context.is_valid:
                span.add_link(context)

    return _span(tracer, f"receive {consumer.name}", SpanKind.CLIENT, attributes, finish)


def _key_value(tracer: Tracer, name: str, kv: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    attributes: dict[str, Any] = {"db.system.name": "nats.kv", "db.operation.name": name, "db.namespace": kv.bucket,
                                  "nats.kv.key": str(args[0] if args else kwargs.get("key", ""))}  # fmt: skip

    def finish(span: Span, result: Any) -> None:
        revision = result if isinstance(result, int) else getattr(result, "revision", None)
        if isinstance(revision, int):
            span.set_attribute("nats.kv.revision", revision)

    return _span(tracer, f"{name} {kv.bucket}", SpanKind.CLIENT, attributes, finish)


def _wrap_consume(owner: type, tracer: Tracer) -> None:
    original = owner.__dict__["consume"]
    _originals.append((owner, "consume", original))

    @functools.wraps(original)
    def consume(self: Any, callback: Any, **options: Any) -> Any:
        return original(self, _handler(tracer, self, callback), **options)

    owner.consume = consume  # type: ignore[attr-defined]


def _handler(tracer: Tracer, consumer: Any, callback: Any) -> Any:
    """A handler of messages with a span for each."""
    target = callback if inspect.isroutine(callback) else getattr(callback, "__call__", callback)  # noqa: B004
    if inspect.iscoroutinefunction(target):

        @functools.wraps(callback)
        async def handle_async(message: Any) -> Any:
            with _process(tracer, consumer, message):
                return await callback(message)

        return handle_async

    @functools.wraps(callback)
    def handle(message: Any) -> Any:
        with _process(tracer, consumer, message):
            return callback(message)

    return handle


@contextmanager
def _process(tracer: Tracer, consumer: Any, message: Any) -> Iterator[None]:
    key = (consumer.stream, consumer.name, message.seq)
    delivered = message.num_delivered
    before = _deliveries.get(key) if delivered > 1 else None
    attributes = {
        "messaging.system": "nats",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.subject,
        "messaging.consumer.group.name": consumer.name,
        "messaging.message.id": str(message.seq),
        "messaging.message.body.size": len(message.data),
        "nats.stream": consumer.stream,
        "nats.num_delivered": delivered,
    }
    with tracer.start_as_current_span(
        f"process {consumer.name}",
        context=propagate.extract(_headers_of(message)),
        kind=SpanKind.CONSUMER,
        links=[Link(before)] if before is not None else [],
        attributes=attributes,
    ) as span:
        try:
            yield
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(StatusCode.ERROR)
            _deliveries[key] = span.get_span_context()  # it may be redelivered
            while len(_deliveries) > REMEMBERED:
                _deliveries.popitem(last=False)
            raise
        else:
            if not message.is_settled:
                _deliveries[key] = span.get_span_context()
            elif before is not None:
                _deliveries.pop(key, None)


def _headers_of(message: Any) -> dict[str, str]:
    headers = message.headers
    return {name.lower(): value for name, value in headers.items()} if headers else {}


def _context_of(message: Any) -> SpanContext:
    return trace.get_current_span(propagate.extract(_headers_of(message))).get_span_context()
