"""Random damage to the file of a store: it is never served, never silent, and never ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.store.lmdb import trials

ALLOWED = {"UNHARMED", "SAID", "REFUSED"}


def bad(verdicts: list[trials.Verdict]) -> list[str]:
    return [f"{each.verdict} {each.detail}" for each in verdicts if each.verdict not in ALLOWED]


def salvaged(verdicts: list[trials.Verdict]) -> float:
    """The share of trials after which at least 95 % of what is not damaged can be had."""
    return sum(each.share >= 0.95 for each in verdicts) / len(verdicts)


@pytest.mark.timeout(600)  # each trial has its own: a child that does not end is a verdict
def test_random_damage_is_reported_and_never_served(tmp_path: Path) -> None:
    verdicts = trials.run(tmp_path, 63, seed=3)
    assert not bad(verdicts), trials.table(verdicts)
    assert salvaged(verdicts) >= 0.95
    assert {each.verdict for each in verdicts} == ALLOWED


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("bits", 1400046),  # a damaged message with another length of its subject, in a segment without an index
        ("bits", 1400019),  # an index entry with another size, which LMDB could not delete
        ("bits", 91133),  # keys out of order, between which the search for a time did not end
        ("bits", 120210),  # the same key twice in a page of the index: its messages counted twice
        ("lost", 101065),  # keys of other pages: removals hid the last message of a subject,
        ("lost", 101076),  # and messages that a read had found before
    ],
)
def test_damage_that_was_not_reported_once_is_reported(tmp_path: Path, kind: str, seed: int) -> None:
    verdict = trials.trial(trials.build(tmp_path / "base"), kind, seed, tmp_path / "copy")
    assert not bad([verdict])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(11, 15))
def test_random_damage_is_reported_and_never_served_over_many_trials(tmp_path: Path, seed: int) -> None:
    verdicts = trials.run(tmp_path, 153, seed=seed, scale=1 + seed % 2)
    print(trials.table(verdicts), f"salvaged: {salvaged(verdicts):.1%}")
    assert not bad(verdicts), trials.table(verdicts)
    assert salvaged(verdicts) >= 0.95


@pytest.mark.parametrize(
    ("count", "first"),
    [(12, 700), (1, 5092), pytest.param(150, 5000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
def test_a_torn_store_is_salvaged_without_what_was_removed(tmp_path: Path, count: int, first: int) -> None:
    """Some of the last writes were lost: pages of the last commits and older ones side by side."""
    base = trials.build(tmp_path / "base")
    verdicts = [trials.trial(base, "torn", first + n, tmp_path / "copy") for n in range(count)]
    assert not bad(verdicts), bad(verdicts)


@pytest.mark.parametrize(
    ("count", "first"), [(12, 1), pytest.param(150, 6000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_lost_writes_of_messages_alone_are_reported_and_never_served(tmp_path: Path, count: int, first: int) -> None:
    """All records fit the last commit; leaves of messages and of their index are older ones, with keys of others."""
    base = trials.build(tmp_path / "base")
    verdicts = [trials.trial(base, "lost", first + n, tmp_path / "copy") for n in range(count)]
    assert not bad(verdicts), bad(verdicts)
    assert any(each.verdict == "SAID" for each in verdicts)


BUILD = """
import hashlib, pathlib, random, sys
from tests.server.store.lmdb import trials
base = trials.build(pathlib.Path(sys.argv[1]), scale=2)
damaged = [trials.damage(base, kind, random.Random(5))[0] for kind in (*trials.KINDS, "torn", "lost")]
parts = (base.newer, base.older, *base.history, *damaged)
print([hashlib.sha256(part).hexdigest() for part in parts])
"""


def test_trials_have_the_same_files_in_each_process(tmp_path: Path) -> None:
    """Or a seed would not say which damage it stands for. Pages have addresses of the process that wrote them."""
    found = [
        subprocess.run(
            [sys.executable, "-c", BUILD, str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]


def test_a_sound_store_is_unharmed(tmp_path: Path) -> None:
    base = trials.build(tmp_path / "base")
    assert trials.in_child(trials.read_everything, base.path, base.truth) == ("UNHARMED", "")
