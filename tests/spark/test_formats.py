"""The formats are found by Spark itself, and never stand in the way of others."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
