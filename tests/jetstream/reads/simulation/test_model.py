"""The model of a stream and its copies has the properties that were measured on real servers."""

from __future__ import annotations

import random

import pytest

from slipstream.api import GetRequest
from tests.jetstream.reads.simulation.actions import Answer, Read
from tests.jetstream.reads.simulation.checker import broken
from tests.jetstream.reads.simulation.model import STREAM, History, Limits, Member, Mirror, Store, direct_get

LIMITS = (
    Limits(),
    Limits(per_subject=1),
    Limits(per_subject=2, rollups=True),
    Limits(max_msgs=4),
    Limits(max_bytes=100),
    Limits(rollups=True),
)


def write(history: History, random: random.Random, count: int) -> None:
    for _ in range(count):
        rollup = random.choice(("", "", "sub", "all")) if history.limits.rollups else ""
        history.write(random.choice("abcd"), history.now, rollup)


def survivors(history: History, last: int) -> dict[int, object]:
    return {seq: entry for seq, entry in history.states[-1].items() if seq <= last}


@pytest.mark.parametrize("limits", LIMITS)
def test_a_follower_that_replays_the_log_is_exact(limits: Limits) -> None:
    history, chance = History(0, limits), random.Random(1)
    follower = Member("n2", history)
    write(history, chance, 30)
    follower.logged = history.now
    while follower.replay():
        assert follower.store.messages == history.states[follower.applied]
        assert follower.store.last == history.lasts[follower.applied]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", range(20))
def test_a_follower_that_catches_up_has_all_survivors_and_is_exact_behind_the_gap(limits: Limits, seed: int) -> None:
    history, chance = History(0, limits), random.Random(seed)
    follower = Member("n2", history)
    write(history, chance, chance.randrange(10))
    follower.logged = history.now
    follower.replay_all()
    write(history, chance, 1 + chance.randrange(12))
    follower.begin_catchup(history.now)
    gap_until = history.last
    while follower.catching_up >= 0:
        write(history, chance, chance.randrange(2))
        follower.catch_up()
        gap_until = history.last
        assert survivors(history, follower.store.last).items() <= follower.store.messages.items()
    write(history, chance, 5)
    follower.logged = history.now
    while follower.replay():
        if follower.store.last >= gap_until:
            assert follower.store.messages == history.states[history.index[follower.store.last]]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", range(10))
def test_a_mirror_with_the_same_limits_is_exact_when_it_is_level(limits: Limits, seed: int) -> None:
    history, chance = History(0, limits), random.Random(seed)
    mirror = Mirror("M", "n2", 0, limits)
    for _ in range(6):
        write(history, chance, chance.randrange(8))
        for _ in range(chance.randrange(6)):
            mirror.feed(history.states[-1], history.last)
            assert survivors(history, mirror.store.last).items() <= mirror.store.messages.items()
    while mirror.feed(history.states[-1], history.last):
        pass
    assert mirror.store.messages == history.states[-1]


def test_a_mirror_that_does_not_apply_rollups_shows_what_is_gone_although_it_is_level() -> None:
    history = History(0, Limits(rollups=True))
    history.write("a", 1)
    mirror = Mirror("M", "n2", 0, Limits())
    mirror.feed(history.states[-1], history.last)
    history.write("b", 2, "all")
    mirror.feed(history.states[-1], history.last)
    assert mirror.store.last == history.last
    assert mirror.store.newest("a") is not None
    assert 1 not in history.states[-1]


def test_a_multi_subject_get_tells_the_last_sequence_and_a_404_tells_nothing() -> None:
    history = History(0, Limits(per_subject=1))
    for number, subject in enumerate("abca"):
        history.write(subject, number)
    store = Store(history.states[-1], history.last)
    found = direct_get(store, STREAM, GetRequest(multi_last=("a", "b")))
    assert [item.message.seq for item in found.items] == [2, 4]
    assert found.end is not None
    assert found.end.up_to_seq == 4
    missing = direct_get(store, STREAM, GetRequest(multi_last=("x",)))
    assert missing.is_missing
    assert missing.end is None


def test_the_checker_takes_the_answer_of_every_state_from_the_wanted_sequence_on_and_no_other() -> None:
    history = History(0, Limits(per_subject=1))
    for number in range(5):
        history.write("a", number)
    read = Read("last", 3, "a")
    answers = {seq: Answer((history.ops[seq].answered(STREAM),)) for seq in range(1, 6)}  # type: ignore[union-attr]
    assert [seq for seq, answer in answers.items() if not broken(read, answer, history)] == [3, 4, 5]
    assert "false absence" in broken(read, Answer(()), history)
    assert "does not exist" in broken(Read("last", 6, "a"), answers[5], history)


def test_the_checker_notices_gaps_leftovers_and_disorder_in_ranges() -> None:
    history = History(0, Limits(per_subject=1))
    for number, subject in enumerate("abca"):
        history.write(subject, number)
    messages = {seq: history.ops[seq].answered(STREAM) for seq in range(1, 5)}  # type: ignore[union-attr]
    read = Read("range", 4, ">", 1)
    assert not broken(read, Answer((messages[2], messages[3], messages[4])), history)
    assert "gap: 3" in broken(read, Answer((messages[2], messages[4])), history)
    assert "leftover: 1" in broken(read, Answer(tuple(messages.values())), history)
    assert "order" in broken(read, Answer((messages[3], messages[2], messages[4])), history)
    assert "incomplete" in broken(Read("range", 3, ">", 1), Answer((messages[2], messages[3])), history)
