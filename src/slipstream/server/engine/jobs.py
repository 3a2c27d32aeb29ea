"""Jobs: work in slices, handed out fairly, so that no client waits for the whole of another's request.

Theory of operation
===================

**Slices.** A job does a bounded piece of work when it is run and says how much it was, in units of about five
microseconds (a message sent is one). A step of the server runs jobs until `STEP_UNITS` are used up, each job once.

**Whose turn it is.** Slices are handed out by account, then by owner within the account, in turn. The owner of a read
is the client that asked for it; a consumer's delivery is its own owner. A client with a thousand reads gets as many
slices as a client with one.

**Requests that take long.** A request whose cost is not known beforehand is a `Walk`. Its first slice is run at once,
which is all of most walks, and the rest as a job. Meanwhile the further input of the client waits (`Session.held`, and
its socket is not read), as it would on a server that handles the requests of a connection one after the other: what a
client sees of the order of its own requests does not change, and one search of a client waits at most.

**Requests that cost something** report it (`Load.units`). A client that pipelines so many that they exceed
`RECEIVE_UNITS` is served in slices too: the rest of its input waits for its turn.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from slipstream.errors import StoreError
from slipstream.server.engine.core.session import Session
from slipstream.server.engine.ports import Walk, Work

T = TypeVar("T")

MAX_JOBS = 10_000
MAX_OWNED = 2_500  # of one owner
STEP_UNITS = 1024  # per turn, by all jobs together
RECEIVE_UNITS = 512  # of what one client has just sent, before the rest of it waits
SLICE_UNITS = 256  # of one walk


class Progress(enum.Enum):
    """The state of a job after a chunk."""

    DONE = "done"
    MORE = "more"
    BLOCKED = "blocked"  # its receiver does not keep up: try again in a later turn


class Job(Hashable, Protocol):
    """Work that is done in chunks, so that other work gets its turn in between."""

    def run(self) -> tuple[Progress, int]:
        """Do one chunk; the progress, and the units of work (messages sent)."""


class Load(Work):
    """The work done for the event that is being handled (or by the job that is run), and the client that sent it."""

    __slots__ = ("client", "is_about_commit", "owner")

    def __init__(self) -> None:
        super().__init__()
        self.client: Session | None = None  # None: the server itself
        self.owner: Session | None = None  # of a request that waited for something, and is answered now
        self.is_about_commit: bool = False  # what is sent now is about a commit: all of that stays in order

    @property
    def asker(self) -> Session | None:
        """The client on whose behalf the server works."""
        return self.client or self.owner


class Jobs:
    """All jobs of the server."""

    def __init__(self, load: Load | None = None) -> None:
        """`load` counts what the jobs did not foresee."""
        self._load = load or Load()
        self._accounts: OrderedDict[str, OrderedDict[Hashable, deque[Job]]] = OrderedDict()  # whose turn it is first
        self._count = 0
        self.has_new: bool = False  # a job was started since the last step
        self.used: int = 0  # units, by the last step

    def start(self, job: Job, account: str, owner: Hashable | None = None) -> bool:
        """Add a job; without an owner it is its own. False if there are too many."""
        its: Hashable = owner if owner is not None else job
        if self._count >= MAX_JOBS or not self._add(job, account, its, MAX_OWNED):
            return False
        self.has_new = True
        return True

    def go_on(self, job: Job, account: str, owner: Hashable) -> None:
        """Add a job that continues something, however many there are."""
        self._add(job, account, owner, MAX_JOBS + MAX_JOBS)
        self.has_new = True

    def _add(self, job: Job, account: str, owner: Hashable, limit: int) -> bool:
        owners = self._accounts.get(account)
        if owners is None:
            owners = self._accounts[account] = OrderedDict()
        queue = owners.get(owner)
        if queue is None:
            owners[owner] = deque((job,))
        elif len(queue) >= limit:
            return False
        else:
            queue.append(job)
        self._count += 1
        return True

    def step(self) -> bool:
        """Run a chunk of every job, or of as many as the budget is for; True if there is more to do at once."""
        self.has_new = False
        budget, more = STEP_UNITS, False
        again: list[tuple[Job, str, Hashable]] = []
        accounts = self._accounts
        try:
            while accounts and budget > 0:
                account, owners = accounts.popitem(last=False)
                owner, queue = owners.popitem(last=False)
                job = queue.popleft()
                self._count -= 1
                if queue:
                    owners[owner] = queue
                if owners:
                    accounts[account] = owners
                self._load.units = 0
                progress, units = job.run()
                budget -= max(units, self._load.units, 1)
                if progress is not Progress.DONE:
                    again.append((job, account, owner))
                    more = more or progress is Progress.MORE
        finally:  # a job that fails is gone; the others go on
            self.used = STEP_UNITS - budget
            for entry in again:
                self._add(*entry, MAX_JOBS + MAX_JOBS)
        return more or self.has_new or budget <= 0


class AccountJobs:
    """The jobs of one account."""

    def __init__(self, jobs: Jobs, load: Load, account: str, resume: Callable[[Session], None]) -> None:
        """`resume` handles the input of a client that waited for its search."""
        self._jobs = jobs
        self.load: Load = load
        self._account = account
        self._resume = resume

    def start(self, job: Job, owner: Hashable | None = None) -> bool:
        """Add a job; False if there are too many."""
        return self._jobs.start(job, self._account, owner)

    def go_on(self, job: Job, owner: Hashable) -> None:
        """Add a job that must not be lost, however many there are."""
        self._jobs.go_on(job, self._account, owner)

    def search(self, walk: Walk[T], done: Callable[[T], None], failed: Callable[[StoreError], None]) -> bool:
        """Run a walk and call `done` with its result. The first slice is run at once, and a short walk ends with it;
        the input of the client that asks waits for a longer one. False if there are too many jobs; nothing is called
        then."""
        load = self.load
        job = Search(walk, done, failed, load, self._resume)
        progress, units = job.run()
        load.units += units
        if progress is Progress.DONE:
            return True
        if not self.start(job, load.asker):
            walk.close()
            return False
        job.defer()
        return True


class Search(Generic[T]):
    """A walk on its way."""

    def __init__(
        self,
        walk: Walk[T],
        done: Callable[[T], None],
        failed: Callable[[StoreError], None],
        load: Load,
        resume: Callable[[Session], None],
    ) -> None:
        """The input of the client that is being served waits for it. The walk ends when the asker is gone."""
        self._walk, self._done, self._failed = walk, done, failed
        self._load, self._client, self._asker, self._resume = load, load.client, load.asker, resume
        self._is_deferred = False

    def defer(self) -> None:
        """The client's input waits until the walk is over."""
        self._is_deferred = True
        if self._client is not None:
            self._client.searches += 1

    def run(self) -> tuple[Progress, int]:
        units = 0
        # Not before the first slice: closing a walk that was not begun would leave its snapshot open.
        if self._is_deferred and self._asker is not None and self._asker.closed:
            self._walk.close()
            return Progress.DONE, 0
        load, begun = self._load, self._load.units
        try:
            while units < SLICE_UNITS and load.units - begun < SLICE_UNITS:
                units += next(self._walk)
        except StopIteration as end:
            self._end()
            self._done(end.value)
            return Progress.DONE, units
        except StoreError as exc:
            self._end()
            self._failed(exc)
            return Progress.DONE, units
        return Progress.MORE, units

    def _end(self) -> None:
        if self._is_deferred and self._client is not None:
            self._client.searches -= 1
            if not self._client.searches:
                self._resume(self._client)
