"""JSON objects of the JetStream API become frozen dataclasses and back, without losing what we do not know.

Three rules: attribute names are the JSON names; units change in a codec (`via`); fields this version does not know are
kept in `unknown` and written out again, so that a read-modify-write by an older client never strips a newer server's
configuration. A value of the wrong type is a ValueError that names the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple, Self, TypeVar, get_type_hints

import msgspec

from slipstream.api.times import format_time, parse_time

M = TypeVar("M", bound="JsonModel")


class Codec(NamedTuple):
    """How a field's JSON value becomes the attribute, and back."""

    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]


def _from_nanos(value: Any) -> timedelta:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected nanoseconds as a whole number, got {value!r}")
    return timedelta(microseconds=value // 1000)


def _to_nanos(value: timedelta) -> int:
    return (value // timedelta(microseconds=1)) * 1000


NANOS = Codec(_from_nanos, _to_nanos)
TIME = Codec(parse_time, format_time)


def nested(model: type[M]) -> Codec:
    """A field that is an object of its own."""
    return Codec(lambda value: None if value is None else model.from_dict(value), lambda value: value and value.to_dict())


def nested_list(model: type[M]) -> Codec:
    """A field that is a list of objects."""
    return Codec(
        lambda values: tuple(model.from_dict(value) for value in values or ()),
        lambda values: [value.to_dict() for value in values],
    )


def via(codec: Codec, *, default: Any, always: bool = False) -> Any:
    """A field whose JSON form differs from the attribute; `always`: written out even when it has its default."""
    return dataclasses.field(default=default, metadata={"codec": codec, "always": always})


def always(default: Any) -> Any:
    """A plain field that is written out even when it has its default."""
    return dataclasses.field(default=default, metadata={"always": True})


def unknown_fields() -> Any:
    """The field that keeps what we do not know."""
    return dataclasses.field(default_factory=dict, repr=False)


class _Field(NamedTuple):
    name: str
    hint: Any
    codec: Codec | None
    always: bool
    default: Any


@cache
def _layout(cls: type[JsonModel]) -> dict[str, _Field]:
    hints = get_type_hints(cls)
    layout = {}
    for field in dataclasses.fields(cls):
        if field.name != "unknown":
            has_factory = field.default_factory is not dataclasses.MISSING
            default = field.default_factory() if has_factory else field.default  # type: ignore[misc]
            layout[field.name] = _Field(
                field.name, hints[field.name], field.metadata.get("codec"), field.metadata.get("always", False), default
            )
    return layout


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JsonModel:
    """Base of every configuration and report of the API."""

    unknown: Mapping[str, Any] = unknown_fields()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a JSON object."""
        return cls.from_dict(msgspec.json.decode(data))

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
            try:
                if field.codec is not None:
                    known[name] = field.codec.decode(item)
                elif item is None:  # Go writes null for an empty list or map
                    continue
                else:
                    known[name] = msgspec.convert(item, field.hint)
            except (ValueError, TypeError, msgspec.ValidationError) as exc:
                raise ValueError(f"bad value for {cls.__name__}.{name}: {exc}") from exc
        try:
            return cls(**known, unknown=unknown)
        except TypeError as exc:  # a field without default is missing
            raise ValueError(f"bad {cls.__name__}: {exc}") from exc

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

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)
