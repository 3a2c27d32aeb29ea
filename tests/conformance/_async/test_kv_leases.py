"""Leases where they meet other features: limits and TTLs of the bucket, replicas, stalls, one object in two tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slipstream import BucketConfig, JetStream, Server, StreamSource, connect
from slipstream.api import ExternalStream
from slipstream.errors import (
    LeaseLostError,
    NoStreamError,
    OriginUnreachableError,
    ReadOnlyError,
    RequestTimeoutError,
    UsageError,
)
from slipstream.kv import BucketSource
from slipstream.kv._async.election import Members
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.lease import Lock
from slipstream.kv._async.storage import Feed, Storage, WrappedStorage
from slipstream.kv.bucket import BucketStatus
from slipstream.kv.entry import Entry, Start
from tests._async.concurrency import spawn, until
from tests.conformance._async import lock_contender
from tests.lock_history import check_history, contenders

SECOND = timedelta(seconds=1)
BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "ttl": {"max_age": 2 * SECOND},
    "max_bytes": {"max_bytes": 2000},
    "max_msgs": {"max_msgs": 10},
    "retention": {"retention": "interest"},
    "discard_new_per_subject": {"discard": "new", "discard_new_per_subject": True},
    "no_ack": {"no_ack": True},
    "sources": {"sources": (StreamSource(name="OTHER"),)},
}


async def create(js: JetStream, bucket: str, **settings: Any) -> KeyValue[bytes]:
    """A bucket with settings of its stream that BucketConfig may not have."""
    config = BucketConfig(bucket=bucket).stream_config().replace(duplicate_window=SECOND, **settings)
    await js.create_stream(config)
    return await js.key_value(bucket)


@pytest.mark.spec("KV-27", "KV-31")
async def test_a_lock_is_safe_when_its_holder_stalls(any_server: str, fresh: str, tmp_path: Path) -> None:
    """Three processes; the holder is stopped by a signal, twice, and goes on when another one has the lock."""
    async with connect(any_server) as nc:
        await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        with contenders(lock_contender.__name__, "abc", tmp_path, any_server, fresh) as group:
            seen = 0
            for _ in range(2):
                await until(partial(group.has_more_than, seen), timeout=30)
                holder = group.tenures[-1]
                seen = len(group.tenures)
                group.by_name[holder.name].stall()
                await until(partial(group.has_more_than, seen), timeout=30)  # another has taken it over
                group.by_name[holder.name].resume()
                await until(partial(group.has_lost, holder), timeout=30)
        tenures = check_history(group.passes())
        assert len(tenures) >= 3
        assert all(earlier.name != later.name for earlier, later in pairwise(tenures))


@pytest.mark.soak
@pytest.mark.parametrize("value_ttl", [False, True], ids=["observed", "ttl"])
async def test_locks_are_safe_while_processes_stall(
    any_server: str, fresh: str, tmp_path: Path, value_ttl: bool
) -> None:
    """Contenders that release and take turns, one after the other stopped for longer than a lease."""
    async with connect(any_server) as nc:
        await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, value_ttl=value_ttl))
        with contenders(lock_contender.__name__, "abcd", tmp_path, any_server, fresh, hold=0.3) as group:
            for round_ in range(20):
                seen = len(group.tenures)
                stalled = group.by_name["abcd"[round_ % 4]]
                stalled.stall()
                await until(partial(group.has_more_than, seen + 1), timeout=30)
                stalled.resume()
        assert len(check_history(group.passes())) >= 40


@pytest.mark.spec("KV-31")
@pytest.mark.parametrize("setting", BAD_SETTINGS)
async def test_a_bucket_that_may_remove_a_lease_early_is_rejected(any_server: str, fresh: str, setting: str) -> None:
    async with connect(any_server) as nc:
        kv = await create(nc.jetstream(), fresh, **BAD_SETTINGS[setting])
        with pytest.raises(UsageError, match=f"^{setting} of bucket '{fresh}' must be"):
            await kv.lock("job").acquire(timeout=5)
        with pytest.raises(UsageError, match=setting):
            await kv.lock("job").try_acquire()
        with pytest.raises(UsageError, match=setting):
            await kv.election("leader").campaign(timeout=5)
        with pytest.raises(UsageError, match=setting):
            await kv.members("web").join("a", timeout=5)
        assert (await kv.status()).values == 0  # nothing was claimed


@pytest.mark.spec("KV-31")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"max_age": 30 * SECOND}, id="ttl"),
        pytest.param({"max_bytes": 100_000, "discard": "new"}, id="discard-new"),
        pytest.param({"max_msgs_per_subject": 5, "allow_msg_ttl": True}, id="history"),
        pytest.param(
            {
                "max_msgs_per_subject": 5,
                "allow_msg_ttl": True,
                "subject_delete_marker_ttl": 300 * SECOND,
            },
            id="markers",
        ),
    ],
)
async def test_a_bucket_that_keeps_leases_long_enough_is_accepted(
    any_server: str, fresh: str, settings: dict[str, Any]
) -> None:
    async with connect(any_server) as nc:
        kv = await create(nc.jetstream(), fresh, **settings)
        async with kv.lock("job") as lock:  # a lease of 15 s: its record must live for 30 s
            await lock.renew()
            assert not await kv.lock("job").try_acquire()
        assert await kv.lock("job").try_acquire()


async def evict(kv: KeyValue[bytes], key: str) -> None:
    """Wait until limits have removed a key; a bucket with a size limit is filled."""
    number = 0

    async def is_gone() -> bool:
        nonlocal number
        number += 1
        await kv.put(f"filler.{number % 100}", b"y" * 300)
        return await kv.storage.last(key) is None

    await until(is_gone)


@pytest.mark.spec("KV-31")
@pytest.mark.parametrize("change", [{"max_age": SECOND}, {"max_bytes": 2000}], ids=["ttl", "max_bytes"])
async def test_limits_that_change_under_a_lease_give_it_to_nobody(
    any_server: str, fresh: str, change: dict[str, Any]
) -> None:
    setting = {"max_age": "ttl"}.get(*change, *change)
    async with connect(any_server) as one, connect(any_server) as two:
        js = one.jetstream()
        kv = await create(js, fresh)
        theirs = await two.jetstream().key_value(fresh)
        holder = kv.lock("job", ttl=60)
        token = await holder.acquire(timeout=5)
        await js.update_stream((await kv.status()).stream_info.config.replace(**change))
        await evict(kv, "job")
        with pytest.raises(UsageError, match=setting):  # the record is gone, and the holder does not know yet
            await theirs.lock("job").try_acquire()
        assert holder.check() == token
        with pytest.raises(LeaseLostError, match=setting):
            await holder.renew()
        with pytest.raises(LeaseLostError, match=setting):
            holder.check()


class Meddled(WrappedStorage[bytes]):
    """A storage that calls a function before each read of a key or of the bucket's state, and before each feed."""

    def __init__(self, inner: Storage[bytes], meddle: Callable[[str], Any]) -> None:
        super().__init__(inner)
        self._meddle = meddle

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[bytes] | None:
        await self._meddle("last")
        return await super().last(key, min_last_revision=min_last_revision, timeout=timeout)

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        await self._meddle("status")
        return await super().status(timeout=timeout)

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> Feed[bytes]:
        await self._meddle("follow")
        return await super().follow(
            patterns, start, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout
        )


