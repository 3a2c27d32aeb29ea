"""Columns of sources and steps, as far as the file alone tells, and the names in it that must be columns.

SQL is not parsed: of a step, only a plain list of columns and aliases from one table is understood. The columns of any
other step are unknown, and nothing is said about them; Spark knows them (`deep.py`).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from slipstream.errors import UsageError
from slipstream.spark.pipelines.checks.ddl import DdlError, ddl_columns
from slipstream.spark.pipelines.checks.suggestions import suggestion
from slipstream.spark.pipelines.formats.records import spark_schema
from slipstream.spark.pipelines.model import Output, Pipeline, Source

STREAM_COLUMNS = {
    "subject": "STRING",
    "sequence": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestamp_ns": "BIGINT",
    "headers": "MAP<STRING, ARRAY<STRING>>",
    "data": "BINARY",
}
BUCKET_COLUMNS = {
    "key": "STRING",
    "value": "BINARY",
    "operation": "STRING",
    "revision": "BIGINT",
    "created": "TIMESTAMP",
    "delta": "BIGINT",
}
STREAM_META = {"subject": "_subject", "sequence": "_sequence", "timestamp": "_timestamp", "headers": "_headers"}
BUCKET_META = {"key": "_key", "operation": "_operation", "revision": "_revision", "created": "_created"}
UNKNOWN = ""  # a type that the file does not tell

Columns = Mapping[str, str]
_WORD = r"(?:`[^`]+`|[A-Za-z_]\w*)"
_STARTS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "MAP", "REDUCE")
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w+|\S)?", re.DOTALL)
_SIMPLE = re.compile(
    rf"SELECT\s+(?P<items>.+?)\s+FROM\s+(?P<table>{_WORD})\s*(?:WHERE\b.*|GROUP\s+BY\b.*)?;?", re.DOTALL | re.IGNORECASE
)
_COMPLEX = re.compile(r"\b(?:JOIN|UNION|EXCEPT|INTERSECT|MINUS|LATERAL|PIVOT|UNPIVOT|DISTINCT\s+ON)\b", re.IGNORECASE)
_ITEM = re.compile(rf"(?:(?P<plain>{_WORD})|(?P<expr>.+?\S)\s+AS\s+(?P<alias>{_WORD})|(?P<star>\*))", re.DOTALL | re.I)
_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
# A subject is understood if it consists of strings, numbers, columns and calls of functions only.
_EXPRESSION = re.compile(rf"\s+|(?P<string>{_STRING.pattern})|(?P<name>{_WORD})|(?P<number>\d+)|[(),|+]", re.DOTALL)
_NOT_COLUMNS = (
    *("case", "when", "then", "else", "end", "and", "or", "not", "null", "is", "in", "like", "between", "as", "cast"),
    *("true", "false", "current_date", "current_timestamp", "current_user", "user", "session_user", "localtimestamp"),
    *("current_time", "interval", "from", "for", "distinct", "exists", "all", "any", "some", "div", "rlike", "ilike"),
)
_TEMPLATE = re.compile(r"\{\s*(\w+)\s*\}")
DELAY = re.compile(
    r"(?:interval\s+)?(?:'?\d+(?:\.\d+)?'?\s+(?:year|month|week|day|hour|minute|second|millisecond|microsecond)s?'?(?:\s+|$))+",
    re.IGNORECASE,
)


class Found(NamedTuple):
    """A mistake at a key of the file, and if `text` is set, at an offset of that text in the key's value."""

    path: tuple[str, ...]
    message: str
    text: str = ""
    offset: int = 0


def source_columns(source: Source) -> dict[str, str]:
    """The columns of a source with their types; raises UsageError."""
    if source.format == "raw":
        return dict(STREAM_COLUMNS if source.stream else BUCKET_COLUMNS)
    schema = spark_schema(source)
    meta, raw = (STREAM_META, STREAM_COLUMNS) if source.stream else (BUCKET_META, BUCKET_COLUMNS)
    return {**ddl_columns(schema), **{alias: raw[name] for name, alias in meta.items()}}


def _decoded(pipeline: Pipeline) -> Iterator[tuple[str, Source]]:
    """Sources and tables, with the word of the file for them."""
    yield from (("sources", one) for one in pipeline.sources)
    yield from (("tables", one) for one in pipeline.tables)


