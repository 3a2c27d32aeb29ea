"""Locks on the SQLite backend."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial

import pytest

from slipstream import BucketConfig
from slipstream.errors import CodecError, LeaseLostError, RequestTimeoutError, UsageError
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.kv._async.lease import Lock
from tests._async.concurrency import sleep, spawn

SECOND = timedelta(seconds=1)


async def bucket() -> KeyValue[bytes]:
    return await open_local_key_value(config=BucketConfig(bucket="b", value_ttl=True))


async def test_a_lock_has_one_holder_and_a_growing_token() -> None:
    kv = await bucket()
    first, second = kv.lock("l", ttl=10 * SECOND), kv.lock("l", ttl=10 * SECOND)
    token = await first.acquire()
    assert first.check() == token == first.token
    assert not await second.try_acquire()
    with pytest.raises(LeaseLostError, match="never acquired"):
        second.check()
    with pytest.raises(RequestTimeoutError, match="not acquired"):
        await second.acquire(timeout=0.1)
    waiting = spawn(partial(second.acquire, timeout=5))
    await sleep(0.05)
    assert await first.release()
    assert await waiting.result() > token
    with pytest.raises(LeaseLostError, match="was released"):
        first.check()
    assert not await first.release()
    assert await second.release()
    async with kv.lock("l") as held:
        assert held.token > token


@pytest.mark.steady
async def test_a_lock_is_renewed_while_it_is_held() -> None:
    kv = await bucket()
    async with kv.lock("l", ttl=3 * SECOND) as lock:  # much longer than a busy machine stands still
        token = lock.token
        await sleep(3.5)
        assert lock.check() == token
        assert not await kv.lock("l", ttl=SECOND).try_acquire()


class Stalled:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_stalled_holder_loses_the_lease_and_has_the_lower_token() -> None:
    kv = await bucket()
    clock, other_clock = Stalled(), Stalled()
    holder = Lock(kv.storage, "l", ttl=10 * SECOND, now=clock)
    taker = Lock(kv.storage, "l", ttl=10 * SECOND, now=other_clock)
    token = await holder.acquire()
    assert not await taker.try_acquire()
    other_clock.now += 10.9  # not renewed for longer than the TTL, but within the margin
    assert not await taker.try_acquire()
    other_clock.now += 0.2
    assert await taker.try_acquire()
    assert taker.token > token
    clock.now += 9.1
    with pytest.raises(LeaseLostError, match="not be renewed in time"):
        holder.check()
    with pytest.raises(LeaseLostError, match="another holder acquired it"):
        await holder.renew()
    assert await holder.wait_lost(timeout=10)
    assert taker.is_held
    await taker.release()


@pytest.mark.spec("KV-34")
async def test_a_suspended_machine_loses_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended machine stops CLOCK_MONOTONIC; CLOCK_BOOTTIME goes on."""
    asleep = 0.0
    read_clock = time.clock_gettime

    def clock_gettime(which: int) -> float:
        return read_clock(which) + (asleep if which == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    kv = await bucket()
    lock, election = kv.lock("l", ttl=60), kv.election("e", ttl=60)
    member = await kv.members("m", ttl=60).join("a")
    await lock.acquire()
    await election.campaign()
    asleep = 55.0  # 90 % of the lease is 54 s
    for check in (lock.check, election.check, member.check):
        with pytest.raises(LeaseLostError, match="not be renewed in time"):
            check()


@pytest.mark.spec("KV-31", on="C")
@pytest.mark.parametrize(
    ("setting", "config"),
    [
        pytest.param("ttl", BucketConfig(bucket="b", ttl=29 * SECOND), id="ttl"),
        pytest.param("max_bytes", BucketConfig(bucket="b", max_bytes=2000), id="max_bytes"),
    ],
)
async def test_a_local_bucket_that_may_remove_a_lease_early_is_rejected(setting: str, config: BucketConfig) -> None:
    kv = await open_local_key_value(config=config)
    with pytest.raises(UsageError, match=f"^{setting} of bucket 'b' must be .* for a lease of 15 s, got"):
        await kv.lock("l").acquire()
    with pytest.raises(UsageError, match=setting):
        await kv.members("m").join("a")
    with pytest.raises(UsageError, match=setting):
        await kv.election("e").campaign()
    assert await kv.keys() == []


async def test_a_candidate_waits_for_a_holder_whose_record_vanished() -> None:
    kv = await bucket()
    clock = Stalled()
    holder = kv.lock("l", ttl=10)
    taker = Lock(kv.storage, "l", ttl=10, now=clock)
    token = await holder.acquire()
    assert not await taker.try_acquire()
    await kv.storage.forget("l", below=token + 1)  # no mark is left
    clock.now += 10.9
    assert not await taker.try_acquire()
    clock.now += 0.2
    assert await taker.try_acquire()
    await taker.release()


async def test_an_object_is_one_contender() -> None:
    kv = await bucket()
    lock = kv.lock("l", ttl=60)
    async with lock:
        token = lock.check()
        with pytest.raises(UsageError, match="already held by this object"):
            await spawn(lock.acquire).result()
        assert lock.check() == token


async def test_a_lock_whose_key_was_removed_is_lost() -> None:
    kv = await bucket()
    lock = kv.lock("l", ttl=5 * SECOND)
    await lock.acquire()
    await kv.delete("l")
    assert await lock.wait_lost(timeout=10)
    with pytest.raises(LeaseLostError, match="removed"):
        lock.check()


async def test_bad_arguments_of_a_lease_are_rejected() -> None:
    kv = await bucket()
    with pytest.raises(UsageError, match="at least 1 second"):
        kv.lock("l", ttl=timedelta(milliseconds=10))
    with pytest.raises(UsageError, match="key must"):
        kv.lock("a b")
    with pytest.raises(UsageError, match="must not contain dots"):
        await kv.members("m").join("a.b")
    await kv.put("l", b"not a lease")
    with pytest.raises(CodecError):
        await kv.lock("l").try_acquire()
