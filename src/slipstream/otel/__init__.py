"""OpenTelemetry: spans for publishes, requests, fetches, handlers, Key-Value and Spark batches; the extra `otel`.

`instrument()` wraps the methods of the client's classes, of both drivers; `uninstrument()` puts the originals back. A
program that never calls it pays nothing: no method of the client knows of it. Contexts travel in the header
`traceparent` (W3C), or whatever the global propagator writes.
"""

from slipstream.otel.instrumentation import instrument, processing, traced_batch, uninstrument

__all__ = ["instrument", "processing", "traced_batch", "uninstrument"]
