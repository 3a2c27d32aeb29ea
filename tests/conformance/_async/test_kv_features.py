"""Key-Value 1.0 to 2.0 through our client, on our server and on nats-server; each test proves a whole requirement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from slipstream import BucketConfig, JetStream, ObjectStoreConfig, StreamConfig, connect
from slipstream.errors import (
    BucketNotFoundError,
    HistoryLostError,
    KeyExistsError,
    KeyNotFoundError,
    LeaseLostError,
    RequestTimeoutError,
    StaleReadError,
    StreamNameInUseError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.kv import BucketSource, Entry, Operation
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.stream_storage import StreamStorage
from slipstream.kv.codecs import Base64Keys, Codec, Json, PathKeys
from slipstream.kv.codecs.encryption import Encrypted, Keyring
from tests._async.concurrency import sleep, spawn, until

SECOND = timedelta(seconds=1)


async def gone(kv: KeyValue[bytes], key: str) -> bool:
    try:
        await kv.get(key)
    except KeyNotFoundError:
        return True
    return False


@pytest.mark.spec("KV-07")
async def test_history_returns_all_kept_values_with_their_delta(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=4))
        for n in range(6):
            await kv.put("a.b", b"%d" % n)
        mark = await kv.delete("a.b")
        history = await kv.history("a.b", min_last_revision=mark)
        assert [(entry.value, entry.delta) for entry in history] == [(b"3", 3), (b"4", 2), (b"5", 1), (b"", 0)]
        assert [entry.revision for entry in history] == [4, 5, 6, 7]
        assert history[-1].operation is Operation.DELETE
        with pytest.raises(KeyNotFoundError):
            await kv.history("a.c")


@pytest.mark.spec("KV-08")
async def test_a_watch_on_a_key_a_wildcard_several_filters_or_everything(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=2))
        nothing: list[tuple[str, ...]] = [(), ("a",), ("a.*",), ("a", "b.>")]
        for filters in nothing:  # the signal comes also when there is nothing
            async with await kv.watch(*filters) as watch:
                assert await watch.next(timeout=5) is None
        for key in ("a", "a.x", "a.y", "b.c.d", "e"):
            await kv.put(key, key.encode())
        expected: dict[tuple[str, ...], list[str]] = {
            (): ["a", "a.x", "a.y", "b.c.d", "e"],
            (">",): ["a", "a.x", "a.y", "b.c.d", "e"],
            ("a",): ["a"],
            ("a.*",): ["a.x", "a.y"],
            ("*.x", "b.>", "e"): ["a.x", "b.c.d", "e"],
            ("a.*", "*.x"): ["a.x", "a.y"],  # filters that overlap
            ("nothing",): [],
        }
        for filters, keys in expected.items():
            async with await kv.watch(*filters) as watch:
                assert [entry.key for entry in await watch.initial()] == keys
                await kv.put("a.x", b"!")
                await kv.put("last", b"")
                if "a.x" in keys:
                    entry = await watch.next(timeout=5)
                    assert entry is not None
                    assert (entry.key, entry.value) == ("a.x", b"!")
            await kv.purge("last")
            await kv.purge_deletes(older_than=timedelta(0))
            await kv.put("a.x", b"a.x")
            for key in ("a.y", "b.c.d", "e"):
                await kv.put(key, key.encode())


@pytest.mark.spec("KV-09")
async def test_watch_options(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=5))
        await kv.put("a", b"1")
        second = await kv.put("a", b"2")
        await kv.put("b", b"3")
        last = await kv.delete("b")

        async def initial(**options: Any) -> list[Entry[bytes]]:
            async with await kv.watch(**options) as watch:
                return await watch.initial()

        assert [(e.key, e.value) for e in await initial()] == [("a", b"2"), ("b", b"")]
        assert [(e.key, e.value) for e in await initial(include_history=True)] == [
            ("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"")
        ]  # fmt: skip
        assert [e.key for e in await initial(ignore_deletes=True)] == ["a"]
        meta = await initial(meta_only=True)
        assert [(e.key, e.value, e.operation) for e in meta] == [
            ("a", b"", Operation.PUT), ("b", b"", Operation.DELETE)
        ]  # fmt: skip
        assert [e.revision for e in await initial(resume_from=second)] == [second, second + 1, last]
        async with await kv.watch(updates_only=True, ignore_deletes=True) as watch:
            assert await watch.next(timeout=0) is None  # at once
            await kv.delete("a")
            await kv.put("c", b"new")
            entry = await watch.next(timeout=5)
            assert entry is not None
            assert entry.key == "c"


@pytest.mark.spec("KV-11")
async def test_keys_are_listed_without_their_values(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=3))
        assert await kv.keys() == []
        for n in range(20):
            await kv.put(f"k.{n}", b"x" * 100_000)
        await kv.delete("k.3")
        await kv.purge("k.4")
        before = nc.stats.in_bytes
        keys = await kv.keys()
        assert keys == [f"k.{n}" for n in range(20) if n not in (3, 4)]
        assert nc.stats.in_bytes - before < 50_000  # headers only
        assert [key async for key in kv.iter_keys()] == keys
        assert await kv.keys("k.1", "k.2") == ["k.1", "k.2"]
        with pytest.raises(UsageError, match="key filter must be"):
            await kv.keys("k*")
        assert (await kv.status()).stream_info.state.consumer_count == 0


@pytest.mark.spec("KV-13")
@pytest.mark.steady
async def test_values_expire_after_the_ttl_of_the_bucket(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, ttl=SECOND))
        await kv.put("a", b"1")
        assert (await kv.get("a")).value == b"1"
        await until(lambda: gone(kv, "a"))
        assert await kv.keys() == []
        assert await kv.create("a", b"2") == 2


@pytest.mark.spec("KV-15")
async def test_buckets_are_listed_updated_and_destroyed(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(BucketConfig(bucket=f"{fresh}a"))
        kv = await js.create_key_value(BucketConfig(bucket=f"{fresh}b"))
        await js.create_stream(StreamConfig(name=fresh, subjects=(fresh,)))
        assert [name async for name in js.key_values() if name.startswith(fresh)] == [f"{fresh}a", f"{fresh}b"]
        await kv.put("k", b"1")
        changed = await js.update_key_value(BucketConfig(bucket=f"{fresh}b", history=7, description="new"))
        assert (await changed.status()).history == 7
        assert (await changed.get("k")).value == b"1"
        await kv.destroy()
        await js.delete_key_value(f"{fresh}a")
        assert [name async for name in js.key_values() if name.startswith(fresh)] == []
        for bucket in (f"{fresh}a", f"{fresh}b"):
            with pytest.raises(BucketNotFoundError):
                await js.key_value(bucket)
            with pytest.raises(BucketNotFoundError):
                await js.delete_key_value(bucket)
        with pytest.raises(BucketNotFoundError):
            await js.update_key_value(BucketConfig(bucket=f"{fresh}b"))
        await js.delete_stream(fresh)


@pytest.mark.spec("KV-17")
async def test_codecs_for_keys_and_values(any_server: str, fresh: str) -> None:
    class Reversed(Codec[bytes]):
        def encode_value(self, key: str, value: bytes) -> bytes:
            return (key.encode() + value)[::-1]

        def decode_value(self, key: str, data: bytes) -> bytes:
            return data[::-1].removeprefix(key.encode())

    async with connect(any_server) as nc:
        raw = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=2))
        text = raw.with_codec(Base64Keys())
        await text.put("Zürich.4 km", b"1")
        assert await raw.keys() == ["WsO8cmljaA.NCBrbQ"]
        assert await text.keys("Zürich.*") == ["Zürich.4 km"]
        await raw.purge_range(">")
        await raw.purge_deletes(older_than=timedelta(0))
        paths = raw.with_codec(PathKeys()).with_codec(Reversed()).with_codec(Json(dict[str, int]))
        await paths.put("/a/b", {"n": 1})
        assert (await raw.get("_root_.a.b")).value == b'/a/b{"n":1}'[::-1]
        assert (await paths.get("/a/b")).value == {"n": 1}
        async with await paths.watch("/a/>") as watch:
            assert [(e.key, e.value) for e in await watch.initial()] == [("/a/b", {"n": 1})]
            await paths.put("/b", {})
            await paths.put("/a/c", {"n": 2})
            entry = await watch.next(timeout=5)
            assert entry is not None
            assert (entry.key, entry.value) == ("/a/c", {"n": 2})


@pytest.mark.spec("KV-44")
@pytest.mark.parametrize(
    "codec", [Base64Keys(), Encrypted(Keyring({"a": b"k" * 32}), context="c")], ids=["base64", "aes"]
)
async def test_a_foreign_key_hides_no_other_key(any_server: str, fresh: str, codec: Codec[bytes]) -> None:
    async with connect(any_server) as nc:
        raw = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=2, value_ttl=True))
        kv = raw.with_codec(codec)
        await raw.put("plain/key", b"1")
        last = await kv.put("own", b"2")
        await raw.delete("plain/other")
        for least in (0, last):
            assert await kv.keys(min_last_revision=least) == ["own"]
            assert list(await kv.get_range(min_last_revision=least)) == ["own"]
            assert list(await kv.snapshot(min_last_revision=least)) == ["own"]
            async with await kv.watch(include_history=True, min_last_revision=least) as watch:
                assert [entry.key for entry in await watch.initial()] == ["own"]
        assert (await kv.get("own")).value == b"2"
        assert set(kv.foreign_keys) == {"plain/key", "plain/other"}
        group = raw.members("svc", ttl=60 * SECOND)
        await raw.put("svc.readme", b"no lease")
        lease = await group.join("a")
        assert list(await group.members()) == ["a"]
        assert list(group.foreign.keys) == ["svc.readme"]
        await lease.release()


@pytest.mark.spec("KV-45")
async def test_path_keys_are_stored_as_other_clients_store_them(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        raw = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=2))
        for key in ("_root_.etc.app.conf", "_root_", "_root_.a=b"):  # by orbit.go, for the paths below
            await raw.put(key, key.encode())
        kv = raw.with_codec(PathKeys())
        assert await kv.keys() == ["/etc/app/conf", "/", "/a=b"]
        for path, stored in (("/etc/app.conf", b"_root_.etc.app.conf"), ("/", b"_root_"), ("/a=b", b"_root_.a=b")):
            assert (await kv.get(path)).value == stored
            revision = await kv.put(path, b"new")
            assert (await raw.get(stored.decode())).revision == revision
            assert (await kv.get(path, revision=revision)).value == b"new"


@pytest.mark.spec("KV-18", "KV-26")
@pytest.mark.steady
async def test_a_ttl_per_value_and_the_marker_that_it_leaves(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, limit_marker_ttl=timedelta(hours=1)))
        assert (await kv.status()).value_ttl
        async with await kv.watch() as watch:
            assert await watch.next(timeout=5) is None
            await kv.put("stays", b"1")
            await kv.create("goes", b"2", ttl=SECOND)
            await kv.put("too", b"3", ttl=SECOND)
            for key in ("stays", "goes", "too"):
                entry = await watch.next(timeout=5)
                assert entry is not None
                assert (entry.key, entry.operation, entry.marker) == (key, Operation.PUT, "")
            markers = {}
            for _ in range(2):
                entry = await watch.next(timeout=10)
                assert entry is not None
                markers[entry.key] = entry
        assert sorted(markers) == ["goes", "too"]
        for entry in markers.values():
            assert (entry.operation, entry.marker, entry.is_deleted) == (Operation.EXPIRED, "MaxAge", True)
        with pytest.raises(KeyNotFoundError, match="MaxAge"):
            await kv.get("goes", min_last_revision=max(entry.revision for entry in markers.values()))
        assert await kv.keys() == ["stays"]
        assert [entry.operation for entry in await kv.history("too")] == [Operation.EXPIRED]
        assert await kv.create("goes", b"again") > markers["goes"].revision
        updated = await kv.update("stays", b"x", last=(await kv.get("stays")).revision, ttl=timedelta(hours=1))
        assert (await kv.get("stays")).revision == updated
        with pytest.raises(UsageError, match="at least 1 second"):
            await kv.put("k", b"", ttl=timedelta(milliseconds=1))


@pytest.mark.spec("KV-18")
@pytest.mark.parametrize(
    ("reason", "operation"),
    [("Purge", Operation.PURGE), ("Remove", Operation.DELETE), ("Later", Operation.EXPIRED)],
)
async def test_markers_of_every_reason_are_told_apart(
    any_server: str, fresh: str, reason: str, operation: Operation
) -> None:
    """As nats-server 2.11.0 and 2.11.1 stored them for a purge. No other release leaves a marker but for MaxAge, so
    what they stored is stored again here; a reason that is not known still means that the value is gone."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3, limit_marker_ttl=timedelta(hours=1)))
        async with await kv.watch(updates_only=True) as watch:
            assert await watch.next(timeout=5) is None
            await kv.put("k", b"1")
            headers = {"Nats-Marker-Reason": reason, "Nats-TTL": "1h0m0s"}
            ack = await js.publish(f"$KV.{fresh}.k", b"", headers=headers)
            for expected in ((Operation.PUT, ""), (operation, reason)):
                entry = await watch.next(timeout=5)
                assert entry is not None
                assert (entry.operation, entry.marker) == expected
        history = await kv.history("k", min_last_revision=ack.seq)
        assert [(each.operation, each.marker, each.is_deleted) for each in history] == [
            (Operation.PUT, "", False),
            (operation, reason, True),
        ]
        with pytest.raises(KeyNotFoundError, match=f"its last entry is a {operation}"):
            await kv.get("k", min_last_revision=ack.seq)
        assert await kv.keys(min_last_revision=ack.seq) == []
        assert await kv.snapshot(min_last_revision=ack.seq) == {}
        assert await kv.create("k", b"2") > ack.seq


