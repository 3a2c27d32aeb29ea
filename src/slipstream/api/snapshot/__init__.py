"""Formats of stream snapshots: tar archives compressed with S2."""
