"""Avro codec: binary records to JSON that Spark reads, and Avro schemas to Spark columns.

Spark's own Avro support is not part of PySpark; this has no dependency. Records have the plain binary encoding, or the
single-object encoding with its header of ten bytes: C3 01 and the fingerprint of the schema. C3 01 alone is not taken
for a header, since a plain record may begin with the number -98. A record must use all bytes of its message: bytes left
over mean another schema.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column

_PRIMITIVES = {
    "null": "VOID",
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
_LOGICAL: dict[tuple[str, str | None], str] = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
}
_SINGLE_OBJECT = b"\xc3\x01"
_EMPTY = 0xC15D213AA4D7A795
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_DEPTH = 64
_MAX_DIGITS = 38  # of a decimal, in Spark
_MAX_BYTES = 2**31 - 1
_MAX_SHOWN = 80


class AvroError(UsageError):
    """An invalid schema, or bytes that do not fit it."""


def parse_schema(text: str) -> dict[str, Any]:
    """The schema of a record; raises AvroError if it is invalid or has no Spark type."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroError(f"an Avro schema must be JSON: {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise AvroError(
            "an Avro schema of a message must be a record: {'type': 'record', 'name': ..., 'fields': [...]}"
        )
    spark_type(schema, {})
    return schema


def spark_schema(text: str) -> str:
    """The columns of a record, as DDL."""
    schema = parse_schema(text)
    names: dict[str, Any] = {}
    _register(schema, names)
    return ", ".join(f"`{name}` {spark_type(kind, names)}" for name, kind in _fields(schema))


def spark_type(schema: Any, names: dict[str, Any], depth: int = 0) -> str:
    """Spark's type for a part of a schema; named types are added to `names`."""
    if depth > _MAX_DEPTH:
        raise AvroError("an Avro schema that contains itself has no columns in Spark")
    if isinstance(schema, list):
        return _union_type(schema, names, depth)
    if isinstance(schema, str):
        return _PRIMITIVES.get(schema) or spark_type(_named(schema, names), names, depth + 1)
    if not isinstance(schema, dict) or "type" not in schema:
        raise AvroError(f"{_shown(schema)} is not an Avro type")
    kind, logical = schema["type"], schema.get("logicalType")
    _register(schema, names)
    if kind == "fixed":
        _whole(schema, "size", 0, _MAX_BYTES)
    if logical == "decimal":
        return _decimal(schema)
    if isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    if kind == "record":
        fields = (f"`{name}`: {spark_type(type_, names, depth + 1)}" for name, type_ in _fields(schema))
        return f"STRUCT<{', '.join(fields)}>"
    if kind == "array":
        return f"ARRAY<{spark_type(_item(schema, 'items'), names, depth + 1)}>"
    if kind == "map":
        return f"MAP<STRING, {spark_type(_item(schema, 'values'), names, depth + 1)}>"
    if kind == "enum":
        return _enum_type(schema)
    return "BINARY" if kind == "fixed" else spark_type(kind, names, depth + 1)


def _union_type(union: list[Any], names: dict[str, Any], depth: int) -> str:
    kinds = [one for one in union if one != "null"]
    if len(kinds) != 1:
        raise AvroError(f"an Avro union must be one type, with or without null, to have a Spark type, got {union!r}")
    return spark_type(kinds[0], names, depth + 1)


def _enum_type(schema: dict[str, Any]) -> str:
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
        raise AvroError(f"an Avro enum needs symbols, a list of strings: {_shown(schema)}")
    return "STRING"


def _item(schema: dict[str, Any], key: str) -> Any:
    """The type of the items of an array, or of the values of a map."""
    if key not in schema:
        raise AvroError(f"an Avro {schema['type']} needs {key}: {_shown(schema)}")
    return schema[key]


def _fields(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    fields = schema.get("fields")
    if not isinstance(fields, list):
        raise AvroError(f"an Avro record needs fields, a list: {_shown(schema)}")
    for one in fields:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not one["name"] or "type" not in one:
            raise AvroError(f"a field of an Avro record needs name, a string, and type: {_shown(one)}")
    return [(one["name"], one["type"]) for one in fields]


def _decimal(schema: dict[str, Any]) -> str:
    if schema["type"] not in ("bytes", "fixed"):
        raise AvroError(f"an Avro decimal must be bytes or fixed: {_shown(schema)}")
    precision = _whole(schema, "precision", 1, _MAX_DIGITS)
    return f"DECIMAL({precision}, {_whole({'scale': 0, **schema}, 'scale', 0, precision)})"


def _whole(schema: dict[str, Any], name: str, least: int, most: int) -> int:
    value = schema.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        got = repr(value) if name in schema else "none"
        raise AvroError(f"{name} must be between {least} and {most}, got {got}: {_shown(schema)}")
    return value


def _shown(part: Any) -> str:
    text = json.dumps(part)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _register(schema: Any, names: dict[str, Any]) -> None:
    if isinstance(schema, dict) and schema.get("type") in ("record", "enum", "fixed"):
        if not isinstance(schema.get("name", ""), str) or not isinstance(schema.get("namespace", ""), str):
            raise AvroError(f"name and namespace of an Avro type must be strings: {_shown(schema)}")
        if "name" in schema:
            names[schema["name"].rpartition(".")[2]] = schema


def _named(name: str, names: dict[str, Any]) -> Any:
    """A type by its name. Namespaces are inherited and may be left out, so types are known by the last part."""
    found = names.get(name.rpartition(".")[2])
    if found is None:
        raise AvroError(f"unknown Avro type {name!r}")
    return found


def fingerprint(schema: Any) -> bytes:
    """The fingerprint in the single-object encoding: CRC-64-AVRO of the canonical form, low byte first."""
    found = _EMPTY
    for byte in _canonical(schema, "").encode():
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (_EMPTY if found & 1 else 0)
    return found.to_bytes(8, "little")


def _canonical(schema: Any, space: str) -> str:
    """The Parsing Canonical Form: full names, no attribute that does not change the encoding, one spelling."""
    if isinstance(schema, list):
        return f"[{','.join(_canonical(one, space) for one in schema)}]"
    if isinstance(schema, str):
        return _quoted(schema if schema in _PRIMITIVES else _full(schema, space))
    kind = schema["type"]
    if kind == "array":
        return f'{{"type":"array","items":{_canonical(schema["items"], space)}}}'
    if kind == "map":
        return f'{{"type":"map","values":{_canonical(schema["values"], space)}}}'
    if kind not in ("record", "enum", "fixed"):
        return _canonical(kind, space)
    name = _full(schema.get("name", ""), schema.get("namespace", space))
    space = name.rpartition(".")[0]
    if kind == "enum":
        rest = f'"symbols":[{",".join(map(_quoted, schema["symbols"]))}]'
    elif kind == "fixed":
        rest = f'"size":{schema["size"]}'
    else:
        fields = (f'{{"name":{_quoted(f["name"])},"type":{_canonical(f["type"], space)}}}' for f in schema["fields"])
        rest = f'"fields":[{",".join(fields)}]'
    return f'{{"name":{_quoted(name)},"type":"{kind}",{rest}}}'


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Decoder:
    """Decoder of records of one schema."""

    def __init__(self, text: str) -> None:
        self._schema = parse_schema(text)
        self._names: dict[str, Any] = {}
        spark_type(self._schema, self._names)
        self._header = _SINGLE_OBJECT + fingerprint(self._schema)

    def to_json(self, data: bytes) -> str:
        """The record as JSON; raises AvroError if the bytes are not exactly one record."""
        cursor = _Cursor(data, len(self._header) if data.startswith(self._header) else 0)
        try:
            value = self._read(self._schema, cursor)
        except (IndexError, struct.error, UnicodeDecodeError, OverflowError, ValueError) as error:
            raise AvroError(f"not a record of the schema: {type(error).__name__} at byte {cursor.at}") from None
        if cursor.at != len(data):
            raise AvroError(f"{len(data) - cursor.at} bytes are left after the record")
        return json.dumps(value)

    def _read(self, schema: Any, cursor: _Cursor) -> Any:
        if isinstance(schema, list):
            return self._read(schema[cursor.index(len(schema))], cursor)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _plain(cursor.primitive(schema))
            return self._read(_named(schema, self._names), cursor)
        kind, logical = schema["type"], schema.get("logicalType")
        if kind == "record":
            return {one["name"]: self._read(one["type"], cursor) for one in schema["fields"]}
        if kind == "enum":
            return schema["symbols"][cursor.index(len(schema["symbols"]))]
        if kind == "array":
            return [self._read(schema["items"], cursor) for _ in cursor.items()]
        if kind == "map":
            found = {}
            for _ in cursor.items():
                key = cursor.primitive("string")
                found[key] = self._read(schema["values"], cursor)
            return found
        value = cursor.take(schema["size"]) if kind == "fixed" else None
        if value is None:
            value = cursor.primitive(kind) if isinstance(kind, str) and kind in _PRIMITIVES else None
            if value is None and kind != "null":
                return self._read(kind, cursor)
        return _plain(_logical(value, logical, schema))


def _logical(value: Any, logical: str | None, schema: dict[str, Any]) -> Any:
    if logical == "decimal" and isinstance(value, bytes):
        number = int.from_bytes(value, "big", signed=True)
        digits = tuple(int(digit) for digit in str(abs(number)))
        if len(digits) > schema["precision"]:
            raise ValueError(f"a decimal of {len(digits)} digits")
        # Built from digits, not computed: arithmetic would round to the precision of the decimal context.
        return format(Decimal((int(number < 0), digits, -schema.get("scale", 0))), "f")
    if logical == "date":
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if logical == "timestamp-millis":
        return (_EPOCH + timedelta(milliseconds=value)).isoformat()
    if logical == "timestamp-micros":
        return (_EPOCH + timedelta(microseconds=value)).isoformat()
    return value


def _plain(value: Any) -> Any:
    return b64encode(value).decode() if isinstance(value, bytes) else value


class _Cursor:
    """A position in the bytes of a record."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self._data):
            raise ValueError("the bytes end before the record does")
        found = self._data[self.at : self.at + size]
        self.at += size
        return found

    def long(self) -> int:
        shift = value = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than ten bytes")

    def index(self, size: int) -> int:
        found = self.long()
        if not 0 <= found < size:
            raise ValueError("no such branch")
        return found

    def items(self) -> Iterator[int]:
        """Yields once per item of an array or map, which are encoded in blocks; an empty block is the last."""
        while count := self.long():
            if count < 0:  # the block's size in bytes follows
                count = -count
                self.long()
            if count > len(self._data):
                raise ValueError("more items than bytes")
            yield from range(count)

    def primitive(self, kind: str) -> Any:
        if kind in ("int", "long"):
            return self.long()
        if kind == "string":
            return self.take(self.long()).decode()
        if kind == "bytes":
            return self.take(self.long())
        if kind == "boolean":
            return self.take(1) == b"\x01"
        if kind == "float":
            return struct.unpack("<f", self.take(4))[0]
        if kind == "double":
            return struct.unpack("<d", self.take(8))[0]
        return None


def avro_to_json(schema: str) -> Callable[[Column], Column]:
    """A Spark function from the bytes of a record to JSON, null if they are not a record."""
    from pyspark.sql.functions import udf

    decoder = Decoder(schema)

    def decode(data: bytes | None) -> str | None:
        if data is None:
            return None
        try:
            return decoder.to_json(bytes(data))
        except AvroError:
            return None

    return udf(decode, "string", useArrow=False)
