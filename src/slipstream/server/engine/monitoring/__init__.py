"""Monitoring endpoints and health, computed from the engine."""
