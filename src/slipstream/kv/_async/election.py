"""Leader elections and membership, built on leases, over asyncio.

`docs/kv-coordination.md` says what each guarantees and what it cannot. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Self

from slipstream.client._async.opening import opens
from slipstream.errors import CodecError, RequestTimeoutError, UsageError
from slipstream.kv._async.lease import DEFAULT_TTL, Lease
from slipstream.kv._async.runtime import lease_clock
from slipstream.kv._async.storage import Storage, read_live
from slipstream.kv._async.watch import Watch
from slipstream.kv.codecs.base import ForeignKeys
from slipstream.kv.entry import LATEST, Entry
from slipstream.kv.lease import Observation, Record, check_ttl, decode_record, is_expired
from slipstream.wire.arguments import Duration, check_timeout

SHORTEST_WAIT = 0.01


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
        ttl: Duration = DEFAULT_TTL,
        now: Callable[[], float] = lease_clock,
    ) -> None:
        self.lease: Lease = Lease(storage, key, ttl=ttl, name=name, data=data, now=now)
        self._storage = storage
        self._now = now

    def __repr__(self) -> str:
        return f"<Election {self.lease.key!r} in {self._storage.bucket!r}>"

    @property
    def is_leader(self) -> bool:
        """Whether we certainly lead at this moment."""
        return self.lease.is_held

    async def campaign(self, *, timeout: Duration | None = None) -> int:
        """Wait until we lead; returns the term. The lease is renewed until `resign`, or until it is lost."""
        return await self.lease.acquire(timeout=timeout)

    async def resign(self) -> bool:
        """Step down at once; whether we still led."""
        return await self.lease.release()

    def check(self) -> int:
        """The term. Raises LeaseLostError if we no longer certainly lead."""
        return self.lease.check()

    async def leader(self, *, timeout: Duration | None = None) -> Leader | None:
        """The leader, if there is one. It may have died since, for at most the length of its lease.

        The age of its last renewal is measured with the server's clock, which also dated it.
        """
        timeout = check_timeout(timeout)
        key = self.lease.key
        entry = await self._storage.last(key, timeout=timeout)
        if _leader(entry) is None:
            return None
        status = await self._storage.status(timeout=timeout)
        now = status.stream_info.ts
        if not _is_alive(entry, now):  # or the copy that answered is behind, and has not seen it renewed
            entry = await self._storage.last(key, min_last_revision=status.last_revision, timeout=timeout)
        return _leader(entry) if _is_alive(entry, now) else None

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Each change of leadership, beginning with the current leader (None: there is none).

        A leader that does not renew its lease is reported as None once nothing was heard of it for 110 % of its lease.
        """
        async with await _watch(self._storage, self.lease.key) as watch:
            started = (await self._storage.status()).stream_info.ts
            known: str | None = None
            seen = Observation()
            while True:
                wait = seen.takeover_in(self._now()) if known else None
                try:
                    entry = await watch.next(timeout=None if wait is None else max(wait, SHORTEST_WAIT))
                except RequestTimeoutError:
                    if seen.takeover_in(self._now()) <= 0:
                        known = ""
                        yield None
                    continue
                if entry is None and known is not None:  # the end of the initial data, not a change
                    continue
                owner = ""
                if entry is not None and (watch.is_current or _is_alive(entry, started)):
                    record = decode_record(entry.key, entry.value) if not entry.is_deleted else None
                    if record is not None:
                        seen.see(entry.revision, entry.created, record.ttl, self._now())
                        owner = record.owner
                if owner != known:
                    known = owner
                    yield _leader(entry) if owner else None

    async def __aenter__(self) -> Self:
        await self.campaign()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resign()


async def _watch(storage: Storage[bytes], key_filter: str) -> Watch[bytes]:
    return Watch(await storage.follow(storage.patterns((key_filter,)), LATEST))


def _is_alive(entry: Entry[bytes] | None, now: int) -> bool:
    """Whether an entry is a lease that was renewed in time, as of the server's time `now`."""
    if entry is None or entry.is_deleted:
        return False
    return not is_expired(decode_record(entry.key, entry.value), entry.created, now)


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
        ttl: Duration = DEFAULT_TTL,
        now: Callable[[], float] = lease_clock,
    ) -> None:
        check_ttl(ttl)
        self.prefix: str = storage.check_key(prefix)
        self.foreign: ForeignKeys = ForeignKeys(storage.bucket)
        self._storage = storage
        self._ttl = ttl
        self._now = now

    def __repr__(self) -> str:
        return f"<Members {self.prefix!r} in {self._storage.bucket!r}>"

    @opens
    async def join(self, name: str, data: bytes = b"", *, timeout: Duration | None = None) -> Lease:
        """Become a member until the returned lease is released or lost; `lease.renew(data)` changes the data.

        Waits while another member has that name.
        """
        if "." in name:
            raise UsageError(f"member name must not contain dots, got {name!r}")
        lease = Lease(self._storage, f"{self.prefix}.{name}", ttl=self._ttl, name=name, data=data, now=self._now)
        return await lease.acquired(timeout=timeout)

    async def members(self, *, min_last_revision: int = 0, timeout: Duration | None = None) -> dict[str, Member]:
        """The live members by name. Ages are measured with the server's clock, which also dated the renewals."""
        timeout = check_timeout(timeout)
        found = await read_live(
            self._storage, (f"{self.prefix}.*",), min_last_revision=min_last_revision, timeout=timeout
        )
        now = (await self._storage.status(timeout=timeout)).stream_info.ts
        members = ((entry, self._record(entry)) for entry in found.values())
        return {
            record.name: Member(record.name, record.data, entry.revision)
            for entry, record in members
            if record is not None and not is_expired(record, entry.created, now)
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
        async with await _watch(self._storage, f"{self.prefix}.*") as watch:
            # Asked for behind the watch: no member that joins meanwhile is taken for one that lapsed before.
            started = (await self._storage.status()).stream_info.ts
            while True:
                entry = await self._next_until_expiry(watch, present)
                if entry is not None:
                    for change in self._changes(entry, present, 0 if watch.is_current else started):
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
        try:
            return await watch.next(timeout=None if soonest is None else max(soonest, SHORTEST_WAIT))
        except RequestTimeoutError:
            return None

    def _changes(
        self, entry: Entry[bytes], present: dict[str, tuple[Member, Observation]], started: int
    ) -> list[Change]:
        """What an entry changes; one of the initial data may have lapsed before the server's time `started`."""
        record = None if entry.is_deleted else self._record(entry)
        if record is None:  # deleted, or overwritten with something else
            gone = present.pop(entry.key, None)
            return [Change("left", gone[0])] if gone else []
        if started and is_expired(record, entry.created, started):
            return []
        member = Member(record.name, record.data, entry.revision)
        known, seen = present.get(entry.key, (None, Observation()))
        seen.see(entry.revision, entry.created, record.ttl, self._now())
        present[entry.key] = (member, seen)
        if known is None:
            return [Change("joined", member)]
        return [Change("updated", member)] if known.data != member.data else []
