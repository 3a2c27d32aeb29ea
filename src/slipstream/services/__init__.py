"""NATS services (ADR-32): endpoints that can be discovered, with statistics and errors in headers."""

from slipstream.services.reports import EndpointInfo, EndpointStats, ServiceInfo, ServicePing, ServiceStats

__all__ = ["EndpointInfo", "EndpointStats", "ServiceInfo", "ServicePing", "ServiceStats"]
