"""Sink for `foreachBatch` that upserts rows into a table by `MERGE`, for catalogs whose tables have it.

Delta and Iceberg tables do, with their jars and catalog in Spark's configuration; Spark's own files do not. A repeated
micro-batch merges the same values again, so the table comes out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slipstream.errors import UsageError
from slipstream.spark.failures import with_short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ORDER = ("_sequence", "_revision", "sequence", "revision")  # columns that tell which row of a key is the newest
_VIEW = "slipstream_rows"
_PLANNING_FAILED = "Error occurred during query planning"  # the first line that EXPLAIN then prints


def into_table(table: str, key: Sequence[str], *, deleted: str = "") -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that merges the rows of each micro-batch into a table.

        view.writeStream.outputMode("update").foreachBatch(into_table("lake.shop.customers", ["customer"])).start()

    Rows are matched by the columns of `key`; where the column `deleted` is true, the row of the table is removed. Of
    rows of a micro-batch that share a key, the newest is taken if a column tells it (`_sequence`, `_revision`), else
    any.
    """
    if isinstance(key, str) or not key:
        raise UsageError(f"key must be a list of columns, got {key!r}")

    def write(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark passes both
        _one_per_key(batch, key).createOrReplaceTempView(_VIEW)  # in a session that is the query's own
        try:
            batch.sparkSession.sql(merge_statement(table, _VIEW, batch.columns, key, deleted=deleted))
        finally:
            batch.sparkSession.catalog.dropTempView(_VIEW)

    return with_short_errors(write)


def merge_statement(table: str, view: str, columns: Sequence[str], key: Sequence[str], *, deleted: str = "") -> str:
    """The statement that merges the rows of a view into a table, which has all its columns but `deleted`."""
    keys = {name.lower() for name in key}  # Spark compares names without regard to case
    stored = [name for name in columns if name.lower() != deleted.lower()]
    matches = " AND ".join(f"t.{_quoted(name)} <=> s.{_quoted(name)}" for name in key)
    lines = [f"MERGE INTO {table} AS t USING {view} AS s ON {matches}"]
    condition = ""
    if deleted:
        is_deleted = f"coalesce(s.{_quoted(deleted)}, false)"
        lines.append(f"WHEN MATCHED AND {is_deleted} THEN DELETE")
        condition = f" AND NOT {is_deleted}"
    if others := [name for name in stored if name.lower() not in keys]:
        changes = ", ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in others)
        lines.append(f"WHEN MATCHED THEN UPDATE SET {changes}")
    names, values = ", ".join(map(_quoted, stored)), ", ".join(f"s.{_quoted(name)}" for name in stored)
    lines.append(f"WHEN NOT MATCHED{condition} THEN INSERT ({names}) VALUES ({values})")
    return "\n".join(lines)


def check_merge(rows: DataFrame, table: str, key: Sequence[str], *, deleted: str = "") -> None:
    """Raise UsageError if these rows cannot be merged into the table; nothing is written."""
    spark = rows.sparkSession
    spark.createDataFrame([], rows.schema).createOrReplaceTempView(_VIEW)
    try:
        statement = merge_statement(table, _VIEW, rows.columns, key, deleted=deleted)
        plan = "".join(str(row[0]) for row in spark.sql(f"EXPLAIN {statement}").collect())
    finally:
        spark.catalog.dropTempView(_VIEW)
    if _PLANNING_FAILED not in plan:
        return
    reason = " ".join(plan.partition(_PLANNING_FAILED)[2].split("SQLSTATE")[0].strip(" :\n").split(";")[0].split())
    if "TABLE_OR_VIEW_NOT_FOUND" in reason or "cannot be found" in reason:
        raise UsageError(f"there is no table {table!r}: create it first, with its columns")
    if "REQUIRES_SINGLE_PART_NAMESPACE" in reason:
        catalog = table.partition(".")[0].strip("`")
        raise UsageError(f"there is no catalog {catalog!r}: [spark] conf sets it by 'spark.sql.catalog.{catalog}'")
    if "MERGE" in reason:
        raise UsageError(
            f"table {table!r} has no MERGE, which a table with a key needs: use a catalog whose tables have it, such "
            "as Delta's or Iceberg's, or leave key out to append"
        )
    raise UsageError(f"rows cannot be merged into {table!r}: {reason}")


def _one_per_key(batch: DataFrame, key: Sequence[str]) -> DataFrame:
    """One row for each key: MERGE fails where two rows match the same row of the table."""
    from pyspark.sql import functions as f

    keys = [f.col(_quoted(name)) for name in key]
    order = next((name for name in _ORDER if name in batch.columns), "")
    if not order:
        return batch.dropDuplicates(list(key))
    # A row whose order is null is older than any other; by the column itself, max_by would find no row at all.
    newest = f.max_by(f.struct("*"), f.struct(_quoted(order))).alias("newest")
    return batch.groupBy(*(one.alias(f"key{at}") for at, one in enumerate(keys))).agg(newest).select("newest.*")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
