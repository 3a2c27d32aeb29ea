"""The formats are found by Spark itself, and never stand in the way of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slipstream import BlockingJetStream, StreamConfig
from slipstream.spark import register

HEAVY = {"pyarrow", "pandas", "numpy", "lmdb", "slipstream.server"}


@pytest.mark.parametrize(
    ("package", "name"), [("pyspark_jetstream", "jetstream"), ("pyspark_jetstream_kv", "jetstream_kv")]
)
def test_a_format_package_offers_its_source_and_imports_little(package: str, name: str) -> None:
    code = f"""
import sys
import pyspark.sql.datasource, pyspark.sql.streaming.datasource
before = set(sys.modules)
import {package}
print({package}.DefaultSource.name(), *sorted((set(sys.modules) - before) & {HEAVY!r}))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [name]


@pytest.mark.parametrize("package", ["pyspark_jetstream", "pyspark_jetstream_kv"])
def test_a_format_package_never_fails_to_import(package: str) -> None:
    code = f"""
import sys
sys.modules["msgspec"] = None  # as if a dependency were missing
import {package}
print(hasattr({package}, "DefaultSource"))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_a_query_adds_nothing_to_the_environment_that_all_queries_share(
    spark: SparkSession,
    js: BlockingJetStream,
    any_server: str,
    fresh: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The environment is a `java.util.HashMap`: if two queries add to it at once, no task can read it any more."""
    monkeypatch.setattr(spark.sparkContext, "environment", dict(spark.sparkContext.environment))
    session = spark.newSession()
    register(session)

    def shared() -> dict[str, str]:
        manager = session._jsparkSession.sessionState().dataSourceManager()
        return dict(manager.lookupDataSource("jetstream").dataSourceCls().envVars())

    before = shared()
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
    js.publish(f"{fresh}.a", b"1")
    rows = session.readStream.format("jetstream").option("servers", any_server).load(fresh)
    query = (
        rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(120)
    assert query.recentProgress[-1].numInputRows == 1
    assert shared().keys() == before.keys()
    assert shared() != before, "the query did not use what was registered"
