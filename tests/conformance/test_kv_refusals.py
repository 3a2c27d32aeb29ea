"""What is rejected before anything is sent: names that are not valid, and writes through a read-only handle.

A proxy sees every byte of the client. The calls follow from the methods of a bucket, so that a new one is not missed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from slipstream import BucketConfig, BucketSource, connect, connect_blocking, open_local_key_value
from slipstream.errors import ReadOnlyError, UsageError
from slipstream.kv._async.key_value import KeyValue, Writer
from slipstream.kv.codecs import Base64Keys, Json
from tests.proxy import Proxy, proxy_to

BAD_KEYS = ["", ".a", "a.", "a..b", "a b", "a*", ">", "ä", "a\n", "_kv", "_kv.x", "a:b", None, 7, b"a"]
BAD_FILTERS = ["a*", ">.a", "a..b", ".a", "a b", "ä", None, 7]
BAD_BUCKETS = ["", "a.b", "a b", "a/b", "ä", "a\n", "*", ">"]
OTHER_ARGUMENTS: dict[str, Any] = {"value": b"", "last": 1}
READS = {
    "get", "history", "watch", "keys", "iter_keys", "get_range", "snapshot", "status", "close", "read_only", "cached",
    "with_codec", "to_arrow", "to_pandas", "to_polars",
}  # fmt: skip


def calls_with(owner: Any, argument: str, value: object) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """A call of each public method that takes `argument`: a key, a prefix, or filters."""
    for name, function in vars(owner).items():
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters
        if argument not in parameters:
            continue
        needed = {
            each: OTHER_ARGUMENTS[each]
            for each, parameter in parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and each not in ("self", argument)
        }
        yield name, partial(call_of, name, value, needed)


def call_of(name: str, value: object, needed: dict[str, Any], handle: Any) -> Any:
    return getattr(handle, name)(value, **needed)


async def finish(call: Callable[[], Any], *, is_blocking: bool) -> None:
    """Make a call, wait for its result, and read it all if it is an iterator."""
    if is_blocking:
        await asyncio.to_thread(lambda: exhaust(call()))
        return
    result = call()
    if inspect.isawaitable(result):
        result = await result
    if inspect.isasyncgen(result):
        async for _ in result:
            pass


def exhaust(result: object) -> None:
    if inspect.isgenerator(result):
        for _ in result:
            pass


@asynccontextmanager
async def silent(proxy: Proxy, flush: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Nothing is sent but what keeps the connection alive."""
    await flush()
    before = len(proxy.sent)
    yield
    await flush()
    sent = bytes(proxy.sent[before:]).replace(b"PING\r\n", b"").replace(b"PONG\r\n", b"")
    assert sent == b""


KEYED = {
    "put", "get", "create", "update", "delete", "purge", "history", "lock", "election", "members",
    "watch", "keys", "iter_keys", "get_range", "delete_range", "purge_range", "snapshot", "cached",
    "to_arrow", "to_pandas", "to_polars",
}  # fmt: skip


@pytest.mark.spec("KV-02")
@pytest.mark.parametrize("is_blocking", [False, True], ids=["asyncio", "blocking"])
async def test_bad_keys_and_filters_are_rejected_before_anything_is_sent(
    any_server: str, fresh: str, is_blocking: bool
) -> None:
    async with proxy_to(any_server) as proxy:
        handle: Any
        if is_blocking:
            client: Any = await asyncio.to_thread(connect_blocking, proxy.url)
            handle = await asyncio.to_thread(lambda: client.jetstream().create_key_value(BucketConfig(bucket=fresh)))
        else:
            client = await connect(proxy.url)
            handle = await client.jetstream().create_key_value(BucketConfig(bucket=fresh))

        async def flush() -> None:
            await finish(client.flush, is_blocking=is_blocking)

        seen: set[str] = set()
        try:
            async with silent(proxy, flush):
                for argument, values in (("key", BAD_KEYS), ("prefix", BAD_KEYS), ("filters", BAD_FILTERS)):
                    for value in values:
                        for name, call in calls_with(KeyValue, argument, value):
                            seen.add(name)
                            with pytest.raises(UsageError):
                                await finish(partial(call, handle), is_blocking=is_blocking)
                writer = handle.writer()
                for value in BAD_KEYS:
                    for _, call in calls_with(Writer, "key", value):
                        with pytest.raises(UsageError):
                            await finish(partial(call, writer), is_blocking=is_blocking)
            assert seen == KEYED
        finally:
            await finish(client.close, is_blocking=is_blocking)


