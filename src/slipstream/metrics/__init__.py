"""Metrics: the Prometheus text format, and the metrics of a NATS server, its streams and consumers."""
