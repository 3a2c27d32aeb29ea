"""Range reads: deleted and expired messages in every position are told apart from replicas that are behind."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from slipstream import connect, connect_blocking
from slipstream.errors import MessageNotFoundError, StaleReadError
from slipstream.jetstream._async.stream import Stream
from tests.conformance.test_streams import config, fill

SIZE = 12
POSITIONS: dict[str, set[int]] = {
    "none": set(),
    "first": {1},
    "last": {12},
    "first and last": {1, 12},
    "a block in front": {1, 2, 3, 4},
    "a block at the end": {9, 10, 11, 12},
    "blocks inside": {3, 4, 8, 9},
    "every other": {2, 4, 6, 8, 10, 12},
    "all but the first": set(range(2, 13)),
    "all but the last": set(range(1, 12)),
    "all but one": set(range(1, 13)) - {6},
    "everything": set(range(1, 13)),
}


async def check_ranges(stream: Stream, alive: list[int], last: int) -> None:
    """Every way to read a range gives the messages that exist."""
    name = stream.name
    for start, end in ((1, last), (1, last - 1), (3, 9), (last, last), (5, last), (1, 1)):
        right = [seq for seq in alive if start <= seq <= end]
        assert [m.seq async for m in stream.read(start=start, end=end)] == right
        assert [m.seq async for m in stream.read(start=start, end=end, from_leader=True)] == right
        some = [m.seq async for m in stream.read(start=start, end=end, subject=f"{name}.1")]
        assert some == [seq for seq in right if (seq - 1) % 3 == 1]
    assert [m.seq async for m in stream.read(min_last_seq=last)] == alive
    chunks = [seq async for chunk in stream.read_chunks(end=last) for seq in [m.seq for m in chunk]]
    columns = [seq async for columns in stream.read_columns(end=last) for seq in columns.seqs]
    assert chunks == columns == alive


async def check_stale(stream: Stream, alive: list[int], last: int) -> None:
    """Beyond the last sequence everything is stale, whatever is deleted in front of it.

    Our server says so after half a second; the timeout allows for a slow machine.
    """
    with pytest.raises(StaleReadError):
        assert [m.seq async for m in stream.read(end=last + 1, timeout=2.0)] == alive
    with pytest.raises(StaleReadError):
        assert [m.seq async for m in stream.read(start=last + 1, end=last + 1, timeout=2.0)] == []
    for by_leader in (False, True):
        with pytest.raises(StaleReadError):
            await stream.get(last + 1, min_last_seq=last + 1, from_leader=by_leader, timeout=2.0)


async def check_gets(stream: Stream, alive: list[int], last: int) -> None:
    for seq in range(1, last + 1):
        if seq in alive:
            assert (await stream.get(seq, min_last_seq=last)).seq == seq
            assert (await stream.get(seq, min_last_seq=last, from_leader=True)).seq == seq
        else:
            for by_leader in (False, True):
                with pytest.raises(MessageNotFoundError):
                    await stream.get(seq, min_last_seq=last, from_leader=by_leader)
    newest = max(alive, default=0)
    if newest:
        assert (await stream.get_last(f"{stream.name}.>", min_last_seq=last)).seq == newest
        assert (await stream.get_next(f"{stream.name}.>", min_last_seq=last)).seq == min(alive)
    for by_leader in (False, True):
        with pytest.raises(MessageNotFoundError):
            await stream.get_last(f"{stream.name}.none", min_last_seq=last, from_leader=by_leader)
        with pytest.raises(MessageNotFoundError):
            await stream.get_next(f"{stream.name}.>", seq=newest + 1, min_last_seq=last, from_leader=by_leader)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.steady
async def test_deleted_messages_in_every_position_are_not_taken_for_staleness(
    any_server: str, fresh: str, position: str
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        await fill(js, fresh, SIZE)
        for seq in POSITIONS[position]:
            await stream.delete_message(seq)
        alive = [seq for seq in range(1, SIZE + 1) if seq not in POSITIONS[position]]
        await check_ranges(stream, alive, SIZE)
        await check_gets(stream, alive, SIZE)
        if position in ("none", "last", "everything"):
            await check_stale(stream, alive, SIZE)


@pytest.mark.parametrize("how", ["purged", "kept by number", "expired"])
@pytest.mark.steady
async def test_messages_removed_by_a_purge_a_limit_or_age_are_not_taken_for_staleness(
    any_server: str, fresh: str, how: str
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        limits: dict[str, dict[str, object]] = {
            "expired": {"max_age": timedelta(seconds=1)},
            "kept by number": {"max_msgs": 4},
        }
        stream = await js.create_stream(config(fresh, **limits.get(how, {})))
        await fill(js, fresh, SIZE)
        if how == "purged":
            await stream.purge()
        while how == "expired" and (await stream.info()).state.messages:
            await asyncio.sleep(0.1)
        alive = list(range(9, 13)) if how == "kept by number" else []
        await check_ranges(stream, alive, SIZE)
        await check_gets(stream, alive, SIZE)
        await check_stale(stream, alive, SIZE)


@pytest.mark.steady
async def test_a_range_over_more_subjects_than_a_server_tells_of_at_once(any_server: str, fresh: str) -> None:
    """The proof by anchors is rejected there (413): the leader's state, or all subjects, replace it."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        await fill(js, fresh, 1_500, subjects=1_500)
        last = (await js.publish(f"{fresh}.x.end", b"x")).seq
        await stream.delete_message(last)
        alive = list(range(1, 1_501))
        assert [m.seq async for m in stream.read(end=last)] == alive
        assert [m.seq async for m in stream.read(end=last, subject=f"{fresh}.*")] == alive
        assert [m.seq async for m in stream.read(start=1_400, end=last, subject=f"{fresh}.>")] == alive[1_399:]
        assert (await stream.get_last(f"{fresh}.>", min_last_seq=last)).seq == 1_500
        assert (await stream.get_last(f"{fresh}.*", min_last_seq=last)).seq == 1_500
        with pytest.raises(MessageNotFoundError):
            await stream.get_next(f"{fresh}.>", seq=1_501, min_last_seq=last)
        with pytest.raises(StaleReadError):
            assert [m.seq async for m in stream.read(end=last + 1, timeout=2.0)] == alive


