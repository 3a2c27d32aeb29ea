"""Reads of our client on our server whose replicas and mirrors are held: no sleeps, no chance.

A held replica answers from what it has; who answers is chance on our server too, so each plain read below is made often
enough to meet it. The server keeps `min_last_seq` itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from slipstream import BucketConfig, StreamConfig, connect
from slipstream.api import GetRequest, StreamSource
from slipstream.errors import Error, KeyNotFoundError, MessageNotFoundError, MinLastSequenceError, StaleReadError
from slipstream.facade._async.client import JetStream
from slipstream.jetstream._async.stream import Stream
from slipstream.testing import TestServer

OFTEN = 60


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with TestServer() as server:
        yield server


async def held(js: JetStream, server: TestServer, name: str, **changes: object) -> tuple[Stream, int]:
    """A stream with three replicas that hold `old`, of which only the leader also has `new`; and its last sequence."""
    config = StreamConfig(name=name, subjects=(f"{name}.>",), num_replicas=3, allow_direct=True).replace(**changes)
    stream = await js.create_stream(config)
    await js.publish(f"{name}.a", b"old")
    server.hold(name)
    await js.publish(f"{name}.a", b"new")
    return stream, (await js.publish(f"{name}.b", b"new")).seq


def reads(stream: Stream, last: int) -> dict[str, Callable[[], Awaitable[list[bytes]]]]:
    """Every read path with `min_last_seq`, and as what it gives: data, in order."""
    name = stream.name

    async def last_of(subject: str) -> list[bytes]:
        return [(await stream.get_last(subject, min_last_seq=last)).data]

    async def by_leader() -> list[bytes]:
        return [(await stream.get_last(f"{name}.a", min_last_seq=last, from_leader=True)).data]

    async def by_seq() -> list[bytes]:
        return [(await stream.get(last, min_last_seq=last)).data]

    async def following() -> list[bytes]:
        return [(await stream.get_next(f"{name}.a", seq=2, min_last_seq=last)).data]

    async def many() -> list[bytes]:
        found = await stream.get_last_many([f"{name}.a", f"{name}.b"], min_last_seq=last)
        return [message.data for message in found.values()]

    async def messages() -> list[bytes]:
        return [message.data async for message in stream.read(start=2, min_last_seq=last)]

    async def columns() -> list[bytes]:
        return [data async for columns in stream.read_columns(start=2, end=last) for data in columns.data]

    return {
        "last": lambda: last_of(f"{name}.a"),
        "last of a wildcard": lambda: last_of(f"{name}.*"),
        "by leader": by_leader,
        "by sequence": by_seq,
        "next": following,
        "many": many,
        "messages": messages,
        "columns": columns,
    }


async def test_a_held_replica_shows_the_problem_and_min_last_seq_solves_it(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        stream, last = await held(js, server, fresh)
        plain = {(await stream.get_last(f"{fresh}.a")).data for _ in range(OFTEN)}
        assert plain == {b"old", b"new"}
        for what, read in reads(stream, last).items():
            for _ in range(OFTEN // 3):
                assert set(await read()) == {b"new"}, what
        assert js.read_stats.retried == 0  # followers that cannot answer pass it on to the leader


@pytest.mark.steady
async def test_every_read_rejects_a_missing_sequence_until_it_is_stored(server: TestServer, fresh: str) -> None:
    """The document's recipe, with replicas that are held on top."""
    async with connect(server.url) as nc:
        js = nc.jetstream()
        stream, last = await held(js, server, fresh)
        for what, read in reads(nc.jetstream(timeout=0.8).stream(fresh), last + 1).items():
            with pytest.raises((StaleReadError, MinLastSequenceError)):
                assert await read() == [], what
        await js.publish(f"{fresh}.a", b"new")
        for what, read in reads(stream, last + 1).items():
            assert set(await read()) == {b"new"}, what


