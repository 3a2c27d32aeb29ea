"""What the reads of a bucket's handle have seen: its own writes and what it has shown before, whichever copy answers.

A read replica of the bucket answers reads of it, and is always a little behind. On our server, and on nats-server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipstream import BucketConfig, StreamConfig, StreamSource, connect
from slipstream.client._async.client import Client
from slipstream.errors import KeyNotFoundError, RequestTimeoutError, UsageError, WrongLastSequenceError
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.stream_storage import StreamStorage
from slipstream.kv.codecs.base import Codec
from slipstream.kv.codecs.encryption import Encrypted, Keyring
from tests._async.concurrency import sleep, until


@asynccontextmanager
async def replicated(url: str, bucket: str, **options: Any) -> AsyncIterator[KeyValue[bytes]]:
    """A bucket with a read replica beside it, which answers about half of its reads."""
    async with connect(url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=bucket, history=2, **options))
        await js.create_key_value(BucketConfig(bucket=f"{bucket}-copy", mirror=bucket, history=2))
        yield kv


async def value_of(kv: KeyValue[Any], key: str, *, timeout: float | None = None) -> Any:
    try:
        return (await kv.get(key, timeout=timeout)).value
    except KeyNotFoundError:
        return None


@pytest.mark.spec("KV-50")
async def test_handle_sees_what_it_wrote(any_server: str, fresh: str) -> None:
    async with replicated(any_server, fresh) as kv:
        stale = new = 0
        for n in range(300):
            await kv.put("a", b"%d" % n)
            stale += await value_of(kv, "a") != b"%d" % n
            await kv.put(f"k.{n}", b"%d" % n)
            new += await value_of(kv, f"k.{n}") is None
        assert (stale, new) == (0, 0)


@pytest.mark.spec("KV-50")
async def test_every_kind_of_read_sees_what_the_handle_wrote(any_server: str, fresh: str) -> None:
    async with replicated(any_server, fresh) as kv:
        for n in range(20):
            last = await kv.put(f"k.{n}", b"%d" % n)
            assert f"k.{n}" in await kv.keys("k.>")
            last = await kv.put(f"k.{n}", b"%d" % n)
            assert (await kv.get_range(f"k.{n}"))[f"k.{n}"].revision == last
            last = await kv.put(f"k.{n}", b"%d" % n)
            assert (await kv.snapshot())[f"k.{n}"].revision == last
            assert [entry.revision for entry in await kv.history(f"k.{n}")] == [last - 1, last]
            assert (await kv.get(f"k.{n}", revision=last)).value == b"%d" % n
            async with await kv.watch(f"k.{n}", include_history=bool(n % 2)) as watch:
                assert [entry.revision for entry in await watch.initial()][-1] == last


@pytest.mark.spec("KV-50")
async def test_what_a_writer_wrote_is_seen_once_it_is_flushed(any_server: str, fresh: str) -> None:
    async with replicated(any_server, fresh) as kv:
        for n in range(20):
            assert await value_of(kv, f"k.{n}.9") is None
            async with kv.writer() as writer:
                for m in range(10):
                    await writer.put(f"k.{n}.{m}", b"1")
            assert await value_of(kv, f"k.{n}.9") == b"1"
            assert await value_of(kv, f"k.{n}.0") == b"1"
            assert await value_of(kv, "none") is None


class _Text(Codec[str]):
    """Values as text."""

    def encode_value(self, key: str, value: str) -> bytes:  # noqa: ARG002
        return value.encode()

    def decode_value(self, key: str, data: bytes) -> str:  # noqa: ARG002
        return data.decode()


@pytest.mark.spec("KV-51")
@pytest.mark.parametrize("deletes", [False, True])
async def test_views_of_a_handle_share_what_it_has_seen(any_server: str, fresh: str, deletes: bool) -> None:
    """Codecs, read-only views and caches of one handle: what one has shown or written no other shows older."""
    async with replicated(any_server, fresh) as kv:
        text, frozen = kv.with_codec(_Text()), kv.read_only()
        cached = await kv.cached("other.>")
        try:
            for n in range(100):
                if deletes and n % 3 == 2:
                    await cached.delete("a")
                    assert await value_of(text, "a") is await value_of(frozen, "a") is None
                    continue
                await text.put("a", f"{n}")
                assert await value_of(frozen, "a") == await value_of(cached, "a") == b"%d" % n
        finally:
            await cached.close()


@pytest.mark.spec("KV-51")
async def test_reads_of_what_others_write_never_go_back(any_server: str, fresh: str) -> None:
    """Another handle counts up; gets, ranges, keys and watches of one handle take turns in reading."""
    async with replicated(any_server, fresh) as kv, connect(any_server) as nc:
        other = await nc.jetstream().key_value(fresh)
        highest = 0
        async with await kv.watch("a") as watch:
            await watch.initial()
            for n in range(1, 120):
                await other.put("a", b"%d" % n)
                kind = n % 4
                if kind == 0:
                    found = await kv.get_range("a")
                    value = found["a"].value if "a" in found else b"0"
                elif kind == 1:
                    entry = (await watch.next_entries(timeout=5))[-1]
                    value = entry.value
                elif kind == 2:
                    value = (await kv.history("a"))[-1].value
                else:
                    value = await value_of(kv, "a") or b"0"
                if kind != 1:  # a watch shows every change in its turn: it may lie behind what reads have shown
                    assert int(value) >= highest
                highest = max(highest, int(value))


@pytest.mark.spec("KV-51")
async def test_an_absence_is_not_taken_back(any_server: str, fresh: str) -> None:
    """A key that was found absent is not shown again as it was before, also if nothing of it is left in the bucket."""
    async with replicated(any_server, fresh) as kv, connect(any_server) as nc:
        other = await nc.jetstream().key_value(fresh)
        for n in range(60):
            key = f"k.{n}"
            await other.put(key, b"old")
            await other.purge(key)
            seen = [await value_of(kv, key) for _ in range(6)]
            assert seen == sorted(seen, key=lambda value: value is None)  # once it is gone it stays so
            new = await other.put(key, b"new")
            shown = [await value_of(kv, key) for _ in range(3)]
            assert b"old" not in shown[1:] or seen[-1] is not None
            assert (await kv.get(key, min_last_revision=new)).value == b"new"
            assert await value_of(kv, key) == b"new"


@pytest.mark.spec("KV-51")
async def test_read_after_a_rejected_write_shows_what_rejected_it(any_server: str, fresh: str) -> None:
    async with replicated(any_server, fresh) as kv, connect(any_server) as nc:
        other = await nc.jetstream().key_value(fresh)
        for n in range(60):
            key = f"k.{n}"
            first = await kv.put(key, b"0")
            await other.put(key, b"1")
            with pytest.raises(WrongLastSequenceError):
                await kv.update(key, b"2", last=first)
            assert await value_of(kv, key) == b"1"  # so that the next attempt can succeed


@pytest.mark.spec("KV-52")
async def test_latest_has_seen_what_others_wrote_before_the_call(any_server: str, fresh: str) -> None:
    async with replicated(any_server, fresh) as kv, connect(any_server) as nc:
        latest = await nc.jetstream().key_value(fresh, consistency="latest")
        assert await value_of(latest, "a") is None
        for n in range(40):
            await kv.put("a", b"%d" % n)
            await kv.put(f"k.{n}", b"")
            assert await value_of(latest, "a") == b"%d" % n
            if n % 4 == 0:
                assert f"k.{n}" in await latest.keys()
                assert f"k.{n}" in await latest.get_range()
                assert f"k.{n}" in await latest.snapshot()
                assert (await latest.history("a"))[-1].value == b"%d" % n
                async with await latest.watch("a") as watch:
                    assert [entry.value for entry in await watch.initial()] == [b"%d" % n]
        with pytest.raises(UsageError, match="cached"):
            await latest.cached()


@pytest.mark.spec("KV-52")
async def test_consistency_is_one_of_three(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = BucketConfig(bucket=fresh)
        for consistency in ("own-writes", "any", "latest"):
            kv = await js.create_key_value(config, consistency=consistency)
            await kv.put("a", consistency.encode())
            assert (await kv.get("a")).value == consistency.encode()
            assert await (await js.update_key_value(config, consistency=consistency)).keys() == ["a"]
        wrong = "consistency must be 'own-writes', 'any' or 'latest', got 'strong'"
        with pytest.raises(UsageError, match=wrong):
            await js.key_value(fresh, consistency="strong")
        with pytest.raises(UsageError, match=wrong):
            await js.create_key_value(config, consistency="strong")
        with pytest.raises(UsageError, match=wrong):
            await js.update_key_value(config, consistency="strong")
        async with js.session() as session:
            with pytest.raises(UsageError, match="'own-writes' or 'latest' in a session, got 'any'"):
                await session.key_value(fresh, consistency="any")
            assert (await (await session.key_value(fresh, consistency="latest")).get("a")).value == b"latest"


@pytest.mark.spec("KV-52")
async def test_own_writes_cost_no_request_more(any_server: str, fresh: str) -> None:
    """Of keys that were written or read, and of keys of which nothing is known: one request for a read."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh))
        for key in ("a", "b"):
            await kv.put(key, b"1")
        kv = await js.key_value(fresh)
        await kv.put("c", b"1")
        before = nc.stats.out_msgs
        for key in ("a", "b", "c", "a", "none", "none"):
            await value_of(kv, key)
        assert nc.stats.out_msgs - before == 6