@pytest.mark.spec("KV-31")
async def test_limits_that_change_while_a_claim_is_made_give_it_to_nobody(any_server: str, fresh: str) -> None:
    """They change behind the candidate's look at the bucket and take the holder's record away: its claim is stored."""
    async with connect(any_server) as one, connect(any_server) as two:
        js = one.jetstream()
        kv = await create(js, fresh)
        holder = kv.lock("job", ttl=60)
        token = await holder.acquire(timeout=5)

        async def change(call: str) -> None:
            config = (await kv.status()).stream_info.config
            if call == "last" and config.max_bytes < 0:
                await js.update_stream(config.replace(max_bytes=2000))
                await evict(kv, "job")

        taker = Lock(Meddled((await two.jetstream().key_value(fresh)).storage, change), "job", ttl=60)
        with pytest.raises(UsageError, match="max_bytes"):
            await taker.acquire(timeout=5)
        assert not taker.is_held
        assert holder.check() == token
        newest = await kv.storage.last("job")
        assert newest is None or newest.is_deleted  # it removed its claim


@pytest.mark.spec("KV-31")
async def test_a_bucket_that_is_made_again_ends_a_lease(any_server: str, fresh: str) -> None:
    """The new holder's record has the very revision of the old one's: a compare-and-set cannot tell them apart."""
    async with connect(any_server) as one, connect(any_server) as two:
        kv = await one.jetstream().create_key_value(BucketConfig(bucket=fresh))
        holder = kv.lock("job", ttl=60)
        token = await holder.acquire(timeout=5)
        await kv.destroy()
        theirs = await two.jetstream().create_key_value(BucketConfig(bucket=fresh))
        taker = theirs.lock("job", ttl=60)
        assert await taker.acquire(timeout=5) == token
        with pytest.raises(LeaseLostError, match="recreated"):
            await holder.renew()
        with pytest.raises(LeaseLostError, match="recreated"):
            holder.check()