def known_columns(pipeline: Pipeline, broken: Container[tuple[str, ...]] = ()) -> dict[str, dict[str, str]]:
    """The columns of the sources and steps whose columns the file tells; `broken` are tables with mistakes."""
    found: dict[str, dict[str, str]] = {}
    for kind, source in _decoded(pipeline):
        if (kind, source.name) in broken:
            continue
        try:
            found[source.name] = source_columns(source)
        except UsageError:  # reported by `file_mistakes`
            continue
    for step in pipeline.steps:
        columns = step_columns(step.sql, found)
        # What follows from a column that is not there is not known either.
        if columns is not None and not columns.missing and ("steps", step.name) not in broken:
            found[step.name] = columns.columns
    return found


class StepColumns(NamedTuple):
    """What the file tells of a step's columns: their types, and those that its table does not have, with the offset in
    its SQL and the columns that the table has."""

    columns: dict[str, str]
    missing: tuple[tuple[str, int], ...]
    table: Columns


def step_columns(sql: str, views: Mapping[str, Columns]) -> StepColumns | None:
    """The columns of a step, None if its SQL is not a plain list of columns and aliases from one known table."""
    blank = _STRING.sub(lambda text: "'" + "x" * (len(text[0]) - 2) + "'", sql)  # commas and words in strings
    found = _SIMPLE.fullmatch(blank.rstrip(), len(blank) - len(blank.lstrip()))
    if found is None or _COMPLEX.search(blank) or "--" in blank or "/*" in blank:
        return None
    table = {name.lower(): columns for name, columns in views.items()}.get(found["table"].strip("`").lower())
    items = _split(found["items"], found.start("items"))
    if table is None or items is None:
        return None
    kinds = {one.lower(): kind for one, kind in table.items()}
    columns: dict[str, str] = {}
    missing = []
    for text, offset in items:
        item = _ITEM.fullmatch(text.strip())
        if item is None:
            return None  # an expression without an alias, whose name Spark makes
        if item["star"]:
            columns |= table
        elif item["plain"]:
            name = item["plain"].strip("`")
            if name.lower() in _NOT_COLUMNS:
                return None
            if name.lower() not in kinds and name.lower() not in map(str.lower, columns):  # an alias may be used
                missing.append((name, offset + len(text) - len(text.lstrip())))
            columns[name] = kinds.get(name.lower(), UNKNOWN)
        else:
            columns[item["alias"].strip("`")] = UNKNOWN
    return StepColumns(columns, tuple(missing), table)


def _split(items: str, offset: int) -> list[tuple[str, int]] | None:
    """The items of a list, separated by the commas outside parentheses, with their offsets; None if it has a query of
    its own. The list begins at `offset`."""
    if re.search(r"\bSELECT\b", items, re.IGNORECASE):
        return None
    commas, depth = [-1], 0
    for at, character in enumerate(items):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            commas.append(at)
    return [(items[low + 1 : high], offset + low + 1) for low, high in pairwise([*commas, len(items)])]


def file_mistakes(pipeline: Pipeline, broken: Container[tuple[str, ...]] = ()) -> Iterator[Found]:
    """What the file alone shows to be wrong with schemas, SQL, watermarks and the columns that outputs name.

    `broken` are tables whose mistakes are known already: what follows from these is not reported.
    """
    for kind, source in _decoded(pipeline):
        if (kind, source.name) in broken:
            continue
        try:
            source_columns(source)
        except DdlError as error:
            yield Found((kind, source.name, "schema"), str(error), source.schema, error.offset)
        except UsageError:
            continue  # of a binary format: the reader reports it
    for step in pipeline.steps:
        if ("steps", step.name) not in broken and (message := _sql_mistake(step.sql)):
            yield Found(("steps", step.name, "sql"), message)
    known = known_columns(pipeline, broken)
    for step in pipeline.steps:
        columns = step_columns(step.sql, known)
        if columns is None or ("steps", step.name) in broken:
            continue
        for name, offset in columns.missing:
            message = f"step {step.name!r}: {no_column(name, columns.table)}"
            yield Found(("steps", step.name, "sql"), message, step.sql, offset)
    for kind, parts in (("sources", pipeline.sources), ("steps", pipeline.steps)):
        for one in parts:
            if one.watermark[0] and (kind, one.name) not in broken:
                yield from _watermark_mistakes((kind, one.name, "watermark"), one.watermark, known.get(one.name))
    for output in pipeline.outputs:
        if ("outputs", output.name) in broken:
            continue
        yield from _output_mistakes(output, known.get(output.view))


