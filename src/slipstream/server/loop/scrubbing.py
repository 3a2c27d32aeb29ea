"""The scrubber in the background: slices of a round through a store, at a bounded rate.

Slices are read in a thread, which waits for the disk, and settled on the loop; the pause behind each makes the rate. A
store that is smaller than a slice is read at once, and then not before the next round: an idle server stays idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from slipstream.server.engine.ports import Scrubber
from slipstream.server.loop.driver import Driver

log: logging.Logger = logging.getLogger("slipstream.server")

FIRST_ROUND = 10.0  # seconds after the start, at the latest: a server has other things to do at first
RETRY = 1.0  # seconds, when a slice must wait


class Scrubbing:
    """Runs the scrubber of one store."""

    def __init__(self, driver: Driver, scrubber: Scrubber, *, rate: int, interval: float) -> None:
        """`rate` in bytes a second; `interval` from the beginning of a round to that of the next, in seconds."""
        self._driver, self._scrubber = driver, scrubber
        self._rate, self._interval = rate, interval
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """End after the slice that is being read: the store may be closed then."""
        self._stopped.set()
        await self._task

    async def _run(self) -> None:
        begun = self._loop.time()
        await self._sleep(min(FIRST_ROUND, self._interval))
        while not self._stopped.is_set():
            size, is_complete = await self._slice()
            pause = size / self._rate if size else RETRY
            if is_complete:
                pause = max(pause, begun + self._interval - self._loop.time())
            await self._sleep(pause)
            if is_complete:
                begun = self._loop.time()

    async def _slice(self) -> tuple[int, bool]:
        """Read a slice and report what it found; a defect of the scrubber must not stop the server."""
        try:
            if not self._scrubber.begin():
                return 0, False
            try:
                await self._loop.run_in_executor(None, self._scrubber.read)
            finally:
                done = self._scrubber.finish()
        except Exception:
            log.exception("internal error while scanning for damage")
            return 0, False
        self._driver.note_damage()
        return done

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)
