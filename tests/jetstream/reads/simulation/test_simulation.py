"""The rules of reads on a model of a stream and its copies: schedules by seeds and by hypothesis, and their checker."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

from tests.jetstream.reads.simulation.choices import shrink
from tests.jetstream.reads.simulation.model import Limits
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
