"""`tools/browser.py`: a machine without Chromium is told by name which tests are not run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import browser


def program(folder: Path, name: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n", "utf-8")
    path.chmod(0o755)


def test_programs_that_are_there_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in browser.PROGRAMS:
        program(tmp_path, name)
    assert browser.main({"PATH": str(tmp_path)}, is_root=True, run=pytest.fail) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("has_apt", "is_root", "reason"), [(False, True, "no apt-get"), (True, False, "only root")])
def test_what_is_not_run_is_said_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_apt: bool, is_root: bool, reason: str
) -> None:
    if has_apt:
        program(tmp_path, "apt-get")
    assert browser.main({"PATH": str(tmp_path)}, is_root=is_root, run=pytest.fail) == 0
    said = capsys.readouterr().err
    assert "tests/console/test_browser.py is not run: there is no chromium and no chromedriver" in said
    assert reason in said
    assert Path(browser.TESTS).name == "test_browser.py"
    assert (Path(__file__).resolve().parent.parent / browser.TESTS).exists()


def test_packages_are_installed_or_the_reason_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(tmp_path, "apt-get")
    asked: list[list[str]] = []

    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[2:])
        return subprocess.CompletedProcess(command, 100, "", "E: no network\n")

    assert browser.main({"PATH": str(tmp_path)}, is_root=True, run=fail) == 0
    assert "E: no network" in capsys.readouterr().err
    assert asked[-1][-2:] == ["chromium", "chromium-driver"]

    def succeed(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        for name in browser.PROGRAMS:
            program(tmp_path, name)
        return subprocess.CompletedProcess(command, 0, "", "")

    assert browser.main({"PATH": str(tmp_path)}, is_root=True, run=succeed) == 0
    assert "not run" not in capsys.readouterr().err
