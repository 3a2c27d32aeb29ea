"""The asyncio driver of the services package."""
