"""Eligibility for a shared read: outputs whose rows depend on one message each, and on nothing else.

A shared batch is written by statements of its own for each output, outside of the plan that Spark keeps state for. So
aggregates, joins, limits and duplicates, whose state belongs to a query, cannot share; nor can rows that another
attempt would make different (`rand()`, `now()`), since sinks recognise the rows of a repeated batch by their content.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NODES = frozenset(  # of Spark's logical plans: each has one child, so that a message is read once
    (
        *("Project", "Filter", "SubqueryAlias", "View", "Generate", "EventTimeWatermark", "StreamingRelationV2"),
        *("WithCTE", "CTERelationDef", "CTERelationRef"),
    )
)
_CLOCK = re.compile(r"\b(?:now|current_timestamp|current_date|current_time|localtimestamp|curdate)\(", re.IGNORECASE)


def is_row_by_row(rows: DataFrame) -> bool:
    """Whether each row follows from one message of one source, in the same way whenever it is computed."""
    # No public API has the plan; PySpark itself reaches the JVM this way.
    plan: Any = rows._jdf.queryExecution().analyzed()
    if not plan.deterministic() or plan.subqueriesAll().size() or _CLOCK.search(plan.toString()):
        return False
    return _has_only_known_nodes(plan)


def _has_only_known_nodes(plan: Any) -> bool:
    if plan.nodeName() not in _NODES:
        return False
    children = plan.children()
    return all(_has_only_known_nodes(children.apply(index)) for index in range(children.size()))
