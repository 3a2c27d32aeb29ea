"""What a connection knows of its streams, and the stats of its reads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from slipstream import StreamConfig, connect
from slipstream.api import StreamInfo, StreamState
from slipstream.client.base import BaseClient
from slipstream.client.reporter import Reporter
from slipstream.errors import Error, MessageNotFoundError
from slipstream.jetstream.reads.read_state import GENERATION_AGE, ReadState, ReadStats, StreamCache
from tests.client.test_session import connected
from tests.conformance.test_streams import config


def info(created: int, first: int | None = None) -> StreamInfo:
    state = StreamState() if first is None else StreamState(messages=1, first_ts=first)
    return StreamInfo(created=created, state=state)


def test_messages_from_before_the_stream_was_made_are_of_another_stream() -> None:
    notes = StreamCache()
    assert not notes.is_known(0.0)
    notes.learn(info(1_000), 0.0)
    assert (notes.floor, notes.is_known(GENERATION_AGE - 1), notes.is_known(GENERATION_AGE)) == (1_000, True, False)
    notes.learn(info(2_000), 0.0)  # made again
    assert notes.floor == 2_000
    notes.learn(info(1_000), 0.0)  # a leader of the old one
    assert notes.floor == 2_000


def test_a_server_without_a_cluster_is_the_only_store() -> None:
    """nats-server names itself as the leader then, and no cluster."""
    notes = StreamCache()
    for cluster, is_alone in (
        ({}, True),
        ({"leader": "NCJQ"}, True),
        ({"name": "C", "leader": "n1"}, False),
        ({"leader": "n1", "replicas": [{"name": "n2"}]}, False),
    ):
        notes.learn(replace(info(1_000), cluster=cluster), 0.0)
        assert notes.is_alone is is_alone
    notes.origin = "UPSTREAM"  # it may have more than the mirror
    notes.learn(info(1_000), 0.0)
    assert not notes.is_alone


def test_limits_told_by_a_follower_without_a_leader_end_the_trust_in_copies() -> None:
    """It may be late, so what it says proves nothing; but limits that it knows of were put on the stream."""
    led = {"name": "C", "leader": "n1", "replicas": [{"name": "n2", "active": 0}]}
    notes, stored = StreamCache(), StreamState(messages=1, first_seq=1, last_seq=1)
    notes.learn(StreamInfo(created=1_000, state=stored, cluster=led), 0.0)
    assert notes.is_lossless
    notes.learn(StreamInfo(created=1_000, state=stored, cluster={"name": "C"}), 1.0)
    assert notes.is_lossless
    limited = StreamConfig(name="S", max_msgs_per_subject=1)
    notes.learn(StreamInfo(config=limited, created=1_000, state=stored, cluster={"name": "C"}), 2.0)
    assert not notes.is_lossless


def test_clocks_that_differ_do_not_make_a_stream_distrust_itself() -> None:
    notes = StreamCache()
    notes.learn(info(1_000, first=990), 0.0)  # its first message, by the clock of another server
    assert notes.floor == 990
    notes.learn(info(1_000, first=5_000), 0.0)
    assert notes.floor == 1_000


def test_contexts_of_one_connection_share_their_read_state() -> None:
    one, other = (BaseClient(connected(), Reporter(None)) for _ in range(2))
    assert one.shared(ReadState) is one.shared(ReadState)
    assert one.shared(ReadState) is not other.shared(ReadState)


def test_a_read_is_counted_once() -> None:
    state = ReadState()
    state.count(tries=0, with_leader=False)
    state.count(tries=3, with_leader=False)
    state.count(tries=0, with_leader=True)
    assert state.stats == ReadStats(at_once=1, retried=1, from_leader=1, failed=0, moves=0)


@pytest.mark.steady
async def test_the_stats_of_a_connection_can_be_read_at_any_time(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh))
        last = (await js.publish(f"{fresh}.a", b"x")).seq
        assert js.read_stats == ReadStats(0, 0, 0, 0, 0)
        await stream.get(last)
        await stream.get_last(f"{fresh}.a", min_last_seq=last)
        assert [m.seq async for m in stream.read(end=last)] == [last]
        for read in (stream.get(last + 1), stream.get_last(f"{fresh}.b", min_last_seq=last)):
            try:
                await read
            except MessageNotFoundError:
                continue
        absence = js.read_stats.from_leader  # a server without `min_last_seq` proves it by its leader
        assert js.read_stats == ReadStats(5 - absence, 0, absence, 0, 0)
        await stream.get(last, from_leader=True)
        with suppress(Error):
            await stream.get(last, min_last_seq=last + 1, timeout=0.3)
        assert nc.jetstream().read_stats == ReadStats(5 - absence, 0, absence + 1, 1, 0)


def test_a_suspicious_answer_is_checked_with_the_leader_once_a_second() -> None:
    notes = StreamCache()
    assert notes.may_ask(0.0)
    notes.learn(info(1_000), 5.0)
    assert not notes.may_ask(5.5)
    assert notes.may_ask(6.0)
