"""Consumers of a stream: their cursors, deliveries, acks and redeliveries."""
