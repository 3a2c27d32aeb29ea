"""Commits of one journal: its sealed groups, carried through the store one at a time.

A store on disk has a `Worker`, the one thread that may block: `begin` and `commit` run there. `write_some` runs on the
loop in slices, so that reads get in between; a small group goes through all three steps in the worker at once, which
saves a lone publisher a round trip between the threads. A store in memory has no worker: its groups are committed
within the turn that seals them.

    turn ──seal──> (worker) begin ──> _begun ──> _write, _write, ... ──> (worker) commit ──> _committed
         ──seal──> (worker) begin, write, commit: small group ─────────────────────────────> _committed
         ──seal──> _commit_now: no worker ─────────────────────────────────────────────────> engine.committed
    any step that raises ──> _fail ──> engine.failed

All methods but `_store_small` and `_commit` run on the loop's thread.

**The interpreter's lock.** A loop that is busy (jobs, a flood of core messages) releases the lock in every turn, but
only for moments: it takes it again before the worker is awake, and each time the worker's claim to it starts again, so
that a commit of a few changes can wait for hundreds of milliseconds. Therefore the loop gives way (`give_way`, called
in every turn) to a step that has been under way for `YIELD_AFTER`. It waits until the worker needs the lock no more,
because it waits for the disk or is done. While the worker waits for the disk, the loop cannot know how far that is: it
looks now and then, for a tenth of the time that it has worked, so that a slow disk costs no more than that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from time import monotonic

from slipstream.errors import StoreError, UsageError
from slipstream.metrics.exposition import Histogram
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.journal import CommitBatch, Journal
from slipstream.server.engine.monitoring.metrics import CommitReport
from slipstream.server.engine.ports import Group, Store
from slipstream.server.store.groups import write_group

log: logging.Logger = logging.getLogger("slipstream.server")

SMALL = 64  # changes: some tenths of a millisecond to write
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds, after a group that could not be stored
YIELD_AFTER = 0.002  # seconds that a step has been under way, or the loop has worked, before the loop gives way
GIVE_WAY = 0.005  # seconds at most for Python code in the worker: that of a group takes some tenths of a millisecond
WORKED = 10  # times as long as it looked, the loop has worked before, and works again
LOG_INTERVAL = 10.0  # seconds between two lines about the same failure

Step = Callable[[], None]
Done = Callable[[BaseException | None], None]


class Worker:
    """The thread that may block on the disk of one store. LMDB ties a write transaction to its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self.store = store
        self._loop = loop
        self._queue: SimpleQueue[tuple[Step, Done] | None] = SimpleQueue()
        self._submitted = self._finished = 0  # steps; counted by the loop, and by the thread
        self._worked_from = self._gives_way_at = 0.0
        self._wants_lock = False  # the thread has Python code to run; False while it waits for the disk
        self._moved_on = threading.Event()  # it waits for the disk, or is done
        self._thread = threading.Thread(target=self._run, name="slipstream-commit", daemon=True)
        self._thread.start()

    def submit(self, step: Step, done: Done) -> None:
        """Run `step()` in the thread, then `done(error)` on the loop."""
        if self._finished == self._submitted:
            self._worked_from = monotonic()
            self._gives_way_at = self._worked_from + YIELD_AFTER
            self._wants_lock = True
        self._submitted += 1
        self._queue.put((step, done))

    def waits_for_disk(self) -> None:
        """Called by a step, in the thread: what follows takes its time without the interpreter's lock."""
        self._wants_lock = False
        self._moved_on.set()

    def give_way(self) -> None:
        """Let the thread have the interpreter's lock, if a step has been under way for some time."""
        if self._finished == self._submitted or (before := monotonic()) < self._gives_way_at:
            return
        self._moved_on.clear()
        longest = GIVE_WAY if self._wants_lock else min(GIVE_WAY, (before - self._worked_from) / WORKED)
        if self._finished != self._submitted and not self._moved_on.wait(longest):
            self._wants_lock = False  # the step waits for something else, and does not say so
        self._worked_from = monotonic()
        self._gives_way_at = self._worked_from + YIELD_AFTER

    def stop(self) -> None:
        """End the thread once its queue is empty."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            step, done = item
            self._wants_lock = True
            error: BaseException | None = None
            try:
                step()
            except BaseException as exc:
                error = exc
            self._loop.call_soon_threadsafe(done, error)
            self._finished += 1
            self._moved_on.set()


class Committer:
    """Commits the groups of one journal."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        *,
        worker: Worker | None,
        clock: Callable[[], int],
        wake: Callable[[], None],
        group_sealed: Callable[[], None],
    ) -> None:
        """Without a worker, groups are committed at once. `wake` asks for a turn of the driver; `group_sealed` is
        called whenever the open group is empty again."""
        self.journal = journal
        self.write_error = ""  # a fault of a test: why nothing can be stored
        self._engine, self._worker, self._clock = engine, worker, clock
        self._wake, self._group_sealed = wake, group_sealed
        self._loop = asyncio.get_running_loop()
        self._batch: CommitBatch | None = None  # in the worker, or being written
        self._is_stopping = False
        self._between: tuple[Step, Done] | None = None  # to be done while no group is under way
        self._is_held = False  # it is being done
        self._pause = self._paused_until = 0.0
        self._logged, self._logged_at, self._not_logged = "", 0.0, 0
        self._sealed_at = 0.0
        # Metrics: of groups that hold changes.
        self.seconds: Histogram = Histogram(
            0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5
        )
        self.changes: Histogram = Histogram(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
        self.failures: int = 0

    def report(self, storage: str) -> CommitReport:
        """How the commits of that storage went so far."""
        return CommitReport(storage, self.seconds, self.changes, self.failures)

    def stop(self) -> None:
        """Commit what waits, the state of consumers included, and start nothing else: a store finds its unfinished jobs
        again when it is opened."""
        self._is_stopping = True
        self.journal.seal_requested = True

    def turn(self) -> None:
        """Seal and commit the open group, if it is time. After a failure a group without waiting clients pauses: what
        it holds (delivery state, the store's jobs) is there again at once, and a full disk stays full for a while."""
        if self._between is not None and self.journal.under_way is None:
            self._take_turn_between()
        if self._is_held or not self.journal.ready:
            return
        is_paused = bool(self._pause) and self._loop.time() < self._paused_until
        if self._is_stopping or self.write_error or is_paused:
            idle = self.journal.settled if self._is_stopping else not self.journal.unfinished
            if idle:
                return
        batch = self.journal.seal()
        self._group_sealed()
        group = batch.group
        self._sealed_at = self._loop.time()
        if self.write_error and group is not None:
            self._fail(StoreError(f"the disk failed while beginning a group: {self.write_error}"))
        elif group is None or self._worker is None:
            if group is None:
                self._engine.committed(batch, self._clock())
            else:
                self._commit_now(batch, group)
            if self.journal.ready or self._engine.has_new_jobs or batch.has_refused:  # the commit made others go on
                self._wake()
        elif group.size <= SMALL and not self.journal.store.backlog:
            self._batch = batch
            self._worker.submit(partial(self._store_small, self._worker, group), self._committed)
        else:
            self._batch = batch
            self._worker.submit(partial(self.journal.store.begin, group), self._begun)

    def between_groups(self, step: Step, done: Done) -> None:
        """Run `step()` in the thread of commits while no group is under way, then `done(error)` on the loop; groups
        wait meanwhile."""
        if self._worker is None:
            raise UsageError("a store without a thread has nothing to wait for")
        self._between = step, done
        self._wake()

    def _take_turn_between(self) -> None:
        assert self._between is not None
        assert self._worker is not None
        (step, done), self._between, self._is_held = self._between, None, True

        def ended(error: BaseException | None) -> None:
            self._is_held = False
            try:
                done(error)
            finally:
                self._wake()

        self._worker.submit(step, ended)

    def _store_small(self, worker: Worker, group: Group) -> None:
        """Begin, write and commit, in the worker's thread. This is safe beside the loop: a group without jobs is
        written from what it holds itself, and the loop changes nothing of the store but its open group."""
        write_group(self.journal.store, group, worker.waits_for_disk)

    def _commit_now(self, batch: CommitBatch, group: Group) -> None:
        try:
            write_group(self.journal.store, group)
        except Exception as exc:
            self._fail(exc)
        else:
            self._pause = 0.0
            self._count(group)
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
        group = self._batch.group
        try:
            done = self.journal.store.write_some(group)
            if not done and group.size:  # clients wait for it, a slice of all jobs in every turn
                done = self.journal.store.write_some(group)
        except Exception as exc:
            self._fail(exc)
            return
        if done:
            self._worker.submit(partial(self._commit, self._worker, group), self._committed)
        else:
            self._loop.call_soon(self._write)  # reads get in between

    def _commit(self, worker: Worker, group: Group) -> None:
        worker.waits_for_disk()
        self.journal.store.commit(group)

    def _committed(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        batch, self._batch = self._batch, None
        assert batch is not None
        assert batch.group is not None
        self._pause = 0.0
        self._count(batch.group)
        try:
            self._engine.committed(batch, self._clock())
        finally:
            self._wake()

    def _count(self, group: Group) -> None:
        self.seconds.observe(self._loop.time() - self._sealed_at)
        self.changes.observe(group.size)

    def _fail(self, error: BaseException) -> None:
        self.failures += 1
        self._log_failure(error)
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        self._paused_until = self._loop.time() + self._pause
        self._loop.call_later(self._pause, self._wake)
        self._batch = None
        self._engine.failed(
            self.journal, error if isinstance(error, Exception) else RuntimeError(str(error)), self._clock()
        )
        self._group_sealed()  # the engine has dropped the open group too
        self._wake()

    def _log_failure(self, error: BaseException) -> None:
        """A line now and then: the log may be on the disk that is full. A defect has a traceback, the first time."""
        now, is_known = self._loop.time(), self._pause and str(error) == self._logged
        if is_known and now - self._logged_at < LOG_INTERVAL:
            self._not_logged += 1
            return
        more = f" ({self._not_logged} more times since the last line)" if self._not_logged else ""
        is_expected = is_known or isinstance(error, StoreError)
        log.error("a group of changes could not be stored: %s%s", error, more, exc_info=None if is_expected else error)
        self._logged, self._logged_at, self._not_logged = str(error), now, 0