def _sql_mistake(sql: str) -> str:
    found = _FIRST_WORD.match(sql)
    word = (found[1] if found else "") or ""
    if word.upper() in _STARTS:
        return ""
    near = suggestion(word.upper(), _STARTS[:4], "a step is a query:")
    return f"sql must begin with SELECT or WITH, got {word!r}; {near}"


def _watermark_mistakes(path: tuple[str, ...], mark: tuple[str, str], columns: Columns | None) -> Iterator[Found]:
    column, delay = mark
    if not DELAY.fullmatch(delay):
        message = f"delay must be an interval such as '2 minutes' or '1 hour 30 minutes', got {delay!r}"
        yield Found((*path, "delay"), message)
    if columns is None:
        return
    kinds = {name.lower(): kind for name, kind in columns.items()}
    kind = kinds.get(column.lower())
    if kind is None:
        if "." not in column:
            yield Found((*path, "column"), no_column(column, columns))
    elif kind not in (UNKNOWN, "TIMESTAMP") and not kind.startswith("STRUCT"):
        yield Found((*path, "column"), not_a_time(column, kind, columns))


def no_column(name: str, columns: Columns | list[str], *, what: str = "column") -> str:
    """The message for a column that does not exist."""
    return f"there is no {what} {name!r}; {suggestion(name, columns, 'the columns are')}"


def not_a_time(column: str, kind: str, columns: Columns) -> str:
    """The message for a watermark on a column that is no time."""
    times = [name for name, other in columns.items() if other == "TIMESTAMP"]
    hint = f"such as {times[0]}" if times else f"for example to_timestamp({column}) in a step before"
    return f"the watermark's column must be a TIMESTAMP, got {column!r}, a {kind}; {hint}"


def _output_mistakes(output: Output, columns: Columns | None) -> Iterator[Found]:
    path = ("outputs", output.name)
    if output.kind == "stream" and (message := template_mistake(output.subject)):
        yield Found((*path, "subject"), message)
    elif output.kind == "stream" and columns is not None:
        for name, offset in _names_in(output.subject):
            if name.lower() not in map(str.lower, columns):
                message = no_column(name, columns)
                if re.fullmatch(r"[\w.-]+", output.subject):
                    message = f"{message} (for the text itself: subject = \"'{output.subject}'\")"
                yield Found((*path, "subject"), message, output.subject, offset)
    if columns is not None:
        for key, names in named_columns(output):
            for name in names:
                if "." not in name and name.strip("`").lower() not in map(str.lower, columns):
                    yield Found((*path, key), no_column(name, columns))


def named_columns(output: Output) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The keys of an output that name columns, with the names."""
    yield "key", output.key
    yield "partition_by", output.partition_by
    for key, name in (("value", output.value), ("deleted", output.deleted)):
        if name:
            yield key, (name,)


def template_mistake(subject: str) -> str:
    """The message for a subject that is written as a template, `big.{customer}`; empty if it is not."""
    outside = _STRING.sub("", subject)
    if "{" not in outside:
        return ""
    parts = [part for part in re.split(r"(\{\s*\w+\s*\})", subject.strip("'\"")) if part]
    names = [_TEMPLATE.fullmatch(part) for part in parts]
    items = [name[1] if name else f"'{part}'" for name, part in zip(names, parts, strict=True)]
    return f"subject must be an SQL expression, got {subject!r}; did you mean concat({', '.join(items)})?"


def _names_in(expression: str) -> Iterator[tuple[str, int]]:
    """The names of columns in an expression; none if it has more than strings, names and calls of functions."""
    found, at = [], 0
    while at < len(expression):
        token = _EXPRESSION.match(expression, at)
        if token is None:
            if expression[at] != ".":
                return
            at += 1  # a field of a struct or map, or a subject without quotes: the first name is the column
            while at < len(expression) and (expression[at].isalnum() or expression[at] in "_.-*>"):
                at += 1
            continue
        at = token.end()
        name = token["name"]
        if name is None or expression[at:].lstrip().startswith("("):
            continue
        if name.lower() in _NOT_COLUMNS:
            return
        found.append((name.strip("`"), token.start()))
    yield from found
