"""A first pipeline file from a sample of a stream: the format, the schema, and commented steps and outputs.

A column is inferred from all values of the sample: whole numbers are BIGINT, numbers DOUBLE, ISO 8601 times TIMESTAMP;
values of several kinds are STRING. The file says how often each column was missing or of another kind, so that its
author can judge. Avro and Protobuf do not tell their columns: these are taken from a schema or descriptor, and the
sample says how many messages are records of it.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from slipstream.errors import UsageError
from slipstream.kv.bucket import check_key
from slipstream.spark.pipelines.checks.columns import STREAM_META
from slipstream.spark.pipelines.checks.ddl import ddl_columns
from slipstream.spark.pipelines.formats import avro, protobuf

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MAX_SHOWN = 40  # characters of a value in a comment
_KEY_MAX = 0.5  # distinct values per message, at most, for a column to be a key to group by


class Field(NamedTuple):
    """A column: its type, and in which part of the messages it was present and not null."""

    name: str
    kind: str
    present: float
    distinct: int
    are_keys: bool = True  # whether a bucket takes every value as a key
    mixed: str = ""  # how often values are of which kind, if not all are of one


class Sample(NamedTuple):
    """What a sample of messages showed."""

    format: str  # json, csv, avro, protobuf or raw
    messages: int
    fields: tuple[Field, ...]
    settings: tuple[str, ...] = ()  # lines of the source that say the columns of a binary format
    rejected: int = 0  # messages that are not records of the format
    left_out: tuple[str, ...] = ()  # columns that a source has for itself


def infer(messages: Sequence[bytes]) -> Sample:
    """The format and the columns of messages; `raw` without columns if they are neither JSON objects nor CSV."""
    texts = [text for one in messages if (text := _text(one)) is not None]
    if texts and len(texts) == len(messages):
        rows = [_json(text) for text in texts]
        objects = [row for row in rows if isinstance(row, dict)]
        if len(objects) >= 0.9 * len(rows):  # a few bad ones become dead letters
            found = list(_object_fields(objects))
            fields = tuple(one for one in found if one.name.lower() not in STREAM_META.values())
            left_out = tuple(one.name for one in found if one not in fields)
            if fields:
                return Sample("json", len(messages), fields, (), len(messages) - len(objects), left_out)
        elif columns := _csv_fields(texts):
            return Sample("csv", len(messages), columns)
    return Sample("raw", len(messages), ())


def infer_avro(messages: Sequence[bytes], schema: str) -> Sample:
    """The columns of an Avro schema, and what they hold in messages; raises AvroError."""
    columns = avro.spark_schema(schema)
    text = schema.strip()
    return _infer_binary("avro", messages, columns, avro.Decoder(schema).to_json, (f"schema = {_text_block(text)}",))


def infer_protobuf(messages: Sequence[bytes], descriptors: bytes, descriptor: str, message: str) -> Sample:
    """The columns of a Protobuf message type, and what they hold in messages; `descriptor` is the path of the file with
    the descriptors, as the pipeline's file has it. Raises ProtobufError."""
    columns = protobuf.spark_schema(descriptors, message)
    settings = (f"descriptor = {_string(descriptor)}", f"message = {_string(message)}")

    def to_json(data: bytes) -> str:
        return protobuf.message_to_json(descriptors, message, data)

    return _infer_binary("protobuf", messages, columns, to_json, settings)


def _infer_binary(
    kind: str, messages: Sequence[bytes], columns: str, to_json: Callable[[bytes], str], settings: tuple[str, ...]
) -> Sample:
    rows = []
    for data in messages:
        try:
            rows.append(json.loads(to_json(data)))
        except UsageError:
            continue
    found = {one.name: one for one in _object_fields(rows)}
    fields = (
        found.get(name, Field(name, "", 0.0, 0))._replace(kind=declared, mixed="")
        for name, declared in ddl_columns(columns).items()
    )
    return Sample(kind, len(messages), tuple(fields), settings, len(messages) - len(rows))


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object_fields(objects: Sequence[dict[str, Any]]) -> Iterator[Field]:
    names: dict[str, str] = {}  # Spark compares names without regard to case
    for one in objects:
        for name in filter(None, one):  # for which SQL has no form
            names.setdefault(name.lower(), name)
    for name in names.values():
        values = [one[name] for one in objects if one.get(name) is not None]
        distinct = len({json.dumps(value, sort_keys=True) for value in values})
        kind = json_type(values)
        mixed = _mixed(kind, values)
        yield Field(name, kind, len(values) / len(objects), distinct, _are_keys(values), mixed)


def _mixed(kind: str, values: Sequence[Any]) -> str:
    """The kinds of values that have no type in common but text: the most frequent one, and an example of the others."""
    counts = Counter(map(_value_type, values))
    if kind != "STRING" or len(counts) < 2:
        return ""
    ((main, count),) = counts.most_common(1)
    other = next(value for value in values if _value_type(value) != main)
    return f"{main} in {int(100 * count / len(values))} % of the sample, but also {_shown(other)}"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def json_type(values: Iterable[Any]) -> str:
    """The Spark type that holds all of these JSON values."""
    kinds = {_value_type(value) for value in values if value is not None}
    if kinds == {"ARRAY"}:
        return f"ARRAY<{json_type([item for value in values for item in value])}>"
    if kinds == {"STRUCT"}:
        fields = _object_fields([value for value in values if value])
        inner = ", ".join(f"{_quoted(one.name)}: {one.kind}" for one in fields)
        return f"STRUCT<{inner}>" if inner else "STRING"
    return _joined(kinds)