async def test_a_ttl_that_the_bucket_does_not_allow_is_rejected(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        with pytest.raises(Exception, match="TTL"):
            await kv.put("k", b"", ttl=SECOND)


@pytest.mark.spec("KV-19")
async def test_a_read_replica_answers_and_names_itself(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        origin = await js.create_key_value(BucketConfig(bucket=fresh, history=2))
        revision = await origin.put("a", b"1")
        await js.create_key_value(BucketConfig(bucket=f"{fresh}r", history=2, mirror=fresh))
        replica = await js.key_value(f"{fresh}r")
        assert (await replica.status()).mirror_of == f"KV_{fresh}"
        await until(lambda: _same(replica, "a", b"1"))
        entry = await replica.get("a")
        assert (entry.stream, entry.revision) == (f"KV_{fresh}r", revision)
        second = await replica.put("a", b"2")  # goes to the origin
        assert (await origin.get("a", min_last_revision=second)).value == b"2"
        await until(lambda: _same(replica, "a", b"2"))
        async with await replica.watch() as watch:
            assert [e.value for e in await watch.initial()] == [b"2"]
        assert await replica.keys() == ["a"]
        assert [e.value for e in await replica.history("a")] == [b"1", b"2"]
        # Direct Gets to the origin reach the replica too, and the entry tells which of them answered.
        streams = {(await origin.get("a")).stream for _ in range(200)}
        assert streams == {f"KV_{fresh}", f"KV_{fresh}r"}


async def test_a_session_reads_from_a_replica_what_it_wrote_through_it(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(BucketConfig(bucket=fresh))
        await js.create_key_value(BucketConfig(bucket=f"{fresh}r", mirror=fresh))
        async with js.session() as session:
            replica = await session.key_value(f"{fresh}r")
            for n in range(20):
                async with replica.writer() as writer:
                    await writer.put("a", b"%d" % n)
                assert session.seen(f"KV_{fresh}r") == writer.last_revision
                assert (await replica.get("a")).value == b"%d" % n
                revision = await replica.put("a", b"put")
                assert session.seen(f"KV_{fresh}r") == revision


async def _same(kv: KeyValue[bytes], key: str, value: bytes) -> bool:
    try:
        return (await kv.get(key)).value == value
    except KeyNotFoundError:
        return False


async def test_an_aggregate_has_the_keys_of_its_sources(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        eu = await js.create_key_value(BucketConfig(bucket=f"{fresh}eu"))
        us = await js.create_key_value(BucketConfig(bucket=f"{fresh}us"))
        sources = (
            f"{fresh}eu",
            BucketSource(bucket=f"{fresh}us", keys="orders.*", prefix="us"),
        )
        await js.create_key_value(BucketConfig(bucket=f"{fresh}all", sources=sources))
        both = await js.key_value(f"{fresh}all")
        await eu.put("a", b"1")
        await us.put("orders.7", b"2")
        await us.put("other", b"3")
        await until(lambda: _same(both, "us.orders.7", b"2"))
        await until(lambda: _same(both, "a", b"1"))
        assert sorted(await both.keys()) == ["a", "us.orders.7"]
        await eu.delete("a")
        await until(lambda: gone(both, "a"))
        with pytest.raises(UsageError, match="mirror"):
            BucketConfig(bucket="x", mirror=BucketSource(bucket="y", prefix="z")).stream_config()


@pytest.mark.spec("KV-21")
@pytest.mark.parametrize("history", [1, 64])
@pytest.mark.steady
async def test_a_read_cache_is_fresh_and_honours_revisions(any_server: str, fresh: str, history: int) -> None:
    async with connect(any_server) as nc, connect(any_server) as other:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=history))
        theirs = await other.jetstream().key_value(fresh)
        await kv.put("a", b"0")
        cached = await kv.cached(recheck_after=timedelta(hours=1))  # no check is sent meanwhile
        revision = 0
        for n in range(1, 50):
            revision = await theirs.put("a", b"%d" % n)
            assert (await cached.get("a", min_last_revision=revision)).value == b"%d" % n
        await until(lambda: _is_in_memory(cached, "a", revision))
        if history == 1:
            assert cached.stats.updates <= 50  # a revision that was replaced before it was delivered is skipped
        else:
            assert cached.stats.updates == 50  # none is missed
        sent, hits, misses = nc.stats.out_msgs, cached.stats.hits, cached.stats.misses
        for _ in range(100):
            assert (await cached.get("a", min_last_revision=revision)).value == b"49"
        assert nc.stats.out_msgs == sent  # all of them from memory
        assert (cached.stats.hits, cached.stats.misses) == (hits + 100, misses)
        assert cached.stats.hit_rate == (hits + 100) / (hits + 100 + misses)
        with pytest.raises(StaleReadError):
            await cached.get("a", min_last_revision=revision + 1, timeout=1.5)
        await cached.close()
        assert (await cached.get("a")).value == b"49"  # from the bucket


async def _is_in_memory(cached: Any, key: str, revision: int) -> bool:
    """Whether a read that must be as new as `revision` is answered from memory."""
    hits = cached.stats.hits
    await cached.get(key, min_last_revision=revision)
    return bool(cached.stats.hits > hits)


@pytest.mark.spec("KV-22")
async def test_ranges_and_a_snapshot_of_one(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=3))
        async with kv.writer() as writer:
            for n in range(100):
                await writer.put(f"a.{n}", b"1")
            await writer.put("b", b"1")
        at = (await kv.status()).last_revision
        assert len(await kv.get_range("a.*", min_last_revision=at)) == 100
        await kv.put("a.5", b"2")
        assert await kv.delete_range("a.*") == 100
        assert await kv.keys() == ["b"]
        await kv.put("c.new", b"1")
        assert await kv.purge_range("c.*") == 1
        shot = await kv.snapshot("a.*", "b", revision=at)
        assert len(shot) == 101
        assert {entry.value for entry in shot.values()} == {b"1"}
        assert max(entry.revision for entry in shot.values()) <= at
        assert list(await kv.snapshot()) == ["b"]
        await kv.put("a.5", b"3")
        await kv.put("a.5", b"4")
        with pytest.raises(HistoryLostError, match=r"a\.5"):
            await kv.snapshot("a.*", revision=at)
        assert len(await kv.snapshot("a.6", revision=at)) == 1


async def test_a_snapshot_is_consistent_while_others_write(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=8))
        stop = False

        async def write() -> None:
            n = 0
            while not stop:  # the two keys are never further apart than one write
                n += 1
                await kv.put("x", b"%d" % n)
                await kv.put("y", b"%d" % n)

        task = spawn(write)
        for _ in range(20):
            shot = await kv.snapshot()
            x, y = (int(shot[key].value) if key in shot else 0 for key in ("x", "y"))
            assert x - y in (0, 1)
        stop = True
        await task.result()


