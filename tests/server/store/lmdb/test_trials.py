"""Random damage to the file of a store: it is never served, never silent, and never ends the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.store.lmdb import trials

ALLOWED = {"UNHARMED", "SAID", "REFUSED"}


def bad(verdicts: list[trials.Verdict]) -> list[str]:
    return [f"{each.verdict} {each.detail}" for each in verdicts if each.verdict not in ALLOWED]


def test_random_damage_is_reported_and_never_served(tmp_path: Path) -> None:
    verdicts = trials.run(tmp_path, 63, seed=3)
    assert not bad(verdicts), trials.table(verdicts)
    assert {each.verdict for each in verdicts} == ALLOWED


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(11, 15))
def test_random_damage_is_reported_and_never_served_over_many_trials(tmp_path: Path, seed: int) -> None:
    verdicts = trials.run(tmp_path, 153, seed=seed, scale=1 + seed % 2)
    print(trials.table(verdicts))
    assert not bad(verdicts), trials.table(verdicts)


def test_a_sound_store_is_unharmed(tmp_path: Path) -> None:
    base = trials.build(tmp_path / "base")
    assert trials.in_child(trials.read_everything, base.path, base.truth) == ("UNHARMED", "")
