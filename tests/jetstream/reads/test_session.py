"""Sessions: what they remember, as a token too; and read-your-writes through the client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import BucketConfig, connect, connect_blocking
from slipstream.errors import KeyNotFoundError, MessageNotFoundError, StaleReadError, UsageError
from slipstream.jetstream.reads import session as sessions
from slipstream.jetstream.reads.session import HandleState, SessionState
from tests.conformance.test_streams import config


def test_the_highest_sequence_is_kept_per_stream() -> None:
    state = SessionState()
    assert state.seen("S") == 0
    for stream, seq in (("S", 5), ("S", 3), ("T", 1)):
        state.note(stream, seq)
    assert (state.seen("S"), state.seen("T")) == (5, 1)


def test_a_recreated_stream_starts_its_sequences_over() -> None:
    state = SessionState()
    state.note("S", 50)
    state.made("S", 1_000, 50)
    assert (state.seen("S"), state.created("S")) == (50, 1_000)
    assert not state.made("S", 900, 60, mark=state.mark("S"), is_firm=True)  # of a server that was cut off since
    assert (state.seen("S"), state.created("S")) == (50, 1_000)
    assert state.made("S", 2_000, 3, mark=state.mark("S"), is_firm=True)
    assert (state.seen("S"), state.created("S")) == (3, 2_000)
    state.note("S", 4)
    assert state.seen("S") == 4


def test_threads_that_note_together_lose_nothing() -> None:
    state = SessionState()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for highest in pool.map(lambda worker: note_many(state, worker), range(4)):
                assert highest <= state.seen("S")
    finally:
        sys.setswitchinterval(before)
    assert state.seen("S") == 19_999


def note_many(state: SessionState, worker: int) -> int:
    for seq in range(worker, 20_000, 4):
        state.note("S", seq)
        assert state.seen("S") >= seq
    return state.seen("S")


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=8), st.integers(0, 9))
def test_a_handle_remembers_messages_of_a_run_as_one_by_one(chunks: list[list[str]], repeated: int) -> None:
    """New subjects, known ones, several messages of one, runs that were read before, and the least recent forgotten."""
    state, model, evicted, seq = HandleState(), dict[str, int](), 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "MOST_KEYS", 5)
        runs = []
        for chunk in chunks:
            runs.append((chunk, list(range(seq + 1, seq + 1 + len(chunk)))))
            seq += len(chunk)
        for names, seqs in [*runs, *runs[repeated:]]:
            state.note_many("S", names, seqs)
            for name, number in zip(names, seqs, strict=True):
                if model.get(name, 0) < number:
                    model.pop(name, None)
                    model[name] = number
            while len(model) > 5:
                evicted = max(evicted, model.pop(next(iter(model))))
            assert state.held("S") == list(model)
            assert state.held("S", besides=[["a", "x"]]) == [name for name in model if name != "a"]
            for name in "abcdefgh":
                assert (state.known("S", name), state.wanted("S", name)) == (
                    model.get(name),
                    model.get(name, evicted),
                )


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.tuples(st.integers(1, 2**63), st.integers(1, 2**62))))
def test_a_token_holds_all_of_it(seen: dict[str, tuple[int, int]]) -> None:
    state = SessionState()
    for stream, (seq, created) in seen.items():
        state.made(stream, created, seq)
        state.note(stream, seq)
    again = SessionState(state.token())
    for stream, (seq, created) in seen.items():
        assert (again.seen(stream), again.created(stream)) == (seq, created)
    assert again.token() == state.token()
    assert state.token().isascii()


@pytest.mark.parametrize("bad", ["!", "e30", "WzIse31d", "WzEseyJTIjpbLTEsMF19XQ", "x" * 2_000_000, "W1tbW1tb" * 500])
def test_an_invalid_token_is_rejected(bad: str) -> None:
    with pytest.raises(UsageError, match="session token must"):
        SessionState(bad)


@pytest.mark.spec("RW-13")
async def test_a_session_reads_what_it_wrote_and_never_goes_back(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, nc.jetstream().session() as session:
        stream = await session.create_stream(config(fresh))
        assert session.seen(fresh) == 0
        for n in range(1, 4):
            assert (await session.publish(f"{fresh}.a", b"%d" % n)).seq == session.seen(fresh) == n
            assert (await stream.get_last(f"{fresh}.a")).data == b"%d" % n
        other = nc.jetstream()
        await other.publish(f"{fresh}.b", b"4")
        assert session.seen(fresh) == 3
        assert (await stream.get_last(f"{fresh}.*")).seq == 4
        assert session.seen(fresh) == 4  # from now on every read has seen it
        async with session.publisher() as publisher:
            for _ in range(10):
                await publisher.publish(f"{fresh}.c")
        assert session.seen(fresh) == 14
        assert [message.seq async for message in stream.read(subject=f"{fresh}.c")] == list(range(5, 15))


@pytest.mark.spec("RW-13")
@pytest.mark.steady
async def test_a_session_asks_for_what_it_has_seen_on_every_read(any_server: str, fresh: str) -> None:
    """A session that has noted a sequence no replica has yet returns nothing from any read."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        await js.publish(f"{fresh}.a", b"1")
        async with js.session() as session:
            session.note(fresh, 2)
            stream = session.stream(fresh)
            reads: list[Callable[[], Awaitable[object]]] = [
                lambda: stream.get(1, timeout=2.0),
                lambda: stream.get_last(f"{fresh}.a", timeout=2.0),
                lambda: stream.get_last(f"{fresh}.>", timeout=2.0),
                lambda: stream.get_next(f"{fresh}.a", timeout=2.0),
                lambda: stream.get_last_many([f"{fresh}.a"], timeout=2.0),
                lambda: stream.get(1, from_leader=True, timeout=2.0),
            ]
            for read in reads:
                with pytest.raises(StaleReadError):
                    await read()
            with pytest.raises(StaleReadError):
                assert [m.seq async for m in stream.read(timeout=2.0)] == [1]
            await js.publish(f"{fresh}.b", b"2")
            for read in reads:
                await read()
            assert [m.seq async for m in stream.read()] == [1, 2]


