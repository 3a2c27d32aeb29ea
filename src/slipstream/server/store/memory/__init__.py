"""The in-memory store, and the model that the durable one is tested against."""
