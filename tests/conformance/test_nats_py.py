"""nats-py, unchanged, on our server as on the real one: its JetStream manager, publish, get and Key-Value calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.js import JetStreamContext, api
from nats.js.errors import (
    APIError,
    BadRequestError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NotFoundError,
)

from tests.conformance.nats_py_buckets import listed, watched


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[NatsClient, JetStreamContext]]:
    nc = await nats.connect(url)
    try:
        yield nc, nc.jetstream()
    finally:
        await nc.close()


async def test_its_manager_makes_changes_lists_and_deletes_streams(any_server: str, fresh: str) -> None:
    async with connected(any_server) as (_, js):
        config = api.StreamConfig(
            name=fresh,
            subjects=[f"{fresh}.>"],
            max_msgs=50,
            max_age=3600,
            storage=api.StorageType.MEMORY,
            allow_direct=True,
            allow_msg_ttl=True,
            compression=api.StoreCompression.S2,
            metadata={"team": "ours"},
            description="a stream",
            republish=api.RePublish(src=f"{fresh}.>", dest=f"again.{fresh}.>"),
            subject_transform=api.SubjectTransform(src=f"{fresh}.a.*", dest=f"{fresh}.b.$1"),
            consumer_limits=api.StreamConsumerLimits(max_ack_pending=5),
        )
        made = await js.add_stream(config)
        assert made.did_create
        assert (made.config.max_msgs, made.config.max_age, made.config.compression) == (50, 3600, "s2")
        assert made.config.metadata is not None
        assert made.config.metadata["team"] == "ours"
        assert made.config.subject_transform == config.subject_transform
        updated = await js.update_stream(config.evolve(max_msgs=60))
        assert updated.config.max_msgs == 60
        info = await js.stream_info(fresh)
        assert info.config.max_msgs == 60
        assert info.state.messages == 0
        page, names = await js.streams_info(), []
        while page:  # it asks for one page of 256
            names += [each.config.name for each in page]
            page = await js.streams_info(len(names))
        assert fresh in names
        assert await js.find_stream_name_by_subject(f"{fresh}.x") == fresh
        with pytest.raises(BadRequestError):
            await js.add_stream(name=fresh, subjects=[f"{fresh}.>"])
        assert await js.delete_stream(fresh)
        with pytest.raises(NotFoundError):
            await js.stream_info(fresh)


async def test_it_publishes_and_gets_messages(any_server: str, fresh: str) -> None:
    async with connected(any_server) as (_, js):
        await js.add_stream(name=fresh, subjects=[f"{fresh}.>"], allow_direct=True, allow_rollup_hdrs=True)
        ack = await js.publish(f"{fresh}.a", b"1", headers={"K": "v"})
        assert (ack.stream, ack.seq, ack.duplicate) == (fresh, 1, None)
        future = await js.publish_async(f"{fresh}.b", b"2", headers={"Nats-Msg-Id": "once"})
        assert (await future).seq == 2
        assert (await js.publish(f"{fresh}.b", b"2", headers={"Nats-Msg-Id": "once"})).duplicate
        with pytest.raises(BadRequestError):
            await js.publish(f"{fresh}.a", b"3", headers={"Nats-Expected-Last-Sequence": "9"})
        for direct in (False, True):
            by_seq = await js.get_msg(fresh, 1, direct=direct)
            assert (by_seq.subject, by_seq.seq, by_seq.data) == (f"{fresh}.a", 1, b"1")
            assert by_seq.headers is not None
            assert by_seq.headers["K"] == "v"
            assert (await js.get_msg(fresh, subject=f"{fresh}.b", direct=direct)).data == b"2"
            assert (await js.get_msg(fresh, seq=1, subject=f"{fresh}.b", next=True, direct=direct)).seq == 2
            with pytest.raises(NotFoundError):
                await js.get_msg(fresh, 99, direct=direct)
        assert (await js.get_last_msg(fresh, f"{fresh}.a")).data == b"1"
        assert await js.delete_msg(fresh, 1)
        with pytest.raises(NotFoundError):
            await js.get_msg(fresh, 1)
        assert await js.purge_stream(fresh, subject=f"{fresh}.b")
        assert (await js.stream_info(fresh)).state.messages == 0
        account = await js.account_info()
        assert account.streams > 0
        assert account.limits.max_storage == -1


async def test_its_buckets_work(any_server: str, fresh: str) -> None:
    async with connected(any_server) as (_, js):
        kv = await js.create_key_value(bucket=fresh, history=5, direct=True)
        assert await kv.put("a.b", b"1") == 1
        assert await kv.create("c", b"2") == 2
        assert await kv.update("c", b"3", last=2) == 3
        with pytest.raises(KeyWrongLastSequenceError):
            await kv.update("c", b"4", last=2)
        with pytest.raises(KeyWrongLastSequenceError):
            await kv.create("c", b"4")
        entry = await kv.get("c")
        assert (entry.key, entry.value, entry.revision) == ("c", b"3", 3)
        assert (await kv.get("c", revision=2)).value == b"2"
        assert [each.value for each in await listed(lambda: kv.history("c"))] == [b"2", b"3"]
        assert sorted(await listed(kv.keys)) == ["a.b", "c"]
        await kv.delete("c")
        with pytest.raises(KeyNotFoundError):
            await kv.get("c")
        await kv.purge("a.b")
        with pytest.raises(KeyNotFoundError):
            await kv.get("nothing")
        assert await kv.create("c", b"again") == 6
        status = await kv.status()
        assert (status.bucket, status.history) == (fresh, 5)
        watcher = await kv.watchall()
        seen = [(update.key, update.operation or None) for update in await watched(watcher, 2)]
        await watcher.stop()  # type: ignore[no-untyped-call]
        assert seen == [("a.b", "PURGE"), ("c", None)]
        assert await js.delete_key_value(fresh)
        with pytest.raises(BucketNotFoundError):
            await js.key_value(fresh)


@pytest.mark.steady
async def test_a_bucket_with_a_time_to_live_forgets(any_server: str, fresh: str) -> None:
    async with connected(any_server) as (_, js):
        kv = await js.create_key_value(bucket=fresh, ttl=1)
        await kv.put("a", b"1")
        assert (await kv.get("a")).value == b"1"
        async with asyncio.timeout(10):
            while True:
                try:
                    await kv.get("a")
                except KeyNotFoundError:
                    break
                await asyncio.sleep(0.1)


async def test_its_consumers_read(any_server: str, fresh: str) -> None:
    async with connected(any_server) as (_, js):
        await js.add_stream(name=fresh, subjects=[f"{fresh}.>"])
        for n in range(20):
            await js.publish(f"{fresh}.{n % 2}", b"%d" % n)
        pull = await js.pull_subscribe(f"{fresh}.1", durable="some")
        for message in await pull.fetch(10, timeout=5):
            await message.ack_sync()
        info = await js.consumer_info(fresh, "some")
        assert (info.num_pending, info.num_ack_pending) == (0, 0)
        push = await js.subscribe(f"{fresh}.>", ordered_consumer=True)
        assert [(await push.next_msg(timeout=5)).data for _ in range(20)] == [b"%d" % n for n in range(20)]
        await push.unsubscribe()
        assert await js.delete_consumer(fresh, "some")


@pytest.mark.parametrize("storage", [api.StorageType.FILE, api.StorageType.MEMORY])
async def test_subjects_that_look_like_filters_are_stored_as_they_are(
    any_server: str, fresh: str, storage: api.StorageType
) -> None:
    async with connected(any_server) as (_, js):
        config = api.StreamConfig(
            name=fresh, subjects=[f"{fresh}.>"], max_msgs_per_subject=2, allow_rollup_hdrs=True, storage=storage
        )
        await js.add_stream(config)
        for subject in ("a", "*", "*", "*", "x.>", "a", "x.y"):
            await js.publish(f"{fresh}.{subject}", b"x")
        state = (await js.stream_info(fresh, subjects_filter=">")).state
        assert state.subjects == {f"{fresh}.*": 2, f"{fresh}.a": 2, f"{fresh}.x.>": 1, f"{fresh}.x.y": 1}
        assert (await js.get_last_msg(fresh, f"{fresh}.*")).seq == 6
        assert (await js.get_last_msg(fresh, f"{fresh}.x.>")).seq == 7
        expected = {"Nats-Expected-Last-Subject-Sequence": "7"}
        assert (await js.publish(f"{fresh}.x.>", b"x", headers=expected)).seq == 8
        sub = await js.pull_subscribe(f"{fresh}.*", "reader")
        got = await sub.fetch(4, timeout=10)
        assert [message.subject.removeprefix(fresh) for message in got] == [".a", ".*", ".*", ".a"]
        await js.publish(f"{fresh}.*", b"", headers={"Nats-Rollup": "sub"})
        state = (await js.stream_info(fresh, subjects_filter=">")).state
        assert state.subjects == {f"{fresh}.*": 1, f"{fresh}.x.>": 2, f"{fresh}.x.y": 1}
        await js.delete_stream(fresh)


@pytest.mark.steady
async def test_messages_are_published_when_their_schedules_say(any_server: str, fresh: str) -> None:
    async with connected(any_server) as (_, js):
        made = await js.add_stream(api.StreamConfig(name=fresh, subjects=[f"{fresh}.>"], allow_msg_schedules=True))
        assert made.config.allow_rollup_hdrs
        sub = await js.subscribe(f"{fresh}.target")
        await js.publish(f"{fresh}.value", b"from a source", headers={"Unit": "mm"})
        at = (datetime.now(UTC) + timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
        target = {"Nats-Schedule-Target": f"{fresh}.target"}
        once = target | {"Nats-Schedule": f"@at {at}", "Mine": "yes", "Nats-Msg-Id": "one"}
        await js.publish(f"{fresh}.once", b"once", headers=once)
        many = target | {"Nats-Schedule": "@every 1s", "Nats-Schedule-Source": f"{fresh}.value"}
        await js.publish(f"{fresh}.many", b"many", headers=many)
        got = [await sub.next_msg(timeout=10) for _ in range(3)]
        (first,) = [message for message in got if message.data == b"once"]
        assert first.headers == {"Mine": "yes", "Nats-Scheduler": f"{fresh}.once", "Nats-Schedule-Next": "purge"}
        second, third = [message for message in got if message.data != b"once"]
        for message in (second, third):
            assert message.data == b"from a source"
            assert message.headers is not None
            assert set(message.headers) == {"Unit", "Nats-Scheduler", "Nats-Schedule-Next"}
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", message.headers["Nats-Schedule-Next"])
        await js.publish(
            f"{fresh}.over", b"", headers={"Nats-Scheduler": f"{fresh}.many", "Nats-Schedule-Next": "purge"}
        )
        state = (await js.stream_info(fresh, subjects_filter=">")).state
        assert set(state.subjects or ()) == {f"{fresh}.value", f"{fresh}.target", f"{fresh}.over"}
        await js.delete_stream(fresh)


SCHEDULES_REFUSED: list[tuple[dict[str, str], int]] = [
    ({"Nats-Schedule": "@never"}, 10189),
    ({"Nats-Schedule": "@every 999ms"}, 10189),
    ({"Nats-Schedule": "@every 1s", "Nats-Schedule-Time-Zone": "UTC"}, 10189),
    ({"Nats-Schedule": "0 0 * * *"}, 10189),
    ({"Nats-Schedule-Time-Zone": "Mars/Base"}, 10223),
    ({"Nats-Schedule-Target": "elsewhere"}, 10190),
    ({"Nats-Schedule-TTL": "soon"}, 10191),
    ({"Nats-Schedule-TTL": "5m"}, 10166),
    ({"Nats-Schedule-Rollup": "all"}, 10192),
    ({"Nats-Rollup": "all"}, 10192),
    ({"Nats-Schedule-Source": "elsewhere"}, 10203),
    ({"Nats-Scheduler": "x"}, 10212),
    ({"Nats-Schedule-Next": "2030-01-01T00:00:00Z", "Nats-Scheduler": "x"}, 10212),
]


async def test_schedules_that_make_no_sense_are_refused(any_server: str, fresh: str) -> None:
    async with connected(any_server) as (_, js):
        await js.add_stream(api.StreamConfig(name=fresh, subjects=[f"{fresh}.>"], allow_msg_schedules=True))
        for fields, code in SCHEDULES_REFUSED:
            headers = {"Nats-Schedule": "@hourly", "Nats-Schedule-Target": f"{fresh}.t"} | fields
            with pytest.raises(APIError) as caught:
                await js.publish(f"{fresh}.a", b"", headers=headers)
            assert caught.value.err_code == code, fields
        for pattern in ("@daily", "*/5 10-20/2,30 9 1 jan-mar,DEC mon-fri", "0 0 0 ? * 0"):
            headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": f"{fresh}.t"}
            zone = {"Nats-Schedule-Time-Zone": "Europe/Berlin"}
            assert (await js.publish(f"{fresh}.a", b"", headers=headers | zone)).seq > 0
        await js.delete_stream(fresh)
