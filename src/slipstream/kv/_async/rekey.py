"""Key rotation over asyncio: moves the values and the names in a bucket to the current keys of a keyring.

Theory of operation. Every entry that is newest of its key and not under the current keys is written again, through the
codec, by a compare-and-set on its revision: a value that changes meanwhile is never overwritten. A write through the
codec goes to the current name, and removes what older names hold below its own revision (`hidden_keys.py`). So each
step leaves every key readable with the whole ring, and the work left is what a new look finds: an interrupted run is
continued by another one. Passes are made until one finds nothing left.

A value with a TTL is written again with what is left of it, in whole seconds by the server's clock and at least one
less than that: never longer than before. One that has less left than a bucket takes is waited for.

A module of its own, so that programs without encryption need not load a cipher. The blocking twin is generated from
this file (`tools/unasync.py`).
"""

from __future__ import annotations

from datetime import timedelta

from slipstream.api import StreamConfig
from slipstream.api.times import SECOND, nanoseconds
from slipstream.errors import Error, UsageError, WrongLastSequenceError
from slipstream.kv._async.codec_storage import CodecStorage, own_key
from slipstream.kv._async.hidden_keys import HiddenKeyStorage
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.runtime import clock, sleep
from slipstream.kv._async.storage import Storage
from slipstream.kv.codecs.encryption import Encrypted
from slipstream.kv.entry import Entry, Operation
from slipstream.kv.lifetime import shortest_ttl
from slipstream.wire.arguments import Duration, check_timeout

PASSES = 60
PAUSE = 0.1  # seconds between passes: what is left expires, or is being written by others


async def reencrypt(
    kv: KeyValue[bytes],
    codec: Encrypted,
    *,
    drop_history: bool = False,
    renew_ttl: bool = False,
    recorded: bool = False,
    timeout: Duration | None = None,
) -> int:
    """Move every key of a bucket, and its newest value, to the current keys of the ring; returns how many were written.

    `kv` is the bucket without the codec, and the ring of `codec` has the old keys as well. When this returns, no newest
    value and no name needs an old key any more. An interrupted call is continued by the next one.

    Older values stay as they are unless `drop_history`: with a key that is taken out they cannot be read. A key that
    gets a new name, and a value with a TTL, leave their history behind in any case. `recorded` records in the stream's
    metadata that snapshots of earlier revisions cannot be exact any more, as for `purge_deletes`.

    A bucket with a `ttl` that allows no TTL per value is rejected unless `renew_ttl`: there a value that is written
    again lives as long as a new one. (Without a call, the values of such a bucket are gone after its `ttl`.)
    """
    timeout = check_timeout(timeout)
    if isinstance(kv.storage, CodecStorage) and isinstance(kv.storage.codec, Encrypted):
        raise UsageError(f"kv must be bucket {kv.bucket!r} without its encryption codec, got it with one")
    work = _Rotation(kv.storage, codec, renew_ttl=renew_ttl, timeout=timeout)
    for attempt in range(PASSES):
        if attempt:
            await sleep(PAUSE)
        if not await work.run_pass():
            break
    else:
        raise Error(
            f"bucket {kv.bucket!r} still needs the old keys for {len(work.left)} keys, such as {work.left[0]!r}: they "
            "expire soon, or are written by programs with an older keyring; keep the old keys, and run it again later"
        )
    if drop_history:
        await work.drop_history()
    if recorded and work.done:
        await kv.storage.record_forgotten((await kv.storage.status(timeout=timeout)).last_revision, timeout=timeout)
    return work.done


