"""Configurations: their fields are read and checked when they are made, and they know which ones were set.

A dataclass with the base `TracksFields` and the metaclass `ConfigType` takes what a program may write (seconds for a
duration, a datetime for an instant, one subject for a list of them), keeps the one form that each field has, and raises
UsageError for anything else, where it is written and not where it is used. `ConsumerConfig(headers_only=False)` asks
for something, `ConsumerConfig()` leaves it open, yet the two are equal: `fields_set` names the arguments that a
configuration was made with.

What a server says is decoded past these checks: a newer one may use words that this version does not know.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from slipstream.api.times import duration
from slipstream.errors import UsageError

T = TypeVar("T")
Reader = Callable[[Any, str], Any]  # a value and the name of its field -> the attribute; raises UsageError

_KINDS: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    dict[str, str]: "a mapping of strings to strings",
    Mapping[str, str]: "a mapping of strings to strings",
}


class ConfigType(type):
    """Metaclass of configurations: reads the arguments they are made with, and records their names."""

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        """Make an instance, and record the names."""
        by_place = dict(zip(_positional(cls), args, strict=False))
        made = super().__call__(*_read(cls, by_place).values(), *args[len(by_place) :], **_read(cls, fields))
        object.__setattr__(made, "_fields_set", frozenset(by_place) | frozenset(fields))
        return made

    def decoded(cls, fields: dict[str, Any]) -> Any:
        """An instance with the fields that a server sent, as they are."""
        made = super().__call__(**fields)
        object.__setattr__(made, "_fields_set", frozenset(fields))
        return made


class TracksFields:
    """Base of such a dataclass. Two of them are equal if their values are, however they were made."""

    __slots__ = ("_fields_set",)

    _fields_set: frozenset[str]

    @property
    def fields_set(self) -> frozenset[str]:
        """The names of the fields that were set. Of a pickled copy: those not at their default."""
        try:
            return self._fields_set
        except AttributeError:
            return frozenset(name for name, default in _defaults(self).items() if getattr(self, name) != default)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, which count as set. Fields that a server sent are kept."""
        cls = type(self)
        if not isinstance(cls, ConfigType):
            return cast("Self", dataclasses.replace(cast("Any", self), **changes))
        now = {field.name: getattr(self, field.name) for field in dataclasses.fields(cast("Any", self))}
        copy = cls.decoded(now | _read(cls, changes))
        object.__setattr__(copy, "_fields_set", self.fields_set | frozenset(changes))
        return cast("Self", copy)


def _defaults(config: TracksFields) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(cast("Any", config))
    }


def configuration(kind: type[T], config: T | str, fields: Mapping[str, Any]) -> T:
    """The configuration that a call was given: as an object, or as its name and fields."""
    if isinstance(config, str):
        return cast("T", cast("Any", kind)(config, **fields))
    if not isinstance(config, kind):
        raise UsageError(f"config must be a {kind.__name__}, got {type(config).__name__}")
    if fields:
        named = ", ".join(fields)
        raise UsageError(f"{named} must be part of the {kind.__name__}, or be passed with a name, not both")
    return config


# Reading fields

_readers: dict[type, dict[str, Reader]] = {}


def one_of(choices: type[StrEnum] | Sequence[str], *, blank: bool = False) -> dict[str, Any]:
    """The metadata of a field with few possible values; `blank`: none at all is one of them."""
    known = [str(choice) for choice in choices]

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, str) or not (value in known or (blank and not value)):
            shown = f"{', '.join(known[:-1])} or {known[-1]}"
            raise UsageError(f"{name} must be {shown}, got {value!r}")
        return str(value)

    return {"read": read}


def texts(value: Any, name: str) -> tuple[str, ...]:
    """A list of subjects, or of other texts; one alone is a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"{name} must be a string or a sequence of strings, got {value!r}")
    return tuple(value)


def instance_of(kind: type, *, optional: bool = False) -> Reader:
    """A reader of an object of that class, or None where that is possible."""

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, kind) and not (optional and value is None):
            raise UsageError(f"{name} must be {_a(kind.__name__)}, got {value!r}")
        return value

    return read


def sequence_of(kind: type) -> Reader:
    """A reader of several objects of that class."""

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, kind) for each in value):
            raise UsageError(f"{name} must be a sequence of {kind.__name__}, got {value!r}")
        return tuple(value)

    return read


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "AEIOU" else f"a {noun}"


def _converted(hint: Any) -> Reader:
    def read(value: Any, name: str) -> Any:
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as exc:
            raise UsageError(f"{name} must be {_KINDS[hint]}, got {value!r}") from exc
        return int(value) if hint is int else value  # 5.0 is an integer, and must be written as one

    return read


def _reader(hint: Any, metadata: Mapping[str, Any]) -> Reader | None:
    """How a field is read: as its metadata says, or by its type."""
    if "read" in metadata:
        return cast("Reader", metadata["read"])
    if hint is timedelta:
        return duration
    if hint == tuple[str, ...]:
        return texts
    if hint in _KINDS:
        return _converted(hint)
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    if len(parts) == 2 and parts[1] is type(None) and isinstance(parts[0], type):
        return instance_of(parts[0], optional=True)
    return None


def _read(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    readers = _readers.get(cls)
    if readers is None:
        hints = get_type_hints(cls)
        found = ((field.name, _reader(hints[field.name], field.metadata)) for field in dataclasses.fields(cls))
        readers = _readers[cls] = {name: reader for name, reader in found if reader is not None}
    return {name: readers[name](value, name) if name in readers else value for name, value in fields.items()}


def _positional(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if not field.kw_only]
