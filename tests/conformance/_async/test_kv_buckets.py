"""Options of buckets, read replicas and aggregates, on our server and on nats-server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from slipstream import BucketConfig, JetStream, Republish, StreamConfig, StreamSource, connect
from slipstream.errors import (
    BucketNotFoundError,
    BucketOptionsError,
    KeyNotFoundError,
    ReplicaOptionsError,
    RequestTimeoutError,
    StreamNameInUseError,
)
from slipstream.kv import BucketSource, Operation
from slipstream.kv._async.key_value import KeyValue
from tests._async.concurrency import until

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
READS = 60  # of the same: a member that answers half of them answers one


# Options


@pytest.mark.spec("KV-35")
async def test_an_update_changes_only_the_options_that_were_set(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        full = BucketConfig(
            bucket=fresh,
            description="all of it",
            history=2,
            ttl=HOUR,
            max_value_size=1000,
            max_bytes=1_000_000,
            limit_marker_ttl=HOUR,
            republish=Republish(src=f"$KV.{fresh}.>", dest=f"{fresh}.again.>"),
            compression=True,
            metadata={"team": "a"},
        )
        kv = await js.create_key_value(full)
        before = (await kv.status()).config
        assert before == full.replace(value_ttl=True)  # limit markers allow it
        assert (await (await js.update_key_value(BucketConfig(bucket=fresh, history=5))).status()).config == (
            before.replace(history=5)
        )
        await js.update_key_value(BucketConfig(bucket=fresh, ttl=timedelta(0), description=""))  # set to the default
        now = (await kv.status()).config
        assert now == before.replace(history=5, ttl=timedelta(0), description="")
        raw = (await kv.status()).stream_info.config
        await js.update_key_value(now)
        assert (await kv.status()).stream_info.config == raw
        copy = await js.create_key_value(now.replace(bucket=f"{fresh}copy", republish=None))
        assert (await copy.status()).config == now.replace(bucket=f"{fresh}copy", republish=None)


@pytest.mark.spec("KV-35")
async def test_a_bucket_that_exists_with_other_options_says_which(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(BucketConfig(bucket=fresh, history=3, ttl=HOUR))
        await js.create_key_value(BucketConfig(bucket=fresh, history=3, ttl=HOUR))
        text = "history: wanted 5, it has 3; ttl: wanted 0:00:00, it has 1:00:00"
        with pytest.raises(BucketOptionsError, match=text) as e:
            await js.create_key_value(BucketConfig(bucket=fresh, history=5))
        assert isinstance(e.value, StreamNameInUseError)
        assert e.value.differences == {"history": (5, 3), "ttl": (timedelta(0), HOUR)}
        await js.create_stream(StreamConfig(name=f"KV_{fresh}q", subjects=(f"$KV.{fresh}q.>",), retention="workqueue"))
        with pytest.raises(BucketOptionsError, match=r"retention: wanted limits, it has workqueue; allow_rollup_hdrs"):
            await js.create_key_value(f"{fresh}q")


@pytest.mark.spec("KV-35")
async def test_a_bucket_is_created_by_its_name_alone(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(fresh)
        await kv.put("a", b"1")
        assert (await kv.status()).config == BucketConfig(bucket=fresh)
        assert (await kv.status()).num_keys == 1


@pytest.mark.spec("KV-35")
async def test_settings_that_no_option_decides_are_no_difference(any_server: str, fresh: str) -> None:
    """As nats.go and nats-py make buckets: `discard: new`, no Direct Get, other duplicate windows, metadata."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = BucketConfig(bucket=fresh, history=4, ttl=HOUR)
        theirs = config.stream_config().replace(
            discard="new",
            allow_direct=False,
            deny_delete=False,
            duplicate_window=SECOND,
            metadata={"made": "by another"},
        )
        await js.create_stream(theirs)
        kv = await js.create_key_value(config)
        await kv.put("a", b"1")
        assert (await kv.get("a")).value == b"1"  # from the leader
        assert (await kv.status()).stream_info.config.discard == "new"


