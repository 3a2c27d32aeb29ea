"""Locks, elections and sets on the embedded backend; the rules of leases without any."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from slipstream import BucketConfig
from slipstream.errors import CodecError, LeaseLostError, RequestTimeoutError, UsageError
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.kv._async.lease import Lock
from slipstream.kv._sync.key_value import open_local_key_value as open_blocking
from slipstream.kv.lease import MARGIN, Claim, Observation, decode_record, server_ttl

SECOND = timedelta(seconds=1)


async def bucket() -> KeyValue[bytes]:
    return await open_local_key_value(config=BucketConfig(bucket="b", value_ttl=True))


def test_a_claim_counts_from_before_it_was_sent() -> None:
    claim = Claim(10.0)
    assert claim.remaining(0.0) == 0
    claim.sending(100.0)
    claim.stored(7, 100.0)
    assert claim.remaining(103.0) == pytest.approx(10 * (1 - MARGIN) - 3)
    assert claim.remaining(110.0) == 0
    assert claim.token == 7


def test_a_claim_whose_answer_was_lost_counts_from_the_first_that_it_can_be() -> None:
    claim = Claim(10.0)
    claim.sending(100.0)
    claim.sending(104.0)
    claim.pause()
    claim.found(9, 105.0)
    assert claim.remaining(105.0) == pytest.approx(4.0)
    assert claim.token == 9


def test_a_refused_claim_is_not_the_one_in_force() -> None:
    claim = Claim(10.0)
    claim.sending(50.0)
    claim.refused(50.0)
    claim.refused(50.0)  # once is enough
    claim.sending(104.0)
    claim.found(9, 105.0)
    assert claim.remaining(105.0) == pytest.approx(8.0)


def test_a_lease_may_be_taken_over_after_it_was_seen_unchanged_for_longer_than_its_time() -> None:
    seen = Observation()
    seen.see(5, 10.0, now=100.0)
    assert seen.takeover_in(105.0) == pytest.approx(10 * (1 + MARGIN) - 5)
    seen.see(5, 10.0, now=108.0)
    assert seen.takeover_in(111.0) == pytest.approx(0.0)
    seen.see(6, 10.0, now=111.0)
    assert seen.takeover_in(111.0) > 10


def test_what_a_server_is_told_outlives_the_lease() -> None:
    assert server_ttl(1.2) == timedelta(seconds=3)


def test_a_key_with_something_else_is_no_lease() -> None:
    with pytest.raises(CodecError, match="holds no lease"):
        decode_record("k", b"hello")


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
    waiting = asyncio.create_task(second.acquire(timeout=5))
    await asyncio.sleep(0)
    assert await first.release()
    assert await waiting > token
    with pytest.raises(LeaseLostError, match="given back"):
        first.check()
    assert not await first.release()
    assert await second.release()
    async with kv.lock("l") as held:
        assert held.token > token


async def test_a_lock_is_renewed_while_it_is_held() -> None:
    kv = await bucket()
    async with kv.lock("l", ttl=SECOND) as lock:
        token = lock.token
        await asyncio.sleep(1.5)
        assert lock.check() == token
        assert not await kv.lock("l", ttl=SECOND).try_acquire()


class Stalled:
    """A clock that stands still for others: its holder does not run."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_stalled_holder_knows_that_it_lost_and_its_token_is_lower() -> None:
    kv = await bucket()
    clock, other_clock = Stalled(), Stalled()
    holder = Lock(kv.storage, "l", ttl=10 * SECOND, now=clock)
    taker = Lock(kv.storage, "l", ttl=10 * SECOND, now=other_clock)
    token = await holder.acquire()
    assert not await taker.try_acquire()
    other_clock.now += 10.9  # nobody renewed for longer than the lease, but not longer than the margin
    assert not await taker.try_acquire()
    other_clock.now += 0.2
    assert await taker.try_acquire()
    assert taker.token > token
    clock.now += 9.1
    with pytest.raises(LeaseLostError, match="not be renewed in time"):
        holder.check()
    with pytest.raises(LeaseLostError, match="another one has it"):
        await holder.renew()
    assert await holder.wait_lost(timeout=1)
    assert taker.is_held
    await taker.release()


async def test_a_lock_whose_key_was_removed_is_lost() -> None:
    kv = await bucket()
    lock = kv.lock("l", ttl=SECOND)
    await lock.acquire()
    await kv.delete("l")
    assert await lock.wait_lost(timeout=5)
    with pytest.raises(LeaseLostError, match="removed"):
        lock.check()


async def test_a_bad_lease_is_refused() -> None:
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


async def test_an_election_tells_who_leads() -> None:
    kv = await bucket()
    one = kv.election("e", name="one", data=b"host1", ttl=10 * SECOND)
    two = kv.election("e", name="two", data=b"host2", ttl=10 * SECOND)
    assert await one.leader() is None
    seen = two.observe()
    assert await anext(seen) is None
    term = await one.campaign(timeout=5)
    assert one.is_leader
    assert not two.is_leader
    leader = await anext(seen)
    assert leader == await two.leader() == ("one", b"host1", term)
    await one.lease.renew()
    assert await two.leader() == ("one", b"host1", term)
    campaign = asyncio.create_task(two.campaign(timeout=5))
    await one.resign()
    next_term = await campaign
    assert next_term > term
    assert two.check() == next_term
    while (leader := await anext(seen)) is None:  # that nobody led in between may be seen or not
        pass
    assert leader == ("two", b"host2", next_term)
    await seen.aclose()  # type: ignore[attr-defined]
    await two.resign()


async def test_a_set_has_its_living_members() -> None:
    kv = await bucket()
    group = kv.members("svc.web", ttl=SECOND)
    changes = group.watch()
    a = await group.join("a", b"10.0.0.1")
    assert (await anext(changes))[0] == "joined"
    b = await group.join("b", b"10.0.0.2")
    change = await anext(changes)
    assert (change.kind, change.member.name, change.member.data) == ("joined", "b", b"10.0.0.2")
    assert {name: member.data for name, member in (await group.members()).items()} == {
        "a": b"10.0.0.1",
        "b": b"10.0.0.2",
    }
    await b.renew(b"10.0.0.9")
    change = await anext(changes)
    assert (change.kind, change.member.data) == ("updated", b"10.0.0.9")
    await a.release()
    change = await anext(changes)
    assert (change.kind, change.member.name) == ("left", "a")
    b._stop.set()  # it dies: nobody renews any more
    change = await asyncio.wait_for(anext(changes), 5)
    assert (change.kind, change.member.name) == ("left", "b")
    assert await group.members() == {}
    await changes.aclose()  # type: ignore[attr-defined]


def test_the_blocking_lock() -> None:
    kv = open_blocking(config=BucketConfig(bucket="b"))
    with kv.lock("l", ttl=SECOND) as lock:
        token = lock.token
        assert not kv.lock("l").try_acquire()
    second = kv.lock("l", ttl=SECOND)
    assert second.acquire(timeout=5) > token
    assert second.release()
