"""Core NATS in the engine: sessions, admission of clients, routing between them, INFO."""
