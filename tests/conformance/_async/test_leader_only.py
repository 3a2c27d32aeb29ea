"""Streams without Direct Get: their reads are answered by the leader, and nothing changes the setting unasked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from slipstream import (
    DirectGetNotAllowedError,
    MessageNotFoundError,
    StaleReadError,
    StreamConfig,
    StreamNameInUseError,
    StreamNotFoundError,
    connect,
)
from slipstream.facade._async.client import JetStream
from slipstream.jetstream._async.stream import Stream

Read = Callable[[Stream, int], Any]


@asynccontextmanager
async def leader_only(url: str, name: str) -> AsyncIterator[tuple[JetStream, Stream]]:
    """A stream without Direct Get and with three messages, over a connection that knows nothing of it."""
    async with connect(url) as nc:
        js = nc.jetstream()
        await js.create_stream(name, subjects=f"{name}.*", allow_direct=False)
        for subject in "aba":
            await js.publish(f"{name}.{subject}", subject.encode())
    async with connect(url) as nc:
        js = nc.jetstream()
        yield js, js.stream(name)


async def get(stream: Stream, least: int) -> object:
    return (await stream.get(2, min_last_seq=least)).seq


async def get_last(stream: Stream, least: int) -> object:
    return (await stream.get_last(f"{stream.name}.a", min_last_seq=least)).seq


async def get_next(stream: Stream, least: int) -> object:
    return (await stream.get_next(f"{stream.name}.*", seq=2, min_last_seq=least)).seq


async def get_last_many(stream: Stream, least: int) -> object:
    found = await stream.get_last_many(f"{stream.name}.*", min_last_seq=least)
    return sorted(message.seq for message in found.values())


async def read(stream: Stream, least: int) -> object:
    return [message.seq async for message in stream.read(min_last_seq=least)]


@pytest.mark.parametrize("least", [0, 3], ids=["plain", "trusted"])
@pytest.mark.parametrize(
    ("reads", "wanted"),
    [(get, 2), (get_last, 3), (get_next, 2), (get_last_many, [2, 3]), (read, [1, 2, 3])],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_reads_without_direct_get_are_answered_by_the_leader(
    any_server: str, fresh: str, reads: Read, wanted: object, least: int
) -> None:
    async with leader_only(any_server, fresh) as (js, stream):
        assert await reads(stream, least) == wanted
        assert await reads(stream, least) == wanted  # and is remembered
        stats = js.read_stats
        assert (stats.from_leader, stats.failed) == (2, 0)


@pytest.mark.steady
async def test_what_a_leader_does_not_have_is_said_as_by_any_replica(any_server: str, fresh: str) -> None:
    async with leader_only(any_server, fresh) as (js, stream):
        for least in (0, 3):
            with pytest.raises(MessageNotFoundError, match=f"{fresh}.c"):
                await stream.get_last(f"{fresh}.c", min_last_seq=least)
        with pytest.raises(StaleReadError):
            await stream.get_last(f"{fresh}.a", min_last_seq=4, timeout=1.5)
        async with js.session() as session:
            ack = await session.publish(f"{fresh}.b", b"newer")
            assert (await session.stream(fresh).get_last(f"{fresh}.b")).seq == ack.seq


async def test_what_only_direct_get_can_do_says_so(any_server: str, fresh: str) -> None:
    async with leader_only(any_server, fresh) as (_, stream):
        for _ in range(2):  # not known yet, and known
            with pytest.raises(DirectGetNotAllowedError, match=f"start_time needs Direct Get: set .* {fresh!r}"):
                assert [message async for message in stream.read(start_time=datetime(2026, 1, 1, tzinfo=UTC))]
            with pytest.raises(DirectGetNotAllowedError, match="up_to_seq needs Direct Get"):
                await stream.get_last_many(f"{fresh}.a", up_to_seq=2)
            assert (await stream.get(1)).data == b"a"


async def test_a_stream_may_allow_direct_gets_later(any_server: str, fresh: str) -> None:
    async with leader_only(any_server, fresh) as (js, stream):
        assert (await stream.get(1)).seq == 1
        info = await js.update_stream((await stream.info()).config.replace(allow_direct=True))
        assert info.config.allow_direct
        assert (await stream.get(1)).seq == 1
        await stream.delete()
        with pytest.raises(StreamNotFoundError):
            await stream.get(1)


async def test_an_existing_stream_keeps_its_setting(any_server: str, fresh: str) -> None:
    """One made by another client, or by a version that did not set the field, is neither refused nor changed."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(StreamConfig(fresh, subjects=f"{fresh}.*", allow_direct=False))
        stream = await js.create_stream(fresh, subjects=f"{fresh}.*")
        assert not (await stream.info()).config.allow_direct
        with pytest.raises(StreamNameInUseError):
            await js.create_stream(fresh, subjects=f"{fresh}.*", allow_direct=True)
        with pytest.raises(StreamNameInUseError):
            await js.create_stream(fresh, subjects=f"{fresh}.other")
        assert not (await js.update_stream(fresh, subjects=f"{fresh}.*", max_age=60)).config.allow_direct
        assert (await js.update_stream(fresh, subjects=f"{fresh}.*", allow_direct=True)).config.allow_direct
        assert (await js.update_stream(StreamConfig(fresh, subjects=f"{fresh}.*"))).config.allow_direct
        await js.create_stream(f"{fresh}2", subjects=f"{fresh}2")
        assert (await js.stream(f"{fresh}2").info()).config.allow_direct
