"""Observation of a pipeline's run by programs: metrics for Prometheus, and a log of events."""
