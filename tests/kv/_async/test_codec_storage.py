"""Buckets through codecs: stacked, filtered, watched, encrypted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from slipstream import BucketConfig
from slipstream.errors import (
    CodecError,
    DecryptionError,
    KeyExistsError,
    KeyNotFoundError,
    RequestTimeoutError,
    UsageError,
)
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.kv.codecs import Base64Keys, Codec, Compressed, Encrypted, Json, Keyring, PathKeys


async def bucket(name: str = "b", history: int = 1) -> KeyValue[bytes]:
    return await open_local_key_value(config=BucketConfig(bucket=name, history=history))


@dataclass
class Order:
    id: int
    lines: list[str]


async def test_codecs_are_stacked_and_each_is_a_bucket() -> None:
    raw = await bucket(history=3)
    kv = raw.with_codec(Base64Keys()).with_codec(Compressed()).with_codec(Json(Order))
    order = Order(1, ["x" * 500])
    first = await kv.put("café.no 1", order)
    assert (await kv.get("café.no 1", min_last_revision=first)).value == order
    stored = await raw.get("Y2Fmw6k.bm8gMQ")
    assert stored.value[:1] == b"\x01"
    second = await kv.update("café.no 1", Order(2, []), last=first)
    assert [entry.value.id for entry in await kv.history("café.no 1")] == [1, 2]
    assert (await kv.get("café.no 1", revision=first)).value == order
    async with kv.writer() as writer:
        await writer.put("tea.1", order)
    assert await kv.keys("café.*") == ["café.no 1"]
    assert await kv.keys() == ["café.no 1", "tea.1"]
    assert list(await kv.snapshot("café.>", revision=second)) == ["café.no 1"]
    async with await kv.watch("café.>") as watch:
        assert [entry.value for entry in await watch.initial()] == [Order(2, [])]
        await kv.delete("café.no 1")
        entry = await watch.next(timeout=5)
        assert entry is not None
        assert (entry.key, entry.is_deleted) == ("café.no 1", True)
    with pytest.raises(KeyNotFoundError):
        await kv.get("café.no 1")
    await kv.create("café.no 1", order)
    assert await kv.purge_range(">") == 2
    assert [key async for key in kv.iter_keys()] == []
    with pytest.raises(UsageError, match="value must be bytes"):
        await raw.with_codec(Compressed()).put("k", "text")  # type: ignore[arg-type]


@pytest.mark.spec("KV-44")
async def test_a_key_that_the_codec_did_not_write_is_left_out_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    raw = await bucket(history=2)
    kv = raw.with_codec(Base64Keys())
    await raw.put("plain/key", b"1")
    await kv.put("jöe", b"2")
    await raw.delete("another/")
    assert await kv.keys() == ["jöe"]
    assert [key async for key in kv.iter_keys()] == ["jöe"]
    assert list(await kv.get_range()) == ["jöe"]
    assert list(await kv.snapshot()) == ["jöe"]
    async with await kv.watch() as watch:
        assert [entry.key for entry in await watch.initial()] == ["jöe"]
        await raw.put("plain/key", b"3")
        await kv.put("jöe", b"4")
        entry = await watch.next(timeout=5)
        assert entry is not None
        assert (entry.key, entry.value) == ("jöe", b"4")
        foreign = await raw.put("plain/key", b"5")
        with pytest.raises(RequestTimeoutError):
            await watch.next(timeout=0.1)
    cached = await kv.cached()
    assert (await cached.get("jöe")).value == b"4"
    assert set(cached.foreign_keys) == {"plain/key", "another/"}
    await cached.close()
    with pytest.raises(CodecError, match="not base64"):
        await kv.get("jöe", revision=foreign)
    assert await kv.delete_range(">") == 1
    assert (await raw.get("plain/key")).value == b"5"
    assert set(kv.foreign_keys) == {"plain/key", "another/"}
    assert raw.foreign_keys == ()
    told = [record.getMessage() for record in caplog.records if record.name == "slipstream.kv"]
    assert sorted(text.split(" is ")[0] for text in told) == [
        "bucket 'b': key 'another/'",
        "bucket 'b': key 'plain/key'",
    ]


async def test_initial_data_of_foreign_keys_alone_still_ends() -> None:
    raw = await bucket()
    await raw.put("plain/key", b"1")
    async with await raw.with_codec(Base64Keys()).watch() as watch:
        assert await watch.next(timeout=5) is None


async def test_a_codec_of_the_program() -> None:
    class Upper(Codec[str]):
        def encode_value(self, key: str, value: str) -> bytes:
            return f"{key}:{value}".upper().encode()

        def decode_value(self, key: str, data: bytes) -> str:
            return data.decode().removeprefix(f"{key}:".upper()).lower()

    kv = (await bucket()).with_codec(Upper())
    await kv.put("a", "hello")
    assert (await kv.get("a")).value == "hello"


async def test_filters_match_path_keys() -> None:
    kv = (await bucket()).with_codec(PathKeys())
    for key in ("/etc/app/a", "/etc/app/b", "/var/x", "rel/y", "/"):
        await kv.put(key, key.encode())
    assert await kv.keys("/etc/>") == ["/etc/app/a", "/etc/app/b"]
    assert await kv.keys("/*/*/b") == ["/etc/app/b"]
    assert len(await kv.keys()) == 5
    with pytest.raises(UsageError, match="whole tokens"):
        await kv.keys("/etc/a*")
    with pytest.raises(UsageError, match="without empty parts"):
        await kv.put("/etc//app", b"")


@pytest.mark.spec("KV-45")
async def test_two_paths_that_are_stored_as_one_key_are_one_key() -> None:
    raw = await bucket(history=3)
    kv = raw.with_codec(PathKeys()).with_codec(Json[Any]())
    first = await kv.put("/etc/app.conf", 1)
    assert await raw.keys() == ["_root_.etc.app.conf"]
    for key in ("/etc/app.conf", "/etc/app/conf", "/etc/app/conf/"):
        entry = await kv.get(key)
        assert (entry.key, entry.value) == ("/etc/app/conf", 1)
        assert (await kv.get(key, revision=first)).value == 1
        assert len(await kv.history(key)) == 1
        with pytest.raises(KeyExistsError):
            await kv.create(key, 2)
    async with await kv.watch("/etc/app.conf") as watch:
        assert [entry.key for entry in await watch.initial()] == ["/etc/app/conf"]
    cached = await kv.cached()
    assert (await cached.get("/etc/app.conf")).value == 1
    assert cached.stats.hits == 1
    await cached.close()


async def test_an_encrypted_bucket_hides_keys_and_values_and_can_be_filtered() -> None:
    raw = await bucket()
    kv = raw.with_codec(Encrypted(Keyring({"k1": b"k" * 32}), context="b")).with_codec(Json[Any]())
    await kv.put("users.alice", {"card": "4111"})
    await kv.put("users.bob", {"card": "4222"})
    await kv.put("orders.1", {})
    for entry in (await raw.get_range()).values():
        assert b"4111" not in entry.value
        assert "alice" not in entry.key
    assert sorted(await kv.keys("users.*")) == ["users.alice", "users.bob"]
    assert (await kv.get("users.bob")).value == {"card": "4222"}
    stored = [await raw.get(key) for key in await raw.keys()]
    await raw.put(stored[0].key, stored[1].value)  # an attacker swaps two values
    with pytest.raises(DecryptionError):
        await kv.get("users.alice")


async def test_a_watch_continues_after_a_value_that_cannot_be_decoded() -> None:
    plain = await bucket()
    for key, value in (("a", b"1"), ("b", b"not json"), ("c", b"3"), ("d", b"4")):
        await plain.put(key, value)
    watch = await plain.with_codec(Json(int)).watch()
    seen: list[object] = []
    while None not in seen:
        try:
            entry = await watch.next(timeout=5)
            seen.append(entry and (entry.key, entry.value))
        except CodecError as error:
            seen.append(type(error))
    assert seen == [("a", 1), CodecError, ("c", 3), ("d", 4), None]
    await watch.close()