async def test_a_bucket_of_a_session_is_part_of_it(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, nc.jetstream().session() as session:
        bucket = await session.create_key_value(BucketConfig(bucket=fresh))
        revision = await bucket.put("k", b"v")
        assert session.seen(f"KV_{fresh}") == revision
        assert (await bucket.get("k")).value == b"v"
        gone = await bucket.delete("k")
        assert session.seen(f"KV_{fresh}") == gone
        with pytest.raises(KeyNotFoundError):
            await bucket.get("k")


CONTINUE = """
import sys
from slipstream import connect_blocking
url, name, token = sys.argv[1:]
with connect_blocking(url) as nc, nc.jetstream().session(token) as session:
    assert session.seen(name) == 3
    print(session.stream(name).get_last(f"{name}.a").data.decode())
    session.publish(f"{name}.a", b"four")
    print(session.token())
"""


@pytest.mark.spec("RW-13")
def test_a_session_continues_in_another_process(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc, nc.jetstream().session() as session:
        stream = session.create_stream(config(fresh))
        for n in range(3):
            session.publish(f"{fresh}.a", b"%d" % n)
        stream.get_last(f"{fresh}.a")
        command = [sys.executable, "-c", CONTINUE, any_server, fresh, session.token()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        value, token = done.stdout.split()
        assert value == "2"
        assert len(token) < 100
        with nc.jetstream().session(token) as third:
            assert third.seen(fresh) == 4
            assert third.stream(fresh).get_last(f"{fresh}.a").data == b"four"


async def test_a_session_follows_a_stream_that_was_made_again(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        async with js.session() as session:
            for _ in range(5):
                await session.publish(f"{fresh}.a", b"old")
            await session.stream(fresh).get_last(f"{fresh}.a")
            await session.stream(fresh).delete()
            stream = await session.create_stream(config(fresh))
            assert session.seen(fresh) == 0
            await session.publish(f"{fresh}.b", b"new")
            with pytest.raises(MessageNotFoundError):
                await stream.get_last(f"{fresh}.a", timeout=20)
            assert (await stream.get_last(f"{fresh}.b", timeout=20)).data == b"new"


def test_notes_of_a_session_are_checked(our_url: str) -> None:
    with connect_blocking(our_url) as nc, nc.jetstream().session() as session:
        for bad in (("a.b", 1), ("S", -1), ("S", True)):
            with pytest.raises(UsageError):
                session.note(*bad)


def test_no_thread_waits_for_another() -> None:
    state = SessionState()
    turn = state._turn.pop()  # another thread has it
    state.made("S", 1_000, 2)
    state.note("S", 2, "a")
    state.note("T", 9, "a")
    assert (state.seen("S"), state.seen("T"), state.known("S", "a")) == (2, 9, None)
    assert SessionState(state.token()).seen("T") == 9
    state._turn.append(turn)
    assert (state.known("S", "a"), state.known("T", "a"), state.created("S")) == (2, 9, 1_000)
    assert not state._pending
