"""Object Store through our client, on our server and on nats-server."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from slipstream import ObjectStoreConfig, connect
from slipstream.errors import (
    ApiError,
    BucketNotFoundError,
    ObjectDamagedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RequestTimeoutError,
    StaleReadError,
    UsageError,
)
from slipstream.facade._async.client import Client
from slipstream.objects._async.object_store import Data, ObjectStore

MEGABYTE = os.urandom(1024 * 1024)


@pytest.fixture
def bucket(fresh: str) -> ObjectStoreConfig:
    return ObjectStoreConfig(bucket=fresh)


async def store_of(nc: Client, config: ObjectStoreConfig) -> ObjectStore:
    return await nc.jetstream().create_object_store(config)


async def test_a_bucket_has_the_stream_configuration_of_other_clients(any_server: str, fresh: str) -> None:
    config = ObjectStoreConfig(
        bucket=fresh, description="pictures", ttl=timedelta(hours=1), max_bytes=10_000_000, metadata={"owner": "me"}
    )
    async with connect(any_server) as nc:
        store = await store_of(nc, config)
        status = await store.status()
        made = status.stream_info.config
        assert made.subjects == (f"$O.{fresh}.C.>", f"$O.{fresh}.M.>")
        assert (made.name, made.discard, made.allow_rollup_hdrs, made.allow_direct) == (
            f"OBJ_{fresh}",
            "new",
            True,
            True,
        )
        assert (status.description, status.ttl, status.metadata["owner"]) == ("pictures", timedelta(hours=1), "me")
        assert (status.sealed, status.replicas, status.storage, status.backing_store) == (False, 1, "file", "JetStream")
        assert fresh in [name async for name in nc.jetstream().object_stores()]
        await nc.jetstream().delete_object_store(fresh)
        with pytest.raises(BucketNotFoundError):
            await nc.jetstream().object_store(fresh)
        with pytest.raises(BucketNotFoundError):
            await store.destroy()


async def test_objects_from_any_kind_of_source_round_trip(any_server: str, bucket: ObjectStoreConfig) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(MEGABYTE), 100_003):
            yield MEGABYTE[at : at + 100_003]

    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        sources: tuple[tuple[str, Data], ...] = (
            ("bytes", MEGABYTE),
            ("a file", io.BytesIO(MEGABYTE)),
            ("pieces", pieces()),
            ("list", [MEGABYTE[:7], MEGABYTE[7:]]),
        )
        for name, data in sources:
            info = await store.put(name, data)
            assert (info.size, info.chunks) == (len(MEGABYTE), 8)
            assert await store.get_bytes(name) == MEGABYTE
        empty = await store.put("empty", b"")
        assert (empty.size, empty.chunks) == (0, 0)
        assert await store.get_bytes("empty") == b""
        assert [info.name async for info in store.list()] == ["bytes", "a file", "pieces", "list", "empty"]


@pytest.mark.spec("RW-17")
async def test_the_sequence_of_an_info_is_that_of_its_record(any_server: str, bucket: ObjectStoreConfig) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        info = await store.put("a", MEGABYTE, chunk_size=200_000)
        last = (await store.status()).stream_info.state.last_seq
        assert info.sequence == last == 7
        read = await store.info("a", min_last_seq=info.sequence)
        assert read.sequence == info.sequence
        assert [each.sequence async for each in store.list(min_last_seq=last)] == [last]
        assert await store.get_bytes("a", min_last_seq=last) == MEGABYTE
        with pytest.raises(StaleReadError):
            await store.info("a", min_last_seq=last + 1, timeout=1.0)
        assert (await store.delete("a")).sequence == last + 1


async def test_description_headers_and_metadata_are_kept(any_server: str, bucket: ObjectStoreConfig) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        seen: list[int] = []
        put = await store.put(
            "häßlich / name",
            MEGABYTE,
            description="words",
            headers={"X-Kind": ["a", "b"], "Content-Type": "text/plain"},
            metadata={"k": "v"},
            progress=seen.append,
        )
        info = await store.info("häßlich / name")
        headers = {"X-Kind": ["a", "b"], "Content-Type": ["text/plain"]}
        assert (info.description, info.headers, info.metadata) == ("words", headers, {"k": "v"})
        changed = await store.update_meta("häßlich / name", headers={"X-Kind": "c"})
        assert changed.headers == {"X-Kind": ["c"]}
        assert (info.digest, info.nuid) == (put.digest, put.nuid)
        assert info.mtime > 1_700_000_000 * 10**9
        assert seen[-1] == len(MEGABYTE)
        read: list[int] = []
        out = io.BytesIO()
        await store.get_into("häßlich / name", out, progress=read.append)
        assert out.getvalue() == MEGABYTE
        assert read[-1] == len(MEGABYTE)


async def test_a_second_put_replaces_the_first_and_leaves_no_chunks_behind(
    any_server: str, bucket: ObjectStoreConfig
) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        await store.put("a", MEGABYTE)
        await store.put("a", b"short")
        assert await store.get_bytes("a") == b"short"
        assert (await store.status()).stream_info.state.messages == 2
        await store.delete("a")
        assert (await store.status()).stream_info.state.messages == 1
        with pytest.raises(ObjectNotFoundError, match="deleted"):
            await store.get("a")
        assert (await store.info("a", show_deleted=True)).deleted
        assert [info async for info in store.list()] == []
        assert [info.name async for info in store.list(show_deleted=True)] == ["a"]
        with pytest.raises(ObjectNotFoundError):
            await store.delete("a")
        with pytest.raises(ObjectNotFoundError, match="no object 'never'"):
            await store.info("never")


async def test_an_interrupted_put_leaves_no_chunks(any_server: str, bucket: ObjectStoreConfig) -> None:
    def breaking() -> Iterator[bytes]:
        yield MEGABYTE
        raise OSError("the disk went away")

    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        await store.put("a", b"old")
        with pytest.raises(OSError, match="the disk went away"):
            await store.put("a", breaking())
        assert await store.get_bytes("a") == b"old"
        assert (await store.status()).stream_info.state.messages == 2
        with pytest.raises(UsageError, match="binary mode"):
            await store.put("a", io.StringIO("text"))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="data must be bytes"):
            await store.put("a", "text")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="max_payload"):
            await store.put("a", b"", chunk_size=1 << 30)


async def test_a_put_whose_last_ack_is_lost_leaves_a_whole_object(
    any_server: str, bucket: ObjectStoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        await store.put("o", b"old")
        publish = nc.jetstream().publish

        async def answer_lost(*args: Any, **options: Any) -> None:
            await publish(*args, **options)
            raise RequestTimeoutError("the answer was lost")

        with monkeypatch.context() as patched:
            patched.setattr(store._js, "publish", answer_lost)
            with pytest.raises(RequestTimeoutError):
                await store.put("o", b"new")
        assert await store.get_bytes("o") == b"new"
        await store.put("o", b"newest")
        assert (await store.status()).stream_info.state.num_subjects == 3  # the record, these chunks and the first ones


async def test_a_full_bucket_rejects_new_objects_and_keeps_the_old(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, ObjectStoreConfig(bucket=fresh, max_bytes=600_000))
        await store.put("a", MEGABYTE[:300_000])
        with pytest.raises(ApiError, match="maximum bytes"):
            await store.put("b", MEGABYTE)
        assert [info.name async for info in store.list()] == ["a"]
        assert await store.get_bytes("a") == MEGABYTE[:300_000]


async def test_links_are_followed_within_and_across_buckets(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        here = await store_of(nc, ObjectStoreConfig(bucket=f"{fresh}a"))
        there = await store_of(nc, ObjectStoreConfig(bucket=f"{fresh}b"))
        target = await there.put("data", b"far away")
        near = await here.put("near", b"close by")
        link = await here.link("far", target)
        await here.link("too", near)
        assert await here.get_bytes("far") == b"far away"
        assert await here.get_bytes("too") == b"close by"
        with pytest.raises(UsageError, match="is a link"):
            await here.link("x", link)
        with pytest.raises(ObjectExistsError):
            await here.link("near", target)
        await here.link_bucket("all", f"{fresh}b")
        with pytest.raises(UsageError, match="whole bucket"):
            await here.get("all")
        gone = await there.delete("data")
        with pytest.raises(UsageError, match="was deleted"):
            await here.link("x", gone)


async def test_meta_changes_keep_the_data_and_a_rename_replaces_no_other_object(
    any_server: str, bucket: ObjectStoreConfig
) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        await store.put("a", b"one", description="old", metadata={"k": "v"})
        await store.put("b", b"two")
        await store.update_meta("a", description="new")
        info = await store.info("a")
        assert (info.description, info.metadata) == ("new", {"k": "v"})
        with pytest.raises(ObjectExistsError):
            await store.update_meta("a", new_name="b")
        await store.update_meta("a", new_name="c")
        assert await store.get_bytes("c") == b"one"
        with pytest.raises(ObjectNotFoundError):
            await store.info("a")


async def test_a_rename_keeps_an_object_put_under_the_old_name_meanwhile(
    any_server: str, bucket: ObjectStoreConfig
) -> None:
    async with connect(any_server) as nc:
        store, other = await store_of(nc, bucket), await store_of(nc, bucket)
        await store.put("a", b"one")
        purge = store._stream.purge

        async def late(**options: Any) -> int:
            await other.put("a", b"two")
            return await purge(**options)

        store._stream.purge = late  # type: ignore[method-assign]
        await store.update_meta("a", new_name="b")
        assert await store.get_bytes("a") == b"two"
        assert sorted([info.name async for info in store.list()]) == ["a", "b"]


async def test_a_sealed_bucket_is_read_only(any_server: str, bucket: ObjectStoreConfig) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        await store.put("a", b"for ever")
        assert (await store.seal()).sealed
        with pytest.raises(ApiError, match="sealed"):
            await store.put("b", b"too late")
        assert await store.get_bytes("a") == b"for ever"


async def test_a_damaged_object_raises(any_server: str, bucket: ObjectStoreConfig) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        info = await store.put("a", MEGABYTE)
        await nc.jetstream().stream(f"OBJ_{bucket.bucket}").delete_message(3)
        with pytest.raises(ObjectDamagedError, match=r"7 chunks .* its record says 8"):
            await store.get_bytes("a")
        await nc.jetstream().publish(f"$O.{bucket.bucket}.C.{info.nuid}", MEGABYTE[2 * 131072 : 3 * 131072])
        with pytest.raises(ObjectDamagedError):  # the right bytes, but not in their place
            await store.get_bytes("a")


async def test_a_watch_returns_the_objects_then_none_then_changes(any_server: str, bucket: ObjectStoreConfig) -> None:
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        async with store.watch() as empty:
            assert await empty.next(timeout=5.0) is None
        await store.put("a", b"1")
        await store.put("b", b"2")
        await store.delete("a")
        async with (
            store.watch() as watch,
            store.watch(ignore_deletes=True) as living,
            store.watch(updates_only=True) as new,
        ):
            first = [await watch.next(timeout=5.0) for _ in range(3)]
            assert [info and (info.name, info.deleted) for info in first] == [("b", False), ("a", True), None]
            assert watch.is_current
            assert [info and info.name for info in [await living.next(timeout=5.0) for _ in range(2)]] == ["b", None]
            assert await new.next(timeout=5.0) is None
            put = await store.put("c", b"3")
            for each in (watch, living, new):
                change = await each.next(timeout=5.0)
                assert change is not None
                assert (change.name, change.sequence, change.size) == ("c", put.sequence, 1)


async def test_the_end_of_the_initial_data_is_marked_when_some_is_purged_before_delivery(
    any_server: str, bucket: ObjectStoreConfig
) -> None:
    """The records are more than a consumer sends ahead, so a purge still finds some of them."""
    async with connect(any_server) as nc:
        store = await store_of(nc, bucket)
        for n in range(40):
            await store.put(f"o{n}", b"", description="d" * 400_000)
        async with store.watch() as watch:
            await nc.jetstream().stream(f"OBJ_{bucket.bucket}").purge()
            seen = 0
            while await watch.next(timeout=5.0) is not None:
                seen += 1
            assert seen < 40
