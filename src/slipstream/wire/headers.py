"""Header blocks: an ordered multi-map of names and values, and the inline status of messages that servers make.

Names are case-sensitive and keep their case; a name may occur several times and every value is kept, in order. What the
caller adds is checked (no line can be smuggled in); what a peer sent is read leniently: only a block without the
`NATS/1.0` line is an error. Spaces and tabs around a value do not survive the wire.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, Union

from slipstream.errors import RemoteProtocolError, UsageError

VERSION = b"NATS/1.0"
_NAME = re.compile(r"[!-9;-~]+")  # printable ASCII but space and colon
_BREAK = re.compile(r"[\r\n\0\ud800-\udfff]")  # a lone surrogate has no UTF-8 form

HeaderValues = Union[Mapping[str, "str | Iterable[str]"], Iterable[tuple[str, str]], "Headers"]


class Status(NamedTuple):
    """The status in a header block's first line: `NATS/1.0 404 No Messages`."""

    code: int
    description: str


class Headers:
    """Names with one or more values each. `headers["A"]` is the first value of A, `get_all("A")` all of them."""

    __slots__ = ("_items",)

    def __init__(self, values: HeaderValues | None = None) -> None:
        self._items: list[tuple[str, str]] = []
        if values is None:
            return
        pairs: Iterable[tuple[str, str | Iterable[str]]]
        pairs = values.items() if isinstance(values, Mapping | Headers) else values
        if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
            raise UsageError(f"headers must be a mapping, or pairs of names and values, got {values!r}")
        for pair in pairs:
            if not isinstance(pair, Sequence) or isinstance(pair, str | bytes) or len(pair) != 2:
                raise UsageError(f"headers must be a mapping, or pairs of names and values, got {pair!r} among them")
            name, value = pair
            if isinstance(value, str) or not isinstance(value, Iterable):
                self.add(name, value)
            else:
                for one in value:
                    self.add(name, one)

    @classmethod
    def received(cls, items: Iterable[tuple[str, str]]) -> Headers:
        """Headers that a peer sent (`parse`, `items`), unchecked: a reader cannot reject what is stored."""
        headers = cls()
        headers._items.extend(items)
        return headers

    def add(self, name: str, value: str) -> None:
        """Add a value after those the name already has."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"header name must be printable ASCII without space and colon, got {name!r}")
        if not isinstance(value, str) or _BREAK.search(value):
            raise UsageError(f"value of header {name!r} must be a string without line breaks, got {value!r}")
        self._items.append((name, value))

    def set(self, name: str, value: str) -> None:
        """Replace all values of the name by one."""
        kept = [item for item in self._items if item[0] != name]
        self.add(name, value)
        self._items = [*kept, self._items[-1]]

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of the name."""
        for key, value in self._items:
            if key == name:
                return value
        return default

    def get_all(self, name: str) -> list[str]:
        """Every value of the name, in order."""
        return [value for key, value in self._items if key == name]

    def last(self, name: str) -> str | None:
        """The last value of the name: a server appends its own headers behind those a message was stored with."""
        for key, value in reversed(self._items):
            if key == name:
                return value
        return None

    def items(self) -> list[tuple[str, str]]:
        """Every name and value, in order."""
        return list(self._items)

    def keys(self) -> list[str]:
        """Every name once, in order; so `dict(headers)` has the first value of each."""
        return list(self)

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: str) -> None:
        self.set(name, value)

    def __contains__(self, name: object) -> bool:
        return any(key == name for key, _ in self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for key, _ in self._items))

    def __len__(self) -> int:
        return len({key for key, _ in self._items})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self._items == other._items

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Headers({self._items!r})"

    def encode(self) -> bytes:
        """The block as it goes over the wire; empty when there are no headers."""
        if not self._items:
            return b""
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._items)
        return b"NATS/1.0\r\n%b\r\n" % lines.encode()

    @classmethod
    def parse(cls, block: bytes) -> Headers:
        """Read a block; the status line is left to `parse_status`. An empty block has no headers."""
        headers = cls()
        if not block:
            return headers
        if not block.startswith(VERSION):
            raise RemoteProtocolError(f"header block starts with {block[:24]!r}, expected {VERSION.decode()}")
        items = headers._items
        for line in block.decode(errors="replace").split("\r\n")[1:]:
            name, colon, value = line.partition(":")
            if colon and name:
                items.append((name, value.strip(" \t")))
        return headers


def parse_status(block: bytes) -> Status | None:
    """The inline status of a header block, or None for an ordinary message."""
    if block[8:9] != b" " or not block.startswith(VERSION):
        return None
    line = block[9:].partition(b"\r\n")[0].decode(errors="replace").strip(" \t")
    code, _, description = line.partition(" ")
    if not (code.isascii() and code.isdigit() and len(code) <= 4):
        return None
    return Status(int(code), description.strip())


def status_block(code: int, description: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A block with an inline status, for servers."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"NATS/1.0 {f'{code} {description}'.rstrip()}\r\n{lines}\r\n".encode()