@pytest.mark.spec("KV-54")
@pytest.mark.parametrize("through_handle", [False, True])
async def test_handle_goes_on_with_a_bucket_that_was_made_again(
    any_server: str, fresh: str, through_handle: bool
) -> None:
    """The new bucket counts from one: what was seen of the old one is not waited for."""
    async with connect(any_server) as nc, connect(any_server) as two:
        js, config = nc.jetstream(), BucketConfig(bucket=fresh, history=2)
        kv = await js.create_key_value(config)
        for n in range(20):
            await kv.put(f"k.{n % 5}", b"old")
        assert await value_of(kv, "none") is None
        assert len(await kv.keys()) == 5
        await kv.destroy()
        other = await (js if through_handle else two.jetstream()).create_key_value(config)
        first = await other.put("k.1", b"new")
        assert first == 1
        assert await value_of(kv, "k.1") == b"new"
        assert await value_of(kv, "k.0") is None
        assert await kv.keys() == ["k.1"]
        assert list(await kv.get_range()) == list(await kv.snapshot()) == ["k.1"]
        assert [entry.revision for entry in await kv.history("k.1")] == [first]
        async with await kv.watch() as watch:
            assert [entry.revision for entry in await watch.initial()] == [first]
            second = await kv.put("k.0", b"new")
            entry = await watch.next(timeout=5)
            assert entry is not None
            assert entry.revision == second
        assert await value_of(kv, "k.0") == b"new"


