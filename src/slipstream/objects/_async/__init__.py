"""The asyncio driver of the Object Store package."""
