"""Consumers: pull requests, ordered delivery, status messages, acknowledgement subjects."""
