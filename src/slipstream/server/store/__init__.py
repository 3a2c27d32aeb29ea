"""Stores of streams, behind the port `engine/ports.py`: `memory/` (the model) and `lmdb/` (durable)."""
