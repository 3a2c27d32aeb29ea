"""Upserts into real tables, of a catalog that supports MERGE (`MergeCatalog.java`): by copy-on-write and by deltas."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from slipstream import BlockingJetStream, StreamConfig, connect_blocking
from slipstream.spark import into_table
from slipstream.spark.pipelines import parse
from slipstream.spark.pipelines.checks.deep import _Check

SOURCE = Path(__file__).parent / "MergeCatalog.java"
CLASS = "MergeCatalog"
BOTH = pytest.mark.parametrize("rows", ["all", "delta"])


@pytest.fixture(scope="session")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalog, compiled against the jars of PySpark."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac on the PATH (a JDK): tables with MERGE cannot be tested")
    folder = tmp_path_factory.mktemp("catalog")
    jars = Path(pyspark.__file__).parent / "jars"
    subprocess.run([javac, "-nowarn", "-proc:none", "-cp", f"{jars}/*", "-d", folder / "classes", SOURCE], check=True)
    found = folder / "catalog.jar"
    subprocess.run(
        [Path(javac).resolve().parent / "jar", "cf", found, "-C", folder / "classes", "."], check=True, timeout=60
    )
    return found


class Lake:
    """A catalog with tables in a folder."""

    def __init__(self, spark: SparkSession, name: str, settings: dict[str, str]) -> None:
        self.spark = spark
        self.name = name
        self.settings = settings

    def create(self, columns: str, rows: str) -> str:
        """Create a table; returns its name."""
        table = f"{self.name}.shop.t{rows}"
        self.spark.sql(f"CREATE TABLE {table} ({columns}) TBLPROPERTIES ('rows' = '{rows}')")
        return table

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in self.spark.table(table).collect()), key=str)


@pytest.fixture
def lake(spark: SparkSession, jar: Path, fresh: str, tmp_path: Path) -> Iterator[Lake]:
    spark.sql(f"ADD JAR '{jar}'")
    name = fresh.lower()
    settings = catalog_settings(name, tmp_path / "lake")
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield Lake(spark, name, settings)
    for key in settings:
        spark.conf.unset(key)


def catalog_settings(name: str, folder: Path) -> dict[str, str]:
    folder.mkdir()
    return {f"spark.sql.catalog.{name}": CLASS, f"spark.sql.catalog.{name}.path": str(folder)}


def merging(lake: Lake, table: str, key: list[str], schema: str, *, deleted: str = "") -> Callable[..., None]:
    """A function that merges the rows it is given, as a micro-batch."""
    write = into_table(table, key, deleted=deleted)
    return lambda *rows: write(lake.spark.createDataFrame(list(rows), schema), 0)


@BOTH
def test_rows_are_inserted_updated_and_deleted_and_repeated_batches_change_nothing(lake: Lake, rows: str) -> None:
    table = lake.create("customer STRING, total BIGINT", rows)
    merge = merging(lake, table, ["customer"], "customer STRING, total BIGINT, gone BOOLEAN", deleted="gone")
    merge(("ada", 1, False), ("alan", 2, None))
    assert lake.rows(table) == [("ada", 1), ("alan", 2)]
    batch = (("ada", 10, False), ("alan", 0, True), ("grace", 3, False), ("kurt", 4, True))
    for _ in range(3):  # as after kills between the MERGE and the commit of the micro-batch
        merge(*batch)
        assert lake.rows(table) == [("ada", 10), ("grace", 3)]
    merge(("alan", 5, False))
    assert lake.rows(table) == [("ada", 10), ("alan", 5), ("grace", 3)]
    merge()
    assert lake.rows(table) == [("ada", 10), ("alan", 5), ("grace", 3)]


@BOTH
def test_null_is_a_key_like_any_other(lake: Lake, rows: str) -> None:
    table = lake.create("a STRING, b INT, n BIGINT", rows)
    merge = merging(lake, table, ["a", "b"], "a STRING, b INT, n BIGINT")
    merge((None, 1, 1), ("x", None, 2), (None, None, 3), ("x", 1, 4))
    merge((None, 1, 10), ("x", None, None), (None, None, 30), (None, 2, 5))
    assert lake.rows(table) == sorted(
        [(None, 1, 10), ("x", None, None), (None, None, 30), ("x", 1, 4), (None, 2, 5)], key=str
    )


@BOTH
def test_newest_of_the_rows_with_one_key_wins_also_over_rows_without_a_sequence(lake: Lake, rows: str) -> None:
    table = lake.create("k STRING, n BIGINT, _sequence BIGINT", rows)
    schema = "k STRING, n BIGINT, _sequence BIGINT, gone BOOLEAN"
    merge = merging(lake, table, ["k"], schema, deleted="gone")
    merge(("a", 1, 1, False), ("a", 3, 3, False), ("a", 2, 2, True), ("b", 4, 4, False), ("b", 5, 5, True))
    assert lake.rows(table) == [("a", 3, 3)]
    merge(("c", 6, None, False), ("a", 7, None, False), ("a", 8, 8, False))
    assert lake.rows(table) == [("a", 8, 8), ("c", 6, None)]


@BOTH
def test_any_of_the_rows_with_one_key_is_taken_where_none_is_newest(lake: Lake, rows: str) -> None:
    table = lake.create("k STRING, n BIGINT", rows)
    merge = merging(lake, table, ["k"], "k STRING, n BIGINT")
    merge(*((f"k{n % 5}", n) for n in range(100)))
    merge(*((f"k{n % 5}", n) for n in range(100, 200)))
    found = lake.rows(table)
    assert [k for k, _ in found] == [f"k{n}" for n in range(5)]
    assert all(n >= 100 and k == f"k{n % 5}" for k, n in found)


@BOTH
def test_names_may_be_reserved_words_and_need_quotes(lake: Lake, rows: str) -> None:
    columns = "`select` STRING, `a.b` INT, `it``s` STRING, `order by` BIGINT, `größe` DOUBLE"
    table = lake.create(columns, rows)
    merge = merging(lake, table, ["select", "a.b", "it`s"], columns + ", `table` BOOLEAN", deleted="table")
    merge(("x", 1, "y", 1, 1.5, False), ("x", 2, "y", 1, 1.5, False))
    merge(("x", 1, "y", 2, 2.5, False), ("x", 2, "y", 1, 1.5, True))
    assert lake.rows(table) == [("x", 1, "y", 2, 2.5)]


@BOTH
def test_keys_alone_are_a_set(lake: Lake, rows: str) -> None:
    table = lake.create("k STRING", rows)
    merge = merging(lake, table, ["k"], "k STRING")
    merge(("a",), ("b",), ("b",))
    merge(("b",), ("c",))
    assert lake.rows(table) == [("a",), ("b",), ("c",)]


@BOTH
def test_values_of_every_type_are_kept(lake: Lake, rows: str) -> None:
    columns = "k DATE, t TIMESTAMP, d DECIMAL(20, 4), b BINARY, l ARRAY<INT>, m MAP<STRING, INT>, s STRUCT<x: INT>"
    table = lake.create(columns, rows)
    one = lake.spark.sql(
        "SELECT DATE'2026-01-31' k, TIMESTAMP'2026-01-31 01:02:03.123456' t, CAST(12345678.9012 AS DECIMAL(20, 4)) d, "
        "X'00FF' b, array(1, NULL) l, map('a', 1) m, named_struct('x', 5) s"
    )
    write = into_table(table, ["k"])
    for number in range(2):
        write(one, number)
        assert [tuple(row) for row in lake.spark.table(table).collect()] == [tuple(row) for row in one.collect()]


FILE = """
[sources.orders]
stream = "ORDERS"
format = "json"
schema = "customer STRING, amount BIGINT, gone BOOLEAN"
[steps.totals]
sql = "SELECT customer, sum(amount) AS total, max(gone) AS gone FROM orders GROUP BY customer"
[outputs.totals]
from = "totals"
table = "{table}"
key = "customer"
deleted = "gone"
"""


@BOTH
def test_tables_that_fit_are_told_from_those_that_do_not(lake: Lake, rows: str, tmp_path: Path) -> None:
    def mistakes(table: str, more: tuple[str, str] = ("", "")) -> list[str]:
        text = FILE.format(table=table).replace(*more)
        session = lake.spark.newSession()
        for name, value in lake.settings.items():
            session.conf.set(name, value)  # as `[spark] conf` sets them when Spark starts
        return [one.text for one in _Check(session, parse(text, file=str(tmp_path / "p.toml"))).run()]

    table = lake.create("customer STRING, total BIGINT", rows)
    assert mistakes(table) == []
    assert mistakes(table, ('deleted = "gone"', 'deleted = "GONE"')) == []
    assert mistakes(table, ('key = "customer"', 'key = "Customer"')) == []
    missing = f"{lake.name}.shop.nope"
    assert mistakes(missing) == [f"output 'totals': there is no table '{missing}': create it first, with its columns"]
    (found,) = mistakes(table, ("AS total", "AS sum"))
    assert "'sum'" in found or "`sum`" in found
    assert "\n" not in found
    assert lake.rows(table) == []


def toml(settings: dict[str, str]) -> str:
    return ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items())


def expected(count: int) -> list[tuple[str, int]]:
    """Every fifth customer is gone in the end."""
    totals: dict[str, int] = {}
    for n in range(count):
        totals[f"c{n % 20}"] = totals.get(f"c{n % 20}", 0) + n
    return sorted((name, total) for name, total in totals.items() if int(name[1:]) % 5)


def publish(js: BlockingJetStream, numbers: range) -> None:
    for n in numbers:
        is_gone = n % 5 == 0 and n >= 180
        js.publish("orders.x", json.dumps({"customer": f"c{n % 20}", "amount": n, "gone": is_gone}).encode())


@pytest.mark.timeout(1200)
def test_pipeline_whose_driver_is_killed_merges_its_last_batch_again(
    lake: Lake, jar: Path, our_url: str, fresh: str, tmp_path: Path
) -> None:
    table = lake.create("customer STRING, total BIGINT", "delta")
    text = FILE.format(table=table).replace("ORDERS", fresh).replace("[steps", "max_messages_per_trigger = 50\n[steps")
    text += f"""[pipeline]
