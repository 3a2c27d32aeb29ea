"""Spark's errors in the words of the pipeline file: what is wrong, where in the SQL, and what may have been meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyspark.core.context import Py4JError  # type: ignore[attr-defined]
from pyspark.errors import PySparkException

from slipstream.spark.pipelines.checks.columns import no_column, not_a_time
from slipstream.spark.pipelines.checks.suggestions import suggestion

FORMATS = ("parquet", "orc", "json", "csv", "text", "avro", "xml", "delta", "iceberg")
_KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "UNION", "DISTINCT", "BETWEEN", "INNER", "LEFT", "RIGHT"),
    *("JOIN", "OUTER", "CROSS", "WITH", "LIMIT", "CASE", "WHEN", "THEN", "ELSE", "WINDOW", "LATERAL", "BY"),
)
_POSITION = re.compile(r"line (\d+),? pos (\d+)")
_WORD = re.compile(r"\w+")


class SparkMistake(NamedTuple):
    """A message, and the line (from 1) and column (from 0) in the SQL; 0, 0 if Spark does not tell."""

    text: str
    line: int = 0
    column: int = 0

    def offset(self, sql: str) -> int:
        """The position as an offset in the SQL."""
        lines = sql.split("\n")
        return sum(len(one) + 1 for one in lines[: self.line - 1]) + self.column if self.line else 0


def spark_message(error: PySparkException | Py4JError) -> str:
    """The message of an error of Spark, without stack trace and SQLSTATE."""
    java = getattr(error, "java_exception", None)  # whose message has no stack trace
    text = str(error if java is None else java.getMessage())
    return " ".join(text.split("SQLSTATE")[0].split("JVM stacktrace")[0].split())


def condition_of(error: PySparkException | Py4JError) -> tuple[str, Mapping[str, str]]:
    """The error condition, such as UNRESOLVED_COLUMN.WITH_SUGGESTION, and its parameters."""
    if isinstance(error, PySparkException):
        return error.getCondition() or "", error.getMessageParameters() or {}
    found = re.search(r"\[([A-Z_.]+)\] (.*)", spark_message(error))
    return (found[1], {"text": found[2]}) if found else ("", {})


def explain(error: PySparkException | Py4JError, *, sql: str, views: Sequence[str]) -> SparkMistake:
    """What the user should read. `views` are the sources and steps; `sql` is the text that Spark has read."""
    condition, parameters = condition_of(error)
    found = _POSITION.search(str(error))
    line, column = (int(found[1]), int(found[2])) if found and sql else (0, 0)
    name = _plain(parameters.get("objectName") or parameters.get("relationName") or parameters.get("routineName") or "")
    if condition.startswith("UNRESOLVED_COLUMN"):
        proposals = [_plain(one).rsplit(".", 1)[-1] for one in parameters.get("proposal", "").split(", ") if one]
        short = name.rsplit(".", 1)[-1]
        text = no_column(name, proposals) if short == name else _qualified(name, proposals)
    elif condition == "TABLE_OR_VIEW_NOT_FOUND":
        text = f"there is no source or step {name!r}; {suggestion(name, views, 'the file has')}"
    elif condition == "UNRESOLVED_ROUTINE":
        text = f"there is no function {name!r}"
    elif condition == "PARSE_SYNTAX_ERROR":
        text = _syntax(parameters, sql, SparkMistake("", line, column).offset(sql))
    elif condition == "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE":
        text = not_a_time(_plain(parameters["eventName"]), parameters["eventType"].strip('"'), {})
    elif condition == "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION":
        text = _mode(parameters)
    elif condition == "DATA_SOURCE_NOT_FOUND":
        wanted = re.search(r"data source: ([\w.]+?)\.? ", parameters.get("text", "") + " ")
        name = parameters.get("provider") or (wanted[1] if wanted else "")
        text = f"Spark has no format {name!r}; {suggestion(name, FORMATS, 'it has, for example,')}"
    else:
        text = spark_message(error)
    return SparkMistake(text, line, column)


def with_function(mistake: SparkMistake, functions: Callable[[], Sequence[str]]) -> SparkMistake:
    """The mistake with a suggestion, if it is about a function; the list of functions costs a query."""
    found = re.fullmatch(r"there is no function '(.*)'", mistake.text)
    if found is None:
        return mistake
    near = difflib.get_close_matches(found[1].lower(), functions(), 1)
    return mistake._replace(text=f"{mistake.text}; did you mean {near[0]}?") if near else mistake


def _plain(name: str) -> str:
    return name.strip().replace("`", "").removeprefix("system.builtin.").removeprefix("spark_catalog.default.")


def _qualified(name: str, proposals: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.rsplit(".", 1)[-1].lower(), proposals, 1)
    hint = f"did you mean {near[0]}?" if near else f"the columns are {', '.join(proposals)}"
    return f"there is no column {name!r}; {hint}"


def _mode(parameters: Mapping[str, str]) -> str:
    mode, operation = parameters.get("outputMode", ""), parameters.get("operation", "")
    text = f"mode {mode!r} does not work with {operation.replace('streaming ', '')}"
    if "without watermark" in operation:
        return (
            f'{text}: Spark never knows that a row is final; set mode = "update" (buckets and streams), or a watermark '
            "on a time column of the source and group by that column or a window of it"
        )
    return text


def _syntax(parameters: Mapping[str, str], sql: str, offset: int) -> str:
    where, hint = parameters.get("error", ""), parameters.get("hint", "")
    text = f"SQL syntax error at {where}{hint}"
    before = _WORD.findall(sql[:offset])[-2:]
    after = _WORD.findall(sql[offset:])[:1]
    for word in (*after, *reversed(before)):
        near = difflib.get_close_matches(word.upper(), _KEYWORDS, 1, 0.7)
        if near and word.upper() not in _KEYWORDS:
            instead = "" if word == where.strip("'") else f" instead of {word}"
            return f"{text}; did you mean {near[0]}{instead}?"
    return text
