"""The asyncio driver of the Key-Value package."""
