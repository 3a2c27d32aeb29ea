"""Upserts into tables: the statement, and where it is rejected. No catalog with MERGE comes with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slipstream.errors import UsageError
from slipstream.spark.pipelines import PipelineError, parse
from slipstream.spark.pipelines.checks.deep import deep_mistakes
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.sink.merge import _one_per_key, into_table, merge_statement

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
{more}
"""


def test_statement_matches_by_key_updates_inserts_and_deletes() -> None:
    assert merge_statement("lake.shop.t", "v", ["a", "b`c", "n"], ["a", "b`c"]).splitlines() == [
        "MERGE INTO lake.shop.t AS t USING v AS s ON t.`a` <=> s.`a` AND t.`b``c` <=> s.`b``c`",
        "WHEN MATCHED THEN UPDATE SET t.`n` = s.`n`",
        "WHEN NOT MATCHED THEN INSERT (`a`, `b``c`, `n`) VALUES (s.`a`, s.`b``c`, s.`n`)",
    ]
    assert merge_statement("t", "v", ["a", "n", "gone"], ["a"], deleted="gone").splitlines()[1:] == [
        "WHEN MATCHED AND coalesce(s.`gone`, false) THEN DELETE",
        "WHEN MATCHED THEN UPDATE SET t.`n` = s.`n`",
        "WHEN NOT MATCHED AND NOT coalesce(s.`gone`, false) THEN INSERT (`a`, `n`) VALUES (s.`a`, s.`n`)",
    ]
    assert len(merge_statement("t", "v", ["a"], ["a"]).splitlines()) == 2  # of keys alone there is nothing to update


@pytest.mark.parametrize("key", ["customer", [], ()])
def test_key_must_be_a_list_of_columns(key: object) -> None:
    with pytest.raises(UsageError, match="key must be a list of columns, got"):
        into_table("t", key)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('mode = "complete"', "mode must be 'update' or 'append' for a table with a key, got 'complete'"),
        ('format = "parquet"', "format does not apply to a table with a key, which must exist"),
        ('partition_by = "customer"', "partition_by does not apply to a table with a key, which must exist"),
        ("only_changed = true", "only_changed does not apply to an output into a table"),
    ],
)
def test_keys_of_the_file_that_do_not_fit_a_merge_are_rejected(more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=message):
        parse(FILE.format(table="t", more=more), file=str(tmp_path / "p.toml"))
    with pytest.raises(PipelineError, match="deleted needs key"):
        parse(FILE.format(table="t", more="").replace('key = "customer"\n', ""), file=str(tmp_path / "p.toml"))


def test_table_with_a_key_is_in_update_mode_and_not_a_folder_of_the_pipeline(tmp_path: Path) -> None:
    pipeline = parse(FILE.format(table="totals", more=""), file=str(tmp_path / "p.toml"))
    (output,) = pipeline.outputs
    assert (output.kind, output.mode, output.key) == ("table", "update", ("customer",))
    assert StateFolder(pipeline).output_path(output) is None  # `reset` removes no files of it


def test_statement_is_what_spark_parses_and_tables_without_merge_are_refused(
    spark: SparkSession, fresh: str, tmp_path: Path
) -> None:
    parser = spark._jsparkSession.sessionState().sqlParser()
    statement = merge_statement("lake.shop.t", "v", ["a", "b`c", "gone"], ["a"], deleted="gone")
    assert parser.parsePlan(statement).nodeName() == "MergeIntoTable"

    def mistake(table: str, more: str = "") -> str:
        pipeline = parse(FILE.format(table=table, more=more), file=str(tmp_path / "p.toml"))
        (found,) = deep_mistakes(spark, pipeline)
        assert found.position.line == 10
        return found.text

    spark.sql(f"CREATE TABLE {fresh} (customer STRING, total BIGINT) USING parquet")
    try:
        assert f"output 'totals': table '{fresh}' has no MERGE, which a table with a key needs" in mistake(fresh)
    finally:
        spark.sql(f"DROP TABLE {fresh}")
    assert mistake(fresh) == f"output 'totals': there is no table '{fresh}': create it first, with its columns"


def test_one_row_of_a_key_is_merged_the_newest_where_it_is_known(spark: SparkSession) -> None:
    rows = [("a", 1, 10), ("a", 3, 30), ("b", 2, 20), (None, 4, 40), ("a", 2, 25)]
    batch = spark.createDataFrame(rows, "customer STRING, _sequence BIGINT, amount BIGINT")
    found = _one_per_key(batch, ["customer"])
    assert found.columns == batch.columns
    assert sorted(map(tuple, found.collect()), key=str) == sorted([("a", 3, 30), ("b", 2, 20), (None, 4, 40)], key=str)
    plain = _one_per_key(batch.drop("_sequence"), ["customer"]).collect()
    assert sorted(str(row.customer) for row in plain) == ["None", "a", "b"]
