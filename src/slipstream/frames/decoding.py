"""Payloads of JSON as columns: the Arrow schema of a type, and the decoding of each payload on its own.

Each payload is decoded alone, not joined to one document: a payload that is not exactly one value must be an error of
its own message, and must not move the values of others to other rows.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from slipstream.errors import MessageDecodeError, UsageError


class JsonDecoder:
    """Decodes payloads into the fields of a schema."""

    def __init__(self, pa: Any, schema: Any, taken: Sequence[str], *, errors: str) -> None:
        """`schema` is a type or an Arrow schema. A field that has the name of a column that is `taken` is called
        `data_<name>`."""
        self._pa, self._errors = pa, errors
        # RecursionError: a payload may be nested as deeply as its sender likes.
        self._rejections = (
            msgspec.MsgspecError, pa.ArrowException, OverflowError, RecursionError, TypeError, ValueError,
        )  # fmt: skip
        self._to_plain: Callable[[list[Any]], list[Any]]
        if isinstance(schema, pa.Schema):
            types = [(field.name, field.type) for field in schema]
            self.kind_name: str = "an object of the schema"
            self._to_plain = _checked_rows(pa, types)
            self._decode = msgspec.json.Decoder(dict[str, Any]).decode
        else:
            try:
                info = msgspec.inspect.type_info(schema)
            except TypeError as error:
                raise UsageError(f"schema must be a type of fields or a pyarrow.Schema, got {schema!r}") from error
            if not isinstance(info, _RECORDS) or getattr(info, "array_like", False):
                raise UsageError(f"schema must be a type of fields or a pyarrow.Schema, got {schema!r}")
            types = [(field.encode_name, arrow_type(pa, field.type, field.name, (info.cls,))) for field in info.fields]
            self.kind_name = getattr(schema, "__name__", str(schema))
            self._to_plain = _plain_rows if _omits_defaults(info) else _builtin_rows
            self._decode = msgspec.json.Decoder(schema).decode
        self._struct = pa.struct([pa.field(name, kind) for name, kind in types])
        self.fields: list[Any] = [pa.field(f"data_{name}" if name in taken else name, kind) for name, kind in types]

    def decode(self, payloads: list[bytes], subjects: list[str], seqs: list[int]) -> list[Any]:
        """The columns of payloads; `subjects` and `seqs` name the message of one that cannot be decoded."""
        try:
            rows: list[Any] = list(map(self._decode, payloads))  # nearly always all are good
            return self._flat(rows)
        except self._rejections:
            rows = [
                self._one(payload, subject, seq) for payload, subject, seq in zip(payloads, subjects, seqs, strict=True)
            ]
            return self._flat(rows)

    def _one(self, payload: bytes, subject: str, seq: int) -> Any:
        """A payload by itself, as it goes into the struct: None if it does not."""
        try:
            row = self._decode(payload)
            self._flat([row])
        except self._rejections as error:
            if self._errors == "null":
                return None
            reason = " ".join(str(error).split())[:200] if payload else "the payload is empty"
            raise MessageDecodeError(
                f"message {seq} on {subject!r} cannot be decoded as {self.kind_name}: {reason}",
                subject=subject,
                stream="",
                seq=seq,
                kind=self.kind_name,
                reason=reason,
            ) from error
        return row

    def _flat(self, rows: list[Any]) -> list[Any]:
        array = self._pa.array(self._to_plain(rows), self._struct)
        return list(array.flatten())


def _builtin_rows(rows: list[Any]) -> list[Any]:
    plain: list[Any] = msgspec.to_builtins(rows, builtin_types=_BUILTIN)
    return plain


def _plain_rows(rows: list[Any]) -> list[Any]:
    return [_plain(row) for row in rows]


def _plain(value: Any) -> Any:
    """A decoded value as `to_builtins` makes it, but with the fields that have their default."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        found = {encoded: getattr(value, name) for encoded, name in names}
        return {name: _plain(one) for name, one in found.items() if one is not msgspec.UNSET}
    if dataclasses.is_dataclass(value):
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _plain(one) for name, one in found.items() if one is not msgspec.UNSET}
    if isinstance(value, dict):
        return {_plain(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return msgspec.to_builtins(value, builtin_types=_BUILTIN)


def _omits_defaults(info: msgspec.inspect.Type) -> bool:
    """Whether `to_builtins` leaves out fields that have their default: of a Struct with `omit_defaults`, and of a
    dataclass, whose defaults msgspec leaves in the class."""
    inner = msgspec.inspect
    if isinstance(info, inner.UnionType):
        return any(map(_omits_defaults, info.types))
    if isinstance(info, inner.CollectionType):
        return _omits_defaults(info.item_type)
    if isinstance(info, inner.DictType):
        return _omits_defaults(info.value_type)
    if not isinstance(info, _RECORDS):
        return False
    if isinstance(info, inner.StructType) and info.cls.__struct_config__.omit_defaults:
        return True
    if isinstance(info, inner.DataclassType) and not all(field.required for field in info.fields):
        return True
    return any(_omits_defaults(field.type) for field in info.fields)


Check = Callable[[Any], None]


def _checked_rows(pa: Any, types: Sequence[tuple[str, Any]]) -> Callable[[list[Any]], list[Any]]:
    """Rows as they are, checked where Arrow would cut off the fraction of a number without a word."""
    check = _check_fields(pa, types)

    def checked(rows: list[Any]) -> list[Any]:
        if check is not None:
            for row in rows:
                check(row)
        return rows

    return checked


def _check_of(pa: Any, kind: Any) -> Check | None:
    types = pa.types
    if types.is_integer(kind) or types.is_temporal(kind):
        return _check_whole
    if types.is_struct(kind):
        return _check_fields(pa, [(field.name, field.type) for field in kind])
    is_map = types.is_map(kind)
    if not (is_map or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return None
    inner = _check_of(pa, kind.item_type if is_map else kind.value_type)
    if inner is None:
        return None

    def check_items(value: Any) -> None:
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            inner(one)

    return check_items


def _check_fields(pa: Any, types: Sequence[tuple[str, Any]]) -> Check | None:
    checks = [(name, check) for name, kind in types if (check := _check_of(pa, kind)) is not None]

    def check_fields(row: Any) -> None:
        if isinstance(row, dict):
            for name, check in checks:
                check(row.get(name))

    return check_fields if checks else None


def _check_whole(value: Any) -> None:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"value must be a whole number, got {value!r}")


def arrow_type(pa: Any, info: msgspec.inspect.Type, field: str, above: tuple[Any, ...] = ()) -> Any:
    """The Arrow type of a field of a type; raises UsageError for one that has none. `above` are the types that it is
    part of."""
    inner = msgspec.inspect
    for kind, make in _SIMPLE.items():
        if isinstance(info, kind):
            return make(pa)
    if isinstance(info, inner.UnionType):
        parts = [part for part in info.types if not isinstance(part, inner.NoneType)]
        if len(parts) == 1:
            return arrow_type(pa, parts[0], field, above)
    elif isinstance(info, inner.EnumType | inner.LiteralType):
        values = [one.value for one in info.cls] if isinstance(info, inner.EnumType) else list(info.values)
        if all(isinstance(value, str) for value in values):
            return pa.string()
        if all(isinstance(value, int) for value in values):
            return pa.int64()
    elif isinstance(info, inner.CollectionType):
        return pa.list_(arrow_type(pa, info.item_type, field, above))
    elif isinstance(info, inner.DictType) and isinstance(info.key_type, inner.StrType):
        return pa.map_(pa.string(), arrow_type(pa, info.value_type, field, above))
    elif isinstance(info, inner.DataclassType | inner.TypedDictType) or (
        isinstance(info, inner.StructType) and not info.array_like
    ):
        if info.cls in above:
            raise UsageError(
                f"field {field!r} must not contain its own type {info.cls.__name__}: Arrow types are finite"
            )
        within = (*above, info.cls)
        return pa.struct([pa.field(one.encode_name, arrow_type(pa, one.type, one.name, within)) for one in info.fields])
    raise UsageError(f"field {field!r} has no Arrow type: pass a pyarrow.Schema, or leave the field out")


_RECORDS = (msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)
_BUILTIN = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, bytes)
_SIMPLE: dict[Any, Callable[[Any], Any]] = {
    msgspec.inspect.BoolType: lambda pa: pa.bool_(),
    msgspec.inspect.IntType: lambda pa: pa.int64(),
    msgspec.inspect.FloatType: lambda pa: pa.float64(),
    msgspec.inspect.StrType: lambda pa: pa.string(),
    msgspec.inspect.UUIDType: lambda pa: pa.string(),
    msgspec.inspect.BytesType: lambda pa: pa.binary(),
    msgspec.inspect.DateTimeType: lambda pa: pa.timestamp("us", tz="UTC"),
    msgspec.inspect.DateType: lambda pa: pa.date32(),
    msgspec.inspect.TimeType: lambda pa: pa.time64("us"),
    msgspec.inspect.TimeDeltaType: lambda pa: pa.duration("us"),
    msgspec.inspect.DecimalType: lambda pa: pa.decimal128(38, 18),
}
