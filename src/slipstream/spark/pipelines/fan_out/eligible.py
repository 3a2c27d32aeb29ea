"""Eligibility for a shared read: outputs whose rows depend on one message each, and on nothing else.

A shared batch is written by statements of its own for each output, outside of the plan that Spark keeps state for. So
aggregates, joins, limits and duplicates, whose state belongs to a query, cannot share; nor can rows that another
attempt would make different (`rand()`, `now()`), since sinks recognise the rows of a repeated batch by their content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NODES = frozenset(  # of Spark's logical plans: each has one child, so that a message is read once
    (
        *("Project", "Filter", "SubqueryAlias", "View", "Generate", "EventTimeWatermark", "StreamingRelationV2"),
        *("WithCTE", "CTERelationDef", "CTERelationRef"),
    )
)


def is_row_by_row(rows: DataFrame) -> bool:
    """Whether each row follows from one message of one source, in the same way whenever it is computed."""
    # No public API has the plan; PySpark itself reaches the JVM this way.
    plan: Any = rows._jdf.queryExecution().analyzed()
    if not plan.deterministic() or plan.subqueriesAll().size() or _has_clock(rows, plan):
        return False
    return _has_only_known_nodes(plan)


def _has_clock(rows: DataFrame, plan: Any) -> bool:
    """Whether an expression is the current time. Spark's own mark of these (and of the current user) tells, wherever in
    the plan they are; its text leaves out what follows the first 25 columns or arguments."""
    java: Any = rows.sparkSession._jvm
    return bool(plan.containsPattern(java.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()))


def _has_only_known_nodes(plan: Any) -> bool:
    if plan.nodeName() not in _NODES:
        return False
    children = plan.children()
    return all(_has_only_known_nodes(children.apply(index)) for index in range(children.size()))
