"""Exponential back-off with jitter."""

from __future__ import annotations

import pytest

from slipstream.client.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.next() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff.after(10_000) == 1.0


def test_reset_begins_with_the_shortest_pause_again() -> None:
    backoff = Backoff(1.0, 60.0, factor=3.0)
    assert (backoff.next(), backoff.next()) == (1.0, 3.0)
    backoff.reset()
    assert backoff.next() == 1.0


@pytest.mark.parametrize(("random", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_jitter_shortens_a_pause_by_up_to_half(random: float, share: float) -> None:
    assert Backoff(0.1, 5.0).after(3, random) == pytest.approx(0.8 * share)


def test_without_jitter_randomness_changes_nothing() -> None:
    assert Backoff(1.0, 60.0, jitter=0.0).next(0.0) == 1.0
