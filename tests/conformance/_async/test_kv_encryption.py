"""Encrypted buckets on both servers: what is stored shows nothing, keys are rotated, TTLs are kept."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest

from slipstream import BucketConfig, connect
from slipstream.errors import DecryptionError, KeyExistsError, KeyNotFoundError, UsageError
from slipstream.kv import Operation
from slipstream.kv._async.rekey import reencrypt
from slipstream.kv.codecs import Encrypted, Keyring
from tests.kv._async.rotation import OLD, RINGS, after, before, check_ttls_are_kept, moving

SECOND = timedelta(seconds=1)


@pytest.mark.spec("KV-23")
async def test_no_byte_that_a_server_stores_shows_a_word_of_keys_or_values(any_server: str, fresh: str) -> None:
    words = ["users", "alice", "bob", "session", "payment-card", "4111-1111", "a secret of alice", "expired", "no-more"]
    async with connect(any_server) as nc:
        js = nc.jetstream()
        raw = await js.create_key_value(BucketConfig(bucket=fresh, history=3, value_ttl=True))
        kv = raw.with_codec(before("a context that is stored nowhere"))
        await kv.put("users.alice", b"a secret of alice")
        await kv.put("users.alice.payment-card", b"4111-1111")
        await kv.create("users.bob", b"no-more")
        await kv.delete("users.bob")
        await kv.purge("users.bob.payment-card")
        await kv.put("session.alice", b"expired", ttl=timedelta(hours=1))
        async with kv.writer() as writer:
            await writer.put("users.alice", b"a secret of alice" * 2)
        await reencrypt(raw, Encrypted(Keyring({"2026": OLD}), context="a context that is stored nowhere"))
        stored = [message async for message in js.stream(f"KV_{fresh}").read()]
        assert len(stored) == 7
        prefix = f"$KV.{fresh}."
        for message in stored:
            assert message.subject.startswith(prefix)
            seen = message.subject.removeprefix(prefix).encode() + b"\n" + message.header + b"\n" + message.data
            for word in (*words, "context", OLD.decode()):
                for form in (word, word.upper(), word[::-1]):
                    assert form.encode() not in seen
        info = await js.stream(f"KV_{fresh}").info()
        assert not [word for word in (*words, "context") if word.encode() in info.config.to_json()]
    async with connect(any_server) as nc:  # another program with the key
        again = (await nc.jetstream().key_value(fresh)).with_codec(before("a context that is stored nowhere"))
        assert (await again.get("users.alice")).value == b"a secret of alice" * 2
        assert sorted(await again.keys("users.>")) == ["users.alice", "users.alice.payment-card"]
        assert [entry.operation for entry in await again.history("users.bob")] == [Operation.PUT, Operation.DELETE]


@pytest.mark.spec("KV-23")
async def test_the_lengths_that_a_server_sees_are_those_that_are_documented(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        raw = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        kv = raw.with_codec(before(fresh))
        for token in ("a", "four", "elevenchars", "x" * 40):
            for size in (0, 1, 500):
                await kv.put(token, os.urandom(size))
                stored = await raw.get(before(fresh).encode_key(token))
                assert len(stored.key) == 2 + -(-(16 + len(token)) * 4 // 3)
                assert len(stored.value) == 2 + len("2026") + 16 + 12 + size + 16


@pytest.mark.spec("KV-23", "KV-41", "KV-42")
@pytest.mark.parametrize("order", RINGS)
async def test_a_rotation_as_documented_ends_with_the_old_key_taken_out(
    any_server: str, fresh: str, order: str
) -> None:
    async with connect(any_server) as nc, connect(any_server) as other:
        js = nc.jetstream()
        raw = await js.create_key_value(BucketConfig(bucket=fresh, history=2))
        kv = raw.with_codec(before(fresh))
        for n in range(20):
            await kv.put(f"users.{n}", b"older")
            await kv.put(f"users.{n}", b"%d" % n)
        await kv.delete("users.0")
        wanted = {f"users.{n}": b"%d" % n for n in range(1, 20)}
        with pytest.raises(DecryptionError):  # taken out too early
            await raw.with_codec(after(fresh)).get("users.1")
        both = (await other.jetstream().key_value(fresh)).with_codec(moving(fresh, RINGS[order]))
        assert {key: entry.value for key, entry in (await both.get_range()).items()} == wanted
        revision = await both.update("users.1", b"1", last=(await both.get("users.1")).revision)
        assert await reencrypt(raw, moving(fresh, RINGS[order])) == 19
        assert await reencrypt(raw, moving(fresh, RINGS[order])) == 0
        assert (await both.get("users.1")).revision == revision
    async with connect(any_server) as nc:
        raw = await nc.jetstream().key_value(fresh)
        kv = raw.with_codec(after(fresh))
        assert {key: entry.value for key, entry in (await kv.get_range()).items()} == wanted
        assert sorted(await kv.keys("users.*")) == sorted(wanted)
        with pytest.raises(KeyNotFoundError, match="DEL"):
            await kv.get("users.0")
        with pytest.raises(KeyExistsError):
            await kv.create("users.1", b"second life")
        stored = [message async for message in nc.jetstream().stream(f"KV_{fresh}").read()]
        assert len(stored) == 20
        assert {Encrypted.key_name(message.data) for message in stored if message.data} == {"2027"}
        for message in stored:
            with pytest.raises(DecryptionError):
                before(fresh).decode_key(message.subject.removeprefix(f"$KV.{fresh}."))
        with pytest.raises(DecryptionError):
            await raw.with_codec(before(fresh)).create("users.1", b"second life")


@pytest.mark.spec("KV-42")
@pytest.mark.parametrize("history", [1, 3])
async def test_reencryption_keeps_the_ttl_of_values(any_server: str, fresh: str, history: int) -> None:
    async with connect(any_server) as nc:
        config = BucketConfig(bucket=fresh, history=history, value_ttl=True)
        await check_ttls_are_kept(await nc.jetstream().create_key_value(config), fresh)


@pytest.mark.spec("KV-42")
@pytest.mark.parametrize("options", [{}, {"limit_marker_ttl": timedelta(hours=1)}], ids=["no markers", "markers"])
async def test_a_value_that_is_about_to_expire_is_waited_for(
    any_server: str, fresh: str, options: dict[str, Any]
) -> None:
    async with connect(any_server) as nc:
        raw = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, value_ttl=True, **options))
        kv = raw.with_codec(before(fresh))
        await kv.put("goes", b"1", ttl=SECOND)
        await kv.put("stays", b"2")
        await reencrypt(raw, moving(fresh))
        kv = raw.with_codec(after(fresh))
        assert await kv.keys() == ["stays"]
        with pytest.raises(KeyNotFoundError):
            await kv.get("goes")


@pytest.mark.spec("KV-42")
async def test_the_ttl_of_a_bucket_does_not_start_again(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        raw = await js.create_key_value(BucketConfig(bucket=fresh, ttl=timedelta(hours=1)))
        await raw.with_codec(before(fresh)).put("a", b"1")
        with pytest.raises(UsageError, match="renew_ttl must be set"):
            await reencrypt(raw, moving(fresh))
        assert await reencrypt(raw, moving(fresh), renew_ttl=True) == 1
        raw = await js.create_key_value(BucketConfig(bucket=fresh + "v", ttl=timedelta(hours=1), value_ttl=True))
        await raw.with_codec(before(fresh)).put("a", b"1")
        created = (await raw.with_codec(before(fresh)).get("a")).created
        assert await reencrypt(raw, moving(fresh)) == 1
        assert 0 < (await raw.with_codec(after(fresh)).get("a")).expires <= created + 3600 * 10**9
