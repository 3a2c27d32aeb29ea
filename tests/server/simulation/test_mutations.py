"""Every planted fault is found within some seeds, by the promise that it breaks."""

from __future__ import annotations

import pytest

from tests.server.simulation.mutations import MUTATIONS, Mutation
from tests.server.simulation.runs import run

MOST = 60  # seeds; most are found by the first ten, one by the 54th


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "_"))
def test_the_simulation_finds_a_planted_fault(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.plant(monkeypatch)
    for seed in range(MOST):
        violation = run(seed).violation
        if violation is not None:
            promises = (mutation.promise,) if isinstance(mutation.promise, str) else mutation.promise
            assert violation.promise in promises, f"seed {seed}: {violation}"
            return
    pytest.fail(f"{MOST} seeds did not find it", pytrace=False)