@pytest.mark.spec("KV-54")
@pytest.mark.parametrize("read", ["get", "history", "keys", "get_range", "snapshot"])
async def test_whatever_is_read_first_of_a_bucket_that_was_made_again(any_server: str, fresh: str, read: str) -> None:
    """The handle learns of the new bucket by the read itself, and the new one is empty: it never gets that far."""
    async with connect(any_server) as nc, connect(any_server) as two:
        kv, other = await nc.jetstream().create_key_value(fresh), two.jetstream()
        await kv.put("a", b"old")
        await kv.put("b", b"old")
        assert await kv.keys() == ["a", "b"]
        await (await other.key_value(fresh)).destroy()
        await other.create_key_value(fresh)
        if read in ("get", "history"):
            with pytest.raises(KeyNotFoundError):
                await getattr(kv, read)("a")
        else:
            assert not await getattr(kv, read)()


@pytest.mark.spec("KV-54")
@pytest.mark.parametrize("read", ["get", "history", "keys", "get_range", "snapshot"])
async def test_whatever_is_read_first_of_a_replica_that_was_made_again_with_its_bucket(
    any_server: str, fresh: str, read: str
) -> None:
    """A replica is as old as its bucket: its handle learns of the new one in the same way."""
    async with replicated(any_server, fresh) as kv, connect(any_server) as nc:
        js = nc.jetstream()
        copy = await js.key_value(f"{fresh}-copy")
        await copy.put("a", b"old")
        await copy.put("b", b"old")
        assert sorted(await copy.keys()) == ["a", "b"]
        await js.delete_key_value(f"{fresh}-copy")
        await kv.destroy()
        await js.create_key_value(BucketConfig(bucket=fresh, history=2))
        await js.create_key_value(BucketConfig(bucket=f"{fresh}-copy", mirror=fresh, history=2))
        if read in ("get", "history"):
            with pytest.raises(KeyNotFoundError):
                await getattr(copy, read)("a")
        else:
            assert not await getattr(copy, read)()
        assert await copy.put("a", b"new") == 1
        assert await value_of(copy, "a") == b"new"
        assert await copy.keys() == ["a"]


