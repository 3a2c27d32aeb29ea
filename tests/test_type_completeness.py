"""`tools/type_completeness.py`: what it shows, and when it fails. `make check-types` runs it on the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import type_completeness


def _symbol(name: str, *messages: str, ambiguous: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "isTypeKnown": not messages or ambiguous,
        "isTypeAmbiguous": ambiguous,
        "diagnostics": [{"message": each} for each in messages],
    }


def _report(score: float, *symbols: dict[str, Any]) -> dict[str, Any]:
    counts = {"withKnownType": 90, "withAmbiguousType": 5, "withUnknownType": 5}
    return {"typeCompleteness": {"completenessScore": score, "exportedSymbolCounts": counts, "symbols": list(symbols)}}


def test_symbols_that_are_incomplete_by_others_are_left_out() -> None:
    report = _report(
        0.5,
        _symbol("a.whole"),
        _symbol("a.by_another", 'Type of parameter "x" is partially unknown'),
        _symbol("a.root", "No docstring found", "Type is missing type annotation\n  Inferred", ambiguous=True),
    )
    assert type_completeness.incomplete(report) == ["a.root: Type is missing type annotation"]


@pytest.mark.parametrize(("score", "code"), [(0.995, 0), (0.98, 1)])
def test_a_score_below_the_goal_fails(
    score: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [_symbol(f"a.{n}", "Type is missing", ambiguous=True) for n in range(type_completeness.SHOWN + 2)]
    monkeypatch.setattr(type_completeness, "measure", lambda *_: _report(score, *many))
    assert type_completeness.main(Path()) == code
    out, err = capsys.readouterr()
    assert "... and 2 more" in out
    assert f"{score:.1%} of 100 public symbols" in out
    assert ("at least 99% must be complete" in err) is bool(code)


def test_a_pyright_that_reports_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    node.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SystemExit, match="exit code 3: broken"):
        type_completeness.measure(tmp_path, tmp_path)
