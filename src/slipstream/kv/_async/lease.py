"""Leases and locks on keys, over asyncio: acquire, renew in the background, release. `kv/lease.py` has the rules.

`docs/kv-coordination.md` says what they guarantee and what they cannot. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    UsageError,
    WrongLastSequenceError,
)
from slipstream.kv._async.runtime import Guard, Mutex, Signal, Worker, current_worker, lease_clock, new_id, sleep, spawn
from slipstream.kv._async.storage import Storage
from slipstream.kv._async.watch import Watch
from slipstream.kv.entry import LATEST, Entry, Operation
from slipstream.kv.lease import (
    Claim,
    Observation,
    Record,
    check_keeps_record,
    check_ttl,
    decode_record,
    encode_record,
    record_ttl,
)
from slipstream.wire.arguments import Duration, check_timeout

DEFAULT_TTL = timedelta(seconds=15)
RENEWALS = 3  # per TTL
SHORTEST_WAIT = 0.05
UNANSWERED_TTLS = 2  # after so many TTLs without an answer `acquire` raises, though it is connected
_UNSURE = (RequestTimeoutError, ConnectionLostError, NoRespondersError)  # whether a write was stored is unknown
_TRANSIENT = (*_UNSURE, StaleReadError)


class Lease:
    """A lease on one key of a bucket; `Lock`, `Election` and `Members` are built on it.

    `token` is the fencing token while the lease is held: pass it to the resource that the lease protects, which must
    reject tokens lower than one it has seen. The lease is renewed in the background; call `check()` before each action
    that depends on it.

    One object is one contender: a second `acquire` is rejected until it is released. Each task or thread that contends
    needs its own object.
    """

    def __init__(
        self,
        storage: Storage[bytes],
        key: str,
        *,
        ttl: Duration = DEFAULT_TTL,
        name: str = "",
        data: bytes = b"",
        now: Callable[[], float] = lease_clock,
    ) -> None:
        self.key: str = storage.check_key(key)
        self.name: str = name or new_id()
        self._storage = storage
        self._ttl = check_ttl(ttl)
        self._data = data
        self._now = now
        self._claim = Claim(self._ttl)
        self._seen = Observation()
        self._owner = ""
        self._created = 0  # of the bucket: one that was made again is another one
        self._record_ttl: timedelta | None = None
        self._user: Worker | None = None  # the task or thread that acquired it, until it is released
        self._is_acquiring = False
        self._is_opened = False  # acquired by a call whose result may be entered
        self._mutex = Mutex()  # around looking at the two above and setting them
        self._worker: Worker | None = None
        self._turn = Guard()  # one claim or renewal at a time: the caller's and the background ones
        self._stop = Signal()
        self._lost = Signal()
        self._why = "it was never acquired"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} in {self._storage.bucket!r}{', held' if self.is_held else ''}>"

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

    async def wait_lost(self, *, timeout: Duration | None = None) -> bool:
        """Wait until the lease is known to be lost; False on timeout."""
        timeout = check_timeout(timeout)
        seen = self._lost.count
        if not self._claim.revision:
            return True
        return await self._lost.wait(seen, timeout)

    # Acquiring

    async def acquire(self, *, timeout: Duration | None = None) -> int:
        """Wait until the lease is ours; returns the fencing token. Raises RequestTimeoutError on timeout.

        Raises UsageError if the bucket may remove the lease while it is held, or if this object is in use already; and
        the error of its last attempt if none was answered for two lease times in spite of a connection.
        """
        timeout = check_timeout(timeout)
        with self._single_use():
            token = await self._acquire(timeout)
            self._user = current_worker()
            return token

    async def _acquire(self, timeout: float | None) -> int:
        deadline = None if timeout is None else self._now() + timeout
        watch: Watch[bytes] | None = None
        is_ours = False
        silence = _Silence(self._ttl * UNANSWERED_TTLS)
        try:
            try:
                await self._look_at_bucket_first()
                while not await self._attempt_unless_silent(silence):
                    left = None if deadline is None else deadline - self._now()
                    if left is not None and left <= 0:
                        why = f": {silence.error}" if silence.error else ""
                        raise RequestTimeoutError(f"lease {self.key!r}: not acquired within {timeout} s{why}")
                    watch = await self._await_change(watch, left)
            finally:
                if watch is not None:
                    await watch.close()
            is_ours = True
        finally:
            if not is_ours and self._worker is not None:  # cancelled after it was acquired: no caller will release it
                self._abandon()
        return self._claim.token

    async def _look_at_bucket_first(self) -> None:
        """Reject a bucket that cannot hold leases or take writes at once; a lost connection is waited for."""
        self._created = 0
        try:
            await self._look_at_bucket()
        except ConnectionClosedError:
            raise
        except (RequestTimeoutError, ConnectionLostError):
            return

    async def _attempt_unless_silent(self, silence: _Silence) -> bool:
        """One attempt; False also if it was not answered, unless that went on for too long."""
        try:
            is_ours = await self._attempt()
        except ConnectionClosedError:
            raise
        except (ConnectionLostError, StaleReadError):
            silence.broken()
            return False
        except (RequestTimeoutError, NoRespondersError) as error:
            if silence.lasts(error, self._now()):
                raise
            return False
        silence.broken()
        return is_ours

    @contextmanager
    def _single_use(self) -> Iterator[None]:
        """Reject a second user: the first one to leave would release the lease under the other."""
        with self._mutex:
            if self._is_acquiring:
                raise UsageError(
                    f"lease {self.key!r} is already being acquired by this object: use one object per task"
                )
            if self.is_held:
                raise UsageError(f"lease {self.key!r} is already held by this object: use one object per task")
            user = self._user
            if user is not None and not user.is_own and not user.is_done:
                raise UsageError(f"lease {self.key!r} was lost but not released by the task that acquired it")
            self._is_acquiring, self._user = True, None
        try:
            yield
        finally:
            self._is_acquiring = False

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
        """Acquire the lease if it is free or may be taken over; whether it is ours now. Raises as `acquire` does."""
        with self._single_use():
            await self._look_at_bucket_first()
            try:
                is_ours = await self._attempt()
            except (ConnectionClosedError, NoRespondersError):
                raise
            except _TRANSIENT:
                return False
            self._user = current_worker() if is_ours else None
            return is_ours

    async def _attempt(self) -> bool:
        """Claim the lease if it is free or may be taken over; whether it is ours now."""
        async with self._turn:
            self._stop.set()  # ends renewals of an earlier acquisition; this one starts its own
            self._worker = None
            self._claim.pause()
            if not self._owner:
                self._owner = new_id()  # kept across attempts with an unknown outcome, to recognize our own claim
            try:
                is_ours = await self._claim_if_free()
            except WrongLastSequenceError:
                return False
            except (UsageError, LeaseLostError) as error:  # the bucket was changed: another may hold the lease, too
                revision, owner = self._claim.revision, self._owner
                self._give_up(str(error))
                if revision:
                    await self._remove(revision, owner)
                raise
            if is_ours:
                self._why = ""
                self._stop = Signal()
                self._worker = spawn(self._keep_renewed, f"renewal of {self.key}")
            return is_ours

    async def _claim_if_free(self) -> bool:
        entry = await self._storage.last(self.key, timeout=self._request_timeout())
        if entry is not None and not entry.is_deleted:
            return await self._take_over(entry)
        if entry is not None and not entry.marker:
            self._seen.forget()  # the holder released it
        elif self._seen.takeover_in(self._now()) > 0:
            return False  # the record that we saw vanished: its holder may not know yet
        return await self._store(entry.revision if entry else 0)

    async def _take_over(self, entry: Entry[bytes]) -> bool:
        """The key is held: by a claim of ours whose answer was lost, or by another holder, which may be dead."""
        record = decode_record(self.key, entry.value)
        now = self._now()
        if record.owner == self._owner:
            self._claim.found(entry.revision, now, record.token)
            await self._confirm()
            return self.is_held or await self._store(entry.revision)  # a renewal: no other was in between
        self._seen.see(entry.revision, entry.created, record.ttl, now)
        if self._seen.takeover_in(now) > 0:
            return False
        return await self._store(entry.revision)

    async def _store(self, last: int) -> bool:
        """Claim or renew: write our record over revision `last`."""
        if not self._created:
            await self._look_at_bucket()
        record = Record(owner=self._owner, ttl=self._ttl, token=self._claim.token, name=self.name, data=self._data)
        sent = self._now()
        self._claim.sending(sent)
        try:
            revision = await self._storage.append(
                self.key, encode_record(record), last=last, ttl=self._record_ttl, timeout=self._request_timeout()
            )
        except WrongLastSequenceError:
            self._claim.rejected(sent)
            raise
        self._check_owner(record.owner)
        self._claim.stored(revision, sent)
        await self._confirm()
        return self.is_held

    async def _confirm(self) -> None:
        """Look at the bucket behind a stored claim: whatever removed an earlier record before it shows there."""
        owner = self._owner
        await self._look_at_bucket()
        self._check_owner(owner)
        self._claim.confirm()

    def _check_owner(self, owner: str) -> None:
        if self._owner != owner:  # released while a request was in flight
            raise LeaseLostError(self.key, self._why)

    async def _look_at_bucket(self) -> int:
        """Its newest revision. Raises UsageError if it may remove our record, LeaseLostError if it was made again."""
        statuses = await self._storage.write_path(timeout=self._request_timeout())
        for status in statuses:
            check_keeps_record(status.bucket, status.stream_info.config, self._ttl)
        info = statuses[-1].stream_info
        self._record_ttl = record_ttl(info.config, self._ttl)
        was, self._created = self._created, info.created
        if was and was != info.created:
            raise LeaseLostError(self.key, "its bucket was recreated")
        return info.state.last_seq

    def _request_timeout(self) -> float:
        return max(self._ttl / RENEWALS, 0.25)

    # Renewing

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
                await self._store_or_find_own()
            except (UsageError, LeaseLostError) as error:
                self._give_up(error.detail if isinstance(error, LeaseLostError) else str(error))
                raise LeaseLostError(self.key, self._why) from None
            except _TRANSIENT:
                if not self.is_held:  # another may hold it: a later renewal would be a new claim
                    self._give_up("it could not be renewed in time")
                    raise LeaseLostError(self.key, self._why) from None
                raise

    async def _store_or_find_own(self) -> None:
        try:
            await self._store(self._claim.revision)
            return
        except WrongLastSequenceError:  # a renewal of ours lost its answer, or another holds the lease
            newest = await self._look_at_bucket()
        entry = await self._storage.last(self.key, min_last_revision=newest, timeout=self._request_timeout())
        if entry is None or entry.is_deleted:
            raise LeaseLostError(self.key, "it was removed")
        if decode_record(self.key, entry.value).owner != self._owner:
            raise LeaseLostError(self.key, "another holder acquired it")
        self._claim.found(entry.revision, self._now())
        await self._confirm()

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
        self._user = None
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

    async def acquired(self, *, timeout: Duration | None = None) -> Self:
        """Acquire it for a caller that may enter it afterwards, once."""
        await self.acquire(timeout=timeout)
        self._is_opened = True
        return self

    async def __aenter__(self) -> Self:
        if not self._is_opened:
            await self.acquire()
        self._is_opened = False
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class Lock(Lease):
    """A distributed lock: `async with kv.lock("jobs.nightly") as lock: ... lock.check() ...`.

    No two holders pass `check()` at the same time, given clocks that run at about the same speed. Whatever the clocks
    do, a resource that rejects tokens lower than one it has seen never accepts two holders.
    """


class _Silence:
    """For how long requests were not answered, in a row."""

    def __init__(self, limit: float) -> None:
        self.error: Error | None = None
        self._limit = limit
        self._since = 0.0

    def lasts(self, error: Error, now: float) -> bool:
        """A request was not answered; whether that goes on for too long."""
        if self.error is None:
            self._since = now
        self.error = error
        return now - self._since >= self._limit

    def broken(self) -> None:
        """A request was answered, or there was no connection to send it on."""
        self.error = None
