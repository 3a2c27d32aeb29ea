"""Elections and sets, made of leases, over asyncio: who leads, who is there.

`docs/kv-coordination.md` says what each guarantees and what it cannot. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Self

from slipstream.errors import RequestTimeoutError, UsageError
from slipstream.kv._async.lease import DEFAULT_TTL, Lease
from slipstream.kv._async.runtime import clock
from slipstream.kv._async.watch import Watch
from slipstream.kv.entry import Entry
from slipstream.kv.lease import Observation, decode_record

if TYPE_CHECKING:
    from slipstream.kv._async.key_value import KeyValue


class Leader(NamedTuple):
    """Who leads: its name and data, and the term, which grows with each new leader."""

    name: str
    data: bytes
    term: int


class Election:
    """Candidates for the leadership that a key stands for. The term is a fencing token."""

    def __init__(
        self,
        kv: KeyValue[bytes],
        key: str,
        *,
        name: str = "",
        data: bytes = b"",
        ttl: timedelta = DEFAULT_TTL,
        now: Callable[[], float] = clock,
    ) -> None:
        self.lease = Lease(kv, key, ttl=ttl, name=name, data=data, now=now)
        self._kv = kv

    @property
    def is_leader(self) -> bool:
        """Whether we are certain to lead, now."""
        return self.lease.is_held

    async def campaign(self, *, timeout: float | None = None) -> int:
        """Wait until we lead; returns the term. It is kept until `resign`, or until it is lost."""
        return await self.lease.acquire(timeout=timeout)

    async def resign(self) -> bool:
        """Step down at once; whether we still led."""
        return await self.lease.release()

    def check(self) -> int:
        """The term; raises LeaseLostError if we are not certain to lead any more."""
        return self.lease.check()

    async def leader(self, *, timeout: float | None = None) -> Leader | None:
        """Who was the last to be elected and has not stepped down. It may be dead for as long as its lease lasts."""
        entry = await self._kv.storage.last(self.lease.key, timeout=timeout)
        return _leader(entry)

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Each change of leadership, beginning with who leads now (None: nobody)."""
        async with await self._kv.watch(self.lease.key) as watch:
            known: str | None = None
            while True:
                entry = await watch.next()
                owner = decode_record(entry.key, entry.value).owner if entry and not entry.is_deleted else ""
                if entry is None and known is not None:  # only the word that the initial data is over
                    continue
                if owner != known:
                    known = owner
                    yield _leader(entry)

    async def __aenter__(self) -> Self:
        await self.campaign()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resign()


def _leader(entry: Entry[bytes] | None) -> Leader | None:
    if entry is None or entry.is_deleted:
        return None
    record = decode_record(entry.key, entry.value)
    return Leader(record.name, record.data, record.token or entry.revision)


class Member(NamedTuple):
    """One of a set: its name and data, and the revision of its last sign of life."""

    name: str
    data: bytes
    revision: int


class Change(NamedTuple):
    """What happened in a set: `kind` is joined, updated or left."""

    kind: str
    member: Member


class Members:
    """A set whose members must show that they are alive: each is a lease on a key below `prefix`.

    Who does not renew lapses after its lease time.
    """

    def __init__(
        self,
        kv: KeyValue[bytes],
        prefix: str,
        *,
        ttl: timedelta = DEFAULT_TTL,
        now: Callable[[], float] = clock,
    ) -> None:
        kv.storage.check_key(prefix)
        self.prefix = prefix
        self._kv = kv
        self._ttl = ttl
        self._now = now

    async def join(self, name: str, data: bytes = b"", *, timeout: float | None = None) -> Lease:
        """Become a member, until the returned lease is released or lost; `lease.renew(data)` changes the data.

        Waits while another member of that name is alive.
        """
        if "." in name:
            raise UsageError(f"bad member name {name!r}: a name without dots is allowed")
        lease = Lease(self._kv, f"{self.prefix}.{name}", ttl=self._ttl, name=name, data=data, now=self._now)
        await lease.acquire(timeout=timeout)
        return lease

    async def members(self, *, min_last_revision: int = 0, timeout: float | None = None) -> dict[str, Member]:
        """Who is there. Ages are told by the server's own clock, which also dated the signs of life."""
        found = await self._kv.get_range(f"{self.prefix}.*", min_last_revision=min_last_revision, timeout=timeout)
        now = (await self._kv.status(timeout=timeout)).stream_info.ts
        members = ((entry, decode_record(entry.key, entry.value)) for entry in found.values())
        return {
            record.name: Member(record.name, record.data, entry.revision)
            for entry, record in members
            if now - entry.created <= record.ttl * 1e9
        }

    async def watch(self) -> AsyncIterator[Change]:
        """Who joins, changes its data or leaves, beginning with those who are there."""
        present: dict[str, tuple[Member, Observation]] = {}
        alive = await self.members()
        async with await self._kv.watch(f"{self.prefix}.*") as watch:
            while True:
                entry = await self._next(watch, present)
                if entry is not None:
                    if not watch.is_current and _is_lapsed(entry, alive):
                        continue  # dead before we looked
                    for change in self._changes(entry, present):
                        yield change
                now = self._now()
                for key in [key for key, (_, seen) in present.items() if seen.patience(now) <= 0]:
                    yield Change("left", present.pop(key)[0])

    async def _next(self, watch: Watch[bytes], present: dict[str, tuple[Member, Observation]]) -> Entry[bytes] | None:
        now = self._now()
        soonest = min((seen.patience(now) for _, seen in present.values()), default=None)
        with suppress(RequestTimeoutError):
            return await watch.next(timeout=None if soonest is None else max(soonest, 0.01))
        return None

    def _changes(self, entry: Entry[bytes], present: dict[str, tuple[Member, Observation]]) -> list[Change]:
        if entry.is_deleted:
            gone = present.pop(entry.key, None)
            return [Change("left", gone[0])] if gone else []
        record = decode_record(entry.key, entry.value)
        member = Member(record.name, record.data, entry.revision)
        known, seen = present.get(entry.key, (None, Observation()))
        seen.see(entry.revision, record.ttl, self._now())
        present[entry.key] = (member, seen)
        if known is None:
            return [Change("joined", member)]
        return [Change("updated", member)] if known.data != member.data else []


def _is_lapsed(entry: Entry[bytes], alive: dict[str, Member]) -> bool:
    if entry.is_deleted:
        return False
    known = alive.get(decode_record(entry.key, entry.value).name)
    return known is None
