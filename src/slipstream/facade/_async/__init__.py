"""The asyncio driver of the public client package."""