async def test_a_session_on_held_replicas_sees_its_writes_and_never_goes_back(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        await held(js, server, fresh)
        async with js.session() as session:
            stream = session.stream(fresh)
            views = []
            for n in range(OFTEN):
                views.append((await stream.get_last(f"{fresh}.a")).seq)
                if n % 10 == 9:
                    mine = (await session.publish(f"{fresh}.a", b"%d" % n)).seq
                    assert (await stream.get_last(f"{fresh}.a")).seq == mine
            assert views == sorted(views)


async def test_a_held_mirror_is_asked_again_until_it_or_another_is_new_enough(server: TestServer, fresh: str) -> None:
    """A held mirror rejects after half a second, and half of the attempts reach it.

    Within the usual five seconds a read has nine attempts, all of which meet the mirror once in 512 reads.
    """
    async with connect(server.url) as nc:
        js = nc.jetstream(timeout=60)
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        await js.publish(f"{fresh}.a", b"old")
        copy = f"{fresh}_COPY"
        await js.create_stream(StreamConfig(name=copy, mirror=StreamSource(name=fresh), mirror_direct=True))
        while copy not in {(await stream.get_last(f"{fresh}.a")).stream for _ in range(10)}:
            pass
        server.hold_mirror(copy)
        last = (await js.publish(f"{fresh}.a", b"new")).seq
        assert {(await stream.get_last(f"{fresh}.a")).data for _ in range(OFTEN)} == {b"old", b"new"}
        for _ in range(6):
            found = await stream.get_last(f"{fresh}.a", min_last_seq=last)
            assert (found.data, found.stream) == (b"new", fresh)
            assert [m.data async for m in stream.read(end=last)] == [b"old", b"new"]
        assert js.read_stats.retried > 0  # a mirror that cannot says no
        server.release_mirror(copy)
        while copy not in {(await stream.get_last(f"{fresh}.a", min_last_seq=last)).stream for _ in range(10)}:
            pass


async def test_a_deposed_leader_that_does_not_know_it_is_not_believed(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(
            StreamConfig(name=fresh, subjects=(f"{fresh}.>",), num_replicas=3, allow_direct=True)
        )
        await js.publish(f"{fresh}.a", b"old")
        server.depose(fresh, unaware=True)
        last = (await js.publish(f"{fresh}.a", b"new")).seq
        plain = {(await stream.get_last(f"{fresh}.a")).data for _ in range(OFTEN)}
        assert b"old" in plain
        for what, read in reads(stream, last).items():
            if what in ("last", "by leader", "by sequence", "next", "columns"):
                for _ in range(3):
                    assert await read() == [b"new"], what


@pytest.mark.spec("RW-15", on="C")
async def test_a_purge_of_a_key_is_a_message_and_holds_on_every_read(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        bucket = await js.create_key_value(BucketConfig(bucket=fresh, replicas=3))
        first = await bucket.put("k", b"1")
        await bucket.put("other", b"2")
        server.hold(f"KV_{fresh}")
        purged = await bucket.purge("k")
        stream = js.stream(f"KV_{fresh}")
        for _ in range(20):
            with pytest.raises(KeyNotFoundError):
                await bucket.get("k", min_last_revision=purged)
            with pytest.raises(MessageNotFoundError):
                await stream.get(first, min_last_seq=purged)


@pytest.mark.spec("RW-15", on="C")
async def test_a_delete_of_a_message_moves_no_sequence_and_is_not_covered(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        stream, last = await held(nc.jetstream(), server, fresh)
        server.release(fresh)
        server.hold(fresh)
        await stream.delete_message(1)
        seen: set[bytes | None] = set()
        for _ in range(OFTEN):
            try:
                seen.add((await stream.get(1, min_last_seq=last)).data)
            except MessageNotFoundError:
                seen.add(None)
        assert seen == {b"old", None}  # an old copy is as far as a new one


async def test_a_lost_answer_of_a_session_is_requested_again(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc, nc.jetstream(timeout=3).session() as session:
        stream = await session.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        await nc.jetstream().publish(f"{fresh}.a", b"x")
        server.drop(f"$JS.API.DIRECT.GET.{fresh}.{fresh}.a", direction="to_server")
        assert (await stream.get_last(f"{fresh}.a")).data == b"x"
        assert session.read_stats.retried == 1


@pytest.mark.spec("RW-09", on="C")
@pytest.mark.steady
async def test_the_appended_form_carries_min_last_seq_and_nothing_else(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        last = (await js.publish(f"{fresh}.a", b"x")).seq
        async with connect(server.url) as other:
            watch = await other.subscribe(f"$JS.API.DIRECT.GET.{fresh}.>")
            await other.flush()
            assert (await stream.get_last(f"{fresh}.a", min_last_seq=last)).data == b"x"
            asked = await watch.next(timeout=5)
        assert (asked.subject, asked.data) == (f"$JS.API.DIRECT.GET.{fresh}.{fresh}.a", b'{"min_last_seq":1}')
        with pytest.raises(StaleReadError):
            await stream.get_last(f"{fresh}.a", min_last_seq=last + 1, timeout=2.0)
        await js.publish(f"{fresh}.a", b"y")
        assert (await stream.get_last(f"{fresh}.a", min_last_seq=last + 1)).data == b"y"


async def test_message_get_on_held_replicas_is_the_leaders(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        stream, last = await held(nc.jetstream(), server, fresh)
        for _ in range(10):
            request = GetRequest(last_by_subj=f"{fresh}.a", min_last_seq=last)
            assert (await stream.get_from_leader(request)).data == b"new"
        with pytest.raises(Error):
            await stream.get_from_leader(GetRequest(seq=last + 5))
