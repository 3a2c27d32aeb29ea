"""The start of Spark's Python processes: pyspark compiled, and another module of this name still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from slipstream.spark import worker_start
from slipstream.spark.worker_start.sitecustomize import without_archives

FOLDER = next(iter(worker_start.__path__))


def installation(folder: Path) -> tuple[str, list[str]]:
    """Packages pyspark and py4j below a folder, and the zip files of them that Spark puts on the path."""
    for package in ("pyspark", "py4j"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    archives = folder / "pyspark" / "python" / "lib"
    archives.mkdir(parents=True)
    return str(folder), [str(archives / "pyspark.zip"), str(archives / "py4j-0.10.9.9-src.zip")]


def test_archives_of_the_installed_packages_are_left_out(tmp_path: Path) -> None:
    packages, archives = installation(tmp_path)
    assert without_archives([*archives, "/mine", packages, "/more"]) == ["/mine", packages, "/more"]


def test_archives_stay_where_another_pyspark_would_be_imported(tmp_path: Path) -> None:
    packages, archives = installation(tmp_path / "one")
    other, _ = installation(tmp_path / "two")
    assert without_archives([*archives, "/mine"]) == [*archives, "/mine"]  # another Python, without pyspark
    assert without_archives([*archives, other, packages]) == [*archives, other, packages]
    Path(packages, "py4j", "__init__.py").unlink()
    assert without_archives([*archives, packages]) == [archives[1], packages]


def test_other_entries_stay(tmp_path: Path) -> None:
    packages, _ = installation(tmp_path)
    path = ["", "/a.zip", "/lib/pyspark.zip", f"{packages}/pyspark/python/lib/mine.zip", packages]
    assert without_archives(path) == path


@pytest.mark.parametrize("has_other", [False, True])
def test_process_imports_the_package_and_runs_the_hidden_module(tmp_path: Path, has_other: bool) -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    archives = sorted(str(one) for one in (home / "python" / "lib").glob("*.zip"))
    if has_other:
        (tmp_path / "sitecustomize.py").write_text("import builtins, sys\nbuiltins.hidden = __name__, sys.path[0]\n")
    path = [*archives, FOLDER, str(tmp_path)]
    code = (
        "import builtins, sys, pyspark; print(pyspark.__file__, sys.path, getattr(builtins, 'hidden', None), sep='\\n')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stderr == ""
    file, imports, hidden = run.stdout.splitlines()
    assert file == str(home / "__init__.py")
    assert FOLDER not in imports
    assert hidden == (str(("sitecustomize", str(tmp_path))) if has_other else "None")


def test_error_of_the_hidden_module_is_shown(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    run = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([FOLDER, str(tmp_path)])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "mine" in run.stderr  # as Python shows it without us
    assert run.stdout == "1\n"


def test_an_archive_that_only_looks_like_one_is_kept(tmp_path: Path) -> None:
    archive = tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with ZipFile(archive, "w") as file:
        file.writestr("pyspark/__init__.py", "")
    assert without_archives([str(archive), str(tmp_path)]) == [str(archive), str(tmp_path)]
