"""Wrappers of the client's methods, by the messaging conventions of OpenTelemetry.

| call | span | kind |
|---|---|---|
| `js.publish`, `publisher.publish` | `send <subject>` | producer |
| `nc.publish`, members of atomic batches | `send <subject>` | producer |
| `nc.request` | `request <subject>` | client |
| a callback of `nc.subscribe` | `process <subject>`, child of the publish or request | consumer, server |
| a handler of a service | `process <service endpoint>`, child of the request | server |
| `consumer.fetch`, `consumer.next` | `receive <consumer>`, linked to the messages | client |
| handlers of `consume` | `process <consumer>`, child of the message's producer | consumer |
| `kv.get`, `put`, `create`, `update`, `delete`, `purge`, `history` | `<operation> <bucket>` | client |
| `with processing(message)`, in any loop over messages | `process <subject>`, child of the publish | consumer |
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

MOST_LINKS = 128
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
        _wrap(_class(f"jetstream.{driver}.atomic_batch", "AtomicBatch"), "publish", functools.partial(_publish, tracer))
        client = _class(f"client.{driver}.client", "Client")
        _wrap(client, "request", functools.partial(_request, tracer))
        _wrap(client, "publish", functools.partial(_core_publish, tracer))
        _wrap_subscribe(client, tracer)
        # Behind `add_endpoint`: a handler may take the decoded body, and then never sees the headers of its request.
        _wrap(_class(f"services.{driver}.service", "Endpoint"), "_call", functools.partial(_serve, tracer))
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


@contextmanager
def processing(message: Any, *, name: str = "", tracer_provider: TracerProvider | None = None) -> Iterator[Span]:
    """A span for what is done with a message within the block, child of the message's publish.

    For loops, of which no wrapper can know where the work on a message ends: `messages()`, `fetch`, ordered
    consumers, subscriptions, stored messages. It needs no `instrument()`; without a provider the global one is used.
    """
    tracer = trace.get_tracer("slipstream", VERSION, tracer_provider)
    attributes: dict[str, Any] = {
        "messaging.system": "nats",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.subject,
        "messaging.message.body.size": len(message.data),
    }
    if isinstance(seq := getattr(message, "seq", None), int):
        attributes["messaging.message.id"] = str(seq)
    if isinstance(delivered := getattr(message, "num_delivered", None), int):
        attributes["nats.num_delivered"] = delivered
    with _child(tracer, f"process {name or message.subject}", SpanKind.CONSUMER, message, attributes) as span:
        yield span


@contextmanager
def _child(tracer: Tracer, name: str, kind: SpanKind, message: Any, attributes: Mapping[str, Any]) -> Iterator[Span]:
    """A current span whose parent is in the headers of a message."""
    with tracer.start_as_current_span(
        name, context=propagate.extract(_headers_of(message)), kind=kind, attributes=attributes
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise


def traced_batch(function: Callable[..., Any], *, name: str = "", links: bool = False) -> Callable[..., Any]:
    """A function for Spark's `foreachBatch`, with a span for each batch.

    With `links` the span links to the publishes of the batch's messages, up to 128 of them, where the rows have the
    column `headers`: that is another Spark job for each batch.
    """

    @functools.wraps(function)
    def batch(frame: Any, number: int) -> Any:
        tracer = trace.get_tracer("slipstream", VERSION)
        attributes: dict[str, Any] = {
            "messaging.system": "nats",
            "messaging.operation.type": "process",
            "spark.batch.id": number,
        }
        with tracer.start_as_current_span(
            f"process batch {name}".strip(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links_of(frame) if links else [],
        ):
            return function(frame, number)

    return batch


def _links_of(frame: Any) -> list[Link]:
    """Links to what the rows of a Spark data frame say they come from."""
    if "headers" not in frame.columns:
        return []
    carried = frame.selectExpr("get(headers['traceparent'], 0) AS carried").where("carried IS NOT NULL").distinct()
    found = []
    for (text,) in carried.limit(MOST_LINKS).collect():
        context = trace.get_current_span(propagate.extract({"traceparent": text})).get_span_context()
        if context.is_valid:
            found.append(Link(context))
    return found


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


# The client's own: the JetStream API, acks, buckets, and answers, which belong to the span of their request.
_OWN = ("$", "_INBOX.")
_BATCH = "Nats-Batch-Id"  # a member of an atomic batch, which has its span already


def _core_publish(tracer: Tracer, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    headers = kwargs.get("headers")
    if str(args[0] if args else kwargs.get("subject", "")).startswith(_OWN) or (headers and _BATCH in headers):
        return None
    return _publish(tracer, client, args, kwargs)


def _wrap_subscribe(owner: type, tracer: Tracer) -> None:
    original = owner.__dict__["subscribe"]
    _originals.append((owner, "subscribe", original))

    @functools.wraps(original)
    def subscribe(self: Any, subject: str, *, callback: Any = None, **options: Any) -> Any:
        if callback is not None and not subject.startswith(_OWN):
            callback = _callback(tracer, subject, options.get("queue", ""), callback)
        return original(self, subject, callback=callback, **options)

    owner.subscribe = subscribe  # type: ignore[attr-defined]


def _callback(tracer: Tracer, subject: str, queue: str, callback: Any) -> Any:
    """A callback of a subscription with a span for each message."""

    def span(message: Any) -> Any:
        attributes = {
            "messaging.system": "nats",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.subject,
            "messaging.message.body.size": len(message.data),
            **({"messaging.consumer.group.name": queue} if queue else {}),
        }
        kind = SpanKind.SERVER if message.reply else SpanKind.CONSUMER
        return _child(tracer, f"process {subject}", kind, message, attributes)

    target = callback if inspect.isroutine(callback) else getattr(callback, "__call__", callback)  # noqa: B004
    if inspect.iscoroutinefunction(target):

        @functools.wraps(callback)
        async def call_async(message: Any) -> Any:
            with span(message):
                return await callback(message)

        return call_async

    @functools.wraps(callback)
    def call(message: Any) -> Any:
        with span(message):
            return callback(message)

    return call


def _serve(tracer: Tracer, endpoint: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    request = args[0] if args else kwargs["request"]
    attributes = {
        "messaging.system": "nats",
        "messaging.operation.type": "process",
        "messaging.destination.name": request.subject,
        "messaging.message.body.size": len(request.data),
    }
    return _quiet(_child(tracer, f"process {endpoint.config.subject}", SpanKind.SERVER, request, attributes))


@contextmanager
def _quiet(span: Any) -> Iterator[Callable[[Any], None]]:
    """A span of which nothing more is known from the result."""
    with span:
        yield lambda _: None


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
        for message in messages[:MOST_LINKS]:
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
