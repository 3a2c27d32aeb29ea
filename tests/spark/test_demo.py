"""The demonstration, with fewer orders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.spec("SP-09")
def test_the_demo_prints_views_that_are_right() -> None:
    """The pipeline file of the example, with one command, on an embedded server."""
    command = [sys.executable, "-m", "examples.demo", "20000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ada" in done.stdout
    assert "2026-01-31T09_00" in done.stdout
    assert "100,000 rows through Spark into 5 outputs" in done.stdout
    assert "60,000 rows read from the stream for them" in done.stdout
    assert "console: http://127.0.0.1:" in done.stdout.splitlines()[-1]
    assert "views and history equal the sum of the 19,998 orders; 2 broken put aside" in done.stdout


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_the_demo_on_clusters_is_right_though_a_node_and_a_worker_are_killed() -> None:
    """`make demo-cluster`, with fewer orders: six JVMs, and over a minute on a quiet machine."""
    command = [sys.executable, "-m", "examples.demo_cluster", "4000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the leader of the stream of orders" in done.stdout
    assert "killed a Spark worker and its executor" in done.stdout
    assert "views, history and dead letters equal the sums of 4,000 orders" in done.stdout
