"""Every Python block of docs/testing.md runs, as a reader would run it: as a test file, or as a script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "slipstream.testing.plugin", "-p", "no:cacheprovider"]


@pytest.mark.parametrize("block", BLOCKS, ids=range(1, len(BLOCKS) + 1))
def test_the_example_runs(block: str, tmp_path: Path) -> None:
    script = tmp_path / "test_example.py"
    script.write_text(block, "utf-8")
    is_suite = re.search(r"^def test_", block, re.MULTILINE)
    command = [*PYTEST, str(script)] if is_suite else [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout or done.stderr
