"""Runs of schedules: by seeds, until a promise is broken, with the schedule made as simple as it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.jetstream.reads.simulation.actions import MakeRules
from tests.jetstream.reads.simulation.choices import Choices, shrink
from tests.jetstream.reads.simulation.world import ANYTHING, Faults, Violation, World


class Result(NamedTuple):
    """How a run went: how many schedules it took, how many reads were answered, and what broke, if anything did."""

    schedules: int
    answered: int
    refused: int
    seed: int | None
    violation: Violation | None

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.schedules} schedules, {self.answered} answers: no promise broken"
        steps = "\n".join(self.violation.steps)
        return f"seed {self.seed}: {self.violation.promise}\n{self.violation.read}\n{steps}"


def play(
    make_rules: MakeRules, tape: Sequence[int], faults: Faults = ANYTHING, *, steps: int = 120
) -> Violation | None:
    """Play one schedule from its choices, with its steps in words."""
    return World(Choices(None, tape), make_rules, faults, steps=steps).keep_log().run()


def search(
    make_rules: MakeRules, seeds: Iterable[int], faults: Faults = ANYTHING, *, promise: str = "", is_shrunk: bool = True
) -> Result:
    """Run schedules until a promise is broken, or only one whose words begin so."""
    schedules = answered = refused = 0
    for seed in seeds:
        world = World(Choices(seed), make_rules, faults)
        found = world.run()
        schedules += 1
        answered += world.answered
        refused += world.refused
        if found is None or promise not in found.promise:
            continue
        tape = world.choices.made
        if is_shrunk:
            tape = _simplest(make_rules, tape, faults, found)
        return Result(schedules, answered, refused, seed, play(make_rules, tape, faults))
    return Result(schedules, answered, refused, None, None)


def _simplest(make_rules: MakeRules, tape: Sequence[int], faults: Faults, found: Violation) -> list[int]:
    return shrink(tape, lambda tape: _is_like(found, play(make_rules, tape, faults)))


def census(make_rules: MakeRules, seeds: Iterable[int], faults: Faults = ANYTHING) -> Counter[str]:
    """How often each kind of promise is broken."""
    found: Counter[str] = Counter()
    for seed in seeds:
        violation = World(Choices(seed), make_rules, faults).run()
        if violation is not None:
            found[f"{violation.read.kind}: {violation.promise.split(':')[0]}"] += 1
    return found


def _is_like(one: Violation, other: Violation | None) -> bool:
    """Whether another schedule breaks the same promise of the same kind of read."""
    if other is None or other.read.kind != one.read.kind:
        return False
    return other.promise.split(":")[0] == one.promise.split(":")[0]