@pytest.mark.spec("KV-31")
@pytest.mark.steady
async def test_a_candidate_waits_for_a_holder_whose_record_vanished(any_server: str, fresh: str) -> None:
    """The subject is purged under a waiting candidate, which knows from the record for how long the holder relies."""
    async with connect(any_server) as one, connect(any_server) as two:
        js = one.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh))
        holder = kv.lock("job", ttl=3)
        token = await holder.acquire(timeout=5)
        taker = (await two.jetstream().key_value(fresh)).lock("job", ttl=3)
        assert not await taker.try_acquire()
        await js.stream(f"KV_{fresh}").purge()
        assert not await taker.try_acquire()
        waiting = spawn(partial(taker.acquire, timeout=20))
        with pytest.raises(LeaseLostError, match="removed"):
            await holder.renew()
        assert await waiting.result(timeout=20) > token
        await taker.release()


@pytest.mark.spec("KV-32")
async def test_a_lease_on_a_bucket_that_no_stream_takes_writes_of_is_an_error(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(BucketConfig(bucket=fresh))
        kv = await js.key_value(fresh, put_prefix=f"nowhere.{fresh}")
        with pytest.raises(NoStreamError):
            await kv.lock("job", ttl=1).acquire()
        with pytest.raises(RequestTimeoutError, match="not acquired within 0 s: no stream accepts subject 'nowhere"):
            await kv.lock("job", ttl=1).acquire(timeout=0)
        with pytest.raises(NoStreamError):
            await kv.lock("job", ttl=1).try_acquire()
        with pytest.raises(ReadOnlyError):
            await kv.read_only().lock("job").acquire()


@pytest.mark.spec("KV-32")
async def test_a_lease_on_a_bucket_whose_writes_are_not_answered_is_an_error(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(BucketConfig(bucket=fresh))
        await nc.subscribe(f"silent.{fresh}.>")
        kv = await js.key_value(fresh, put_prefix=f"silent.{fresh}")
        with pytest.raises(RequestTimeoutError, match=f"silent.{fresh}.job"):
            await kv.lock("job", ttl=1).acquire()
        assert not await kv.lock("job", ttl=1).try_acquire()


@pytest.mark.spec("KV-31", "KV-32")
async def test_leases_through_a_replica_look_at_its_origin(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh))
        copy = await js.create_key_value(BucketConfig(bucket=f"{fresh}copy", mirror=fresh))
        lock = copy.lock("job")
        token = await lock.acquire(timeout=5)
        assert not await kv.lock("job").try_acquire()
        assert (await kv.get("job")).revision == token
        await js.update_stream((await kv.status()).stream_info.config.replace(max_bytes=100_000))
        with pytest.raises(UsageError, match=f"max_bytes of bucket '{fresh}' must be"):
            await copy.lock("job").acquire(timeout=5)
        with pytest.raises(LeaseLostError, match="max_bytes"):
            await lock.renew()


async def test_a_lease_on_an_edge_replica_is_an_error() -> None:
    """Its origin can be reached by the server, which copies it, but not by clients."""
    async with (
        Server() as hub,
        Server(upstreams={"hub": hub.url}) as edge,
        connect(hub.url) as there,
        connect(edge.url) as here,
    ):
        await there.jetstream().create_key_value(BucketConfig(bucket="eu"))
        origin = BucketSource(bucket="eu", external=ExternalStream(api="$JS.hub.API"))
        kv = await here.jetstream().create_key_value(BucketConfig(bucket="copy", mirror=origin))
        waits: list[Callable[[], Any]] = [
            kv.lock("job").acquire,
            kv.lock("job").try_acquire,
            kv.election("leader").campaign,
            partial(kv.members("web").join, "a"),
        ]
        for wait in waits:
            with pytest.raises(OriginUnreachableError, match="'copy' is a read replica"):
                await spawn(wait).result(timeout=10)


@pytest.mark.spec("KV-33")
@pytest.mark.parametrize("value_ttl", [False, True], ids=["observed", "ttl"])
@pytest.mark.steady
async def test_a_dead_leader_is_reported_within_its_lease(any_server: str, fresh: str, value_ttl: bool) -> None:
    async with connect(any_server) as nc, connect(any_server) as dead:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, value_ttl=value_ttl, history=3))
        election = kv.election("leader", name="second", ttl=1)
        changes = election.observe()
        assert await anext(changes) is None
        term = await (await dead.jetstream().key_value(fresh)).election("leader", name="dead", ttl=1).campaign()
        assert await anext(changes) == ("dead", b"", term) == await election.leader()
        await dead.close()

        async def has_no_leader() -> bool:
            return await election.leader() is None

        await until(has_no_leader)
        assert await anext(changes) is None
        late = kv.election("leader").observe()
        assert await anext(late) is None  # one that begins now does not take it for alive either
        await late.aclose()  # type: ignore[attr-defined]
        term = await election.campaign(timeout=10)
        assert await anext(changes) == ("second", b"", term) == await election.leader()
        await election.resign()
        assert await anext(changes) is None
        await changes.aclose()  # type: ignore[attr-defined]


