"""Leader elections and membership, built on leases, over asyncio.

`docs/kv-coordination.md` says what each guarantees and what it cannot. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, Self

from slipstream.errors import CodecError, RequestTimeoutError, UsageError
from slipstream.kv._async.lease import DEFAULT_TTL, Lease
from slipstream.kv._async.runtime import clock
from slipstream.kv._async.storage import Storage, read_live
from slipstream.kv._async.watch import Watch
from slipstream.kv.codecs.base import ForeignKeys
from slipstream.kv.entry import LATEST, Entry
from slipstream.kv.lease import Observation, Record, decode_record


class Leader(NamedTuple):
    """The elected leader: its name and data, and the term, which grows with each new leader."""

    name: str
    data: bytes
    term: int


class Election:
    """A candidacy for the leadership of a key. The term is a fencing token."""

    def __init__(
        self,
        storage: Storage[bytes],
        key: str,
        *,
        name: str = "",
        data: bytes = b"",
        ttl: timedelta = DEFAULT_TTL,
        now: Callable[[], float] = clock,
    ) -> None:
        self.lease = Lease(storage, key, ttl=ttl, name=name, data=data, now=now)
        self._storage = storage

    @property
    def is_leader(self) -> bool:
        """Whether we certainly lead at this moment."""
        return self.lease.is_held

    async def campaign(self, *, timeout: float | None = None) -> int:
        """Wait until we lead; returns the term. The lease is renewed until `resign`, or until it is lost."""
        return await self.lease.acquire(timeout=timeout)

    async def resign(self) -> bool:
        """Step down at once; whether we still led."""
        return await self.lease.release()

    def check(self) -> int:
        """The term. Raises LeaseLostError if we no longer certainly lead."""
        return self.lease.check()

    async def leader(self, *, timeout: float | None = None) -> Leader | None:
        """The last one elected that has not resigned. It may have died since, for at most the length of its lease."""
        entry = await self._storage.last(self.lease.key, timeout=timeout)
        return _leader(entry)

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Each change of leadership, beginning with the current leader (None: there is none)."""
        async with await _watch(self._storage, self.lease.key) as watch:
            known: str | None = None
            while True:
                entry = await watch.next()
                owner = decode_record(entry.key, entry.value).owner if entry and not entry.is_deleted else ""
                if entry is None and known is not None:  # the end of the initial data, not a change
                    continue
                if owner != known:
                    known = owner
                    yield _leader(entry)

    async def __aenter__(self) -> Self:
        await self.campaign()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resign()


async def _watch(storage: Storage[bytes], key_filter: str) -> Watch[bytes]:
    return Watch(await storage.follow(storage.patterns((key_filter,)), LATEST))


def _leader(entry: Entry[bytes] | None) -> Leader | None:
    if entry is None or entry.is_deleted:
        return None
    record = decode_record(entry.key, entry.value)
    return Leader(record.name, record.data, record.token or entry.revision)


class Member(NamedTuple):
    """One member: its name and data, and the revision of its last renewal."""

    name: str
    data: bytes
    revision: int


class Change(NamedTuple):
    """A change of membership: `kind` is joined, updated or left."""

    kind: str
    member: Member


class Members:
    """A set of members, each a lease on a key below `prefix`. A member that does not renew its lease is removed.

    Keys below the prefix that hold no lease are left out, and reported once each: see `foreign`.
    """

    def __init__(
        self,
        storage: Storage[bytes],
        prefix: str,
        *,
        ttl: timedelta = DEFAULT_TTL,
        now: Callable[[], float] = clock,
    ) -> None:
        self.prefix = storage.check_key(prefix)
        self.foreign = ForeignKeys(storage.bucket)
        self._storage = storage
        self._ttl = ttl
        self._now = now

    async def join(self, name: str, data: bytes = b"", *, timeout: float | None = None) -> Lease:
        """Become a member until the returned lease is released or lost; `lease.renew(data)` changes the data.

        Waits while another member has that name.
        """
        if "." in name:
            raise UsageError(f"member name must not contain dots, got {name!r}")
        lease = Lease(self._storage, f"{self.prefix}.{name}", ttl=self._ttl, name=name, data=data, now=self._now)
        await lease.acquire(timeout=timeout)
        return lease

    async def members(self, *, min_last_revision: int = 0, timeout: float | None = None) -> dict[str, Member]:
        """The live members by name. Ages are measured with the server's clock, which also dated the renewals."""
        found = await read_live(
            self._storage, (f"{self.prefix}.*",), min_last_revision=min_last_revision, timeout=timeout
        )
        now = (await self._storage.status(timeout=timeout)).stream_info.ts
        members = ((entry, self._record(entry)) for entry in found.values())
        return {
            record.name: Member(record.name, record.data, entry.revision)
            for entry, record in members
            if record is not None and now - entry.created <= record.ttl * 1e9
        }

    def _record(self, entry: Entry[bytes]) -> Record | None:
        """The lease of a member; None if the key holds something else, which is reported."""
        try:
            return decode_record(entry.key, entry.value)
        except CodecError as error:
            self.foreign.report(entry.key, error)
            return None

    async def watch(self) -> AsyncIterator[Change]:
        """Each member that joins, changes its data or leaves, beginning with the present members."""
        present: dict[str, tuple[Member, Observation]] = {}
        alive = await self.members()
        async with await _watch(self._storage, f"{self.prefix}.*") as watch:
            while True:
                entry = await self._next_until_expiry(watch, present)
                if entry is not None:
                    record = None if entry.is_deleted else self._record(entry)
                    if record is not None and not watch.is_current and record.name not in alive:
                        continue  # its lease had run out before the watch began
                    for change in self._changes(entry, record, present):
                        yield change
                now = self._now()
                for key in [key for key, (_, seen) in present.items() if seen.takeover_in(now) <= 0]:
                    yield Change("left", present.pop(key)[0])

    async def _next_until_expiry(
        self, watch: Watch[bytes], present: dict[str, tuple[Member, Observation]]
    ) -> Entry[bytes] | None:
        """The next entry; None once a member's lease may have run out."""
        now = self._now()
        soonest = min((seen.takeover_in(now) for _, seen in present.values()), default=None)
        with suppress(RequestTimeoutError):
            return await watch.next(timeout=None if soonest is None else max(soonest, 0.01))
        return None

    def _changes(
        self, entry: Entry[bytes], record: Record | None, present: dict[str, tuple[Member, Observation]]
    ) -> list[Change]:
        if record is None:  # deleted, or overwritten with something else
            gone = present.pop(entry.key, None)
            return [Change("left", gone[0])] if gone else []
        member = Member(record.name, record.data, entry.revision)
        known, seen = present.get(entry.key, (None, Observation()))
        seen.see(entry.revision, record.ttl, self._now())
        present[entry.key] = (member, seen)
        if known is None:
            return [Change("joined", member)]
        return [Change("updated", member)] if known.data != member.data else []
