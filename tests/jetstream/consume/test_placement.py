"""Which copy a consumer reads: the verdicts on what servers say about leaders and placements. No server."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.api import ConsumerConfig, ConsumerInfo, StreamConfig, StreamInfo, StreamSource, StreamState
from slipstream.jetstream.consume.placement import (
    Leader,
    has_one_copy,
    has_other_stores,
    is_on,
    is_on_only_store,
    leader_of,
    starts_behind,
)

R3: dict[str, Any] = {"leader": "n1", "leader_since": "T1", "replicas": [{"name": "n2"}, {"name": "n3"}]}


def info(cluster: dict[str, Any], *, created: int = 1, last: int = 9) -> StreamInfo:
    return StreamInfo(cluster=cluster, created=created, state=StreamState(last_seq=last))


def test_the_leader_is_the_server_that_answers() -> None:
    assert leader_of(info(R3)) == Leader("n1", "T1", 1, 9)
    assert leader_of(info({})) == Leader("", "", 1, 9)  # a single server
    assert leader_of(info({"leader": "n1"})) == Leader("", "", 1, 9)  # one replica: whoever leads has the only copy


def test_an_answer_of_a_follower_names_no_leader() -> None:
    assert leader_of(info({"replicas": [{"name": "n2"}]})) is None
    assert leader_of(StreamInfo(config=StreamConfig(name="S", num_replicas=3))) is None
    assert leader_of(info(R3 | {"leader": "n2"})) is None


@pytest.mark.parametrize(
    "later",
    [
        info(R3 | {"leader": "n2", "replicas": [{"name": "n1"}, {"name": "n3"}]}),
        info(R3 | {"leader_since": "T2"}),  # deposed and elected again: it may have caught up in between
        info(R3, created=2),  # another stream of that name
    ],
)
def test_a_leader_that_changed_in_between_proves_nothing(later: StreamInfo) -> None:
    before, after = leader_of(info(R3)), leader_of(later)
    assert before is not None
    assert after is not None
    assert not before.is_same(after)


def test_a_leader_that_got_more_messages_is_the_same() -> None:
    before, after = leader_of(info(R3)), leader_of(info(R3, last=12))
    assert before is not None
    assert after is not None
    assert before.is_same(after)


def test_a_consumer_on_a_follower_is_not_on_the_leader() -> None:
    leader = Leader("n1", "T1", 1, 9)
    assert is_on(leader, ConsumerInfo(cluster={"leader": "n1"}))
    assert not is_on(leader, ConsumerInfo(cluster={"leader": "n2"}))
    assert not is_on(leader, ConsumerInfo())
    assert is_on(Leader("", "", 1, 9), ConsumerInfo())


def test_only_a_start_behind_the_wanted_sequence_needs_no_proof() -> None:
    start = ConsumerConfig(deliver_policy="by_start_sequence", opt_start_seq=10)
    assert starts_behind(start, 9)
    assert not starts_behind(start, 10)
    assert not starts_behind(ConsumerConfig(deliver_policy="new"), 9)  # behind what a copy has, which may be less


def test_a_stream_with_replicas_and_a_mirror_have_other_copies() -> None:
    assert has_one_copy(StreamInfo(config=StreamConfig(name="S")))
    assert not has_one_copy(StreamInfo(config=StreamConfig(name="S", num_replicas=3)))
    assert not has_one_copy(StreamInfo(config=StreamConfig(name="M", mirror=StreamSource(name="S"))))


def test_the_only_store_is_that_of_a_stream_which_is_no_mirror_on_a_server_without_a_cluster() -> None:
    consumer = ConsumerInfo(created=5)
    assert is_on_only_store(consumer, info({}))
    assert is_on_only_store(consumer, info({"leader": "n1"}))  # as a server of its own says it
    assert not is_on_only_store(consumer, info({"name": "C", "leader": "n1"}))  # one replica, which may be moved
    assert not is_on_only_store(consumer, info(R3))
    mirror = StreamInfo(config=StreamConfig(name="M", mirror=StreamSource(name="S")), created=1)
    assert not is_on_only_store(consumer, mirror)
    assert has_other_stores(mirror)
    assert not has_other_stores(info({}))


def test_a_consumer_of_a_stream_that_was_made_again_is_not_on_its_store() -> None:
    assert not is_on_only_store(ConsumerInfo(created=5), info({}, created=6))
    assert not is_on_only_store(ConsumerInfo(created=5), StreamInfo())  # an answer that does not say when
