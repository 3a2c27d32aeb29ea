"""The codec of the JetStream API's JSON objects: frozen dataclasses that keep the fields they do not know.

Three rules: attribute names are the JSON names; units change in a codec (`via`); fields that this version does not know
are kept in `unknown` and encoded again, so that a read-modify-write by an older client never strips a newer server's
configuration. A value of the wrong type is a ValueError that names the field; a null is an absent field, as in Go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Self, TypeVar, get_type_hints

import msgspec

from slipstream.api.fields_set import TracksFields
from slipstream.api.times import DURATION, INSTANT, ExactDuration, format_time, instant, nanoseconds, parse_time
from slipstream.errors import UsageError

M = TypeVar("M", bound="JsonModel")


class Codec(NamedTuple):
    """The conversions between a field's JSON value and the attribute, and what the attribute must be."""

    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]
    kind: str


def _from_nanos(value: Any) -> timedelta:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected nanoseconds as a whole number, got {value!r}")
    return ExactDuration.of(value) if value % 1000 else timedelta(microseconds=value // 1000)


def _list_from_nanos(value: Any) -> tuple[timedelta, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"expected a list of nanoseconds, got {value!r}")
    return tuple(_from_nanos(each) for each in value)


NANOS = Codec(_from_nanos, nanoseconds, DURATION)
NANOS_LIST = Codec(
    _list_from_nanos, lambda value: [nanoseconds(each) for each in value], f"a sequence, each of it {DURATION}"
)
TIME = Codec(parse_time, lambda value: format_time(instant(value, "time")), INSTANT)


def nested(model: type[M]) -> Codec:
    """A field that is an object of its own."""
    return Codec(model.from_dict, lambda value: value and value.to_dict(), f"a {model.__name__}")


def nested_list(model: type[M]) -> Codec:
    """A field that is a list of objects."""

    def decode(values: Any) -> tuple[M, ...]:
        if not isinstance(values, list):
            raise ValueError(f"expected a list of {model.__name__}, got {type(values).__name__}")
        return tuple(model.from_dict(value) for value in values)

    return Codec(decode, lambda values: [value.to_dict() for value in values], f"a sequence of {model.__name__}")


def via(codec: Codec, *, default: Any, always: bool = False) -> Any:
    """A field whose JSON form differs from the attribute; `always`: encoded even when it has its default."""
    return dataclasses.field(default=default, metadata={"codec": codec, "always": always})


def always(default: Any) -> Any:
    """A plain field that is encoded even when it has its default."""
    return dataclasses.field(default=default, metadata={"always": True})


def unknown_fields() -> Any:
    """The field that keeps the fields this version does not know."""
    return dataclasses.field(default_factory=dict, repr=False)


class _Field(NamedTuple):
    name: str
    hint: Any
    codec: Codec | None
    always: bool
    default: Any


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
            layout[field.name] = _Field(
                field.name, hints[field.name], field.metadata.get("codec"), field.metadata.get("always", False), default
            )
    _layouts[cls] = layout
    return layout


_KINDS: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    tuple[str, ...]: "a sequence of strings",
    Mapping[str, str]: "a mapping of strings to strings",
}


def _kind(hint: Any) -> str:
    return _KINDS.get(hint, str(hint))


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
        known: dict[str, Any] = {}
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

    def check(self) -> Self:
        """Return this object; raises UsageError for an attribute of the wrong type, which a server cannot name."""
        for name, field in _layout(type(self)).items():
            value = getattr(self, name)
            if value == field.default:
                continue
            try:
                if field.codec is not None:
                    field.codec.encode(value)
                else:
                    msgspec.convert(value, field.hint)
            except (ValueError, TypeError, AttributeError, OverflowError) as exc:
                kind = field.codec.kind if field.codec is not None else _kind(field.hint)
                raise UsageError(f"{name} of {type(self).__name__} must be {kind}, got {value!r}") from exc
        return self

    def to_json(self) -> bytes:
        """The object as JSON."""
        return msgspec.json.encode(self.to_dict())