def remaining_ttl(entry: Entry[bytes], config: StreamConfig, *, now: int) -> timedelta | None:
    """What is left of an entry's life, to be written with it: None if it has no end, 0 if too little is left for that.

    In whole seconds, rounded down, and one less for the way to the server: never longer than the entry would live.
    """
    if entry.expires < 0 and config.max_age:
        raise UsageError(f"key {entry.key!r} outlives the ttl of its bucket (Nats-TTL: never): rewrite it first")
    ends = [entry.expires] if entry.expires > 0 else []
    if config.max_age:
        ends.append(entry.created + nanoseconds(config.max_age))
    if not ends:
        return None
    left = timedelta(seconds=(min(ends) - now) // SECOND - 1)
    return left if left >= shortest_ttl(config) else timedelta(0)


class _Rotation:
    """One call's work: `left` are stored keys that the last pass could not move, `done` counts those moved by all."""

    def __init__(self, raw: Storage[bytes], codec: Encrypted, *, renew_ttl: bool, timeout: float | None) -> None:
        self.left: list[str] = []
        self.done = 0
        self._raw = raw
        self._codec = codec
        self._storage = (HiddenKeyStorage if codec.hides_keys else CodecStorage)(raw, codec)
        self._renews_ttl = renew_ttl
        self._timeout = timeout
        self._config = StreamConfig(name="")
        self._time = 0.0  # server's time minus our clock, in seconds: late rather than early

    async def run_pass(self) -> bool:
        """Look at every key; whether some must be looked at again."""
        before = clock()
        info = (await self._raw.status(timeout=self._timeout)).stream_info
        self._config = info.config
        self._time = info.ts / 1e9 - before
        self.left = []
        async for entries in self._raw.latest(self._raw.patterns(()), timeout=self._timeout):
            for entry in entries:
                key = own_key(self._codec, entry.key, self._storage.foreign)
                if key is not None and not await self._move(entry, key):
                    self.left.append(entry.key)
        return bool(self.left)

    async def _move(self, entry: Entry[bytes], key: str) -> bool:
        """Write one entry again if it needs to be; False if it must be looked at again."""
        is_named = self._codec.encode_key(key) == entry.key
        if is_named and (entry.is_deleted or self._codec.is_current(entry.value)):
            return True
        ttl = self._remaining(entry)
        if ttl == timedelta(0):
            if entry.is_deleted:  # a mark that is about to go: its key is absent with it and without
                await self._raw.forget(entry.key, below=entry.revision + 1, timeout=self._timeout)
            return entry.is_deleted
        value = None if entry.is_deleted else self._codec.decode_value(key, entry.value)
        # A marker that the server left is written as a purge: only servers write markers.
        operation = Operation.PURGE if entry.operation is Operation.EXPIRED else entry.operation
        try:
            await self._storage.append(
                key, value, operation=operation, last=entry.revision, ttl=ttl, timeout=self._timeout
            )
        except WrongLastSequenceError:  # written meanwhile, or a run was interrupted before it removed the old name
            if not is_named:
                await self._forget_below_newest(entry.key, key)
            return False
        self.done += 1
        return True

    def _remaining(self, entry: Entry[bytes]) -> timedelta | None:
        """The TTL to write an entry with: None for none, 0 if it is not to be written any more."""
        ttl = remaining_ttl(entry, self._config, now=int((clock() + self._time) * 1e9))
        if ttl is None or self._config.allow_msg_ttl:
            return ttl
        if not self._renews_ttl:
            raise UsageError(
                f"renew_ttl must be set for bucket {self._raw.bucket!r}: its ttl of {self._config.max_age} restarts "
                "for rewritten values, because it has no per-value TTLs"
            )
        return None

    async def _forget_below_newest(self, stored: str, key: str) -> None:
        newest = await self._storage.last(key, timeout=self._timeout)
        if newest is not None:
            await self._raw.forget(stored, below=newest.revision, timeout=self._timeout)

    async def drop_history(self) -> None:
        """Remove older values that need an old key, of keys that have a newer entry."""
        async for entries in self._raw.read(self._raw.patterns(()), timeout=self._timeout):
            for entry in entries:
                if entry.is_deleted or self._codec.is_current(entry.value):
                    continue
                if own_key(self._codec, entry.key, self._storage.foreign) is None:
                    continue
                newest = await self._raw.last(entry.key, timeout=self._timeout)
                if newest is not None and newest.revision > entry.revision:
                    await self._raw.forget(entry.key, below=entry.revision + 1, timeout=self._timeout)