async def test_replica_that_is_read_by_revision_first_is_not_taken_for_its_bucket(any_server: str, fresh: str) -> None:
    """It was made later than its bucket, whose leader is asked when a key appears that was not there."""
    async with replicated(any_server, fresh) as kv, connect(any_server) as nc:
        first = await kv.put("b", b"1")
        copy = await nc.jetstream().key_value(f"{fresh}-copy")
        await until(lambda: _has(copy, first))
        assert (await copy.get("b", revision=first)).value == b"1"
        assert await value_of(copy, "a") is None
        await kv.put("a", b"2")
        await until(lambda: _shows(copy, "a", b"2"))
        assert await copy.keys() == ["b", "a"]


async def test_replica_whose_bucket_was_destroyed_goes_on_answering(any_server: str, fresh: str) -> None:
    async with replicated(any_server, fresh) as kv, connect(any_server) as nc, connect(any_server) as two:
        last = await kv.put("a", b"1")
        copy = await nc.jetstream().key_value(f"{fresh}-copy")
        await until(lambda: _has(copy, last))
        assert await value_of(copy, "a") == b"1"
        await kv.destroy()
        assert await value_of(copy, "a") == b"1"
        again = await two.jetstream().key_value(f"{fresh}-copy")  # knows nothing yet
        assert await value_of(again, "a") == b"1"
        assert await value_of(again, "a") == b"1"
        assert (await again.get("a", revision=last)).value == b"1"


async def _has(kv: KeyValue[bytes], revision: int) -> bool:
    """Whether a replica has got a revision."""
    return (await kv.status()).last_revision >= revision


async def _shows(kv: KeyValue[bytes], key: str, value: bytes) -> bool:
    """Whether a value has arrived."""
    return bool(await value_of(kv, key) == value)


