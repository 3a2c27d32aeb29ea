"""Reads by the leader alone, also of streams that allow no Direct Gets; the setting is named where it is missing."""

from __future__ import annotations

from functools import partial

import pytest

from slipstream import connect
from slipstream.errors import DirectGetNotAllowedError, MessageNotFoundError, StaleReadError, StreamNotFoundError
from tests.conformance.test_streams import config


@pytest.mark.steady
async def test_a_stream_without_direct_gets_is_read_by_its_leader(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh, allow_direct=False))
        last = [(await js.publish(f"{fresh}.{n % 3}", b"%d" % n)).seq for n in range(200)][-1]
        for wanted in (0, last):
            assert (await stream.get(7, from_leader=True, min_last_seq=wanted)).data == b"6"
            assert (await stream.get_last(f"{fresh}.1", from_leader=True, min_last_seq=wanted)).data == b"199"
            assert (await stream.get_last(f"{fresh}.*", from_leader=True, min_last_seq=wanted)).data == b"199"
            assert (await stream.get_next(f"{fresh}.2", seq=9, from_leader=True, min_last_seq=wanted)).seq == 9
            everything = [m.seq async for m in stream.read(from_leader=True, min_last_seq=wanted)]
            assert everything == list(range(1, 201))
            for missing in (
                stream.get(last + 1, from_leader=True, min_last_seq=wanted),
                stream.get_last(f"{fresh}.x", from_leader=True, min_last_seq=wanted),
                stream.get_next(f"{fresh}.x", from_leader=True, min_last_seq=wanted),
            ):
                with pytest.raises(MessageNotFoundError):
                    await missing
        third = [m.seq async for m in stream.read(start=10, end=150, subject=f"{fresh}.1", from_leader=True)]
        assert third == [seq for seq in range(10, 151) if (seq - 1) % 3 == 1]
        newest = await stream.get_last_many([f"{fresh}.*"], from_leader=True)
        assert {subject: message.seq for subject, message in newest.items()} == {
            f"{fresh}.2": 198,
            f"{fresh}.0": 199,
            f"{fresh}.1": 200,
        }
        for unproven in (
            stream.get(last, from_leader=True, min_last_seq=last + 1, timeout=2.0),
            stream.get_last(f"{fresh}.1", from_leader=True, min_last_seq=last + 1, timeout=2.0),
        ):
            with pytest.raises(StaleReadError):
                await unproven
        with pytest.raises(StaleReadError):
            assert [m async for m in stream.read(start=200, end=201, from_leader=True, timeout=2.0)]


async def test_a_settled_leader_proves_what_is_older_also_without_direct_get(real_url: str, fresh: str) -> None:
    """A stream without replicas has one leader ever."""
    async with connect(real_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh, allow_direct=False))
        await js.publish(f"{fresh}.a", b"x")
        last = (await js.publish(f"{fresh}.b", b"x")).seq
        assert (await stream.get_last(f"{fresh}.a", from_leader=True, min_last_seq=last, timeout=20)).data == b"x"
        assert (await stream.get_last(f"{fresh}.a", min_last_seq=last, timeout=20)).data == b"x"
        assert [m.seq async for m in stream.read(end=last, timeout=20)] == [1, 2]
        with pytest.raises(DirectGetNotAllowedError, match="set allow_direct"):
            await stream.get_last_many(f"{fresh}.a", up_to_seq=last, min_last_seq=last, timeout=20)
        await js.update_stream(config(fresh, allow_direct=True))
        assert (await stream.get_last(f"{fresh}.a", from_leader=True, min_last_seq=last)).data == b"x"


async def test_a_missing_stream_is_not_waited_for(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        stream = nc.jetstream(timeout=30).stream(fresh)
        begin = nc.now()
        for read in (partial(stream.get, 1), partial(stream.get_last, f"{fresh}.a")):
            with pytest.raises(StreamNotFoundError):
                await read(min_last_seq=1)
        with pytest.raises(StreamNotFoundError):
            assert [m async for m in stream.read(end=5)]
        assert nc.now() - begin < 20  # of 30
