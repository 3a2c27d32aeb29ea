"""A scenario, step by step, on a bucket and on its model: after every write both must agree on what is stored, and
every read must be one that the model allows.

What a handle's reads are promised to reflect:

- `any`: nothing,
- `own` (the default consistency): of a key what the handle wrote or saw of it; listings, ranges, watches and snapshots
  the newest revision that it wrote or saw of any key,
- `latest`: all that was written before the read,
- `session`: the newest revision that was written or seen through the session, for every read,
- `cached`: its own writes; those of others soon,
- `copy` (a read replica by its own name): as `own`.

Copies lag in a scenario only while they are held; otherwise a run waits for them, so that every answer is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from slipstream.errors import (
    ApiError,
    HistoryLostError,
    KeyExistsError,
    KeyNotFoundError,
    StaleReadError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.kv import Entry, Operation
from tests.kv.model.backends import Backend, Handle
from tests.kv.model.follower import Follower
from tests.kv.model.model import SECOND, Filter, Kept, Key, Model, Write, matches_any
from tests.kv.model.scenario import CODECS, FILTERS, KEYS, Scenario, Step

SOON = 20.0  # seconds, for what happens "soon"
TTLS = (1, 2, 5)


class Run:
    """One scenario."""

    def __init__(self, backend: Backend, scenario: Scenario) -> None:
        self.backend = backend
        self.options = scenario.options
        self.steps = scenario.steps
        self.spec = CODECS[scenario.options.codec]
        self.model = Model(scenario.options.limits, backend.slack)
        self.follower: Follower | None = None
        self.count = 0
        self.held_at: int | None = None  # the state that held copies have
        self.outlived: dict[Key, set[Kept]] = {}  # entries that only a copy may still have
        self.is_altered = False  # the bucket's options were changed
        self.step = Step("")  # the present one, and its handle
        self.handle: Handle

    async def all(self) -> None:
        await self.backend.create(self.options)
        for step in self.steps:
            await self._take(step)
        await self._finish()
        await self.backend.destroy()

    async def _take(self, step: Step, handle: Handle | None = None) -> None:
        """One step, through the handle that it selects."""
        handles = self.backend.handles
        self.step, self.handle = step, handle or handles[step.handle % len(handles)]
        try:
            await getattr(self, f"do_{step.name}")()
        except BaseException as error:
            error.add_note(f"{step}, through a handle of kind {self.handle.kind!r}; {self.model.present}")
            raise

    async def _finish(self) -> None:
        """In the end every handle reads everything."""
        if self.follower is not None:
            await self.follower.finish()
        await self._take(Step("release"))
        for handle in self.backend.handles:
            for name in ("get", "history"):
                for key in range(len(KEYS)):
                    await self._take(Step(name, key=key, n=1), handle)
            for name in ("keys", "range"):
                await self._take(Step(name, n=1), handle)
        # As to a mirror, removals by request are not replicated; nor are new limits.
        if not any(self.model.removed.values()) and not self.is_altered:
            await self.backend.check_aggregate()

    @property
    def is_racing(self) -> bool:
        """Whether entries may expire between two requests: what they see together is not known then."""
        return self.backend.is_real_time and any(self.model.due(entry) for entry in self.model.present.entries())

    # Names and values

    def key(self) -> Key:
        return KEYS[self.step.key % len(KEYS)]

    def name(self, key: Key) -> str:
        return self.spec.write_key(key)

    def filters(self) -> tuple[Filter, ...]:
        return FILTERS[self.step.key % len(FILTERS)]

    def patterns(self, filters: Iterable[Filter]) -> list[str]:
        return [self.spec.write_key(each) for each in filters]

    def value(self) -> Any:
        self.count += 1
        return self.spec.value(self.count)

    def kept(self, entry: Entry[Any]) -> tuple[int, Key, Operation, Any]:
        """An entry in the form of the model."""
        value = None if entry.is_deleted else entry.value
        return entry.revision, self.spec.read_key(entry.key), entry.operation, value

    # Writing

    async def settle(self, written: dict[int, Write] | None = None) -> None:
        found, has_copy = await self.backend.found(self.model.revision), self.backend.has_copy
        self.model.settle(found, written, held_at=self.held_at if has_copy else None)
        if self.held_at is None:
            await self.backend.wait_for_copies(max(self.model.present.revisions(), default=0))

    async def wrote(self, revision: int, write: Write) -> None:
        await self.settle({revision: write})
        self.handle.note(revision, write.key)

    def ttl(self) -> timedelta:
        return timedelta(seconds=TTLS[self.step.n % len(TTLS)])

    async def _write(
        self,
        call: Callable[..., Awaitable[int]],
        *,
        operation: Operation = Operation.PUT,
        ttl: timedelta | None = None,
        **more: Any,
    ) -> bool:
        """A write with or without a TTL; False if it was refused, and had to be."""
        key = self.key()
        value = self.value() if operation is Operation.PUT else None
        is_lengthened = ttl is not None and self.options.history > 1 and ttl.total_seconds() < self.options.marker_ttl
        if is_lengthened and self.is_altered:
            # Decision (howto/key-value.md): for 2 seconds after another program changed the bucket's options, a TTL may
            # be checked by the old ones. Two seconds are not waited for here.
            return False
        arguments = {"ttl": ttl, **more} if ttl is not None else more
        try:
            revision = await self._with_time(call(self.name(key), *([] if value is None else [value]), **arguments))
        except (UsageError, ApiError) as error:
            if isinstance(error, WrongLastSequenceError):
                raise
            # Decision: where a server would lengthen the TTL to that of its markers, it is refused.
            if ttl is None or not (is_lengthened or not self.options.allows_ttl):
                raise
            await self.settle()
            return False
        except StaleReadError as error:
            # Documented (kv-encryption.md): before the first name was found, a write looks for names in its own copy.
            if self.options.codec != "encrypted":
                raise
            await self._excuse(error)
            await self.settle()
            return False
        span = 0 if ttl is None else int(ttl.total_seconds()) * SECOND
        await self.wrote(revision, Write(key, operation, value, span))
        return True

    async def do_put(self) -> None:
        await self._write(self.handle.kv.put)

    async def do_put_ttl(self) -> None:
        await self._write(self.handle.kv.put, ttl=self.ttl())

    async def do_create(self, ttl: timedelta | None = None) -> None:
        before, key = len(self.model.states) - 1, self.key()
        try:
            is_stored = await self._write(self.handle.kv.create, ttl=ttl)
        except StaleReadError as error:
            await self._excuse(error)
            await self.settle()
            found = self.model.newest(key, before)
            assert any(found), f"create has read {key}, which never had an entry"
        except KeyExistsError:
            await self.settle()
            is_live = [each is not None and each.is_live for each in self.model.newest(key, before)]
            assert any(is_live), f"create says that {key} exists"
        else:
            found = self.model.newest(key, before)[:-1] if is_stored else []
            is_free = [each is None or not each.is_live for each in found]
            assert not is_stored or any(is_free), f"create replaced {found}"

    async def do_create_ttl(self) -> None:
        await self.do_create(self.ttl())

    async def do_update(self) -> None:
        newest = self.model.present.newest(self.key())
        ttl = self.ttl() if self.step.n % 4 == 3 else None
        try:
            await self._write(self.handle.kv.update, ttl=ttl, last=newest.revision if newest else 0)
        except WrongLastSequenceError:
            await self.settle()
            if self.model.present.newest(self.key()) == newest:
                raise

    async def do_stale(self) -> None:
        newest = self.model.present.newest(self.key())
        try:
            is_stored = await self._write(self.handle.kv.update, last=newest.revision + 1 if newest else 1)
        except WrongLastSequenceError:
            await self.settle()
        else:
            assert not is_stored, "an update of another revision succeeded"

    async def do_delete(self) -> None:
        await self._write(self.handle.kv.delete, operation=Operation.DELETE)

    async def do_purge(self) -> None:
        ttl = self.ttl() if self.step.n % 2 else None
        await self._write(self.handle.kv.purge, operation=Operation.PURGE, ttl=ttl)

    async def do_writer(self) -> None:
        """Several writes in a pipeline."""
        if self.is_racing or (self.options.codec == "encrypted" and self.held_at is not None):
            return  # documented (kv-encryption.md): it looks for names in a copy that lags, until time passes
        key, other, value = self.key(), KEYS[(self.step.key + 1) % len(KEYS)], self.value()
        async with self.handle.kv.writer() as writer:
            await writer.put(self.name(key), value)
            await writer.delete(self.name(other))
            await (writer.purge if self.step.n % 2 else writer.delete)(self.name(key))
            await writer.put(self.name(other), value)
        last = Operation.PURGE if self.step.n % 2 else Operation.DELETE
        writes = (
            Write(key, Operation.PUT, value),
            Write(other, Operation.DELETE),
            Write(key, last),
            Write(other, Operation.PUT, value),
        )
        first = self.model.revision + 1
        assert writer.last_revision == first + 3
        await self.settle({first + at: write for at, write in enumerate(writes)})
        for at, write in enumerate(writes):
            self.handle.note(first + at, write.key)

    async def do_delete_range(self) -> None:
        await self._mark_range(self.handle.kv.delete_range, Operation.DELETE)

    async def do_purge_range(self) -> None:
        await self._mark_range(self.handle.kv.purge_range, Operation.PURGE)

    async def _mark_range(self, call: Callable[..., Awaitable[int]], operation: Operation) -> None:
        if self.held_at is not None or self.is_racing:  # which keys it lists is not known
            return
        filters = self.filters() or ((">",),)
        live = self.model.present.live().values()
        marked = [entry for entry in live if matches_any(filters, entry.key)]
        count = await self.read(call(*self.patterns(filters) if self.filters() else (">",)), settles=False)
        if isinstance(count, StaleReadError):
            await self.settle()
            return
        found = await self.backend.found(self.model.revision)  # in which order they are marked is not promised
        written = {
            raw.revision: Write(self.model.subjects[raw.subject], operation) for raw in found.new if not raw.is_marker
        }
        assert count == len(written), f"{count} keys of {filters} were marked, and {written} written"
        ghosts = {each.key for key in KEYS for each in self.ghosts(key) if each.is_live and matches_any(filters, key)}
        may = ghosts | {entry.key for entry in marked}
        must = {entry.key for entry in marked if not self.model.is_due(entry, found.now)}  # time may have passed
        keys = {write.key for write in written.values()}
        assert must <= keys <= may, f"{written} were marked of {filters}, must be {must}, may be {may}"
        await self.settle(written)
        for revision, write in written.items():
            self.handle.note(revision, write.key)

    # Reading

    def since(self, floor: int) -> int:
        """The first state that a read may show, if it must reflect a revision."""
        if self.handle.kind == "cached":
            return max(self.handle.since, self.model.index_of(floor))
        return max(self.oldest, self.model.index_of(floor)) if self.held_at is not None else self.oldest

    @property
    def oldest(self) -> int:
        """The oldest state that a copy may be in."""
        return len(self.model.states) - 1 if self.held_at is None else self.held_at

    def floor(self, key: Key | None) -> tuple[int, int]:
        """The revision that a read must reflect, and the one that is named in the call."""
        named = self.model.revision if self.step.n % 3 == 0 else 0
        return max(named, self.known(key)), named

    def known(self, key: Key | None) -> int:
        """The revision that a read must reflect by itself: of a key, or (None) of all."""
        if self.handle.kind == "latest":
            return self.model.revision
        if self.handle.kind == "any":
            return 0
        if key is None or self.handle.kind == "session":
            return self.handle.highest
        return self.handle.seen.get(key, 0)

    async def read(self, call: Awaitable[Any], *, settles: bool = True) -> Any:
        """The result of a read, None if it says that there is none, or the error that no copy was new enough."""
        try:
            return await self._with_time(call, settles=settles)
        except KeyNotFoundError:
            return None
        except StaleReadError as error:
            await self._excuse(error)
            return error

    async def _excuse(self, error: StaleReadError) -> None:
        """Raise the error unless a copy lags, or the handle is one that need not know the bucket."""
        # Documented: a session that never learned when its stream was made does not adapt if it is made again.
        is_old = self.handle.kind == "session" and self.handle.is_of_old_bucket
        if not is_old and self.held_at is None:
            raise error
        if is_old:
            await self.backend.open_again(self.handle)

    async def _with_time(self, call: Awaitable[Any], *, settles: bool = False) -> Any:
        """A copy that lags waits before it gives up, by a clock that stands still: let time pass then."""
        task, has_passed = asyncio.ensure_future(call), self.backend.is_real_time
        try:
            while not (await asyncio.wait([task], timeout=0.05))[0]:
                has_passed |= await self.backend.nudge()
            return await task
        finally:
            if has_passed and settles:
                await self.settle()

    async def do_get(self) -> None:
        key = self.key()
        floor, named = self.floor(key)
        since = self.since(floor)
        deadline = asyncio.get_running_loop().time() + SOON
        while True:
            entry = await self.read(self.handle.kv.get(self.name(key), min_last_revision=named))
            if isinstance(entry, StaleReadError):
                return
            if not self._is_removed_from_cache(key, entry):
                self._check_newest(key, entry, since)
            if self.handle.kind != "cached" or self._is_newest(key, entry, len(self.model.states) - 1):
                break
            assert asyncio.get_running_loop().time() < deadline, f"a cache shows {entry} for {SOON} s"
            await asyncio.sleep(0.002)
        if entry is not None:
            self.handle.note(entry.revision, key)

    def _is_removed_from_cache(self, key: Key, entry: Entry[Any] | None) -> bool:
        """Decision: what was removed without a trace, or with the whole bucket, may be shown by a cache for its
        `recheck_after`, here a moment."""
        if self.handle.kind != "cached":
            return False
        if self.handle.is_of_old_bucket:  # a key that it did not have is one of those, but for the handle's own writes
            return entry is not None or key not in self.handle.seen
        if entry is None:
            return False
        known = [each.revision for each in self.model.log.values() if each.key == key]
        if self.model.removed.get(key):  # with the marks that replaced it, which the cache may not have got
            return entry.revision in known
        return entry.revision == max(known, default=0)

    async def do_cached(self) -> None:
        """The same through a cache, if there is one."""
        self.handle = next((each for each in self.backend.handles if each.kind == "cached"), self.handle)
        await self.do_get()

    def _is_newest(self, key: Key, entry: Entry[Any] | None, since: int) -> bool:
        allowed = self.newest(key, since)
        if entry is None:
            return any(each is None or not each.is_live for each in allowed)
        return self.kept(entry) in [each[:4] for each in allowed if each is not None]

    def newest(self, key: Key, since: int) -> list[Kept | None]:
        """What a read may find of a key."""
        return [*self.model.newest(key, since), *self.ghosts(key)]

    def ghosts(self, key: Key) -> list[Kept]:
        """Entries that were removed by request, or replaced by one that expired before a copy got it: to a mirror that
        is not replicated (howto/mirrors.md), so one that answers for its origin may still show them. In real time it
        may also show for a moment what has expired in its origin."""
        if not self.backend.has_copy:
            return []
        lately = self.model.expired_lately(key) if self.backend.is_real_time else []
        return [*self.model.removed.get(key, []), *lately]

    def _check_newest(self, key: Key, entry: Entry[Any] | None, since: int) -> None:
        assert self._is_newest(key, entry, since), f"{key} is {entry}; allowed: {self.newest(key, since)}"
        if entry is not None:
            assert entry.delta == 0
            found = [each for each in self.newest(key, since) if each is not None]
            due = {each.created + each.ttl if each.ttl else 0 for each in found}
            if self.options.ttl:  # a local bucket does not keep a TTL that is longer than the bucket's
                due |= {0 for each in found if each.ttl >= self.options.ttl * SECOND}
            assert entry.expires in due, f"{entry} expires at one of {due}"

    async def do_at(self) -> None:
        """A get of a revision."""
        revision = max(self.model.revision - self.step.n, 1)
        key = self.model.log[revision].key if revision in self.model.log else self.key()
        since = self.since(self.known(key))
        entry = await self.read(self.handle.kv.get(self.name(key), revision=revision))
        if isinstance(entry, StaleReadError):
            return
        wanted = {each for each in self.model.ever(since) if each.revision == revision}
        wanted |= {each for each in (*self.ghosts(key), *self.outlived.get(key, ())) if each.revision == revision}
        if entry is None:
            is_kept = any(each.revision == revision and each.is_live for each in self.model.always(since))
            assert not is_kept, f"revision {revision} of {key} is not found"
        else:
            assert self.kept(entry) in [each[:4] for each in wanted], f"revision {revision} of {key} is {entry}"
            newer = [sum(each.revision > revision for each in s.kept.get(key, ())) for s in self.model.states[since:]]
            assert entry.delta is None or entry.delta in newer, f"delta of {entry} is not one of {newer}"
            self.handle.note(entry.revision, key)

    async def do_history(self) -> None:
        key = self.key()
        floor, named = self.floor(None)
        since = self.since(floor)
        found = await self.read(self.handle.kv.history(self.name(key), min_last_revision=named))
        if isinstance(found, StaleReadError):
            return
        entries = [self.kept(entry) for entry in found or []]
        revisions = [entry[0] for entry in entries]
        assert revisions == sorted(set(revisions)), f"history of {key} is not in order: {revisions}"
        must = {each[:4] for each in self.model.always(since) if each.key == key}
        outlived = self.outlived.get(key, set())
        may = {each[:4] for each in (*self.model.ever(since), *self.ghosts(key), *outlived) if each.key == key}
        assert must <= set(entries) <= may, f"history of {key} is {entries}, must have {must}, may have {may}"
        assert [entry.delta for entry in found or []] == list(range(len(entries)))[::-1]
        for entry in found or []:
            self.handle.note(entry.revision, key)

    async def do_keys(self) -> None:
        filters = self.filters()
        floor, named = self.floor(None)
        since = self.since(floor)
        found = await self.read(self.handle.kv.keys(*self.patterns(filters), min_last_revision=named))
        if isinstance(found, StaleReadError):
            return
        keys = {self.spec.read_key(key) for key in found}
        assert len(keys) == len(found)
        for key in KEYS:
            may = {each is not None and each.is_live for each in self.newest(key, since)}
            wanted = may if matches_any(filters, key) else {False}
            assert (key in keys) in wanted, f"keys of {filters} are {found}; {key} may be there: {wanted}"
        assert keys <= set(KEYS)

    async def do_range(self) -> None:
        filters = self.filters()
        floor, named = self.floor(None)
        since = self.since(floor)
        found = await self.read(self.handle.kv.get_range(*self.patterns(filters), min_last_revision=named))
        if isinstance(found, StaleReadError):
            return
        entries = {self.spec.read_key(key): entry for key, entry in found.items()}
        for key in KEYS:
            if matches_any(filters, key):
                self._check_newest(key, entries.get(key), since)
        assert all(matches_any(filters, key) for key in entries)
        for key, entry in entries.items():
            self.handle.note(entry.revision, key)

    async def do_snapshot(self) -> None:
        filters = self.filters()
        revision = 0 if self.step.n % 2 else max(self.model.revision - self.step.n, 0)
        since = self.since(revision or self.known(None))
        try:
            found = await self.read(self.handle.kv.snapshot(*self.patterns(filters), revision=revision))
        except HistoryLostError:
            assert revision, "a snapshot of the present says that its history is lost"
            return
        if isinstance(found, StaleReadError):
            return
        entries = {self.kept(entry) for entry in found.values()}
        states = [self.model.as_of(revision)] if revision else [s.live() for s in self.model.states[since:]]
        # Documented: keys that were removed for good without a record of it leave no trace, and are missing.
        unknown = {key for key, removed in self.model.removed.items() if removed}
        allowed = [
            {each[:4] for key, each in state.items() if matches_any(filters, key) and key not in unknown}
            for state in states
        ]
        entries = {entry for entry in entries if entry[1] not in unknown}
        assert entries in allowed, f"a snapshot of {revision} is {entries}; allowed: {allowed}"

    async def do_status(self) -> None:
        if self.handle.kind != "copy" and not self.is_racing:
            status = await self.handle.kv.status()
            assert status.last_revision == self.model.revision
            assert status.values == len(self.model.present.revisions())

    # Watching

    async def do_watch(self) -> None:
        if self.follower is not None:
            await self.follower.finish()
            self.follower = None
        if self.handle.kind == "copy":
            return
        start = ("latest", "include_history", "updates_only")[self.step.n % 3]
        self.follower = Follower(self, self.handle, self.filters(), start, ignore_deletes=self.step.n % 2 == 1)
        await self.follower.open(meta_only=self.step.n > 5)

    async def do_take(self) -> None:
        if self.follower is not None:
            self.handle = self.follower.handle
            await self.follower.take(self.step.n)

    async def do_resume(self) -> None:
        if self.follower is not None:
            self.handle = self.follower.handle
            await self.follower.resume()

    # Removal, time, and the bucket

    async def do_purge_deletes(self) -> None:
        if self.handle.kind == "copy" or self.held_at is not None or self.is_racing:
            return
        if self.handle.is_of_old_bucket:
            await self.do_keys()  # it learns of the new one, for which time may have to pass
        older_than = timedelta(seconds=(0, 5)[self.step.n % 2])
        now = (await self.backend.found(self.model.revision)).now
        newest = [kept[-1] for kept in self.model.present.kept.values()]
        marks = [each for each in newest if not each.is_live]
        call = self.handle.kv.purge_deletes(older_than=older_than, recorded=self.step.n % 3 == 0)
        if isinstance(await self.read(call, settles=False), StaleReadError):
            return
        for mark in marks:
            is_old = not older_than or now - mark.created > older_than.total_seconds() * SECOND
            self.model.remove(mark.key, mark.revision + is_old, self.oldest)
        await self.settle()

    async def do_forget(self) -> None:
        """A purge of the key's subject by the stream API."""
        key = self.key()
        subject = next((subject for subject, each in self.model.subjects.items() if each == key), None)
        if subject is not None:
            await self.backend.forget(subject)
            self.model.remove(key, self.model.revision + 1, self.oldest)
            await self.settle()

    async def do_pass(self) -> None:
        await self.backend.pass_time((1, 1, 2, 3, 5, 6, 10, 25)[self.step.n])
        await self.settle()

    async def do_alter(self) -> None:
        """An update of the bucket's history and TTL."""
        changed = replace(self.options, history=1 + self.step.n % 5, ttl=(0, 4, 20)[self.step.key % 3])
        if await self.backend.alter(changed):
            if changed.history > self.options.history:
                self._outlive()
            self.options, self.is_altered = changed, True
            self.model.limit(changed.limits)
            await self.backend.pass_time(0)  # a server removes what is overdue now a moment later
            await self.settle()

    def _outlive(self) -> None:
        """The history was raised while a copy was held: what the bucket dropped meanwhile fits into the copy's history
        now, and the copy never learns that it was dropped (docs/status.md)."""
        if self.held_at is None or not self.backend.has_copy:
            return
        for state in self.model.states[self.held_at :]:
            for key, kept in state.kept.items():
                self.outlived[key] = self.outlived.get(key, set()) | set(kept)

    async def do_recreate(self) -> None:
        """The bucket is destroyed and made again; handles of the old one stay, or are opened again."""
        await self.do_release()
        if self.follower is not None:
            await self.follower.close()
            self.follower = None
        await self.backend.recreate(self.options, keep_handles=self.step.n % 2 == 0)
        self.model = Model(self.options.limits, self.backend.slack)
        self.outlived.clear()
        for each in self.backend.handles:
            each.forget()

    # Faults

    async def do_hold(self) -> None:
        if await self.backend.hold() and self.held_at is None:
            self.held_at = len(self.model.states) - 1

    async def do_release(self) -> None:
        await self.backend.release()
        self.held_at = None
        await self.settle()

    async def do_cut(self) -> None:
        await self.backend.cut()