def _value_type(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(2**63) <= value < 2**63 else "DOUBLE"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, list):
        return "ARRAY"
    if isinstance(value, dict):
        return "STRUCT"
    return "TIMESTAMP" if _TIME.fullmatch(value) else "DATE" if _DATE.fullmatch(value) else "STRING"


def _joined(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return kinds.pop()
    return "DOUBLE" if kinds == {"BIGINT", "DOUBLE"} else "STRING"


def _csv_fields(texts: Sequence[str]) -> tuple[Field, ...]:
    rows = list(csv.reader(text.rstrip("\r\n") for text in texts if "\n" not in text.rstrip("\r\n")))
    widths = {len(row) for row in rows}
    if len(rows) < len(texts) or len(widths) != 1 or max(widths) < 2:
        return ()
    found = []
    for index, column in enumerate(zip(*rows, strict=True), 1):
        values = [value for value in column if value]
        kind = _joined({_csv_type(value) for value in values})
        found.append(Field(f"c{index}", kind, len(values) / len(rows), len(set(values)), _are_keys(values)))
    return tuple(found)


def _are_keys(values: Iterable[Any]) -> bool:
    try:
        for value in values:
            check_key(str(value))
    except UsageError:
        return False
    return True


def _csv_type(text: str) -> str:
    if _WHOLE.fullmatch(text):
        return "BIGINT"
    if _NUMBER.fullmatch(text):
        return "DOUBLE"
    return "TIMESTAMP" if _TIME.fullmatch(text) else "DATE" if _DATE.fullmatch(text) else "STRING"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def pipeline_text(stream: str, sample: Sample, servers: str = "") -> str:
    """A commented pipeline file for a stream."""
    return "\n".join(_lines(stream, sample, servers)) + "\n"


def _lines(stream: str, sample: Sample, servers: str) -> Iterator[str]:
    view = _safe(stream.lower())
    view = view if view[:1].isalpha() else f"s_{view}"
    key = next((one for one in sample.fields if _is_key(one, sample.messages)), None)
    number = next((one for one in sample.fields if one.kind in ("BIGINT", "DOUBLE") and one is not key), None)
    yield f"# Made from {sample.messages} messages of stream {stream}."
    yield "# Check it with: slipstream pipeline validate --deep FILE"
    yield "[pipeline]"
    yield f'name = "{view}"'
    if sample.format != "raw":
        yield f"dead_letter = {_string(f'{stream}_DEAD')}   # messages that cannot be decoded, with the reason"
    if servers:
        listed = ", ".join(_string(one.strip()) for one in servers.split(","))
        yield from ("", "[connection]", f"servers = [{listed}]")
    yield from ("", f"[sources.{view}]", f"stream = {_string(stream)}")
    if sample.format == "raw":
        yield "# Neither JSON objects nor CSV: the columns are subject, sequence, timestamp, headers and data."
        yield 'format = "raw"'
    else:
        yield f'format = "{sample.format}"'
        yield from sample.settings or (f"schema = {_text_block(_schema(sample))}",)
        if sample.rejected:
            what = "JSON objects" if sample.format == "json" else "records of this type"
            yield f"# {sample.rejected} of {sample.messages} messages of the sample are not {what}."
        for one in sample.fields:
            if one.present < 1:
                yield f"# {_shown_name(one.name)}: missing or null in {_percent(1 - one.present)} % of the sample"
            if one.mixed:
                yield f"# {_shown_name(one.name)}: {one.mixed}"
        for name in sample.left_out:
            yield f"# {name}: left out, since every source has a column of this name"
        time = next((one for one in sample.fields if one.kind == "TIMESTAMP"), None)
        if time is not None:
            yield f'# watermark = {{ column = {_string(time.name)}, delay = "10 minutes" }}   # for windows and joins'
    if key is not None:
        total = f", sum({_quoted(number.name)}) AS total" if number else ""
        yield from ("", "# One row per key, kept up to date in a bucket.", f"[steps.per_{_safe(key.name)}]")
        sql = f"SELECT {_quoted(key.name)}, count(*) AS messages{total} FROM {view} GROUP BY 1"
        yield f"sql = {_string(sql)}"
        yield from ("", f"[buckets.{view}_per_{_safe(key.name)}]", "", f"[outputs.per_{_safe(key.name)}]")
        yield from (f'from = "per_{_safe(key.name)}"', f'bucket = "{view}_per_{_safe(key.name)}"')
        yield f"key = {_string(key.name)}"
        if not key.are_keys:
            yield 'key_codec = "base64"   # keys in the sample have characters that a bucket does not take'
    yield from ("", "# Every message, as Parquet files.", "[outputs.history]", f'from = "{view}"', 'path = "history"')


def _schema(sample: Sample) -> str:
    return ",\n".join(f"    {_quoted(one.name)} {one.kind}" for one in sample.fields)


def _text_block(text: str) -> str:
    """A text as a literal string of TOML on lines of its own, or where it cannot be one, as a string in one line."""
    is_literal = "'''" not in text and all(one.isprintable() or one in "\n\t" for one in text)
    return f"'''\n{text}\n'''" if is_literal else _string(text)


def _shown_name(name: str) -> str:
    return name if name.isprintable() else _string(name)


def _percent(part: float) -> str:
    return "less than 1" if 0 < part < 0.005 else f"{100 * part:.0f}"


def _is_key(field: Field, count: int) -> bool:
    if "." in field.name or "`" in field.name:  # as a key these are a path
        return False
    return field.kind in ("STRING", "BIGINT") and field.present == 1 and 1 < field.distinct <= max(2, _KEY_MAX * count)


def _safe(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
