"""Key rotation of an encrypted bucket: complete, with the old key taken out, interrupted and raced by writers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from slipstream import BucketConfig
from slipstream.errors import (
    DecryptionError,
    Error,
    KeyExistsError,
    KeyNotFoundError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.kv import Operation
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.kv._async.rekey import reencrypt
from slipstream.kv._async.storage import Storage, WrappedStorage
from slipstream.kv.codecs import Encrypted, Keyring
from tests.kv._async.behaviour import Behaviour
from tests.kv._async.rotation import NEW, OLD, RINGS, after, before, check_ttls_are_kept, moving


def sealed(*tokens: str, primary: str, keys: dict[str, bytes] | None = None) -> Encrypted:
    return Encrypted(Keyring(keys or RINGS["old key first"], primary=primary, tokens=tokens), context="b")


BEFORE = before("b")
PREPARED = sealed("2026", "2027", primary="2026")
MOVING = moving("b")
VALUES_ONLY = sealed("2026", primary="2027")
AFTER = after("b")


async def bucket(**options: Any) -> KeyValue[bytes]:
    return await open_local_key_value(config=BucketConfig(bucket="b", **options))


async def values(kv: KeyValue[bytes]) -> dict[str, bytes]:
    return {key: entry.value for key, entry in (await kv.get_range()).items()}


@pytest.mark.spec("KV-41")
class TestWhileNamesAreMoved(Behaviour):
    """A bucket behaves like any other while its keys may have two names."""

    bad_filters = ("a*", "a.>.b")

    @asynccontextmanager
    async def bucket(self, config: BucketConfig) -> AsyncIterator[KeyValue[bytes]]:
        kv = await open_local_key_value(config=config)
        try:
            yield kv.with_codec(MOVING)
        finally:
            await kv.close()

    async def test_delta_is_the_number_of_newer_entries_of_the_key_or_absent(self, fresh: str) -> None:
        """A watch cannot know it: entries of the key may have another name."""
        async with self.bucket(BucketConfig(bucket=fresh, history=5)) as kv:
            first = await kv.put("a", b"0")
            await kv.put("a", b"1")
            assert (await kv.get("a")).delta == 0
            assert [entry.delta for entry in await kv.history("a")] == [1, 0]
            assert [entry.delta for entry in (await kv.get_range()).values()] == [0]
            assert [entry.delta for entry in (await kv.snapshot(revision=first)).values()] == [1]
            async with await kv.watch(include_history=True) as watch:
                assert [entry.delta for entry in await watch.initial()] == [None, None]


async def test_reencrypt_moves_every_value_to_the_primary_key() -> None:
    raw = await bucket()
    await raw.with_codec(BEFORE).put("a", b"1")
    await raw.with_codec(BEFORE).put("b", b"2")
    both = sealed("2026", primary="2027")
    kv = raw.with_codec(both)
    assert (await kv.get("a")).value == b"1"
    await kv.put("b", b"3")
    with pytest.raises(UsageError, match="without its encryption codec"):
        await reencrypt(kv, both)
    assert await reencrypt(raw, both) == 1
    assert await reencrypt(raw, both) == 0
    assert await values(kv) == {"a": b"1", "b": b"3"}
    assert all(Encrypted.key_name(entry.value) == "2027" for entry in (await raw.get_range()).values())
    with pytest.raises(DecryptionError):
        await raw.with_codec(BEFORE).get("a")


@pytest.mark.spec("KV-41")
@pytest.mark.parametrize("order", RINGS)
async def test_after_a_rotation_the_old_key_can_be_taken_out(order: str) -> None:
    raw = await bucket(history=3)
    kv = raw.with_codec(BEFORE)
    for key in ("users.alice", "users.bob", "gone", "purged"):
        await kv.put(key, b"older")
        await kv.put(key, key.encode())
    await kv.delete("gone")
    await kv.purge("purged")
    moving = sealed("2027", "2026", primary="2027", keys=RINGS[order])
    assert await reencrypt(raw, moving) == 4
    assert await reencrypt(raw, moving) == 0
    kv = raw.with_codec(AFTER)
    assert await values(kv) == {"users.alice": b"users.alice", "users.bob": b"users.bob"}
    assert await kv.keys("users.*") == ["users.alice", "users.bob"]
    assert [(e.value, e.delta) for e in await kv.history("users.alice")] == [(b"users.alice", 0)]
    for key, operation in (("gone", Operation.DELETE), ("purged", Operation.PURGE)):
        assert [entry.operation for entry in await kv.history(key)] == [operation]
        with pytest.raises(KeyNotFoundError):
            await kv.get(key)
        await kv.create(key, b"again")
    with pytest.raises(KeyExistsError):
        await kv.create("users.alice", b"x")
    assert len(await raw.keys()) == 4
    with pytest.raises(DecryptionError):
        await raw.with_codec(BEFORE).get("users.alice")


@pytest.mark.spec("KV-41")
@pytest.mark.parametrize(
    "codec",
    [AFTER, Encrypted(Keyring({"2026": NEW}), context="b"), Encrypted(Keyring({"2026": OLD}), context="other")],
    ids=["another key", "another key of that name", "another context"],
)
@pytest.mark.parametrize("is_partly_moved", [False, True], ids=["all names", "some names"])
async def test_a_ring_that_cannot_decrypt_the_names_is_an_error_and_writes_nothing(
    codec: Encrypted, is_partly_moved: bool
) -> None:
    raw = await bucket(history=2)
    await raw.with_codec(BEFORE).put("users.alice", b"secret")
    await raw.put("plain/key", b"foreign, and no reason to fail")
    if is_partly_moved:
        await raw.put(codec.encode_key("users.bob"), codec.encode_value("users.bob", b"1"))
    unchanged = (await raw.status()).last_revision
    fresh: Callable[[], KeyValue[bytes]] = lambda: raw.with_codec(codec)  # noqa: E731

    async def write() -> None:
        async with fresh().writer() as writer:
            await writer.put("users.alice", b"x")

    async def watch() -> None:
        async with await fresh().watch("users.>") as watching:
            await watching.initial()

    calls: dict[str, Any] = {
        "get": lambda: fresh().get("users.alice"),
        "create": lambda: fresh().create("users.alice", b"x"),
        "put": lambda: fresh().put("users.alice", b"x"),
        "update": lambda: fresh().update("users.alice", b"x", last=1),
        "delete": lambda: fresh().delete("users.alice"),
        "purge": lambda: fresh().purge("users.alice"),
        "history": lambda: fresh().history("users.alice"),
        "keys": lambda: fresh().keys(),
        "keys of a range": lambda: fresh().keys("users.*"),
        "range": lambda: fresh().get_range("users.*"),
        "delete range": lambda: fresh().delete_range("users.*"),
        "snapshot": lambda: fresh().snapshot("users.*"),
        "watch": watch,
        "writer": write,
        "cache": lambda: fresh().cached("users.>"),
        "lock": lambda: fresh().lock("users.alice").acquire(timeout=5),
        "rotation": lambda: reencrypt(raw, codec),
    }
    for name, call in calls.items():
        with pytest.raises(DecryptionError, match="lacks its key, or it was written for another context"):
            await call()
        assert (await raw.status()).last_revision == unchanged, name


async def test_a_ring_is_checked_again_until_the_bucket_has_names() -> None:
    raw = await bucket()
    kv, other = raw.with_codec(BEFORE), raw.with_codec(AFTER)
    with pytest.raises(KeyNotFoundError):
        await kv.get("a")
    await other.put("a", b"1")
    with pytest.raises(DecryptionError):
        await kv.put("a", b"2")
    with pytest.raises(DecryptionError):
        await kv.get("a")
    assert await values(other) == {"a": b"1"}


async def test_a_program_that_may_not_list_keys_does_without_the_check() -> None:
    raw = await bucket()
    await raw.with_codec(BEFORE).put("a", b"1")
    unchecked = Encrypted(Keyring({"2027": NEW}), context="b", check_names=False)
    with pytest.raises(KeyNotFoundError):
        await raw.with_codec(unchecked).get("a")
    await raw.with_codec(unchecked).put("b", b"2")
    assert (await raw.with_codec(unchecked).get("b")).value == b"2"


def test_a_ring_of_several_keys_says_what_each_is_for() -> None:
    keys = RINGS["old key first"]
    with pytest.raises(UsageError, match="primary must be set in a keyring of several keys, to one of"):
        Keyring(keys, tokens="2026")
    with pytest.raises(UsageError, match="tokens must be set in a keyring of several keys"):
        Encrypted(Keyring(keys, primary="2027"), context="b")
    assert not Encrypted(Keyring(keys, primary="2027"), context="b", keys=False).hides_keys
    with pytest.raises(DecryptionError, match="no key '2028'"):
        Keyring(keys, primary="2027", tokens=("2026", "2028"))


@pytest.mark.spec("KV-41")
async def test_programs_with_both_keys_see_the_same_bucket_while_names_are_moved() -> None:
    raw = await bucket(history=4)
    await raw.with_codec(BEFORE).put("a", b"1")
    early, late = raw.with_codec(PREPARED), raw.with_codec(MOVING)
    for n, writer in enumerate([late, early, late, early, late]):
        revision = await writer.put("a", b"%d" % n)
        for reader in (early, late):
            entry = await reader.get("a")
            assert (entry.value, entry.revision, entry.delta) == (b"%d" % n, revision, 0)
            assert await reader.keys() == await reader.keys("a") == ["a"]
            assert await values(reader) == {"a": b"%d" % n}
            assert {key: entry.value for key, entry in (await reader.snapshot()).items()} == {"a": b"%d" % n}
            with pytest.raises(KeyExistsError):
                await reader.create("a", b"x")
            with pytest.raises(WrongLastSequenceError):
                await reader.update("a", b"x", last=revision - 1)
    revision = await early.update("a", b"u", last=revision)
    revision = await late.update("a", b"v", last=revision)
    await early.delete("a", last=revision)
    for reader in (early, late):
        assert await reader.keys() == []
        with pytest.raises(KeyNotFoundError):
            await reader.get("a")
    async with late.writer() as pipeline:
        await pipeline.put("a", b"w")
        await pipeline.put("b", b"x")
    async with await early.watch() as watch:
        assert [(e.key, e.value) for e in await watch.initial()] == [("a", b"w"), ("b", b"x")]
        await late.put("a", b"y")
        change = await watch.next(timeout=5)
        assert change is not None
        assert (change.key, change.value, change.delta) == ("a", b"y", None)
    assert await late.purge_range(">") == 2
    assert await late.purge_deletes(older_than=timedelta(0)) == 2
    assert (await raw.status()).values == 0


class InterruptedRunError(Error):
    """The program was stopped."""


class Failing(WrappedStorage[bytes]):
    """Stops before or after the n-th change."""

    def __init__(self, inner: Storage[bytes], changes: int, is_done: bool) -> None:
        super().__init__(inner)
        self.changes = changes
        self.is_done = is_done

    async def append(self, *args: Any, **options: Any) -> int:
        revision: int = await self._change(super().append, *args, **options)
        return revision

    async def forget(self, *args: Any, **options: Any) -> None:
        await self._change(super().forget, *args, **options)

    async def _change(self, change: Any, *args: Any, **options: Any) -> Any:
        self.changes -= 1
        if not self.changes and not self.is_done:
            raise InterruptedRunError
        result = await change(*args, **options)
        if not self.changes:
            raise InterruptedRunError
        return result


@pytest.mark.spec("KV-42")
@pytest.mark.parametrize("is_done", [False, True], ids=["before a change", "after a change"])
async def test_a_rotation_can_be_interrupted_at_any_point_and_run_again(is_done: bool) -> None:
    wanted = {"a": b"a", "b.c": b"b.c", "d": b"d"}
    changes = interruptions = 0
    while True:
        changes += 1
        raw = await bucket()
        for key in (*wanted, "gone"):
            await raw.with_codec(BEFORE).put(key, key.encode())
        await raw.with_codec(BEFORE).delete("gone")
        try:
            await reencrypt(KeyValue(Failing(raw.storage, changes, is_done)), MOVING)
        except InterruptedRunError:
            interruptions += 1
        for codec in (PREPARED, MOVING):
            assert await values(raw.with_codec(codec)) == wanted
            with pytest.raises(KeyNotFoundError):
                await raw.with_codec(codec).get("gone")
        await reencrypt(raw, MOVING)
        kv = raw.with_codec(AFTER)
        assert await values(kv) == wanted
        assert [entry.operation for entry in await kv.history("gone")] == [Operation.DELETE]
        assert (await raw.status()).values == 4
        await raw.close()
        if interruptions < changes:
            break
    assert interruptions == 8  # one write and one removal for each key


class Raced(WrappedStorage[bytes]):
    """Another program changes a key just before the first write of the rotation."""

    def __init__(self, inner: Storage[bytes], change: Callable[[], Any]) -> None:
        super().__init__(inner)
        self.change: Callable[[], Any] | None = change

    async def append(self, *args: Any, **options: Any) -> int:
        if self.change is not None:
            change, self.change = self.change, None
            await change()
        return await super().append(*args, **options)


@pytest.mark.spec("KV-42")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(MOVING, MOVING), (PREPARED, MOVING), (VALUES_ONLY, VALUES_ONLY)],
    ids=["under the new name", "under the old name", "of values alone"],
)
@pytest.mark.parametrize("kind", ["put", "delete", "update"])
async def test_a_value_that_is_written_during_a_rotation_is_kept(theirs: Encrypted, ours: Encrypted, kind: str) -> None:
    raw = await bucket()
    first = await raw.with_codec(BEFORE).put("a", b"1")
    other = raw.with_codec(theirs)

    async def change() -> None:
        if kind == "put":
            await other.put("a", b"2")
        elif kind == "update":
            await other.update("a", b"2", last=first)
        else:
            await other.delete("a")

    await reencrypt(KeyValue(Raced(raw.storage, change)), ours)
    assert await values(raw.with_codec(ours)) == ({} if kind == "delete" else {"a": b"2"})
    assert (await raw.status()).values == 1
    if ours is MOVING:
        assert await raw.with_codec(AFTER).keys() == ([] if kind == "delete" else ["a"])


@pytest.mark.spec("KV-41")
async def test_of_two_programs_that_create_a_key_under_two_names_one_succeeds() -> None:
    raw = await bucket()
    early = raw.with_codec(PREPARED)

    async def change() -> None:
        await early.create("a", b"early")

    late = KeyValue(Raced(raw.storage, change)).with_codec(MOVING)
    with pytest.raises(KeyExistsError):
        await late.create("a", b"late")
    for codec in (PREPARED, MOVING):
        assert await values(raw.with_codec(codec)) == {"a": b"early"}


async def test_older_values_can_be_dropped_so_that_no_value_needs_the_old_key() -> None:
    raw = await bucket(history=3)
    for n in range(3):
        await raw.with_codec(BEFORE).put("a", b"%d" % n)
        await raw.with_codec(BEFORE).put("b", b"%d" % n)
    both = sealed("2026", primary="2027")
    await raw.with_codec(both).put("b", b"new")
    assert await reencrypt(raw, both) == 1
    assert len(await raw.with_codec(both).history("a")) == 3
    assert await reencrypt(raw, both, drop_history=True) == 0
    assert {Encrypted.key_name(e.value) for key in await raw.keys() for e in await raw.history(key)} == {"2027"}
    assert [e.value for e in await raw.with_codec(both).history("b")] == [b"new"]


async def test_a_rotation_can_be_recorded_for_snapshots_of_the_past() -> None:
    raw = await bucket(history=3)
    at = await raw.with_codec(BEFORE).put("a", b"1")
    await reencrypt(raw, MOVING, recorded=True)
    with pytest.raises(Error, match="removed for good"):
        await raw.with_codec(AFTER).snapshot(revision=at)
    assert list(await raw.with_codec(AFTER).snapshot()) == ["a"]


@pytest.mark.spec("KV-42")
async def test_reencryption_keeps_the_ttl_of_values() -> None:
    await check_ttls_are_kept(await bucket(history=3, value_ttl=True), "b")