@pytest.mark.spec("KV-02")
async def test_bad_buckets_and_histories_are_rejected_before_anything_is_sent(any_server: str) -> None:
    async with proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        js = nc.jetstream()
        configs = [BucketConfig(bucket=bucket) for bucket in BAD_BUCKETS]
        configs += [BucketConfig(bucket="b", history=history) for history in (0, -1, 65)]
        configs += [BucketConfig(bucket="b", mirror=BucketSource(bucket=bucket)) for bucket in BAD_BUCKETS]
        configs += [BucketConfig(bucket="b", sources=(BucketSource(bucket=bucket),)) for bucket in BAD_BUCKETS]
        async with silent(proxy, nc.flush):
            for config in configs:
                with pytest.raises(UsageError):
                    await js.create_key_value(config)
            for bucket in BAD_BUCKETS:
                with pytest.raises(UsageError):
                    await js.key_value(bucket)
                with pytest.raises(UsageError):
                    await js.delete_key_value(bucket)
                with pytest.raises(UsageError):
                    await js.update_key_value(BucketConfig(bucket=bucket, history=2))


def writes(handle: Any) -> dict[str, Callable[[], Any]]:
    """A call of every method that writes."""
    day = timedelta(days=1)
    return {
        "put": lambda: handle.put("a", b"2", ttl=day),
        "create": lambda: handle.create("b", b"2"),
        "update": lambda: handle.update("a", b"2", last=1),
        "delete": lambda: handle.delete("a"),
        "purge": lambda: handle.purge("a"),
        "delete_range": lambda: handle.delete_range(">"),
        "purge_range": lambda: handle.purge_range("*"),
        "purge_deletes": lambda: handle.purge_deletes(older_than=timedelta(0), recorded=True),
        "destroy": lambda: handle.destroy(),
        "writer": lambda: handle.writer(),
        "lock": lambda: handle.lock("l").acquire(timeout=5),
        "election": lambda: handle.election("e").campaign(timeout=5),
        "members": lambda: handle.members("m").join("me", timeout=5),
    }


@pytest.mark.spec("KV-20")
async def test_a_read_only_handle_sends_nothing_for_any_write(any_server: str, fresh: str) -> None:
    public = {name for name, value in vars(KeyValue).items() if inspect.isfunction(value) and not name.startswith("_")}
    async with proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        assert public == READS | writes(kv).keys()  # a new method must say which it is
        await kv.put("a", b"1")
        await kv.delete(f"gone.{fresh}")  # a mark that purge_deletes would find
        cached = await kv.read_only().cached()
        handles: list[Any] = [
            kv.read_only(),
            kv.read_only().read_only(),
            kv.read_only().with_codec(Base64Keys()),
            kv.with_codec(Base64Keys()).read_only(),
            cached,
        ]
        async with silent(proxy, nc.flush):
            for handle in handles:
                for write in writes(handle).values():
                    with pytest.raises(ReadOnlyError, match=fresh):
                        await finish(write, is_blocking=False)
            for storage in (kv.read_only().storage, kv.read_only().with_codec(Base64Keys()).storage):
                with pytest.raises(ReadOnlyError):
                    await storage.forget("YQ", below=9)
                with pytest.raises(ReadOnlyError):
                    await storage.record_forgotten(9)
            with pytest.raises(ReadOnlyError):
                await kv.read_only().with_codec(Json(dict[str, int])).put("a", {"n": 1})
        assert (await kv.read_only().get("a")).value == b"1"
        assert await kv.read_only().election("e").leader() is None
        assert await kv.read_only().members("m").members() == {}
        await cached.close()
        assert (await kv.status()).last_revision == 2


async def test_a_read_only_handle_of_a_local_bucket_changes_nothing() -> None:
    kv = await open_local_key_value(":memory:", BucketConfig(bucket="local"))
    await kv.put("a", b"1")
    for write in writes(kv.read_only()).values():
        with pytest.raises(ReadOnlyError):
            await finish(write, is_blocking=False)
    assert ((await kv.get("a")).value, (await kv.status()).last_revision) == (b"1", 1)
    await kv.close()
