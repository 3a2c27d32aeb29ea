"""The asyncio driver of trusted reads."""
