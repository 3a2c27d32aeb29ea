"""Choice of the store for each storage type. Another store is another folder beside this module, and a line here."""

from __future__ import annotations

from slipstream.extras import needed_by
from slipstream.server.engine.ports import Store, memory_size
from slipstream.server.store.memory.store import MemoryStore


def open_memory_store() -> Store:
    """The store of streams with memory storage; sizes count as nats-server counts them there."""
    return MemoryStore(size_of=memory_size)


def open_file_store(path: str | None = None) -> Store:
    """The store of streams with file storage. Without a directory it is in memory too, and ends with the process.

    Opening a directory blocks.
    """
    if path is None:
        return MemoryStore()
    with needed_by("a server with a data directory", "server"):
        from slipstream.server.store.lmdb.store import LmdbStore  # only where it is used: it loads the LMDB library

    return LmdbStore(path)
