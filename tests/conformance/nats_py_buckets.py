"""nats-py's listings of a bucket, told apart from a race of its own.

Its watch asks the consumer how much is left. If the server has sent everything by then and nats-py's callback has not
run yet, the mark for "that was all" comes before the first entry: a listing is empty, a watch begins with None.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from nats.js.errors import NoKeysError


async def listed(listing: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
    """What ``keys`` or ``history`` of nats-py give for a bucket that is not empty."""
    for _ in range(50):
        with suppress(NoKeysError):
            return await listing()
    raise AssertionError("nats-py saw no keys in fifty listings")


async def watched(watcher: Any, count: int) -> list[Any]:
    """The ``count`` entries that a new watch of nats-py begins with, behind or before its mark for the end."""
    updates = [await watcher.updates(timeout=5) for _ in range(count + 1)]
    assert updates.count(None) == 1, updates
    assert updates[0] is None or updates[-1] is None, updates
    return [update for update in updates if update is not None]
