"""The checker of lock histories finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lock_history import Pass, Tenure, check_history, read_passes


def test_a_sound_history_gives_its_tenures() -> None:
    passes = [Pass("a", 1, 0.0, 0.1), Pass("a", 1, 0.9, 1.0), Pass("b", 5, 1.1, 1.2), Pass("a", 0, 1.3, 1.3)]
    assert check_history(passes) == [Tenure("a", 1, 0.1, 0.9), Tenure("b", 5, 1.2, 1.1)]


@pytest.mark.parametrize(
    "passes",
    [
        pytest.param([Pass("a", 1, 0.0, 0.1), Pass("b", 2, 0.5, 0.6), Pass("a", 1, 0.7, 0.8)], id="two-at-once"),
        pytest.param([Pass("a", 2, 0.0, 0.1), Pass("b", 1, 0.5, 0.6)], id="a-lower-token"),
        pytest.param([Pass("a", 1, 0.0, 0.1), Pass("b", 1, 0.5, 0.6)], id="one-token-of-two"),
    ],
)
def test_a_broken_history_is_found(passes: list[Pass]) -> None:
    with pytest.raises(AssertionError):
        check_history(passes)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.history"
    assert read_passes(path) == []
    path.write_text("a 1 0.5 0.6\na 1 0.")
    assert read_passes(path) == [Pass("a", 1, 0.5, 0.6)]
