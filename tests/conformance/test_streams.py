"""Streams and reads through our client, on our server and on the real one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from slipstream import StreamConfig, connect, connect_blocking
from slipstream.api import GetRequest
from slipstream.errors import (
    DirectGetNotAllowedError,
    MessageNotFoundError,
    NoRespondersError,
    NoStreamError,
    StaleReadError,
    StreamNameInUseError,
    StreamNotFoundError,
    StreamSubjectOverlapError,
    WrongLastSequenceError,
)
from slipstream.facade._async.client import JetStream
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.range_reader import PAGE_BYTES


def config(name: str, **changes: object) -> StreamConfig:
    return StreamConfig(name=name, subjects=(f"{name}.>",), allow_direct=True).replace(**changes)


async def fill(js: JetStream, name: str, count: int, *, subjects: int = 3) -> None:
    async with js.publisher() as publisher:
        for n in range(count):
            await publisher.publish(f"{name}.{n % subjects}", b"payload %d" % n)


@pytest.mark.spec("DG-01")
async def test_allow_direct_is_carried_by_create_update_and_info(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh, allow_direct=False))
        assert not (await stream.info()).config.allow_direct
        await js.update_stream(config(fresh, allow_direct=True))
        assert (await stream.info()).config.allow_direct


async def test_a_stream_is_made_once_found_again_and_refused_when_it_differs(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        await js.create_stream(config(fresh))
        with pytest.raises(StreamNameInUseError):
            await js.create_stream(config(fresh, max_msgs=5))
        with pytest.raises(StreamSubjectOverlapError):
            await js.create_stream(config(f"{fresh}other", subjects=(f"{fresh}.a",)))
        await js.stream(fresh).delete()
        with pytest.raises(StreamNotFoundError):
            await js.stream(fresh).info()


@pytest.mark.spec("RW-01")
async def test_every_publish_returns_its_sequence(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        for n in range(1, 4):
            ack = await js.publish(f"{fresh}.a", b"x")
            assert (ack.stream, ack.seq, ack.duplicate) == (fresh, n, False)
        again = await js.publish(f"{fresh}.a", b"x", msg_id="one")
        assert (await js.publish(f"{fresh}.a", b"x", msg_id="one")) == type(again)(fresh, 4, duplicate=True)


async def test_expectations_are_kept(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        await js.publish(f"{fresh}.a", b"1", expected_last_subject_seq=0)
        with pytest.raises(WrongLastSequenceError, match=rf"^subject '{fresh}\.a' is at sequence 1, not 0$"):
            await js.publish(f"{fresh}.a", b"2", expected_last_subject_seq=0)
        with pytest.raises(WrongLastSequenceError):
            await js.publish(f"{fresh}.b", b"2", expected_last_seq=7)
        assert (await js.publish(f"{fresh}.a", b"2", expected_last_seq=1, expected_last_subject_seq=1)).seq == 2


async def test_a_publish_without_a_stream_is_an_error(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        with pytest.raises(NoStreamError, match=fresh):
            await nc.jetstream().publish(f"{fresh}.a", b"x")
        with pytest.raises(NoRespondersError):
            await nc.request(f"{fresh}.a", b"x")


@pytest.mark.spec("DG-10", "DG-11", "DG-12", "DG-13", "DG-16", "DG-22", "DG-23")
async def test_single_direct_gets(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        for subject, payload in (("a", b"1"), ("b", b"2"), ("a", b"3")):
            await js.publish(f"{fresh}.{subject}", payload, headers={"K": ["v1", "v2"]})
        by_seq = await stream.get(2)
        assert (by_seq.subject, by_seq.seq, by_seq.data, by_seq.stream) == (f"{fresh}.b", 2, b"2", fresh)
        assert by_seq.headers.items() == [("K", "v1"), ("K", "v2")]
        info = await stream.info()
        assert info.state.first_ts <= by_seq.time <= info.state.last_ts
        assert (await stream.get_last(f"{fresh}.a")).data == b"3"
        assert (await stream.get_last(f"{fresh}.*")).data == b"3"
        assert (await stream.get_next(f"{fresh}.a")).data == b"1"
        assert (await stream.get_next(f"{fresh}.a", seq=2)).data == b"3"
        for missing in (stream.get(9), stream.get_last(f"{fresh}.z"), stream.get_next(f"{fresh}.b", seq=3)):
            with pytest.raises(MessageNotFoundError):
                await missing


@pytest.mark.spec("DG-04")
async def test_without_direct_get_the_leader_answers_or_the_error_says_so(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh, allow_direct=False))
        await js.publish(f"{fresh}.a", b"x")
        with pytest.raises(DirectGetNotAllowedError, match="allow_direct"):
            await js.run(js.context.api.probe_min_last_seq(fresh))  # a Direct Get as it is
        for read in (stream.get(1), stream.get_last(f"{fresh}.a")):
            assert (await read).data == b"x"
        with pytest.raises(DirectGetNotAllowedError, match="allow_direct"):
            async for _ in stream.read(start_time=1):
                pass


@pytest.mark.spec("DG-14", "DG-19", "DG-24")
async def test_any_number_of_messages_is_paged_through_in_order(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        await fill(js, fresh, 45_000)
        seen = [message.seq async for message in stream.read()]
        assert seen == list(range(1, 45_001))
        part = [message async for message in stream.read(start=7, end=30_011, subject=f"{fresh}.1")]
        assert [message.seq for message in part] == [n for n in range(7, 30_012) if (n - 1) % 3 == 1]
        assert all(message.data == b"payload %d" % (message.seq - 1) for message in part)


async def test_a_filtered_range_whose_last_match_lies_before_its_end_is_complete(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        await fill(js, fresh, 10, subjects=5)
        assert [m.seq async for m in stream.read(start=1, end=10, subject=f"{fresh}.1", timeout=20)] == [2, 7]
        assert [m.seq async for m in stream.read(start=1, end=10, subject=f"{fresh}.no", timeout=20)] == []


async def test_a_range_whose_end_is_gone_is_still_complete(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh, max_msgs_per_subject=1))
        await fill(js, fresh, 30, subjects=10)
        assert [m.seq async for m in stream.read(start=1, end=30)] == list(range(21, 31))
        assert [m.seq async for m in stream.read(start=1, end=25)] == list(range(21, 26))
        assert [m.seq async for m in stream.read(start=1, end=12)] == []


@pytest.mark.steady
async def test_the_documents_recipe_too_high_a_sequence_then_publish_then_the_same_read(
    any_server: str, fresh: str
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        await js.publish(f"{fresh}.a", b"old")
        reads: list[Callable[[], Awaitable[StoredMessage]]] = [
            lambda: stream.get_last(f"{fresh}.a", min_last_seq=2, timeout=1.2),
            lambda: stream.get_last(f"{fresh}.*", min_last_seq=2, timeout=1.2),
            lambda: stream.get_next(f"{fresh}.a", seq=2, min_last_seq=2, timeout=1.2),
        ]
        for read in reads:
            with pytest.raises(StaleReadError):
                await read()
        assert (await js.publish(f"{fresh}.a", b"new")).seq == 2
        for read in reads:
            assert (await read()).data == b"new"


@pytest.mark.spec("DG-24")
def test_a_range_of_any_size_is_read_in_bounded_memory(any_server: str, fresh: str) -> None:
    """64 MiB by a reader that is slower than the server: one page is held, and what is in flight behind it."""
    size, count = 256 * 1024, 256
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(config(fresh, storage="memory"))
        with js.publisher(max_in_flight=8) as publisher:
            for _ in range(count):
                publisher.publish(f"{fresh}.a", bytes(size))
        tracemalloc.start()
        try:
            seen = 0
            for message in stream.read(min_last_seq=count):
                seen += 1
                if seen % 16 == 0:  # the server would have sent everything by then
                    nc.flush()
                assert len(message.data) == size
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert seen == count
        assert peak < 3 * PAGE_BYTES
        stream.delete()


# F20: a statement of the document that had no row.
@pytest.mark.spec("DG-50")
async def test_an_explicit_allow_direct_is_honoured_without_a_limit_per_subject(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(fresh,), allow_direct=True))
        assert (await stream.info()).config.allow_direct
        edited = await js.update_stream(StreamConfig(name=fresh, subjects=(fresh,), allow_direct=True, max_msgs=9))
        assert edited.config.allow_direct
        await js.publish(fresh, b"1")
        assert (await stream.get(1)).data == b"1"


@pytest.mark.spec("DG-08")
async def test_message_get_sees_every_acknowledged_write(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        for n in range(50):
            ack = await js.publish(f"{fresh}.a", b"%d" % n, headers={"N": str(n)})
            found = await stream.get_from_leader(GetRequest(last_by_subj=f"{fresh}.a"))
            assert (found.seq, found.data, found.headers["N"]) == (ack.seq, b"%d" % n, str(n))


@pytest.mark.steady
async def test_absence_is_proven_too(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        seq = (await js.publish(f"{fresh}.a", b"x")).seq
        with pytest.raises(MessageNotFoundError):
            await stream.get_last(f"{fresh}.missing", min_last_seq=seq)
        with pytest.raises(MessageNotFoundError):
            await stream.get(5, min_last_seq=seq)
        with pytest.raises(StaleReadError):
            await stream.get_last(f"{fresh}.missing", min_last_seq=seq + 1, timeout=1.2)
        assert [m.seq async for m in stream.read(min_last_seq=seq)] == [1]
        with pytest.raises(StaleReadError):
            assert [m.seq async for m in stream.read(end=seq + 1, timeout=1.2)] == [1]


async def test_a_publisher_raises_what_the_stream_refused(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        publisher = js.publisher()
        await publisher.publish(f"{fresh}.a", b"1")
        await publisher.publish(f"{fresh}_no_such.a", b"2")
        with pytest.raises(NoStreamError) as caught:
            await publisher.flush()
        assert "message 1 on" in caught.value.__notes__[0]
        assert publisher.acked == 1


@pytest.mark.steady
def test_the_blocking_client_does_the_same(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(config(fresh))
        with js.publisher() as publisher:
            for n in range(5_000):
                publisher.publish(f"{fresh}.{n % 3}", b"payload %d" % n)
        assert publisher.acked == 5_000
        seq = js.publish(f"{fresh}.last", b"z").seq
        assert stream.get_last(f"{fresh}.last", min_last_seq=seq).data == b"z"
        assert [m.seq for m in stream.read()] == list(range(1, seq + 1))
        with pytest.raises(StaleReadError):
            stream.get_last(f"{fresh}.last", min_last_seq=seq + 1, timeout=1.2)
