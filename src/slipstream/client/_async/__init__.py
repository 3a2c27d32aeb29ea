"""The asyncio driver of the core client: sockets, tasks and timers of an event loop."""