async def test_timeouts_name_the_bucket(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(fresh)
        async with await kv.watch() as watch:
            await watch.initial()
            with pytest.raises(RequestTimeoutError, match=rf"^watch of bucket '{fresh}': no entry within 0.2 s$"):
                await watch.next(timeout=0.2)


# Read replicas


async def caught_up(js: JetStream, *streams: str) -> bool:
    return len({(await js.stream(f"KV_{name}").info()).state.last_seq for name in streams}) == 1


async def check_members(kv: KeyValue[bytes], key: str, members: Sequence[str]) -> None:
    """Reads of a bucket are answered by all of these members."""
    seen, expected = set[str](), {f"KV_{member}" for member in members}

    async def have_answered() -> bool:
        seen.add((await kv.get(key)).stream)
        return seen >= expected

    await until(have_answered)  # a mirror joins a moment after it has caught up
    assert seen | {(await kv.get(key)).stream for _ in range(READS)} == expected


async def found(kv: KeyValue[bytes], keys: Sequence[str], revisions: Sequence[int]) -> list[Any]:
    """All that reads of a bucket say."""

    async def value(key: str, revision: int = 0) -> Any:
        try:
            return (await kv.get(key, revision=revision)).value
        except KeyNotFoundError:
            return None

    async def history(key: str) -> Any:
        try:
            return [(entry.revision, entry.operation, entry.value) for entry in await kv.history(key)]
        except KeyNotFoundError:
            return None

    return [
        [await value(key) for key in keys],
        [await value(keys[0], revision) for revision in revisions],
        [await history(key) for key in keys],
    ]


async def check_reads(kv: KeyValue[bytes], keys: Sequence[str], revisions: Sequence[int], expected: list[Any]) -> None:
    for _ in range(READS // 2):
        assert await found(kv, keys, revisions) == expected


@pytest.mark.spec("KV-19", "KV-07", "KV-36")
async def test_history_of_a_bucket_is_whole_whichever_member_answers(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, connect(any_server) as other:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3))
        replica = await js.create_key_value(BucketConfig(bucket=f"{fresh}r", mirror=fresh))
        assert (await replica.status()).history == 3
        for n in range(5):
            await kv.put("a", b"%d" % n)
        mark = await kv.delete("a")
        await kv.put("b", b"x")
        await until(lambda: caught_up(js, fresh, f"{fresh}r"))
        reader = await other.jetstream().key_value(fresh)
        await check_members(reader, "b", (fresh, f"{fresh}r"))
        put, gone = Operation.PUT, Operation.DELETE
        expected = [
            [None, b"x"],
            [None, b"3", b"4", None],
            [[(4, put, b"3"), (5, put, b"4"), (mark, gone, b"")], [(7, put, b"x")]],
        ]
        await check_reads(reader, ("a", "b"), (3, 4, 5, mark), expected)
        for _ in range(5):
            assert await reader.keys() == ["b"]
            assert [entry.delta for entry in await reader.history("a")] == [2, 1, 0]
            async with await reader.watch(include_history=True) as watch:
                assert [entry.revision for entry in await watch.initial()] == [4, 5, mark, 7]


@pytest.mark.spec("KV-13", "KV-36")
@pytest.mark.parametrize("markers", [False, True], ids=["plain", "markers"])
@pytest.mark.parametrize("of", ["bucket", "value"])
async def test_expired_values_stay_gone_whichever_member_answers(
    any_server: str, fresh: str, of: str, markers: bool
) -> None:
    limits: dict[str, Any] = {"ttl": SECOND} if of == "bucket" else {"value_ttl": True}
    if markers:
        limits["limit_marker_ttl"] = HOUR
    async with connect(any_server) as nc, connect(any_server) as other:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, **limits))
        replica = await js.create_key_value(BucketConfig(bucket=f"{fresh}r", mirror=fresh))
        origin, status = await kv.status(), await replica.status()
        assert (status.ttl, status.value_ttl) == (origin.ttl, origin.value_ttl)
        await kv.put("a", b"1", ttl=SECOND if of == "value" else None)
        is_marked = markers and of == "value"  # the bucket's TTL ends the life of its markers, too

        async def is_gone() -> bool:
            infos = [await js.stream(f"KV_{name}").info() for name in (fresh, f"{fresh}r")]
            return all((info.state.last_seq, info.state.messages) == (1 + markers, is_marked) for info in infos)

        reader = await other.jetstream().key_value(fresh)
        await until(is_gone)
        history = [(2, Operation.EXPIRED, b"")] if is_marked else None
        await check_reads(reader, ["a"], [1], [[None], [None], [history]])
        assert await reader.keys() == []
        assert [entry.operation for entry in (await reader.get_range()).values()] == []
        await js.update_key_value(BucketConfig(bucket=fresh, ttl=timedelta(0)))
        await kv.put("b", b"2")
        await until(lambda: caught_up(js, fresh, f"{fresh}r"))
        await check_members(reader, "b", (fresh, f"{fresh}r"))
        await check_reads(reader, ["a"], [1], [[None], [None], [history]])
        assert await reader.keys() == ["b"]


