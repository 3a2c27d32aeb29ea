"""The demonstration, with fewer orders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.spark
def test_the_demo_prints_a_view_that_is_right() -> None:
    command = [sys.executable, "-m", "examples.demo", "3000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "ada" in done.stdout
    assert "3,000 rows through Spark into the view" in done.stdout
    assert "the view equals the sum of the orders" in done.stdout
