"""Positions (line and column) of the keys in a TOML text.

`tomllib` reports where a syntax error is, but not where a key with an unusable value stands. This scans a text that
`tomllib` has accepted, so it need not find mistakes, only keys: it skips comments, strings and nested brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'",
    re.DOTALL,
)
_ESCAPES = {'\\"': '"', "\\\\": "\\"}


class TomlPosition(NamedTuple):
    """A line and a column, counted from 1; `file` is set in a file that another one includes."""

    line: int
    column: int
    file: str = ""


class TomlPositions:
    """The positions of the keys of one file, by path, and of the keys of the files that it includes."""

    def __init__(self, text: str, file: str = "", included: Iterable[TomlPositions] = ()) -> None:
        self._text = text
        self._file = file
        self._files = (self, *included)
        self._found: dict[tuple[str, ...], int] = {}
        self._strings: dict[tuple[str, ...], tuple[int, int]] = {}  # where the strings begin and end, with their quotes
        self._read()

    @property
    def files(self) -> tuple[TomlPositions, ...]:
        """This file and those that it includes."""
        return self._files

    def __getitem__(self, path: tuple[str, ...]) -> TomlPosition:
        """The position of a key, or of the nearest enclosing table that the text has."""
        while path:
            for one in self._files:
                if found := one.find(path):
                    return found
            path = path[:-1]
        return self._position(0)

    def inside(self, path: tuple[str, ...], value: str, offset: int) -> TomlPosition:
        """The position of an offset in a string value; of the key if the value is escaped in the file."""
        for one in self._files:
            if value and (found := one.find(path, value, offset)):
                return found
        return self[path]

    def find(self, path: tuple[str, ...], value: str = "", offset: int = 0) -> TomlPosition | None:
        """The position of a key in this very file, or of an offset in its value; None if it is not there."""
        if not value:
            return self._position(self._found[path]) if path in self._found else None
        start, end = self._strings.get(path, (0, 0))
        at = self._text.find(value, start, end)
        return self._position(at + offset) if at >= 0 else None

    def _position(self, at: int) -> TomlPosition:
        before = self._text[:at]
        return TomlPosition(before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1, self._file)

    def _read(self) -> None:
        table: tuple[str, ...] = ()
        at = self._skip(0)
        while at < len(self._text):
            if self._text[at] == "[":
                brackets = 2 if self._text.startswith("[[", at) else 1
                table, end = self._key(self._skip(at + brackets))
                self._note(table, at)
                at = self._skip(end + brackets)
            else:
                at = self._skip(self._pair(table, at))

    def _pair(self, table: tuple[str, ...], at: int) -> int:
        """Scan a key with its value; returns where the value ends."""
        key, end = self._key(at)
        path = (*table, *key)
        self._note(path, at)
        return self._value(path, self._skip(end + 1))  # after the `=`

    def _value(self, path: tuple[str, ...], at: int) -> int:
        text = self._text
        if found := _STRING.match(text, at):
            self._strings.setdefault(path, found.span())
            return found.end()
        if text[at] == "{":
            at = self._skip(at + 1)
            while text[at] != "}":
                at = self._skip(self._pair(path, at))
                at = self._skip(at + 1) if text[at] == "," else at
            return at + 1
        if text[at] == "[":
            at = self._skip(at + 1)
            while text[at] != "]":
                at = self._skip(self._value(path, at))
                at = self._skip(at + 1) if text[at] == "," else at
            return at + 1
        while at < len(text) and text[at] not in ",]}#\n":
            at += 1
        return at

    def _key(self, at: int) -> tuple[tuple[str, ...], int]:
        """Scan a dotted key; returns its parts and where the next token begins."""
        parts: list[str] = []
        while True:
            if found := _STRING.match(self._text, at):
                inner = found[0][1:-1]
                parts.append(re.sub(r'\\["\\]', lambda one: _ESCAPES[one[0]], inner) if found[0][0] == '"' else inner)
            else:
                found = _BARE.match(self._text, at)
                assert found is not None, f"no key at {at}: tomllib has accepted this text"
                parts.append(found[0])
            at = self._skip(found.end())
            if at >= len(self._text) or self._text[at] != ".":
                return tuple(parts), at
            at = self._skip(at + 1)

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None
        return found.end()

    def _note(self, path: tuple[str, ...], at: int) -> None:
        for end in range(1, len(path) + 1):
            self._found.setdefault(path[:end], at)
