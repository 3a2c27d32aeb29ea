"""The rules of reads on a model of a stream and its copies: schedules by seeds and by hypothesis, and their checker."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from tests.jetstream.reads.simulation.choices import shrink
from tests.jetstream.reads.simulation.model import Limits
from tests.jetstream.reads.simulation.mutations import MUTATIONS
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
MOST_SCHEDULES = 3_000
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
