"""Protobuf messages as JSON that Spark reads, and message types as Spark columns, by the package `protobuf`.

A message type is named in a descriptor set, the file that `protoc --include_imports --descriptor_set_out` writes, so no
generated code is needed. Spark's own Protobuf support is a jar that PySpark does not ship.

Fields that were not set are null where the type can tell (`optional`, messages, members of a oneof), and have their
default value otherwise. Fields that the type does not have are ignored, as Protobuf means it: readers may be older than
writers. That also means that bytes of another type may pass for a message of this one.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from slipstream.errors import UsageError
from slipstream.extras import needed_by
from slipstream.spark.pipelines.checks.suggestions import suggestion

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message
    from pyspark.sql import Column

_MAX_DEPTH = 32
_NAMES = {  # numbers of FieldDescriptor.TYPE_… -> Spark's type; an unsigned number needs the next larger one
    1: "DOUBLE", 2: "FLOAT", 3: "BIGINT", 4: "DECIMAL(20, 0)", 5: "INT", 6: "DECIMAL(20, 0)", 7: "BIGINT",
    8: "BOOLEAN", 9: "STRING", 12: "BINARY", 13: "BIGINT", 14: "STRING", 15: "INT", 16: "BIGINT", 17: "INT",
    18: "BIGINT",
}  # fmt: skip
_BYTES, _ENUM = 12, 14
_REPEATED = 3
_TIMESTAMP = "google.protobuf.Timestamp"
_DURATION = "google.protobuf.Duration"
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class ProtobufError(UsageError):
    """A descriptor set or message type that cannot be used, or bytes that are not a message of the type."""


def spark_schema(descriptors: bytes, message: str) -> str:
    """The columns of a message type, as Spark's DDL."""
    return _columns(_message_type(descriptors, message), "", ())


def protobuf_to_json(descriptors: bytes, message: str) -> Callable[[Column], Column]:
    """A Spark function from the bytes of a message to JSON, null if they are not a message of the type."""
    from pyspark.sql.functions import udf

    def decode(data: bytes | None) -> str | None:
        if data is None:
            return None
        try:
            return message_to_json(descriptors, message, bytes(data))
        except ProtobufError:
            return None

    return udf(decode, "string", useArrow=False)


def message_to_json(descriptors: bytes, message: str, data: bytes) -> str:
    """A message as JSON; raises ProtobufError if the bytes are not one."""
    from google.protobuf.message import DecodeError

    found = _message_class(descriptors, message)()
    try:
        found.ParseFromString(data)
        if not found.IsInitialized():
            raise ProtobufError("a required field is missing")
        return json.dumps(_plain(found))
    except (DecodeError, OverflowError, RecursionError) as error:
        raise ProtobufError(f"not a message of type {message}: {error}") from None


@lru_cache(maxsize=32)
def _message_type(descriptors: bytes, message: str) -> Descriptor:
    with needed_by("format protobuf", "protobuf"):
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError
    found = FileDescriptorSet()
    try:
        found.ParseFromString(descriptors)
    except DecodeError:
        found.Clear()
    if not found.file:
        raise ProtobufError(
            "descriptor must be a descriptor set, as `protoc --include_imports --descriptor_set_out=FILE` writes it"
        )
    pool = DescriptorPool()
    left = list(found.file)
    added: set[str] = set()
    while left:
        ready = [file for file in left if added.issuperset(file.dependency)]  # in whatever order they are in the set
        if not ready:
            needed = sorted({name for file in left for name in file.dependency} - {file.name for file in found.file})
            text = f"descriptor is not complete, it lacks {', '.join(needed) or 'an order: files import each other'}"
            raise ProtobufError(f"{text}: write it with `protoc --include_imports`")
        for file in ready:
            try:
                pool.AddSerializedFile(file.SerializeToString())
            except (TypeError, ValueError) as error:
                raise ProtobufError(f"descriptor has an invalid file {file.name!r}: {error}") from None
            added.add(file.name)
        left = [file for file in left if file not in ready]
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = [f"{one.package}.{item.name}".lstrip(".") for one in found.file for item in one.message_type]
        raise ProtobufError(
            f"descriptor has no message type {message!r}; {suggestion(message, known, 'it has')}"
        ) from None


@lru_cache(maxsize=32)
def _message_class(descriptors: bytes, message: str) -> type[Message]:
    """The class of a message type. Workers are sent the descriptors, and make it once each."""
    from google.protobuf.message_factory import GetMessageClass

    found: type[Message] = GetMessageClass(_message_type(descriptors, message))
    return found


def _columns(kind: Descriptor, between: str, above: tuple[str, ...]) -> str:
    """The fields of a message type; `between` is what Spark's DDL has between a name and its type."""
    if kind.full_name in above or len(above) >= _MAX_DEPTH:
        raise ProtobufError(f"message type {kind.full_name} contains itself, which no column of Spark can")
    if not kind.fields:
        raise ProtobufError(f"message type {kind.full_name} has no fields, and so no columns")
    inner = (*above, kind.full_name)
    return ", ".join(f"{_quoted(one.name)}{between} {_field_type(one, inner)}" for one in kind.fields)


def _field_type(field: FieldDescriptor, above: tuple[str, ...]) -> str:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return f"MAP<STRING, {_field_type(entry['value'], above)}>"  # keys in JSON are texts
    found = _single_type(field, above)
    return f"ARRAY<{found}>" if _is_repeated(field) else found


def _single_type(field: FieldDescriptor, above: tuple[str, ...]) -> str:
    kind = field.message_type
    if kind is None:
        return _NAMES[field.type]
    if kind.full_name == _TIMESTAMP:
        return "TIMESTAMP"
    if kind.full_name == _DURATION:
        return "DOUBLE"  # seconds
    if kind.full_name in _WRAPPERS:
        return _NAMES[kind.fields_by_name["value"].type]
    return f"STRUCT<{_columns(kind, ':', above)}>"


def _plain(message: Message) -> dict[str, Any]:
    """A message in the types of JSON, with every field that it has."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if not _is_repeated(field) and field.has_presence and not message.HasField(field.name):
            found[field.name] = None
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            kind = field.message_type.fields_by_name["value"]
            found[field.name] = {_map_key(key): _value(kind, value[key]) for key in value}
        elif _is_repeated(field):
            found[field.name] = [_value(field, one) for one in value]
        else:
            found[field.name] = _value(field, value)
    return found


def _value(field: FieldDescriptor, value: Any) -> Any:
    kind = field.message_type
    if kind is not None:
        if kind.full_name == _TIMESTAMP:
            return value.ToJsonString()
        if kind.full_name == _DURATION:
            return value.ToNanoseconds() / 1e9
        if kind.full_name in _WRAPPERS:
            return _value(kind.fields_by_name["value"], value.value)
        return _plain(value)
    if field.type == _BYTES:
        return b64encode(value).decode()
    if field.type == _ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)  # of a newer version of the type
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _map_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(getattr(field, "is_repeated", None) or getattr(field, "label", 0) == _REPEATED)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _quoted(name: str) -> str:
    return f"`{name}`"
