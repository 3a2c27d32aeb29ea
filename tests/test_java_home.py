"""tools/java_home.py: programs called java in, the home of a usable one out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.java_home import PACKAGE, find, install, version


def fake_java(home: Path, spec: str, *, vector: bool = True) -> Path:
    """A shell script that answers as a Java of that version would."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if vector else 'case "$*" in *--add-modules*) exit 1;; esac\n'
    program.write_text(
        f'#!/bin/sh\n{refuse}printf "    java.home = {home}\\n    java.specification.version = {spec}\\n" >&2\n',
        "utf-8",
    )
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "major"), [("17", 17), ("1.8", 8), ("25", 25)])
def test_the_version_is_read_in_both_forms(text: str, major: int) -> None:
    assert version(f"    java.home = /x\n    java.specification.version = {text}\n") == major
    assert version("") == 0


def test_java_home_comes_first(tmp_path: Path) -> None:
    chosen, other = fake_java(tmp_path / "a", "21"), fake_java(tmp_path / "b", "17")
    assert find({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")}, tmp_path / "none") == (str(chosen), [])


def test_what_does_not_fit_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    old, cut = fake_java(tmp_path / "old", "11"), fake_java(tmp_path / "cut", "21", vector=False)
    good = fake_java(tmp_path / "jvm" / "good", "17")
    home, refused = find({"JAVA_HOME": str(old), "PATH": str(cut / "bin")}, tmp_path / "jvm")
    assert home == str(good)
    assert [reason.split("bin/java ")[1] for reason in refused] == [
        "is Java 11",
        "lacks the module jdk.incubator.vector, which Spark needs",
    ]


def test_a_java_home_without_a_java_is_passed_over(tmp_path: Path) -> None:
    home, refused = find({"JAVA_HOME": str(tmp_path), "PATH": ""}, tmp_path / "none")
    assert home == ""
    assert "does not run" in refused[0]


def fake_apt(folder: Path, *, code: int) -> Path:
    """A shell script that notes what it was asked to do."""
    folder.mkdir()
    program = folder / "apt-get"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\necho "no space left" >&2\nexit {code}\n', "utf-8")
    program.chmod(0o755)
    return folder


def test_java_is_installed_where_we_may(tmp_path: Path) -> None:
    apt = fake_apt(tmp_path / "good", code=0)
    assert install({"PATH": str(apt)}, is_root=True) == ""
    assert (apt / "asked").read_text().splitlines()[1] == f"-qq install --yes --no-install-recommends {PACKAGE}"


def test_why_java_was_not_installed_is_said(tmp_path: Path) -> None:
    apt = fake_apt(tmp_path / "bad", code=100)
    assert install({"PATH": str(apt)}, is_root=True) == f"apt-get could not install {PACKAGE}: no space left"
    assert install({"PATH": str(apt)}, is_root=False) == "only root may install one"
    assert "no apt-get" in install({"PATH": str(tmp_path)}, is_root=True)