@pytest.mark.spec("KV-36")
async def test_a_replica_that_keeps_something_else_than_its_origin_is_refused(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3, ttl=HOUR, value_ttl=True))
        lesser: list[tuple[dict[str, Any], str]] = [
            ({"history": 1}, "history must be 3, got 1"),
            ({"history": 5}, "history must be 3, got 5"),
            ({"ttl": SECOND}, "ttl must be 1:00:00, got 0:00:01"),
            ({"ttl": timedelta(0)}, "ttl must be 1:00:00, got 0:00:00"),
            ({"value_ttl": False}, "value_ttl must be True, got False"),
            ({"max_bytes": 1000}, "max_bytes must be -1"),
            ({"max_value_size": 10}, "max_value_size must be -1"),
        ]
        for options, text in lesser:
            with pytest.raises(ReplicaOptionsError, match=text):
                await js.create_key_value(BucketConfig(bucket=f"{fresh}r", mirror=fresh, **options))
        with pytest.raises(BucketNotFoundError):
            await js.key_value(f"{fresh}r")
        replica = BucketConfig(bucket=f"{fresh}r", mirror=fresh)
        await js.create_key_value(replica)
        await js.create_key_value(replica)  # at the next start
        with pytest.raises(ReplicaOptionsError, match="history must be 3, got 2"):
            await js.update_key_value(BucketConfig(bucket=f"{fresh}r", history=2))
        with pytest.raises(ReplicaOptionsError, match=r"max_bytes of the origin must be -1 .*got 5000"):
            await js.update_key_value(BucketConfig(bucket=fresh, max_bytes=5000))
        assert (await kv.status()).config.max_bytes == -1
        with pytest.raises(BucketNotFoundError, match=f"'{fresh}none', the origin"):
            await js.create_key_value(BucketConfig(bucket=f"{fresh}s", mirror=f"{fresh}none"))


