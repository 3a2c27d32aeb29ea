"""Core NATS in the engine: client sessions, routing between them, INFO."""
