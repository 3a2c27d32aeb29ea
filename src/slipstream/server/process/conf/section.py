"""Typed access to a map of a configuration: values are taken by name, and a key that is never taken is an error.

Names are case-insensitive, and most have several spellings, as in nats-server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slipstream.server.options import Option
from slipstream.server.process.conf.tree import ConfigError, Entry, Map, Position, Value

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:ns|us|µs|μs|ms|s|m|h))+")
_PART = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|μs|ms|s|m|h)")


class Section:
    """One map, while it is being read."""

    def __init__(self, value: Value, what: str, unsupported: Mapping[str, str] | None = None) -> None:
        """`what` names it in errors; `unsupported` has the reason for each key of nats-server that is rejected."""
        if not isinstance(value.data, dict):
            raise wrong(value, what, "a map")
        self.position: Position = value.position
        self._what = what
        self._map: Map = {key.lower(): entry for key, entry in value.data.items()}
        self._all = list(value.data.values())
        self._unsupported = unsupported or {}
        self._taken: set[str] = set()

    def take(self, *names: str) -> Value | None:
        """The value of a key, by any of its spellings; None if it is not set. The last one written counts."""
        found: Entry | None = None
        for name in names:
            entry = self._map.get(name)
            self._taken.add(name)
            if entry is not None:
                found = entry
        return found.value if found is not None else None

    def entries(self) -> list[Entry]:
        """Everything, for maps whose keys are names."""
        self._taken.update(self._map)
        return self._all

    def done(self) -> None:
        """Raise for the first key that was not taken."""
        for name, entry in self._map.items():
            if name in self._taken or entry.is_variable:
                continue
            if name in self._unsupported:
                raise ConfigError(entry.position, f"{entry.key!r} is not supported: {self._unsupported[name]}")
            raise ConfigError(entry.position, f"unknown field {entry.key!r} in {self._what}")

    # Typed.

    def text(self, *names: str, default: str = "") -> str:
        value = self.take(*names)
        return default if value is None else text(value, names[0])

    def integer(self, *names: str, default: int = 0, low: int | None = None) -> int:
        value = self.take(*names)
        return default if value is None else integer(value, names[0], low)

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self.take(*names)
        return default if value is None else flag(value, names[0])

    def seconds(self, *names: str, default: float) -> float:
        """A duration: `"2m"`, or a number of seconds."""
        value = self.take(*names)
        return default if value is None else seconds(value, names[0])

    def texts(self, *names: str) -> tuple[str, ...]:
        """One string or an array of them."""
        value = self.take(*names)
        return () if value is None else texts(value, names[0])

    def section(self, *names: str, unsupported: Mapping[str, str] | None = None) -> Section | None:
        value = self.take(*names)
        return None if value is None else Section(value, names[0], unsupported)

    def options(self, declared: Iterable[Option]) -> dict[str, Any]:
        """The declared options that are set here, by name."""
        found: dict[str, Any] = {}
        for option in declared:
            value = self.take(*option.keys)
            if value is not None:
                found[option.name] = _option(value, option)
        return found


def _option(value: Value, option: Option) -> Any:
    what = option.keys[0]
    read: Callable[[Value, str], Any] = _READERS[option.kind]
    found = read(value, what)
    if option.kind is str and not found:
        return option.default
    if option.low is not None and found < option.low:
        raise ConfigError(value.position, f"{what!r} must be at least {option.low:g}, got {found:g}")
    if option.choices and found not in option.choices:
        raise ConfigError(value.position, f"{what!r} must be {' or '.join(map(repr, option.choices))}, got {found!r}")
    return found


def wrong(value: Value, what: str, wanted: str) -> ConfigError:
    """The error for a value of the wrong type. The value itself may be a secret: only its type is shown."""
    seen = {dict: "a map", list: "an array", bool: "a boolean", int: "a number", float: "a number"}
    return ConfigError(value.position, f"{what!r} must be {wanted}, got {seen.get(type(value.data), 'a string')}")


def text(value: Value, what: str) -> str:
    if isinstance(value.data, int | float) and not isinstance(value.data, bool):
        raise wrong(value, what, "a string (in quotes)")
    if not isinstance(value.data, str):
        raise wrong(value, what, "a string")
    return value.data


def integer(value: Value, what: str, low: int | None = None) -> int:
    found = value.data
    if isinstance(found, bool) or not isinstance(found, int):
        raise wrong(value, what, "a whole number")
    if low is not None and found < low:
        raise ConfigError(value.position, f"{what!r} must be at least {low}, got {found}")
    return found


def flag(value: Value, what: str) -> bool:
    if not isinstance(value.data, bool):
        raise wrong(value, what, "true or false")
    return value.data


def texts(value: Value, what: str) -> tuple[str, ...]:
    if isinstance(value.data, list):
        return tuple(text(item, what) for item in value.data)
    return (text(value, what),)


def seconds(value: Value, what: str) -> float:
    found = value.data
    if isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    if not isinstance(found, str) or not _DURATION.fullmatch(found):
        raise wrong(value, what, "a number of seconds or a duration such as '2m' or '1h30m'")
    total = sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(found))
    return -total if found.startswith("-") else total


def listen(value: Value, what: str, default_host: str) -> tuple[str, int]:
    """`host:port`, `:port` or a port."""
    if isinstance(value.data, int) and not isinstance(value.data, bool):
        return default_host, port(value.data, value.position, what)
    host, colon, number = text(value, what).rpartition(":")
    if not colon or not re.fullmatch(r"-?\d+", number):
        raise ConfigError(value.position, f"{what!r} must be 'host:port' or a port, got {value.data!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host or default_host, port(int(number), value.position, what)


def port(number: int, position: Position, what: str) -> int:
    if not -1 <= number <= 65535:
        raise ConfigError(position, f"{what!r} must be a port up to 65535, or -1 for a free one, got {number}")
    return number


_READERS: dict[type, Callable[[Value, str], Any]] = {
    bool: flag, int: integer, float: seconds, str: text, tuple: texts
}  # fmt: skip
