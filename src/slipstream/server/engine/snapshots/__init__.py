"""Snapshot and restore of a stream and its consumers."""