@pytest.mark.spec("KV-23")
async def test_a_server_sees_no_plaintext_of_an_encrypted_bucket(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        raw = await js.create_key_value(BucketConfig(bucket=fresh, history=2))
        kv = raw.with_codec(Encrypted(Keyring({"2026": b"m" * 32}), context=fresh))
        await kv.put("users.alice", b"secret words")
        await kv.put("users.bob", b"others")
        stored = [message async for message in js.stream(f"KV_{fresh}").read()]
        for message in stored:
            assert b"secret" not in message.data
            assert "alice" not in message.subject
            assert b"alice" not in message.header
        assert await kv.keys("users.*") == ["users.alice", "users.bob"]
        async with await kv.watch("users.>") as watch:
            assert [e.value for e in await watch.initial()] == [b"secret words", b"others"]
        # Another program with the key (tests/kv/codecs/test_encryption.py reads the format by its documentation).
        again = (await js.key_value(fresh)).with_codec(Encrypted(Keyring({"2026": b"m" * 32}), context=fresh))
        assert (await again.get("users.alice")).value == b"secret words"


@pytest.mark.spec("KV-24")
@pytest.mark.steady
async def test_an_election_has_one_leader_and_survives_its_death(any_server: str, fresh: str) -> None:
    async with connect(any_server) as one, connect(any_server) as two:
        kv = await one.jetstream().create_key_value(BucketConfig(bucket=fresh, value_ttl=True))
        first = kv.election("leader", name="one", data=b"10.0.0.1", ttl=2 * SECOND)
        second = (await two.jetstream().key_value(fresh)).election("leader", name="two", ttl=2 * SECOND)
        term = await first.campaign(timeout=5)
        assert await second.leader() == ("one", b"10.0.0.1", term)
        waiting = spawn(partial(second.campaign, timeout=30))
        await sleep(2.5)  # longer than the lease: it is renewed
        assert first.check() == term
        assert not waiting.is_done
        await one.close()  # it dies without resigning
        assert await waiting.result(timeout=30) > term
        assert await second.leader() == ("two", b"", second.check())
        with pytest.raises(LeaseLostError):
            first.check()
        await second.resign()
        assert await second.leader() is None


@pytest.mark.spec("KV-25")
@pytest.mark.steady
async def test_dead_members_are_removed(any_server: str, fresh: str) -> None:
    async with connect(any_server) as one, connect(any_server) as two:
        kv = await one.jetstream().create_key_value(BucketConfig(bucket=fresh, value_ttl=True))
        group = kv.members("web", ttl=SECOND)
        theirs = (await two.jetstream().key_value(fresh)).members("web", ttl=SECOND)
        a = await group.join("a", b"10.0.0.1", timeout=5)
        await theirs.join("b", b"10.0.0.2", timeout=5)
        changes = group.watch()
        assert {(await anext(changes)).member.name for _ in range(2)} == {"a", "b"}
        assert sorted(await group.members()) == ["a", "b"]
        await two.close()  # b dies
        change = await anext(changes)
        assert (change.kind, change.member.name) == ("left", "b")
        assert sorted(await group.members()) == ["a"]
        await a.release()
        change = await anext(changes)
        assert (change.kind, change.member.name) == ("left", "a")
        assert await group.members() == {}
        await changes.aclose()  # type: ignore[attr-defined]


@pytest.mark.spec("RW-14")
@pytest.mark.steady
async def test_every_read_honours_a_minimum_sequence(any_server: str, fresh: str) -> None:
    """Stream gets, a Key-Value bucket, an object bucket: the data if it exists, StaleReadError if it cannot."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await _reads_of_a_bucket(js, fresh)
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        seq = (await js.publish(f"{fresh}.a", b"1")).seq
        assert (await stream.get(seq, min_last_seq=seq)).data == b"1"
        assert (await stream.get_last(f"{fresh}.a", min_last_seq=seq)).seq == seq
        assert (await stream.get_next(f"{fresh}.*", min_last_seq=seq)).seq == seq
        assert [message.seq async for message in stream.read(min_last_seq=seq)] == [seq]
        store = await js.create_object_store(ObjectStoreConfig(bucket=fresh))
        last = (await store.put("o", b"2")).sequence
        assert await store.get_bytes("o", min_last_seq=last) == b"2"
        assert (await store.info("o", min_last_seq=last)).sequence == last
        assert [info.name async for info in store.list(min_last_seq=last)] == ["o"]
        reads: list[Any] = [
            lambda: stream.get(seq + 1, min_last_seq=99, timeout=1.5),  # an existing sequence is never stale
            lambda: stream.get_last(f"{fresh}.a", min_last_seq=99, timeout=1.5),
            lambda: stream.get_next(f"{fresh}.b", min_last_seq=99, timeout=1.5),
            lambda: _all(stream.read(min_last_seq=99, timeout=1.5)),
            lambda: store.get("o", min_last_seq=99, timeout=1.5),
            lambda: store.info("o", min_last_seq=99, timeout=1.5),
            lambda: _all(store.list(min_last_seq=99, timeout=1.5)),
        ]
        await _all_are_stale(reads)


async def _all_are_stale(reads: list[Any]) -> None:
    tasks = [spawn(read) for read in reads]
    for task in tasks:
        with pytest.raises(StaleReadError):
            await task.result()


async def _all(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def _reads_of_a_bucket(js: JetStream, fresh: str) -> None:
    kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3))
    revision = await kv.put("a", b"1")
    assert (await kv.get("a", min_last_revision=revision)).value == b"1"
    assert (await kv.get("a", revision=revision, min_last_revision=revision)).value == b"1"
    assert await kv.keys(min_last_revision=revision) == ["a"]
    assert [key async for key in kv.iter_keys(min_last_revision=revision)] == ["a"]
    assert len(await kv.history("a", min_last_revision=revision)) == 1
    assert list(await kv.get_range(min_last_revision=revision)) == ["a"]
    async with await kv.watch("a", min_last_revision=revision) as watch:
        assert [e.value for e in await watch.initial()] == [b"1"]
        await kv.put("a", b"2")
        entry = await watch.next(timeout=5)
        assert entry is not None
        assert entry.value == b"2"
    reads: list[Any] = [
        lambda: kv.get("a", min_last_revision=99, timeout=1.5),
        lambda: kv.keys(min_last_revision=99, timeout=1.5),
        lambda: kv.history("a", min_last_revision=99, timeout=1.5),
        lambda: kv.watch("a", min_last_revision=99, timeout=1.5),
        lambda: kv.get_range(min_last_revision=99, timeout=1.5),
    ]
    await _all_are_stale(reads)


async def test_a_watch_with_min_last_revision_has_every_key_of_several_filters(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3))
        first = await kv.put("a", b"1")
        await kv.put("b.c", b"2")
        last = await kv.put("a", b"3")

        async def initial(**options: Any) -> list[tuple[str, int, int | None]]:
            async with await kv.watch("a", "b.*", **options) as watch:
                return [(entry.key, entry.revision, entry.delta) for entry in await watch.initial()]

        assert await initial(min_last_revision=first) == await initial() == [("b.c", 2, 0), ("a", last, 0)]
        assert await initial(min_last_revision=first, resume_from=last + 1) == []
        history = await initial(include_history=True, min_last_revision=first)
        assert history == [("a", first, 1), ("b.c", 2, 0), ("a", last, 0)]
        unproven = await initial(include_history=True)
        assert [entry[:2] for entry in unproven] == [entry[:2] for entry in history]
        assert all(found[2] in (right[2], None) for found, right in zip(unproven, history, strict=True))
        assert await initial(resume_from=2, min_last_revision=first) == history[1:]
        async with js.session() as session:
            mine = await session.key_value(fresh)
            await mine.put("a", b"4")
            await kv.put("b.c", b"5")  # by another one
            cached = await mine.cached("a", "b.*")
            assert (await cached.get("b.c")).value == b"5"
            await cached.close()


@pytest.mark.parametrize("include_history", [False, True])
async def test_keys_overwritten_while_several_filters_are_read_are_returned_once(
    any_server: str, fresh: str, include_history: bool
) -> None:
    """With a history of one the old entry is gone when its turn comes: the new one must be there in its place."""
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        for key in ("a", "b", "c"):
            await kv.put(key, b"old")
        storage = kv.storage
        assert isinstance(storage, StreamStorage)
        read_columns = storage.stream.read_columns
        meanwhile = {"b": ["a", "b", "x"], "c": ["b"], "again": ["a", "c"]}

        async def interrupted(**options: Any) -> AsyncIterator[Any]:
            key = options["subject"].rpartition(".")[2]
            for written in meanwhile.pop(key if options.get("start", 1) == 1 else "again", ()):
                await kv.put(written, b"new")
            async for columns in read_columns(**options):
                yield columns

        get_last_many = storage.stream.get_last_many

        async def overtaken(*asked: Any, **options: Any) -> Any:
            """The newest of each key are one listing: all is written before it."""
            for written in meanwhile.pop("b") + meanwhile.pop("c"):
                await kv.put(written, b"new")
            return await get_last_many(*asked, **options)

        storage.stream.read_columns = interrupted  # type: ignore[method-assign]
        storage.stream.get_last_many = overtaken  # type: ignore[method-assign]
        async with await kv.watch("a", "b", "c", min_last_revision=1, include_history=include_history) as watch:
            initial = await watch.initial()
            assert not meanwhile
            if include_history:
                assert [(entry.key, entry.value) for entry in initial] == [("a", b"old"), ("c", b"old"), ("b", b"new")]
                news = [await watch.next(timeout=5) for _ in range(3)]
                assert [entry and entry.key for entry in news] == ["b", "a", "c"]
            else:
                assert [(entry.key, entry.value) for entry in initial] == [("c", b"old"), ("a", b"new"), ("b", b"new")]
                news = [await watch.next(timeout=5) for _ in range(2)]
                assert [entry and entry.key for entry in news] == ["a", "c"]
            with pytest.raises(RequestTimeoutError):
                await watch.next(timeout=0.05)


@pytest.mark.spec("RW-16")
async def test_create_reads_at_the_revision_of_the_rejection(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=2))
        await kv.put("k", b"1")
        mark = await kv.delete("k")
        asked: list[int] = []
        storage: Any = kv.storage
        last, append = storage.last, storage.append

        async def watched(key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Any:
            asked.append(min_last_revision)
            return await last(key, min_last_revision=min_last_revision, timeout=timeout)

        monkeypatch.setattr(storage, "last", watched)
        await kv.create("k", b"2")
        assert asked == [mark]
        with pytest.raises(KeyExistsError):
            await kv.create("k", b"3")
        assert asked == [mark, mark + 1]

        async def constant(*args: Any, **options: Any) -> Any:  # the form without a sequence
            try:
                return await append(*args, **options)
            except WrongLastSequenceError as error:
                raise WrongLastSequenceError("wrong last sequence", err_code=10164) from error

        monkeypatch.setattr(storage, "append", constant)
        mark = await kv.delete("k")
        await kv.create("k", b"4")
        assert asked[-1] == mark
        assert (await kv.get("k")).value == b"4"
        with pytest.raises(KeyExistsError):
            await kv.create("k", b"5")


async def test_create_opens_a_bucket_whose_metadata_records_a_purge(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = BucketConfig(bucket=fresh, history=2)
        kv = await js.create_key_value(config)
        await kv.put("a", b"1")
        await kv.delete("a")
        await kv.purge_deletes(older_than=timedelta(0), recorded=True)
        again = await js.create_key_value(config)
        with pytest.raises(HistoryLostError, match="removed for good"):
            await again.snapshot(revision=1)
        with pytest.raises(StreamNameInUseError):
            await js.create_key_value(BucketConfig(bucket=fresh, history=3))


@pytest.mark.parametrize("lifted", [{"history": 5}, {"ttl": 3600}])
async def test_a_snapshot_of_what_lifted_limits_had_removed_is_lost(
    any_server: str, fresh: str, lifted: dict[str, Any]
) -> None:
    """By its present limits the bucket has everything: nothing else would tell that a value was removed before."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=1, ttl=timedelta(minutes=1)))
        first = await kv.put("a", b"1")
        last = await kv.put("a", b"2")
        kv = await js.update_key_value(BucketConfig(bucket=fresh, **lifted))
        with pytest.raises(HistoryLostError, match="removed for good"):
            await kv.snapshot(revision=first)
        assert {key: entry.value for key, entry in (await kv.snapshot(revision=last)).items()} == {"a": b"2"}
        await kv.put("a", b"3")
        assert {key: entry.value for key, entry in (await kv.snapshot()).items()} == {"a": b"3"}
