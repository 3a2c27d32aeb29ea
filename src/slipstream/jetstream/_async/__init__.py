"""The asyncio driver of the JetStream package."""