@pytest.mark.spec("KV-33")
async def test_a_watch_of_members_misses_none_who_joins_while_it_begins(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        group = kv.members("web", ttl=300)  # not renewed during this test
        joined: list[str] = []

        async def join(call: str) -> None:
            name = f"{call}-{len(joined)}"
            joined.append(name)
            await group.join(name, timeout=5)

        await join("before")
        changes = Members(Meddled(kv.storage, join), "web", ttl=300).watch()
        seen = [(await anext(changes)).member.name]
        while len(seen) < len(joined):
            seen.append((await anext(changes)).member.name)
        assert len(joined) >= 3  # before the watch, before its first request and before its second
        assert sorted(seen) == sorted(joined)
        await changes.aclose()  # type: ignore[attr-defined]


async def test_a_value_that_is_no_member_does_not_hide_the_others(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        group = kv.members("web", ttl=60)
        await kv.put("web.foreign", b"hello")
        await group.join("a", timeout=5)
        assert list(await group.members()) == ["a"]
        changes = group.watch()
        assert (await anext(changes)).member.name == "a"
        await changes.aclose()  # type: ignore[attr-defined]
        assert "'web.foreign' does not contain a lease" in caplog.text


@pytest.mark.spec("KV-34")
async def test_one_lock_object_has_one_user(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        lock = kv.lock("job", ttl=60)

        async def enter() -> None:
            async with lock:
                pass

        async with lock:
            token = lock.check()
            with pytest.raises(UsageError, match="already held by this object"):
                await spawn(enter).result()
            with pytest.raises(UsageError, match="already held by this object"):
                await lock.acquire()  # not re-entrant either
            with pytest.raises(UsageError, match="already held by this object"):
                await lock.try_acquire()
            assert lock.check() == token  # none of them released it
            waiting = kv.lock("job", ttl=60)
            first = spawn(partial(waiting.acquire, timeout=20))
            await until(lambda: waiting._is_acquiring)
            with pytest.raises(UsageError, match="already being acquired by this object"):
                await spawn(waiting.acquire).result()
        assert await first.result() > token
        await waiting.release()
        await spawn(enter).result()  # released: any task may use it


async def test_a_lost_lock_is_not_taken_from_under_its_user(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        lock = kv.lock("job", ttl=60)
        token = await lock.acquire(timeout=5)
        await kv.delete("job")
        with pytest.raises(LeaseLostError):
            await lock.renew()
        with pytest.raises(UsageError, match="lost but not released"):
            await spawn(lock.acquire).result()
        assert await lock.acquire(timeout=5) > token  # its own user may try again
        await lock.release()