@pytest.mark.spec("DG-24", on="C")
async def test_a_range_can_begin_anywhere_and_at_a_time(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        await fill(js, fresh, 30)
        middle = await stream.get(17)
        seqs = [m.seq async for m in stream.read(start_time=middle.time)]
        assert seqs[-1] == 30
        assert 17 in seqs
        assert seqs == [m.seq async for m in stream.read(start_time=middle.time, end=30)]
        assert [m.seq async for m in stream.read(start_time=middle.time + 10**12, min_last_seq=30)] == []
        half = [m.seq async for m in stream.read(end=15)]
        rest = [m.seq async for m in stream.read(start=half[-1] + 1, end=30)]
        assert half + rest == list(range(1, 31))


@pytest.mark.steady
def test_blocking_ranges_are_the_same(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(config(fresh))
        for n in range(SIZE):
            js.publish(f"{fresh}.{n % 3}", b"x")
        for seq in (1, 6, 12):
            stream.delete_message(seq)
        alive = [2, 3, 4, 5, 7, 8, 9, 10, 11]
        assert [m.seq for m in stream.read(end=SIZE)] == alive
        assert [m.seq for m in stream.read(end=SIZE, from_leader=True)] == alive
        assert stream.get(5, min_last_seq=SIZE).seq == 5
        assert stream.get_next(f"{fresh}.*", min_last_seq=SIZE).seq == 2
        with pytest.raises(MessageNotFoundError):
            stream.get(6, min_last_seq=SIZE)
        with pytest.raises(StaleReadError):
            list(stream.read(end=SIZE + 1, timeout=2.0))