async def test_a_replica_that_has_removed_values_cannot_become_a_copy_by_an_update(any_server: str, fresh: str) -> None:
    """As version 0.1 made them: with a history of 1, whatever their origin had."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(BucketConfig(bucket=fresh, history=3))
        replica = BucketConfig(bucket=f"{fresh}r", mirror=fresh)
        await js.create_stream(replica.stream_config())
        with pytest.raises(BucketOptionsError, match="history: wanted 3, it has 1"):
            await js.create_key_value(replica)
        with pytest.raises(ReplicaOptionsError, match=r"history must be 3, got 1\. Delete it and create it again"):
            await js.update_key_value(replica.replace(history=3))
        await js.delete_key_value(f"{fresh}r")
        assert (await (await js.create_key_value(replica)).status()).history == 3


@pytest.mark.spec("KV-36")
async def test_replicas_follow_when_the_options_of_their_origin_change(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, connect(any_server) as other:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh))
        await js.create_key_value(BucketConfig(bucket=f"{fresh}r", mirror=fresh))
        second = await js.create_key_value(BucketConfig(bucket=f"{fresh}rr", mirror=f"{fresh}r"))
        await js.update_key_value(BucketConfig(bucket=fresh, history=4, ttl=HOUR, limit_marker_ttl=HOUR))
        for name in (f"{fresh}r", f"{fresh}rr"):
            status = await (await js.key_value(name)).status()
            assert (status.history, status.ttl, status.value_ttl) == (4, HOUR, True)
        for n in range(5):
            await second.put("a", b"%d" % n)  # through two replicas to the origin
        await until(lambda: caught_up(js, fresh, f"{fresh}r", f"{fresh}rr"))
        reader = await other.jetstream().key_value(fresh)
        await check_members(reader, "a", (fresh, f"{fresh}r"))
        # A handle with a memory does not believe the copy of a copy, and asks another: any of them shows who answers.
        middle = await other.jetstream().key_value(f"{fresh}r", consistency="any")
        await check_members(middle, "a", (f"{fresh}r", f"{fresh}rr"))
        for _ in range(READS):
            assert [entry.value for entry in await reader.history("a")] == [b"1", b"2", b"3", b"4"]
        for name in (f"{fresh}r", f"{fresh}rr"):
            replica = await js.key_value(name)
            assert await replica.keys() == ["a"]
            assert [entry.value for entry in await replica.history("a")] == [b"1", b"2", b"3", b"4"]
        await js.update_key_value(BucketConfig(bucket=fresh, history=2))
        for _ in range(READS):
            assert [entry.value for entry in await reader.history("a")] == [b"3", b"4"]
        assert (await kv.status()).values == (await second.status()).values == 2


@pytest.mark.spec("KV-38", "KV-19")
async def test_replicas_are_found_without_a_setting_and_left_when_they_are_gone(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, connect(any_server) as other:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=2))
        revision = await kv.put("a", b"1")
        reader = await other.jetstream().key_value(fresh)  # before there is a replica
        await check_members(reader, "a", [fresh])
        replica = await js.create_key_value(BucketConfig(bucket=f"{fresh}r", mirror=fresh))

        async def is_found() -> bool:
            entry = await reader.get("a")
            assert (entry.value, entry.revision) == (b"1", revision)
            return entry.stream == f"KV_{fresh}r"

        await until(is_found)
        await check_members(reader, "a", [fresh, f"{fresh}r"])
        await replica.destroy()
        await check_members(reader, "a", [fresh])
        assert (await kv.get("a")).value == b"1"


@pytest.mark.spec("KV-39")
async def test_keys_are_counted_and_a_closed_handle_holds_nothing(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=3))
        for key in ("a", "b", "a"):
            await kv.put(key, b"1")
        assert (await kv.status()).num_keys == len(await kv.keys()) == 2
        async with await kv.cached() as cached:
            assert (await cached.get("a")).value == b"1"
            assert (await kv.status()).stream_info.state.consumer_count == 1

        async def is_released() -> bool:
            return (await kv.status()).stream_info.state.consumer_count == 0

        await until(is_released)
        handles = (cached, kv, kv.read_only())
        for handle in (*handles, *handles):  # again
            await handle.close()
        assert (await kv.get("a")).value == b"1"  # the bucket and the connection stay


@pytest.mark.spec("KV-36")
async def test_keys_removed_for_good_are_gone_whichever_member_answers(
    any_server: str, is_real: bool, fresh: str
) -> None:
    async with connect(any_server) as nc, connect(any_server) as other:
        js = nc.jetstream()
        members = (fresh, f"{fresh}r", f"{fresh}rr")
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3))
        for origin, name in pairwise(members):
            await js.create_key_value(BucketConfig(bucket=name, mirror=origin))
        for key in ("a", "b", "c"):
            for n in range(2):
                await kv.put(key, b"%d" % n)
        await kv.delete("a")
        await kv.purge("b")
        assert await kv.purge_deletes(older_than=timedelta(0)) == 2
        last = await kv.put("d", b"2")
        await until(lambda: caught_up(js, *members))
        expected = [
            [None, None, b"1"],
            [None, None],
            [None, None, [(5, Operation.PUT, b"0"), (6, Operation.PUT, b"1")]],
        ]
        for name in members:
            anyhow = await other.jetstream().key_value(name, consistency="any")  # shows who answers
            await check_members(anyhow, "c", members[members.index(name) :][:2])
            await check_reads(anyhow, ("a", "b", "c"), (1, 7), expected)
            reader = await other.jetstream().key_value(name)
            await check_reads(reader, ("a", "b", "c"), (1, 7), expected)
            assert await reader.keys() == ["c", "d"]
            assert (await reader.status()).num_keys == 2
            if not is_real:  # a replica that was purged as its origin is still believed where a read must be new
                streams = {(await reader.get("c", min_last_revision=last)).stream for _ in range(READS)}
                assert streams == {f"KV_{member}" for member in members[members.index(name) :][:2]}
        # Through a replica: removal is a write, and goes to the origin.
        replica = await js.key_value(f"{fresh}rr")
        await replica.delete("d")
        await until(lambda: caught_up(js, *members))
        assert await replica.purge_deletes(older_than=timedelta(0)) == 1
        for name in members:
            assert (await (await js.key_value(name)).status()).num_keys == 1
        await replica.destroy()  # a moment after it was found
        await kv.delete("c")
        assert await kv.purge_deletes(older_than=timedelta(0)) == 1
        assert await (await js.key_value(fresh)).keys() == []


async def test_a_mirror_that_keeps_more_is_not_purged_with_the_bucket(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3))
        archive = await js.create_stream(StreamConfig(name=f"{fresh}OLD", mirror=StreamSource(name=f"KV_{fresh}")))
        await kv.put("a", b"1")
        last = await kv.delete("a")

        async def has_all() -> bool:
            return (await archive.info()).state.last_seq == last

        await until(has_all)
        await kv.purge_deletes(older_than=timedelta(0))
        assert f"mirror '{fresh}OLD' of stream 'KV_{fresh}' keeps removed keys" in caplog.text
        assert (await archive.info()).state.messages == 2


# Aggregates


@pytest.mark.spec("KV-37", "KV-16")
async def test_an_aggregate_has_subjects_of_its_own_and_so_may_its_sources(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        eu = await js.create_key_value(BucketConfig(bucket=f"{fresh}eu"))
        us = await js.create_key_value(BucketConfig(bucket=f"{fresh}us", subject_prefix=f"{fresh}.us"))
        ap = await js.create_key_value(BucketConfig(bucket=f"{fresh}ap", subject_prefix=f"{fresh}.ap"))
        await js.create_key_value(BucketConfig(bucket=f"{fresh}copy", mirror=f"{fresh}ap"))
        sources = (
            f"{fresh}eu",
            BucketSource(bucket=f"{fresh}us", keys="orders.*", prefix="us"),
            BucketSource(bucket=f"{fresh}copy", keys="more.>", prefix="of.replica"),
        )
        config = BucketConfig(bucket=f"{fresh}all", subject_prefix=f"{fresh}.my.all", sources=sources)
        everything = await js.create_key_value(config)
        await js.create_key_value(config)
        await eu.put("a", b"1")
        await us.put("orders.7", b"2")
        await us.put("other", b"3")
        await ap.put("more.x.y", b"4")
        wanted = {"a": b"1", "us.orders.7": b"2", "of.replica.more.x.y": b"4"}

        async def has_all() -> bool:
            return {key: entry.value for key, entry in (await everything.get_range()).items()} == wanted

        await until(has_all)
        again = await js.key_value(f"{fresh}all")
        assert sorted(await again.keys()) == sorted(wanted)
        stored = (await again.status()).config
        assert stored.subject_prefix == f"{fresh}.my.all"
        assert stored.sources[1:] == (
            BucketSource(bucket=f"{fresh}us", keys="orders.*", prefix="us", subject_prefix=f"{fresh}.us"),
            BucketSource(bucket=f"{fresh}copy", keys="more.>", prefix="of.replica", subject_prefix=f"{fresh}.ap"),
        )
        await js.update_key_value(stored.replace(description="new"))
        assert (await again.status()).config == stored.replace(description="new")
