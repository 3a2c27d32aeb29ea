"""Acknowledged publishing: windows of unacknowledged messages, bulk blocks, fast batches."""
