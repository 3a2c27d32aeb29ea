"""Compaction of the file streams of a running server: in slices, when asked for or when much of the file is free.

Slices are worked off in a thread, with a pause behind each that is as long as the slice, so that the loop keeps half
of the interpreter at least. The file is replaced in the thread of commits (`Committer.between_groups`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import NamedTuple

from slipstream.errors import StoreError, UsageError
from slipstream.server.engine.ports import Compaction, Store
from slipstream.server.loop.committer import Committer

log = logging.getLogger("slipstream.server")

CHECK_INTERVAL = 60.0  # seconds between two looks at the free space
FAILURE_PAUSE = 3600.0  # seconds after a compaction that failed, before another begins by itself
WAIT = 0.005  # seconds, when a slice must wait for a group
SMALLEST = 64 * 1024 * 1024  # bytes that must be free: less is not worth a copy


class Compacted(NamedTuple):
    """The result of a compaction: the size of the file, in bytes."""

    before: int
    after: int


class Compacting:
    """Compacts the store of one committer."""

    def __init__(self, store: Store, committer: Committer, *, percent: int) -> None:
        """`percent` of the file must be free for a compaction to begin by itself; 0: none does."""
        self._store, self._committer, self._percent = store, committer, percent
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._running: asyncio.Task[Compacted] | None = None
        self._watch = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Drop the copy that is being made, after its present slice: the store may be closed then."""
        self._stopped.set()
        await self._watch
        if self._running is not None:
            await asyncio.wait((self._running,))  # whatever it ended with: the server stops

    async def compact(self) -> Compacted:
        """Compact the file now, or wait for the compaction that is under way. Raises StoreError."""
        if self._stopped.is_set():
            raise UsageError("the server is stopping")
        if self._running is None or self._running.done():
            # In a task of its own: what waits for it may be cancelled, a slice in its thread cannot.
            self._running = self._loop.create_task(self._compact(self._store.compact()))
            self._running.add_done_callback(lambda task: task.exception())  # it may be that nothing waits any more
        return await asyncio.shield(self._running)

    async def _run(self) -> None:
        pause = CHECK_INTERVAL
        while self._percent and not await self._sleep(pause):
            pause = CHECK_INTERVAL
            if self._is_due():
                try:
                    await self.compact()
                except StoreError as exc:
                    if not self._stopped.is_set():
                        log.warning("the file of streams could not be compacted: %s", exc)
                    pause = FAILURE_PAUSE
                except Exception:  # a defect of the compaction must not stop the server
                    log.exception("internal error in a compaction")
                    pause = FAILURE_PAUSE

    def _is_due(self) -> bool:
        """Whether it is worth it: not while messages that were purged still are to be removed."""
        size, used = self._store.file_usage
        return size - used >= max(SMALLEST, size * self._percent // 100) and not self._store.backlog

    async def _compact(self, compaction: Compaction) -> Compacted:
        began = self._loop.time()
        try:
            while not await self._slice(compaction):
                if self._stopped.is_set():
                    raise StoreError("the server is stopping")
            await self._replace(compaction)
        finally:
            await self._loop.run_in_executor(None, compaction.close)
        done = Compacted(compaction.before, compaction.after)
        log.info("Compacted the file of streams: %d bytes, were %d (%.1f s)", done.after, done.before,
                 self._loop.time() - began)  # fmt: skip
        return done

    async def _slice(self, compaction: Compaction) -> bool:
        """Do a slice; whether the copy is ready."""
        began = self._loop.time()
        if not compaction.begin():
            await self._sleep(WAIT)
            return False
        is_ready = False
        try:
            await self._loop.run_in_executor(None, compaction.work)
        finally:
            is_ready = compaction.finish()
        if not is_ready:
            await self._sleep(self._loop.time() - began)
        return is_ready

    async def _replace(self, compaction: Compaction) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def replaced(error: BaseException | None) -> None:
            compaction.switch()  # at once: no group may begin before
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._committer.between_groups(compaction.replace, replaced)
        await done

    async def _sleep(self, seconds: float) -> bool:
        """Wait; whether the server stops."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)
        return self._stopped.is_set()
