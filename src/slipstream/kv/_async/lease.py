"""Leases on keys, over asyncio: locks with fencing tokens, leadership, membership. `lease.py` has their rules.

`docs/kv-coordination.md` says what each guarantees and what it cannot. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Self

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
from slipstream.kv._async.runtime import Guard, Signal, Worker, clock, new_id, sleep
from slipstream.kv._async.watch import Watch
from slipstream.kv.entry import Entry
from slipstream.kv.lease import Claim, Observation, Record, check_ttl, decode_record, encode_record, server_ttl

if TYPE_CHECKING:
    from slipstream.kv._async.key_value import KeyValue

DEFAULT_TTL = timedelta(seconds=15)
RENEWALS = 3  # tries per lease time
SHORTEST_WAIT = 0.05
_UNSURE = (RequestTimeoutError, ConnectionLostError, NoRespondersError)  # whether it was stored is not known
_PASSING = (*_UNSURE, StaleReadError)


class Lease:
    """A lease on one key of a bucket; `Lock`, `Election` and `Members` are made of it.

    `token` is the fencing token while it is held: hand it to whatever the lease protects, which refuses a token lower
    than one it has seen. The lease is renewed in the background; `check()` before each act that matters.
    """

    def __init__(
        self,
        kv: KeyValue[bytes],
        key: str,
        *,
        ttl: timedelta = DEFAULT_TTL,
        name: str = "",
        data: bytes = b"",
        now: Callable[[], float] = clock,
    ) -> None:
        self.key = kv.storage.check_key(key)
        self.name = name or new_id()
        self._kv = kv
        self._ttl = check_ttl(ttl)
        self._data = data
        self._now = now
        self._claim = Claim(self._ttl)
        self._seen = Observation()
        self._owner = ""
        self._has_server_ttl: bool | None = None
        self._worker: Worker | None = None
        self._turn = Guard()  # one claim or renewal at a time: the user's, and those in the background
        self._stop = Signal()
        self._lost = Signal()
        self._why = "it was never acquired"

    # What the holder asks

    @property
    def token(self) -> int:
        """The fencing token; raises LeaseLostError if the lease is not certain to be held."""
        return self.check()

    @property
    def is_held(self) -> bool:
        """Whether the lease is certain to be held, now."""
        return self._claim.remaining(self._now()) > 0

    def remaining(self) -> float:
        """For how many seconds more the lease is certain to be held if it cannot be renewed."""
        return self._claim.remaining(self._now())

    def check(self) -> int:
        """The fencing token. Raises LeaseLostError if the lease is not certain to be held any more."""
        if not self.is_held:
            why = self._why or "it could not be renewed in time"
            raise LeaseLostError(self.key, why)
        return self._claim.token

    async def wait_lost(self, *, timeout: float | None = None) -> bool:
        """Wait until the lease is known to be lost; whether it is."""
        seen = self._lost.count
        if not self._claim.revision:
            return True
        return await self._lost.wait(seen, timeout)

    # Getting it

    async def acquire(self, *, timeout: float | None = None) -> int:
        """Wait until the lease is ours; returns the fencing token. Raises RequestTimeoutError if it is not in time."""
        deadline = None if timeout is None else self._now() + timeout
        watch: Watch[bytes] | None = None
        is_ours = False
        try:
            try:
                while not await self.try_acquire():
                    left = None if deadline is None else deadline - self._now()
                    if left is not None and left <= 0:
                        raise RequestTimeoutError(f"lease {self.key!r}: not acquired in {timeout} s")
                    watch = await self._await_change(watch, left)
            finally:
                if watch is not None:
                    await watch.close()
            is_ours = True
        finally:
            if not is_ours and self._worker is not None:  # cancelled when it was ours already: nobody will release it
                self._abandon()
        return self._claim.token

    async def _await_change(self, watch: Watch[bytes] | None, left: float | None) -> Watch[bytes] | None:
        """Wait until the key changes, or the one who has it may be dead; without a connection just a little."""
        patience = max(self._seen.patience(self._now()), SHORTEST_WAIT)
        patience = patience if left is None else min(patience, left)
        is_new = watch is None
        try:
            if watch is None:
                watch = await self._kv.watch(self.key, timeout=self._patience())
                await watch.initial(timeout=self._patience())
            else:
                await watch.next(timeout=patience)
        except ConnectionClosedError:
            raise
        except _PASSING:
            await sleep(min(SHORTEST_WAIT, patience))
        except BaseException:
            if is_new and watch is not None:  # nobody else has it yet
                await watch.close()
            raise
        return watch

    async def try_acquire(self) -> bool:
        """Take the lease if nobody holds it; whether it is ours now."""
        if self.is_held:
            return True
        async with self._turn:
            if self.is_held:
                return True
            self._stop.set()  # renewals of what was held before end; what is acquired now has its own
            self._worker = None
            self._claim.pause()
            if not self._owner:
                self._owner = new_id()  # kept over tries whose outcome is not known, to find our own claim again
            try:
                entry = await self._kv.storage.last(self.key, timeout=self._patience())
                if entry is not None and not entry.is_deleted:
                    return await self._take_over(entry)
                return await self._store(entry.revision if entry else 0)
            except ConnectionClosedError:
                raise
            except (WrongLastSequenceError, *_PASSING):
                return False

    async def _take_over(self, entry: Entry[bytes]) -> bool:
        """The key is held: by a claim of ours whose answer was lost, or by another one that may be dead."""
        record = decode_record(self.key, entry.value)
        now = self._now()
        if record.owner == self._owner:
            self._claim.found(entry.revision, now)
            if self.is_held:
                self._begin()
                return True
        self._seen.see(entry.revision, record.ttl, now)
        if self._seen.patience(now) > 0:
            return False
        return await self._store(entry.revision)

    async def _store(self, last: int) -> bool:
        """Claim or renew: write our record over revision `last`."""
        ttl = server_ttl(self._ttl) if await self._server_lapses() else None
        record = Record(owner=self._owner, ttl=self._ttl, token=self._claim.token, name=self.name, data=self._data)
        sent = self._now()
        self._claim.sending(sent)
        try:
            value, patience = encode_record(record), self._patience()
            revision = await self._kv.update(self.key, value, last=last, ttl=ttl, timeout=patience)
        except WrongLastSequenceError:
            self._claim.refused(sent)
            raise
        if self._owner != record.owner:  # given back while it was on its way
            raise LeaseLostError(self.key, self._why)
        self._claim.stored(revision, sent)
        self._begin()
        return self.is_held

    async def _server_lapses(self) -> bool:
        """Whether the server removes a value by itself; otherwise others wait until they have seen it unchanged."""
        if self._has_server_ttl is None:
            self._has_server_ttl = (await self._kv.status(timeout=self._patience())).value_ttl
        return self._has_server_ttl

    def _patience(self) -> float:
        return max(self._ttl / RENEWALS, 0.25)

    # Keeping it

    def _begin(self) -> None:
        self._why = ""
        if self._worker is None:
            self._stop = Signal()
            self._worker = Worker(self._keep, f"renewal of {self.key}")

    async def _keep(self) -> None:
        stop, pause = self._stop, self._ttl / RENEWALS
        while not await stop.wait(0, pause) and self._claim.revision:
            try:
                await self.renew()
                pause = self._ttl / RENEWALS
            except LeaseLostError:
                return
            except _PASSING:
                pause = self._ttl / RENEWALS / 5  # there is not much time left
            except Error as error:
                self._give_up(f"it could not be renewed: {error}")
                return

    async def renew(self, data: bytes | None = None) -> None:
        """Make the lease last longer, now, with other data if some is given. Raises LeaseLostError if it is lost."""
        async with self._turn:
            if not self._claim.revision:
                raise LeaseLostError(self.key, self._why)
            if data is not None:
                self._data = data
            try:
                await self._store(self._claim.revision)
            except WrongLastSequenceError:
                await self._find_own()
            except _PASSING:
                if not self.is_held:  # others may have it: a later renewal would be a new claim
                    self._give_up("it could not be renewed in time")
                    raise LeaseLostError(self.key, self._why) from None
                raise

    async def _find_own(self) -> None:
        """Our revision is not the newest: a renewal of ours whose answer was lost, or somebody else is the holder."""
        status = await self._kv.status(timeout=self._patience())
        entry = await self._kv.storage.last(self.key, min_last_revision=status.last_revision, timeout=self._patience())
        if entry is not None and not entry.is_deleted and decode_record(self.key, entry.value).owner == self._owner:
            self._claim.found(entry.revision, self._now())
            return
        self._give_up("another one has it" if entry and not entry.is_deleted else "it was removed")
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

    # Giving it back

    async def release(self) -> bool:
        """Give the lease back at once; whether it was still ours. Without a connection it lapses by itself."""
        worker, self._worker = self._worker, None
        self._stop.set()
        if worker is not None:
            await worker.join(self._patience())
        revision = self._claim.revision
        owner, self._owner = self._owner, ""
        self._claim.lose()
        self._why = "it was given back"
        self._lost.set()
        return bool(revision) and await self._remove(revision, owner)

    async def _remove(self, revision: int, owner: str) -> bool:
        try:
            await self._kv.delete(self.key, last=revision, timeout=self._patience())
            return True
        except WrongLastSequenceError:
            pass
        except (*_PASSING, ApiError):
            return False
        with suppress(Error):  # a renewal of ours may have come between
            entry = await self._kv.storage.last(self.key, timeout=self._patience())
            if entry and not entry.is_deleted and decode_record(self.key, entry.value).owner == owner:
                await self._kv.delete(self.key, last=entry.revision, timeout=self._patience())
                return True
        return False

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class Lock(Lease):
    """A distributed lock: `async with kv.lock("jobs.nightly") as lock: ... lock.check() ...`.

    Never two holders that both pass `check()`, given clocks that run at about the same speed; and whatever happens,
    never two whose tokens a resource accepts that refuses tokens lower than one it has seen.
    """
