"""Mirrors and sources: copying other streams."""
