"""Leases and locks on keys, over asyncio: acquire, renew in the background, release. `kv/lease.py` has the rules.

`docs/kv-coordination.md` says what they guarantee and what they cannot. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Self

from slipstream.errors import (
    ApiError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    LeaseLostError,
    NoRespondersError,
    RequestTimeoutError,
    StaleReadError,
    WrongLastSequenceError,
)
from slipstream.kv._async.runtime import Guard, Signal, Worker, clock, new_id, sleep, spawn
from slipstream.kv._async.storage import Storage
from slipstream.kv._async.watch import Watch
from slipstream.kv.entry import LATEST, Entry, Operation
from slipstream.kv.lease import Claim, Observation, Record, check_ttl, decode_record, encode_record, server_ttl

DEFAULT_TTL = timedelta(seconds=15)
RENEWALS = 3  # per TTL
SHORTEST_WAIT = 0.05
_UNSURE = (RequestTimeoutError, ConnectionLostError, NoRespondersError)  # whether a write was stored is unknown
_TRANSIENT = (*_UNSURE, StaleReadError)


class Lease:
    """A lease on one key of a bucket; `Lock`, `Election` and `Members` are built on it.

    `token` is the fencing token while the lease is held: pass it to the resource that the lease protects, which must
    reject tokens lower than one it has seen. The lease is renewed in the background; call `check()` before each action
    that depends on it.
    """

    def __init__(
        self,
        storage: Storage[bytes],
        key: str,
        *,
        ttl: timedelta = DEFAULT_TTL,
        name: str = "",
        data: bytes = b"",
        now: Callable[[], float] = clock,
    ) -> None:
        self.key = storage.check_key(key)
        self.name = name or new_id()
        self._storage = storage
        self._ttl = check_ttl(ttl)
        self._data = data
        self._now = now
        self._claim = Claim(self._ttl)
        self._seen = Observation()
        self._owner = ""
        self._has_server_ttl: bool | None = None
        self._shortest_ttl = timedelta(0)  # of values in the bucket, where they may have one
        self._worker: Worker | None = None
        self._turn = Guard()  # one claim or renewal at a time: the caller's and the background ones
        self._stop = Signal()
        self._lost = Signal()
        self._why = "it was never acquired"

    # The holder's view

    @property
    def token(self) -> int:
        """The fencing token. Raises LeaseLostError if the lease is not certainly held."""
        return self.check()

    @property
    def is_held(self) -> bool:
        """Whether the lease is certainly held at this moment."""
        return self._claim.remaining(self._now()) > 0

    def remaining(self) -> float:
        """For how many more seconds the lease is certainly held, without another renewal."""
        return self._claim.remaining(self._now())

    def check(self) -> int:
        """The fencing token. Raises LeaseLostError if the lease is no longer certainly held."""
        if not self.is_held:
            why = self._why or "it could not be renewed in time"
            raise LeaseLostError(self.key, why)
        return self._claim.token

    async def wait_lost(self, *, timeout: float | None = None) -> bool:
        """Wait until the lease is known to be lost; False on timeout."""
        seen = self._lost.count
        if not self._claim.revision:
            return True
        return await self._lost.wait(seen, timeout)

    # Acquiring

    async def acquire(self, *, timeout: float | None = None) -> int:
        """Wait until the lease is ours; returns the fencing token. Raises RequestTimeoutError on timeout."""
        deadline = None if timeout is None else self._now() + timeout
        watch: Watch[bytes] | None = None
        is_ours = False
        try:
            try:
                while not await self.try_acquire():
                    left = None if deadline is None else deadline - self._now()
                    if left is not None and left <= 0:
                        raise RequestTimeoutError(f"lease {self.key!r}: not acquired within {timeout} s")
                    watch = await self._await_change(watch, left)
            finally:
                if watch is not None:
                    await watch.close()
            is_ours = True
        finally:
            if not is_ours and self._worker is not None:  # cancelled after it was acquired: no caller will release it
                self._abandon()
        return self._claim.token

    async def _await_change(self, watch: Watch[bytes] | None, left: float | None) -> Watch[bytes] | None:
        """Wait until the key changes or its holder may be dead; without a connection only briefly."""
        pause = max(self._seen.takeover_in(self._now()), SHORTEST_WAIT)
        pause = pause if left is None else min(pause, left)
        is_new = watch is None
        try:
            if watch is None:
                pattern = self._storage.patterns((self.key,))
                watch = Watch(await self._storage.follow(pattern, LATEST, timeout=self._request_timeout()))
                await watch.initial(timeout=self._request_timeout())
            else:
                await watch.next(timeout=pause)
        except ConnectionClosedError:
            raise
        except _TRANSIENT:
            await sleep(min(SHORTEST_WAIT, pause))
        except BaseException:
            if is_new and watch is not None:  # the caller does not have it yet, so cannot close it
                await watch.close()
            raise
        return watch

    async def try_acquire(self) -> bool:
        """Acquire the lease if it is free or may be taken over; whether it is ours now."""
        if self.is_held:
            return True
        async with self._turn:
            if self.is_held:
                return True
            self._stop.set()  # ends renewals of an earlier acquisition; this one starts its own
            self._worker = None
            self._claim.pause()
            if not self._owner:
                self._owner = new_id()  # kept across attempts with an unknown outcome, to recognize our own claim
            try:
                entry = await self._storage.last(self.key, timeout=self._request_timeout())
                if entry is not None and not entry.is_deleted:
                    return await self._take_over(entry)
                return await self._store(entry.revision if entry else 0)
            except ConnectionClosedError:
                raise
            except (WrongLastSequenceError, *_TRANSIENT):
                return False

    async def _take_over(self, entry: Entry[bytes]) -> bool:
        """The key is held: by a claim of ours whose answer was lost, or by another holder, which may be dead."""
        record = decode_record(self.key, entry.value)
        now = self._now()
        if record.owner == self._owner:
            self._claim.found(entry.revision, now)
            if self.is_held:
                self._begin()
                return True
        self._seen.see(entry.revision, record.ttl, now)
        if self._seen.takeover_in(now) > 0:
            return False
        return await self._store(entry.revision)

    async def _store(self, last: int) -> bool:
        """Claim or renew: write our record over revision `last`."""
        ttl = max(server_ttl(self._ttl), self._shortest_ttl) if await self._server_expires() else None
        record = Record(owner=self._owner, ttl=self._ttl, token=self._claim.token, name=self.name, data=self._data)
        sent = self._now()
        self._claim.sending(sent)
        try:
            revision = await self._storage.append(
                self.key, encode_record(record), last=last, ttl=ttl, timeout=self._request_timeout()
            )
        except WrongLastSequenceError:
            self._claim.rejected(sent)
            raise
        if self._owner != record.owner:  # released while the request was in flight
            raise LeaseLostError(self.key, self._why)
        self._claim.stored(revision, sent)
        self._begin()
        return self.is_held

    async def _server_expires(self) -> bool:
        """Whether the bucket allows TTLs, so that the server removes a dead holder's record.

        Otherwise only candidates that saw it unchanged for its TTL can tell.
        """
        if self._has_server_ttl is None:
            status = await self._storage.status(timeout=self._request_timeout())
            self._has_server_ttl, self._shortest_ttl = status.value_ttl, status.shortest_ttl
        return self._has_server_ttl

    def _request_timeout(self) -> float:
        return max(self._ttl / RENEWALS, 0.25)

    # Renewing

    def _begin(self) -> None:
        self._why = ""
        if self._worker is None:
            self._stop = Signal()
            self._worker = spawn(self._keep_renewed, f"renewal of {self.key}")

    async def _keep_renewed(self) -> None:
        stop, pause = self._stop, self._ttl / RENEWALS
        while not await stop.wait(0, pause) and self._claim.revision:
            try:
                await self.renew()
                pause = self._ttl / RENEWALS
            except LeaseLostError:
                return
            except _TRANSIENT:
                pause = self._ttl / RENEWALS / 5  # retry soon: the lease is running out
            except Error as error:
                self._give_up(f"it could not be renewed: {error}")
                return

    async def renew(self, data: bytes | None = None) -> None:
        """Renew the lease now, with new data if passed. Raises LeaseLostError if it is lost."""
        async with self._turn:
            if not self._claim.revision:
                raise LeaseLostError(self.key, self._why)
            if data is not None:
                self._data = data
            try:
                await self._store(self._claim.revision)
            except WrongLastSequenceError:
                await self._find_own()
            except _TRANSIENT:
                if not self.is_held:  # another may hold it: a later renewal would be a new claim
                    self._give_up("it could not be renewed in time")
                    raise LeaseLostError(self.key, self._why) from None
                raise

    async def _find_own(self) -> None:
        """Our revision is not the newest: a renewal of ours lost its answer, or another holds the lease."""
        timeout = self._request_timeout()
        status = await self._storage.status(timeout=timeout)
        entry = await self._storage.last(self.key, min_last_revision=status.last_revision, timeout=timeout)
        if entry is not None and not entry.is_deleted and decode_record(self.key, entry.value).owner == self._owner:
            self._claim.found(entry.revision, self._now())
            return
        self._give_up("another holder has it" if entry and not entry.is_deleted else "it was removed")
        raise LeaseLostError(self.key, self._why)

    def _abandon(self) -> None:
        self._stop.set()
        self._give_up("its acquisition was cancelled")

    def _give_up(self, why: str) -> None:
        self._why = why
        self._claim.lose()
        self._owner = ""
        self._worker = None
        self._lost.set()

    # Releasing

    async def release(self) -> bool:
        """Release the lease at once; whether it was still ours. Without a connection it expires instead."""
        worker, self._worker = self._worker, None
        self._stop.set()
        if worker is not None:
            await worker.join(self._request_timeout())
        revision = self._claim.revision
        owner, self._owner = self._owner, ""
        self._claim.lose()
        self._why = "it was released"
        self._lost.set()
        return bool(revision) and await self._remove(revision, owner)

    async def _remove(self, revision: int, owner: str) -> bool:
        try:
            await self._delete(revision)
            return True
        except WrongLastSequenceError:
            pass
        except (*_TRANSIENT, ApiError):
            return False
        with suppress(Error):  # a renewal of ours may have been stored meanwhile
            entry = await self._storage.last(self.key, timeout=self._request_timeout())
            if entry and not entry.is_deleted and decode_record(self.key, entry.value).owner == owner:
                await self._delete(entry.revision)
                return True
        return False

    async def _delete(self, revision: int) -> None:
        timeout = self._request_timeout()
        await self._storage.append(self.key, None, operation=Operation.DELETE, last=revision, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class Lock(Lease):
    """A distributed lock: `async with kv.lock("jobs.nightly") as lock: ... lock.check() ...`.

    No two holders pass `check()` at the same time, given clocks that run at about the same speed. Whatever the clocks
    do, a resource that rejects tokens lower than one it has seen never accepts two holders.
    """
