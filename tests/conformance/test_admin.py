"""Streams listed, purged and emptied one by one through our client, on our server and on the real one."""

from __future__ import annotations

import pytest

from slipstream import StreamConfig, connect, connect_blocking
from slipstream.errors import ApiError, StreamNotFoundError, UsageError


async def test_streams_are_listed_and_found_by_subject(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        for name in ("b", "a"):
            await js.create_stream(StreamConfig(name=f"{fresh}{name}", subjects=(f"{fresh}.{name}.>",)))
        assert {f"{fresh}a", f"{fresh}b"} <= {name async for name in js.stream_names()}
        assert [name async for name in js.stream_names(subject=f"{fresh}.a.x")] == [f"{fresh}a"]
        infos = [info async for info in js.streams(subject=f"{fresh}.*.x")]
        assert sorted(info.config.name for info in infos) == [f"{fresh}a", f"{fresh}b"]
        assert (await js.account_info()).streams >= 2
        await js.delete_stream(f"{fresh}a")
        with pytest.raises(StreamNotFoundError):
            await js.delete_stream(f"{fresh}a")


async def test_purges_say_how_many_messages_went(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.*",)))
        for place in range(10):
            await js.publish(f"{fresh}.{'ab'[place % 2]}", b"x")
        assert await stream.purge(subject=f"{fresh}.a", keep=2) == 3
        assert await stream.purge(below=5) == 2
        await stream.delete_message(6)
        with pytest.raises(ApiError):
            await stream.delete_message(6)
        state = (await stream.info()).state
        assert (state.messages, state.last_seq) == (4, 10)
        with pytest.raises(UsageError, match="mutually exclusive"):
            await stream.purge(below=5, keep=1)
        with pytest.raises(UsageError, match=r"below must be an integer .* got -1"):
            await stream.purge(below=-1)
        for below in (0, 1):  # no message is below these
            assert await stream.purge(below=below) == await stream.purge(subject=f"{fresh}.a", below=below) == 0
        assert await stream.purge() == 4


def test_the_blocking_client_lists_and_purges_too(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(StreamConfig(name=fresh, subjects=(fresh,)))
        js.publish(fresh, b"x")
        assert list(js.stream_names(subject=fresh)) == [fresh]
        assert [info.state.messages for info in js.streams(subject=fresh)] == [1]
        assert stream.purge() == 1
