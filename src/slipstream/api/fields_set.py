"""Which fields of a configuration were set explicitly, also where a value equals the default.

`ConsumerConfig(headers_only=False)` asks for something, `ConsumerConfig()` leaves it open, yet the two are equal. A
dataclass with the base `TracksFields` and the metaclass `TracksFieldsType` can tell: `fields_set` names the arguments
that it was made with.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self, cast


class TracksFieldsType(type):
    """Metaclass of configurations that record the names of the arguments they were made with."""

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        """Make an instance, and record the names."""
        made = super().__call__(*args, **fields)
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
        """A copy with some fields changed, which count as set."""
        copy = dataclasses.replace(cast("Any", self), **changes)
        object.__setattr__(copy, "_fields_set", self.fields_set | frozenset(changes))
        return cast("Self", copy)


def _defaults(config: TracksFields) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(cast("Any", config))
    }
