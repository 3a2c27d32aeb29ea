"""The rules of reads on a model of a stream and its copies: schedules by seeds and by hypothesis, and their checker."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from slipstream.api import StreamInfo
from tests.jetstream.reads.simulation.actions import (
    Action,
    Answer,
    AskDirect,
    AskInfo,
    Direct,
    Outcome,
    Read,
    Reading,
    Wait,
)
from tests.jetstream.reads.simulation.checker import broken
from tests.jetstream.reads.simulation.choices import shrink
from tests.jetstream.reads.simulation.model import (
    SECOND,
    STREAM,
    History,
    Limits,
    Member,
    config_of,
    direct_get,
    nanoseconds,
    state_of,
    timestamp,
)
from tests.jetstream.reads.simulation.mutations import ASSUMPTIONS, MUTATIONS
from tests.jetstream.reads.simulation.new_rules import NewRules
from tests.jetstream.reads.simulation.old_rules import OldRules
from tests.jetstream.reads.simulation.runs import play, search
from tests.jetstream.reads.simulation.world import Faults, Kind

_KV = Limits(per_subject=1)
_ALL = Limits()

# What the audit found in the rules of 0.1: the cluster and the faults it takes, and the promise it breaks.
FINDINGS = {
    "F1": (Faults(frozenset(("cut_mirror",)), (Kind(_KV, (("", _KV),)),), ("last",), is_early=False), "stale"),
    "F2": (
        Faults(frozenset(("cut_follower",)), (Kind(_KV._replace(replicas=3)),), ("last",), is_early=False),
        "false absence",
    ),
    "F3": (
        Faults(
            frozenset(("edit_mirror", "remake_mirror")), (Kind(_ALL, (("", _ALL),)),), ("range", "seq"), is_early=False
        ),
        "gap",
    ),
    "F4": (
        Faults(
            frozenset(),
            (Kind(Limits(max_bytes=96, storage="memory"), (("", Limits(max_bytes=96)),)),),
            ("range", "seq"),
            is_early=False,
        ),
        "gap",
    ),
    "F9": (Faults(frozenset(), (Kind(_KV._replace(replicas=3)),), ("range",), is_early=False), "leftover"),
}
MOST_SCHEDULES = 5_000
FEW_SCHEDULES = 600
MANY_SCHEDULES = 1_000_000
CHOICES = st.binary(min_size=600, max_size=600)  # one byte for each choice of a schedule


@pytest.mark.parametrize("finding", FINDINGS)
def test_the_old_rules_break_their_promises_as_the_audit_found(finding: str) -> None:
    faults, promise = FINDINGS[finding]
    result = search(OldRules, range(MOST_SCHEDULES), faults, promise=promise, is_shrunk=False)
    assert result.violation is not None, result
    assert promise in result.violation.promise


def test_hypothesis_finds_a_gap_of_the_old_rules_and_makes_its_schedule_simple() -> None:
    faults, promise = FINDINGS["F3"]

    def is_bad(tape: Sequence[int]) -> bool:
        violation = play(OldRules, tape, faults)
        return violation is not None and promise in violation.promise

    generate = settings(
        max_examples=2_000,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    tape = find(CHOICES, is_bad, settings=generate)
    violation = play(OldRules, shrink(tape, is_bad, rounds=1), faults)
    assert violation is not None
    assert re.search("M1 is (edited|made again)", "\n".join(violation.steps))  # it takes a mirror that has changed


# The rules of today


@pytest.mark.spec("RW-13", "RW-19", on="C")
def test_the_rules_keep_their_promises_in_every_schedule() -> None:
    result = search(NewRules, range(FEW_SCHEDULES))
    assert result.violation is None, str(result)
    assert result.answered > FEW_SCHEDULES  # they do not keep them by refusing everything


def test_limits_that_a_follower_tells_of_are_believed_without_a_leader() -> None:
    """They were put on the stream two seconds before it lost its leader; a replica that was away shows version 1."""
    result = search(NewRules, range(2_057_531, 2_057_532))
    assert result.violation is None, str(result)


def test_a_read_is_not_noted_as_of_what_its_session_wrote_meanwhile() -> None:
    """The session wrote a key while a read of it waited for the leader: the next read showed the value before."""
    result = search(NewRules, range(2_121_132, 2_121_133))
    assert result.violation is None, str(result)


def test_a_next_message_of_the_only_store_shows_that_those_before_it_are_gone() -> None:
    """A limit had removed the message before it: a mirror that had not seen that showed the state before."""
    result = search(NewRules, range(2_550_344, 2_550_345))
    assert result.violation is None, str(result)


@pytest.mark.parametrize("seed", [2_001_655, 3_000_964])
def test_a_range_of_a_mirror_goes_on_to_what_replaced_messages_that_it_lacks(seed: int) -> None:
    """The stream has one store, and a mirror answers: it has what was replaced, or lacks it by limits of its own."""
    result = search(NewRules, range(seed, seed + 1))
    assert result.violation is None, str(result)


@given(CHOICES)
@settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_rules_keep_their_promises_in_schedules_by_hypothesis(tape: bytes) -> None:
    violation = play(NewRules, tape)
    assert violation is None, "\n".join(violation.steps)


@pytest.mark.soak
@pytest.mark.timeout(12 * 3600)
def test_the_rules_keep_their_promises_in_a_million_schedules() -> None:
    result = search(NewRules, range(FEW_SCHEDULES, FEW_SCHEDULES + MANY_SCHEDULES))
    assert result.violation is None, str(result)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_weakened_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    for target, attribute, replacement in mutation.changes:
        monkeypatch.setattr(target, attribute, replacement)
    result = search(NewRules, range(MOST_SCHEDULES), mutation.faults, is_shrunk=False)
    assert result.violation is not None, result


def test_the_rules_keep_their_promises_where_the_weakened_ones_do_not() -> None:
    for mutation in MUTATIONS.values():
        result = search(NewRules, range(20), mutation.faults)
        assert result.violation is None, str(result)


@pytest.mark.parametrize(("silence", "is_right"), [(8, True), (0, False)])
def test_a_copy_that_is_level_with_a_deposed_leader_is_believed_only_if_that_hears_of_all(
    silence: int, is_right: bool
) -> None:
    """Two faults at once: a follower catches up from the new leader, and has reached what the deposed one has.

    Were another leader elected while the deposed one has just heard of every replica, the promise would be broken.
    """
    history = History(nanoseconds(0.0), _KV._replace(replicas=3))
    for number, subject in enumerate(("s.a", "s.b", "s.a")):
        history.write(subject, nanoseconds(1.0) + number)
    deposed, follower = Member("n1", history), Member("n2", history)
    deposed.logged = history.now
    deposed.replay_all()
    follower.begin_catchup(history.now)
    history.write("s.a", nanoseconds(2.0))  # by the new leader: the third is gone
    follower.catch_up()
    follower.catch_up()
    assert (follower.store.last, list(follower.store.messages)) == (deposed.store.last, [2])

    def outcome(action: Action) -> Outcome:
        if isinstance(action, AskDirect):
            return Direct(direct_get(follower.store, STREAM, action.request), follower.node)
        assert isinstance(action, AskInfo)
        heard = [{"name": node, "active": silence * SECOND} for node in ("n2", "n3")]
        return StreamInfo(
            config=config_of(STREAM, history.limits),
            created=history.created,
            state=state_of(deposed.store, deleted=action.deleted, subjects=action.subjects),
            cluster={"leader": "n1", "leader_since": timestamp(0.0), "replicas": heard},
            ts=nanoseconds(9.0),
        )

    read = Read("many", 3, "s.*")
    answer = answer_of(NewRules(lambda: 9.0).read(read), outcome)
    assert is_right == (answer is None or not broken(read, answer, history))


def answer_of(steps: Reading, outcome: Callable[[Action], Outcome]) -> Answer | None:
    """What a read returns; None if it waits for a better answer."""
    try:
        action = next(steps)
        while not isinstance(action, Wait):
            action = steps.send(outcome(action))
    except StopIteration as stop:
        answer: Answer = stop.value
        return answer
    return None


@pytest.mark.parametrize("assumption", ASSUMPTIONS)
def test_the_promises_rest_on_what_the_design_says(assumption: str) -> None:
    result = search(NewRules, range(MOST_SCHEDULES), ASSUMPTIONS[assumption], is_shrunk=False)
    assert result.violation is not None, result
