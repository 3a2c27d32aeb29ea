"""`slipstream.spark.session`: what it sets, and what it leaves alone."""

from __future__ import annotations

import logging
import os
import sys

import pytest
from pyspark.sql import SparkSession

from slipstream.spark import session


def test_running_session_is_returned_and_workers_run_this_python(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "mine")
    assert session("local[2]", conf={"spark.sql.session.timeZone": "UTC"}) is spark
    assert (os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, "mine")
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    # Else the rows of a repeated micro-batch may be in other partitions, by which sinks know them.
    assert spark.conf.get("spark.sql.adaptive.streaming.stateless.enabled") == "false"
    assert logging.getLogger("SQLQueryContextLogger").level > logging.CRITICAL
