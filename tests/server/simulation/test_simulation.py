"""The whole server under a simulated disk, network and clock: every seed keeps every promise.

`python -m tests.server.simulation SEED` replays a seed and prints its last steps; `--shrink` looks for a simpler run.
"""

from __future__ import annotations

import os

import pytest

from tests.server.simulation.runs import run

SEEDS = 1000
PARTS = 20
SOAK_SEEDS = int(os.environ.get("SLIPSTREAM_SIMULATION_SEEDS", "100000"))
SOAK_FIRST = int(os.environ.get("SLIPSTREAM_SIMULATION_FIRST", "1000000"))


def check(first: int, end: int) -> tuple[int, int, int]:
    """Run seeds; how many crashes, lost groups and requests there were."""
    crashes = failures = executed = 0
    for seed in range(first, end):
        outcome = run(seed)
        if outcome.violation is not None:
            command = f"python -m tests.server.simulation {seed} --shrink"
            pytest.fail(f"{outcome.report()}\nseed {seed}; {command}", pytrace=False)
        crashes, failures, executed = (
            crashes + outcome.crashes,
            failures + outcome.failures,
            executed + outcome.executed,
        )
    return crashes, failures, executed


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_a_promise(part: int) -> None:
    size = SEEDS // PARTS
    crashes, failures, executed = check(part * size, (part + 1) * size)
    # A simulation that does not get to crash proves nothing.
    assert crashes > size
    assert failures > size
    assert executed > 50 * size


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
def test_no_seed_of_many_breaks_a_promise() -> None:
    check(SOAK_FIRST, SOAK_FIRST + SOAK_SEEDS)


# Seeds beyond the first thousand that found a defect. What a seed does changes with the workload, so that each defect
# of the server has a direct test as well.
@pytest.mark.parametrize(
    "seed",
    [
        2689,  # a mirror skipped messages of a recreated upstream: test_mirrors.py
        1_000_760,  # of the model: a message was copied, and left its work queue, in one turn
        1_003_469,  # a message that a new consumer needed left its stream: test_retention.py
        3_000_187,  # a read of a stream that was deleted meanwhile claimed to be complete: test_direct_get.py
        3_001_127,  # of the model: a delete marker larger than `max_bytes` leaves at once
        5_006_399,  # a marker cost another message its place, which one that had expired still had: test_expiry.py
        5_003_139,  # of the model: a message expired before a schedule was due, in one turn
        5_002_353,  # ids were forgotten by an update of the duplicate window that was lost: test_publish.py
        6_003_551,  # of the model: all tries of a message waited for a connection that was cut
        1_003_915,  # of the model: nothing wanted a delete marker of a stream with retention by interest
        1_003_940,  # the same, after a crash that took the mirror which had wanted its message
        2_004_417,  # of the model: a schedule fired before what had expired left, in one turn
        2_005_126,  # of the model: a replica was held of a stream whose deletion was lost
        3_001_533,  # a delete marker cost a stream that discards new messages another one: test_expiry.py
    ],
)
def test_seed_that_found_a_defect_breaks_no_promise(seed: int) -> None:
    check(seed, seed + 1)


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = run(7), run(7)
    assert first.tape == second.tape
    assert first.history == second.history
