"""The codec of the JetStream API's JSON objects: frozen dataclasses that keep the fields they do not know.

Three rules: attribute names are the JSON names; units change in a codec (`via`); fields that this version does not know
are kept in `unknown` and encoded again, so that a read-modify-write by an older client never strips a newer server's
configuration. A value of the wrong type is a ValueError that names the field; a null is an absent field, as in Go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Self, TypeVar, cast, get_type_hints

import msgspec

from slipstream.api.fields_set import ConfigType, Reader, TracksFields, instance_of, sequence_of
from slipstream.api.times import ExactDuration, duration, durations, format_time, instant, nanoseconds, parse_time

M = TypeVar("M", bound="JsonModel")


class Codec(NamedTuple):
    """The conversions between a field's JSON value and the attribute, and from what a program passes."""

    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]
    read: Reader


def _from_nanos(value: Any) -> timedelta:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected nanoseconds as a whole number, got {value!r}")
    return ExactDuration.of(value) if value % 1000 else timedelta(microseconds=value // 1000)


def _list_from_nanos(value: Any) -> tuple[timedelta, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"expected a list of nanoseconds, got {value!r}")
    return tuple(_from_nanos(each) for each in value)


def _instant_or_none(value: Any, name: str) -> int | None:
    return None if value is None else instant(value, name)


NANOS = Codec(_from_nanos, nanoseconds, duration)
NANOS_LIST = Codec(_list_from_nanos, lambda value: [nanoseconds(each) for each in value], durations)
TIME = Codec(parse_time, format_time, _instant_or_none)


def nested(model: type[M]) -> Codec:
    """A field that is an object of its own."""
    return Codec(model.from_dict, lambda value: value and value.to_dict(), instance_of(model, optional=True))


def nested_list(model: type[M]) -> Codec:
    """A field that is a list of objects."""

    def decode(values: Any) -> tuple[M, ...]:
        if not isinstance(values, list):
            raise ValueError(f"expected a list of {model.__name__}, got {type(values).__name__}")
        return tuple(model.from_dict(value) for value in values)

    return Codec(decode, lambda values: [value.to_dict() for value in values], sequence_of(model))


def via(codec: Codec, *, default: Any, always: bool = False) -> Any:
    """A field whose JSON form differs from the attribute; `always`: encoded even when it has its default."""
    return dataclasses.field(default=default, metadata={"codec": codec, "read": codec.read, "always": always})


def always(default: Any, **metadata: Any) -> Any:
    """A plain field that is encoded even when it has its default.

    `absent`: its value where JSON does not have it, if that is another. `read`: how it is read, as `one_of` says.
    """
    return dataclasses.field(default=default, metadata={"always": True, **metadata})


def unknown_fields() -> Any:
    """The field that keeps the fields this version does not know."""
    return dataclasses.field(default_factory=dict, repr=False)


class _Field(NamedTuple):
    name: str
    hint: Any
    codec: Codec | None
    always: bool
    default: Any
    absent: Any


_layouts: dict[type[JsonModel], dict[str, _Field]] = {}


def _layout(cls: type[JsonModel]) -> dict[str, _Field]:
    """The fields of a model, looked up once per class."""
    known = _layouts.get(cls)
    if known is not None:
        return known
    hints = get_type_hints(cls)
    layout: dict[str, _Field] = {}
    for field in dataclasses.fields(cls):
        if field.name != "unknown":
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            said = field.metadata
            layout[field.name] = _Field(
                field.name,
                hints[field.name],
                said.get("codec"),
                said.get("always", False),
                default,
                said.get("absent", default),
            )
    _layouts[cls] = layout
    return layout


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JsonModel(TracksFields):
    """Base of every configuration and report of the API."""

    unknown: Mapping[str, Any] = unknown_fields()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a JSON object."""
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as exc:  # ValueError: not UTF-8
            raise ValueError(f"bad JSON for {cls.__name__}: {exc}") from exc
        return cls.from_dict(value)

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read an object that came out of a JSON decoder."""
        if not isinstance(value, dict):
            raise ValueError(f"expected an object for {cls.__name__}, got {type(value).__name__}")
        layout = _layout(cls)
        known = {name: field.absent for name, field in layout.items() if field.absent is not field.default}
        unknown: dict[str, Any] = {}
        for name, item in value.items():
            field = layout.get(name)
            if field is None:
                unknown[name] = item
                continue
            if item is None:  # Go writes null for an empty list or map, and reads null as nothing
                continue
            try:
                known[name] = field.codec.decode(item) if field.codec else msgspec.convert(item, field.hint)
            except (ValueError, OverflowError, msgspec.ValidationError) as exc:
                raise ValueError(f"bad value for {cls.__name__}.{name}: {exc}") from exc
        try:
            if isinstance(cls, ConfigType):
                return cast("Self", cls.decoded(known | {"unknown": unknown}))
            return cls(**known, unknown=unknown)
        except TypeError as exc:  # a field without default is missing
            raise ValueError(f"{cls.__name__} must have its required fields: {exc}") from exc

    def to_dict(self) -> dict[str, Any]:
        """The object as a JSON encoder takes it; fields at their default are left out, unknown ones come last."""
        out: dict[str, Any] = {}
        for name, field in _layout(type(self)).items():
            value = getattr(self, name)
            if value == field.default and not field.always:
                continue
            out[name] = value if field.codec is None else field.codec.encode(value)
        out.update(self.unknown)
        return out

    def to_json(self) -> bytes:
        """The object as JSON."""
        return msgspec.json.encode(self.to_dict())
