"""Sealed groups become durable ones: begun and committed in one thread of their own, written in slices on the loop.

One group at a time; the next one fills meanwhile. A store that keeps nothing on the disk is carried through at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from slipstream.errors import StoreError
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.journal import CommitBatch, Journal
from slipstream.server.engine.ports import Group

log = logging.getLogger("slipstream.server")

SMALL = 64  # changes: some tenths of a millisecond to write
FIRST_REST, LONGEST_REST = 0.25, 8.0  # seconds, after a group that could not be stored
LOG_EVERY = 10.0  # seconds between two lines about it

Step = Callable[[Group], None]
Then = Callable[[BaseException | None], None]


class Worker:
    """The one thread that may block on the disk. LMDB ties a write transaction to its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Step, Group, Then] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="slipstream-commit", daemon=True)
        self._thread.start()

    def submit(self, step: Step, group: Group, then: Then) -> None:
        """Run `step(group)` there, then `then(error)` on the loop."""
        self._queue.put((step, group, then))

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            step, group, then = item
            error: BaseException | None = None
            try:
                step(group)
            except BaseException as exc:
                error = exc
            self._loop.call_soon_threadsafe(then, error)


class Committer:
    """Carries the groups of one journal through its store."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        *,
        worker: Worker | None,
        clock: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """Without a worker, groups are carried through at once. `wake` asks for a turn of the driver."""
        self.journal = journal
        self.sealed: Callable[[], None] = lambda: None  # called whenever the open group is empty again
        self._engine, self._worker, self._clock, self._wake = engine, worker, clock, wake
        self._loop = asyncio.get_running_loop()
        self._batch: CommitBatch | None = None
        self._stopping = False
        self.refusal = ""  # why nothing can be stored, by order of a test
        self._rest = self._rests_until = 0.0
        self._told, self._told_at, self._untold = "", 0.0, 0

    def stop(self) -> None:
        """Carry through what waits, and start on nothing else: what the store has left to do, it finds again."""
        self._stopping = True
        self.journal.hurried = True

    def turn(self) -> None:
        """Start on the open group, if it is time. After one that was lost, a group that nobody waits for rests a while:
        what it holds (books of consumers, old jobs) is there again at once, and a full disk stays full for some time.
        """
        idle = self.journal.settled if self._stopping else not self.journal.unfinished
        is_resting = bool(self._rest) and self._loop.time() < self._rests_until
        if not self.journal.ready or ((self._stopping or self.refusal or is_resting) and idle):
            return
        batch = self.journal.seal()
        self.sealed()
        if self.refusal and batch.group is not None:
            self._fail(StoreError(f"the disk failed or is full while beginning a group: {self.refusal}"))
            return
        if batch.group is None or self._worker is None:
            if batch.group is None:
                self._engine.committed(batch, self._clock())
            else:
                self._carry_through(batch, batch.group)
            if self.journal.ready or self._engine.has_new_jobs:  # what was committed made others go on
                self._wake()
        elif batch.group.size <= SMALL and not self.journal.store.backlog:
            self._batch = batch  # one way there and back instead of two: what a lone publisher waits for
            self._worker.submit(self._store, batch.group, self._committed)
        else:
            self._batch = batch
            self._worker.submit(self.journal.store.begin, batch.group, self._begun)

    def _store(self, group: Group) -> None:
        """Begin, write and commit a small group, in the worker's thread. Nothing of the store changes meanwhile but
        its open group: a group without jobs is written from what it holds itself."""
        store = self.journal.store
        store.begin(group)
        while not store.write_some(group):
            pass
        store.commit(group)

    def _carry_through(self, batch: CommitBatch, group: Group) -> None:
        store = self.journal.store
        try:
            store.begin(group)
            while not store.write_some(group):
                pass
            store.commit(group)
        except Exception as exc:
            self._fail(exc)
        else:
            self._rest = 0.0
            self._engine.committed(batch, self._clock())

    def _begun(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self._write()

    def _write(self) -> None:
        assert self._batch is not None
        assert self._batch.group is not None
        assert self._worker is not None
        try:
            done = self.journal.store.write_some(self._batch.group)
        except Exception as exc:
            self._fail(exc)
            return
        if done:
            self._worker.submit(self.journal.store.commit, self._batch.group, self._committed)
        else:
            self._loop.call_soon(self._write)  # whoever waits for a read gets in between

    def _committed(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        batch, self._batch = self._batch, None
        assert batch is not None
        self._rest = 0.0
        try:
            self._engine.committed(batch, self._clock())
        finally:
            self._wake()

    def _fail(self, error: BaseException) -> None:
        self._tell(error)
        self._rest = min(max(self._rest * 2, FIRST_REST), LONGEST_REST)
        self._rests_until = self._loop.time() + self._rest
        self._loop.call_later(self._rest, self._wake)
        self._batch = None
        self._engine.failed(
            self.journal, error if isinstance(error, Exception) else RuntimeError(str(error)), self._clock()
        )
        self.sealed()
        self._wake()

    def _tell(self, error: BaseException) -> None:
        """In the log: whole the first time, then a line now and then. It may lie on the disk that is full."""
        now, is_known = self._loop.time(), self._rest and str(error) == self._told
        if is_known and now - self._told_at < LOG_EVERY:
            self._untold += 1
            return
        more = f" (and {self._untold} times since that was said last)" if self._untold else ""
        log.error("a group of changes could not be stored: %s%s", error, more, exc_info=None if is_known else error)
        self._told, self._told_at, self._untold = str(error), now, 0
