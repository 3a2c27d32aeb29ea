"""The class-data archive: made by a command, and used by later runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.spark.pipelines.spark_session import JVM_OPTIONS, archive_path, use_archive


def test_archive_is_used_unless_the_environment_names_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(JVM_OPTIONS, "-Xmx1g")
    use_archive()
    assert os.environ[JVM_OPTIONS] == "-Xmx1g"  # there is none yet
    archive_path().parent.mkdir()
    archive_path().touch()
    use_archive()
    used = f"-Xmx1g -XX:SharedArchiveFile={archive_path()} -Xlog:cds=off -Xlog:cds+dynamic=off"
    assert os.environ[JVM_OPTIONS] == used
    use_archive()
    assert os.environ[JVM_OPTIONS] == used


@pytest.mark.spark
@pytest.mark.soak  # some 200 MB and half a minute
@pytest.mark.timeout(900)
def test_warm_returns_when_the_archive_is_written(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != JVM_OPTIONS}
    environ["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "slipstream.spark.pipelines", "warm"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (archive,) = (tmp_path / "slipstream").iterdir()
    assert done.stdout.startswith(f"wrote {archive}, ")
    assert archive.stat().st_size > 20_000_000