@pytest.mark.spec("KV-51")
async def test_keys_beyond_the_bound_of_a_handle_are_still_seen(
    any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of a key may be forgotten: then a floor stands for it."""
    monkeypatch.setattr("slipstream.jetstream.reads.session.MOST_KEYS", 3)
    async with replicated(any_server, fresh) as kv:
        for n in range(60):
            await kv.put(f"k.{n}", b"%d" % n)
            assert await value_of(kv, f"k.{n}") == b"%d" % n
            assert await value_of(kv, f"k.{n // 2}") == b"%d" % (n // 2)
            assert await value_of(kv, f"none.{n}") is None
        assert len(await kv.keys("k.>")) == 60


async def test_a_handle_of_a_replica_sees_what_was_written_through_it(any_server: str, fresh: str) -> None:
    async with replicated(any_server, fresh) as kv, connect(any_server) as nc:
        copy = await nc.jetstream().key_value(f"{fresh}-copy")
        for n in range(20):
            last = await copy.put("a", b"%d" % n)
            assert await value_of(copy, "a") == b"%d" % n
            assert await copy.keys() == ["a"]
            assert (await copy.history("a"))[-1].revision == last
        assert await value_of(kv, "a") is not None


async def test_codec_that_encodes_keys_reads_its_writes(any_server: str, fresh: str) -> None:
    async with replicated(any_server, fresh) as kv:
        assert isinstance(kv.storage, StreamStorage)
        secret = kv.with_codec(Encrypted(Keyring({"a": b"k" * 32}), context=fresh))
        for n in range(40):
            await secret.put(f"k.{n}", b"%d" % n)
            assert await value_of(secret, f"k.{n}") == b"%d" % n
        assert len(await secret.keys()) == len(await secret.get_range()) == len(await secret.snapshot()) == 40


@asynccontextmanager
async def beside_a_stale_copy(url: str, bucket: str) -> AsyncIterator[tuple[KeyValue[bytes], KeyValue[bytes]]]:
    """Two handles of a bucket, the first of which wrote it: "a" was changed, "b" deleted, "c" removed, "d" created.

    A replica of the bucket answers too, and has nothing of these changes for good.
    """
    async with connect(url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=bucket, history=2))
        mirror = StreamSource(name=f"KV_{bucket}")
        copy = await js.create_stream(
            StreamConfig(name=f"COPY_{bucket}", mirror=mirror, mirror_direct=True, max_msgs_per_subject=2)
        )
        for key in ("a", "b", "c"):
            await kv.put(key, b"old")
        changes = [await kv.put("a", b"new"), await kv.delete("b"), await kv.delete("c"), await kv.put("d", b"new")]

        async def has_all() -> bool:
            return (await copy.info()).state.last_seq >= changes[-1]

        await until(has_all)
        for revision in changes:
            await copy.delete_message(revision)
        await kv.storage.forget("c", below=changes[-1])
        yield kv, await js.key_value(bucket)


@pytest.mark.spec("KV-50", "KV-51")
async def test_copy_that_stays_behind_is_not_believed(any_server: str, fresh: str) -> None:
    async with beside_a_stale_copy(any_server, fresh) as (kv, _):
        for _ in range(20):
            assert [await value_of(kv, key) for key in "abcd"] == [b"new", None, None, b"new"]
        for _ in range(5):
            assert sorted(await kv.keys()) == ["a", "d"]
            assert sorted(await kv.get_range()) == sorted(await kv.snapshot()) == ["a", "d"]
            assert [entry.value for entry in await kv.history("a")] == [b"old", b"new"]
            async with await kv.watch(ignore_deletes=True) as watch:
                assert [(entry.key, entry.value) for entry in await watch.initial()] == [("a", b"new"), ("d", b"new")]


@pytest.mark.spec("KV-51")
async def test_state_once_shown_is_not_taken_back_by_a_copy_that_stays_behind(any_server: str, fresh: str) -> None:
    """A handle that wrote nothing may be shown the old state at first; from the new one there is no way back."""
    async with beside_a_stale_copy(any_server, fresh) as (_, kv):
        for key, new in (("a", b"new"), ("b", None), ("c", None), ("d", b"new")):
            seen = [await value_of(kv, key) == new for _ in range(20)]
            assert seen == sorted(seen)
        found = await kv.get_range()
        for _ in range(10):
            assert [await value_of(kv, key) for key in found] == [entry.value for entry in found.values()]


@pytest.mark.parametrize("kind", ["first", "newer", "absent"])
async def test_get_whose_first_request_is_lost_is_asked_again_within_its_time(
    any_server: str, fresh: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several responders may be cut off, and takes its part of the requests: no attempt takes all the time."""
    lost: list[str] = []
    async with connect(any_server) as nc, connect(any_server) as two:
        await nc.jetstream().create_key_value(fresh)
        other, kv = await two.jetstream().key_value(fresh), await nc.jetstream().key_value(fresh)
        if kind != "absent":
            await other.put("a", b"1")
        if kind == "newer":
            assert await value_of(kv, "a") == b"1"
            await other.put("a", b"2")
        exchange = Client.exchange

        async def lose(self: Client, subject: str, *args: Any, timeout: float, **more: Any) -> Any:
            if not lost and ".DIRECT.GET." in subject and self is nc:
                lost.append(subject)
                await sleep(timeout)
                raise RequestTimeoutError(f"timed out after {timeout:g} s")
            return await exchange(self, subject, *args, timeout=timeout, **more)

        monkeypatch.setattr(Client, "exchange", lose)
        found = await value_of(kv, "a", timeout=2)
        assert found == {"first": b"1", "newer": b"2", "absent": None}[kind]
        assert len(lost) == 1
