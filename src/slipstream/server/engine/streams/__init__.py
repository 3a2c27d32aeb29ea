"""Streams: configuration, publishing with its conditions, limits, schedules."""