trigger = "100 milliseconds"
[spark]
master = "local[2]"
conf = {{ "spark.sql.shuffle.partitions" = 2, {toml({**lake.settings, "spark.jars": str(jar)})} }}
"""
    (tmp_path / "p.toml").write_text(text)
    run = [sys.executable, "-m", "slipstream.spark.pipelines", "run", "p.toml", "--servers", our_url]
    commits = tmp_path / "p-state" / "checkpoints" / "totals" / "commits"

    def batches() -> list[int]:
        return sorted(int(one.name) for one in commits.glob("[0-9]*"))

    def once() -> None:
        done = subprocess.run([*run, "--once"], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    with connect_blocking(our_url) as client, (tmp_path / "log").open("wb") as log:
        js = client.jetstream()
        js.create_stream(StreamConfig(name=fresh, subjects=("orders.>",), allow_direct=True))
        try:
            publish(js, range(400))
            job = subprocess.Popen(run, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
            try:
                deadline = time.monotonic() + 400
                while len(batches()) < 2:
                    assert job.poll() is None, (tmp_path / "log").read_text()
                    assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                    time.sleep(0.05)
            finally:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait(timeout=20)
            once()
            assert lake.rows(table) == expected(400)
            # As if the driver had been killed between its MERGE and the commit of the micro-batch.
            last = batches()[-1]
            for one in commits.glob(f"*{last}*"):
                one.unlink()
            version = len(list((tmp_path / "lake").glob("*/v*")))
            once()
            assert batches()[-1] == last
            assert len(list((tmp_path / "lake").glob("*/v*"))) == version + 1  # it was merged again
            assert lake.rows(table) == expected(400)
            publish(js, range(400, 500))
            once()
            assert lake.rows(table) == expected(500)
        finally:
            js.delete_stream(fresh)
