"""A watch and what it has delivered, against the model: in order, nothing twice, nothing skipped that still exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.errors import RequestTimeoutError, StaleReadError
from slipstream.kv import Operation
from tests.kv.model.model import Filter, Key, matches_any

if TYPE_CHECKING:
    from tests.kv.model.backends import Handle
    from tests.kv.model.operations import Run

WAIT = 20.0


class Follower:
    """A watch that is closed and resumed now and then."""

    def __init__(
        self, run: Run, handle: Handle, filters: tuple[Filter, ...], start: str, *, ignore_deletes: bool
    ) -> None:
        self.run, self.handle, self.filters, self.start = run, handle, filters, start
        self.ignore_deletes = ignore_deletes
        self.seen: list[tuple[int, Key, Operation, Any]] = []
        self.owed: set[int] = set()  # the initial data
        self.shown: set[int] = set()  # what a copy that is held may have beside it: purges of a key reach it later
        self.opened_at = 0
        self.meta_only = False

    async def open(self, *, meta_only: bool) -> None:
        model = self.run.model
        self.meta_only = meta_only
        self.opened_at = model.revision
        present = model.present
        if self.start == "include_history":
            self.owed = present.revisions()
        elif self.start == "latest":
            self.owed = {kept[-1].revision for kept in present.kept.values()}
        await self._watch(**({} if self.start == "latest" else {self.start: True}))

    async def _watch(self, **start: Any) -> None:
        since = max(self.run.oldest, self.run.model.index_of(self.run.known(None)))
        self.shown = {entry.revision for entry in self.run.model.ever(since)}
        call = self.handle.kv.watch(
            *self.run.patterns(self.filters), ignore_deletes=self.ignore_deletes, meta_only=self.meta_only, **start
        )
        watch = await self.run.read(call)
        if isinstance(watch, StaleReadError):  # no copy could prove that it is new enough: there is no watch
            self.run.follower = None
        else:
            self.watch = watch

    async def resume(self) -> None:
        """Close it, and go on where it was."""
        revision = self.watch.revision
        await self.watch.close()
        if not revision and not self.seen:  # it is still at the beginning
            await self.open(meta_only=self.meta_only)
            return
        self.owed = self._still_owed()
        # Behind the resume point all that is kept is delivered, as with include_history.
        self.start = "resume_from"
        self.owed |= {each for each in self.run.model.present.revisions() if each > revision}
        await self._watch(resume_from=revision + 1)

    async def take(self, most: int) -> None:
        """Take some of the entries that must come."""
        for _ in range(most + 1):
            if not self._missing():
                return
            await self._next()

    async def _next(self) -> None:
        try:
            entry = await self.watch.next(timeout=WAIT)
        except RequestTimeoutError:
            raise AssertionError(
                f"a watch of {self.filters} from {self.start} does not deliver revisions {sorted(self._missing())}"
            ) from None
        if entry is None:
            return
        got = self.run.kept(entry)
        last = self.seen[-1][0] if self.seen else 0
        assert got[0] > last, f"a watch delivered revision {got[0]} after {last}"
        if got[0] > self.run.model.revision:
            await self.run.settle()
        if got[0] in self.run.model.passing and got[2] is Operation.EXPIRED:
            return
        stored = self.run.model.log.get(got[0])
        assert stored is not None, f"a watch delivered {entry}, which was never written"
        if self.meta_only:
            assert not entry.value, f"a watch without values delivered {entry}"
            assert got[:3] == stored[:3]
        else:
            assert got == stored[:4], f"a watch delivered {got}, stored was {stored}"
        assert matches_any(self.filters, got[1]), f"a watch of {self.filters} delivered {got[1]}"
        assert not self.ignore_deletes or stored.is_live
        is_owed = got[0] > self.opened_at or got[0] in (self.owed | self.shown)
        assert is_owed or stored in self.run.ghosts(stored.key), f"a watch from {self.start} delivered {got[0]}"
        self.seen.append(got)
        self.handle.note(entry.revision, got[1])

    def _still_owed(self) -> set[int]:
        """The initial data; of the latest entries, one that was replaced before it was delivered is none any more."""
        if self.start != "latest":
            return self.owed
        return self.owed & {kept[-1].revision for kept in self.run.model.present.kept.values()}

    def _missing(self) -> set[int]:
        """What the bucket still has, and the watch has not delivered."""
        last = self.seen[-1][0] if self.seen else 0
        present = self.run.model.present
        owed = self._still_owed()
        wanted = {
            entry.revision
            for entry in present.entries()
            if (entry.revision > self.opened_at or entry.revision in owed)
            and matches_any(self.filters, entry.key)
            and (entry.is_live or not self.ignore_deletes)
        }
        missing = wanted - {revision for revision, *_ in self.seen}
        skipped = {revision for revision in missing if revision < last}
        assert not skipped, f"a watch of {self.filters} from {self.start} at {last} has skipped {sorted(skipped)}"
        return missing

    async def finish(self) -> None:
        """Take all that must come, and close it."""
        while self._missing():
            await self._next()
        await self.close()

    async def close(self) -> None:
        await self.watch.close()
