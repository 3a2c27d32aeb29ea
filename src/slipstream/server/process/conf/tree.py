"""Parser of nats-server's configuration format (a superset of JSON): text to values with their positions.

Any text gives a tree or a `ConfigError` that names file, line and column. Files and environment variables are read by
functions that the caller passes, never here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.errors import UsageError

MAX_DEPTH = 64  # maps in maps, files in files, variables in variables

_SUFFIX = re.compile(r"(-?\d+)([kmgtpe])?(i?b?)", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d+")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_HASH = "2a$"  # `$2a$…` is a bcrypt hash and not the variable `2a$…`
_ENDS = "\r\n;,]} \t"  # of a word

Read = Callable[[str], str]  # the text of a file
Lookup = Callable[[str], str | None]  # a variable of the environment


class Position(NamedTuple):
    """A place in a configuration file."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ConfigError(UsageError):
    """The configuration cannot be used; the message begins with the position."""

    def __init__(self, position: Position, text: str) -> None:
        super().__init__(f"{position}: {text}")
        self.position = position


Map = dict[str, "Entry"]
Plain = str | int | float | bool


@dataclass(slots=True)
class Value:
    """One value and its position."""

    position: Position
    data: Plain | list[Value] | Map


@dataclass(slots=True)
class Entry:
    """A key of a map, as it was written, with its value."""

    key: str
    position: Position
    value: Value
    is_variable: bool = False  # a value refers to it: it need not be a known option


def parse(text: str, file: str, *, read: Read, environment: Lookup) -> Value:
    """The map of a whole file."""
    return _Parser(text, file, read, environment, depth=0).file()


class _Parser:
    def __init__(self, text: str, file: str, read: Read, environment: Lookup, *, depth: int) -> None:
        self._text = text
        self._file = file
        self._read = read
        self._environment = environment
        self._depth = depth
        self._at = 0
        self._scopes: list[Map] = []

    def file(self) -> Value:
        position = self._position()
        self._skip(";,")
        braced = self._peek() == "{"
        if braced:
            self._at += 1
        value = Value(position, self._map("}" if braced else ""))
        self._skip(";,")
        if self._at < len(self._text):
            raise self._error(f"{self._peek()!r} after the end")
        return value

    # Places and characters.

    def _position(self, at: int | None = None) -> Position:
        at = self._at if at is None else at
        before = self._text[:at]
        return Position(self._file, before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1)

    def _error(self, text: str, at: int | None = None) -> ConfigError:
        return ConfigError(self._position(at), f"Parse error: {text}")  # the prefix that scripts look for

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, also: str = "", *, lines: bool = True) -> None:
        """Skip white space and comments."""
        text, size = self._text, len(self._text)
        while self._at < size:
            char = text[self._at]
            if char == "#" or text.startswith("//", self._at):
                end = text.find("\n", self._at)
                self._at = size if end < 0 else end
            elif char in " \t" or char in also or (lines and char in "\r\n\ufeff"):
                self._at += 1
            else:
                return

    # Maps and arrays.

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} levels")

    def _map(self, end: str) -> Map:
        """The entries up to `end`, which is consumed; an empty `end` is the end of the text."""
        self._deeper()
        scope: Map = {}
        self._scopes.append(scope)
        while True:
            self._skip(";,")
            if self._at >= len(self._text):
                if end:
                    raise self._error(f"the file ends within a map, {end!r} is missing")
                break
            if end and self._peek() == end:
                self._at += 1
                break
            self._entry(scope)
        self._scopes.pop()
        self._depth -= 1
        return scope

    def _entry(self, scope: Map) -> None:
        start = self._at
        position = self._position()
        key, quoted = self._key()
        if key.lower() == "include" and not quoted and self._peek() not in ("=", ":"):
            scope.update(self._include(position))
            self._end_of_value()
            return
        self._skip()
        if self._peek() in ("=", ":") and self._peek():
            self._at += 1
            self._skip(lines=False)
            if self._peek() in ("\r", "\n"):
                self._skip()
                if self._peek() not in ("{", "[", "("):
                    raise self._error(f"key {key!r} has no value", start)
        value = self._value(key, start)
        scope[key] = Entry(key, position, value)
        self._end_of_value()

    def _key(self) -> tuple[str, bool]:
        start, first = self._at, self._peek()
        if first in ("'", '"'):
            end = self._text.find(first, start + 1)
            if end < 0:
                raise self._error(f"a key has no closing {first}")
            self._at = end + 1
            return self._text[start + 1 : end], True
        while self._peek() and self._peek() not in " \t\r\n=:{}[],;":
            self._at += 1
        key = self._text[start : self._at]
        if not key:
            raise self._error(f"{self._peek()!r} where a key was expected")
        return key, False

    def _end_of_value(self) -> None:
        self._skip(lines=False)
        char = self._peek()
        if char and char not in "\r\n;,]}":
            raise self._error(f"a value must be followed by a line end, ',', ';' or the end of its map, got {char!r}")

    def _array(self) -> list[Value]:
        self._deeper()
        values: list[Value] = []
        while True:
            self._skip(",")
            if self._at >= len(self._text):
                raise self._error("the file ends within an array, ']' is missing")
            if self._peek() == "]":
                self._at += 1
                break
            values.append(self._value("", self._at))
            self._end_of_value()
        self._depth -= 1
        return values

    # Values.

    def _value(self, key: str, start: int) -> Value:
        position, char = self._position(), self._peek()
        if char == "{":
            self._at += 1
            return Value(position, self._map("}"))
        if char == "[":
            self._at += 1
            return Value(position, self._array())
        if char == "(":
            return Value(position, self._block())
        if char in ("'", '"') and char:
            self._at += 1
            return Value(position, self._quoted(char))
        if not char or char in ";,]}":
            raise self._error(f"key {key!r} has no value" if key else f"{char!r} where a value was expected", start)
        return self._word(position)

    def _block(self) -> str:
        """`(` up to a `)` that is alone on its line."""
        end = re.compile(r"\n[ \t]*\)[ \t]*(?=\r?\n|\Z)").search(self._text, self._at)
        if end is None:
            raise self._error("a block has no ')' on a separate line")
        text = self._text[self._at + 1 : end.start()]
        self._at = end.end()
        return text

    def _quoted(self, mark: str) -> str:
        start, parts = self._at - 1, list[str]()
        while True:
            char = self._peek()
            if not char:
                raise self._error(f"a string has no closing {mark}", start)
            self._at += 1
            if char == mark:
                return "".join(parts)
            parts.append(self._escape() if char == "\\" and mark == '"' else char)

    def _escape(self) -> str:
        char = self._peek()
        self._at += 1
        if char == "x":
            digits = self._text[self._at : self._at + 2]
            if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                raise self._error(f"\\x must be followed by two hexadecimal digits, got {digits!r}", self._at - 2)
            self._at += 2
            return chr(int(digits, 16))
        if not char or char not in _ESCAPES:
            raise self._error(f'an escape must be \\xXX, \\t, \\n, \\r, \\" or \\\\, got \\{char}', self._at - 2)
        return _ESCAPES[char]

    def _word(self, position: Position) -> Value:
        start, escaped, parts = self._at, False, list[str]()
        while self._peek() and self._peek() not in _ENDS:
            char = self._peek()
            self._at += 1
            if char == "\\":
                escaped = True
                char = self._escape()
            parts.append(char)
        word = "".join(parts)
        if escaped:
            return Value(position, word)
        if word[0] == "$" and len(word) > 1 and not word[1:].startswith(_HASH):
            return self._variable(word[1:], position)
        if word[0] == "." or (word[0] == "-" and not word[1:2].isdigit()):
            raise self._error(f"{word!r} is neither a number nor a word; put it in quotes", start)
        return Value(position, plain(word))

    def _variable(self, name: str, position: Position) -> Value:
        for scope in reversed(self._scopes):
            entry = scope.get(name)
            if entry is not None:
                entry.is_variable = True
                return Value(position, entry.value.data)
        text = self._environment(name)
        if text is None:
            raise ConfigError(position, f"variable {name!r} is neither set above nor in the environment")
        if self._depth >= MAX_DEPTH:
            raise ConfigError(position, f"variable {name!r} refers to itself")
        inner = _Parser(text, f"${name}", self._read, self._environment, depth=self._depth + 1)
        inner._skip()
        value = inner._value(name, 0)
        inner._skip()
        if inner._at < len(text):  # not a value of the format: a plain string
            return Value(position, text)
        return Value(position, value.data)

    def _include(self, position: Position) -> Map:
        self._skip(lines=False)
        char = self._peek()
        if char in ("'", '"') and char:
            self._at += 1
            name = self._quoted(char)
        else:
            start = self._at
            while self._peek() and self._peek() not in "\r\n;} \t":
                self._at += 1
            name = self._text[start : self._at]
        if not name:
            raise ConfigError(position, "include needs the name of a file")
        path = posixpath.join(posixpath.dirname(self._file), name)
        if self._depth >= MAX_DEPTH:
            raise ConfigError(position, f"{path!r} includes itself")
        try:
            text = self._read(path)
        except (OSError, ValueError) as exc:
            raise ConfigError(position, f"cannot include {path!r}: {exc}") from exc
        found = _Parser(text, path, self._read, self._environment, depth=self._depth).file().data
        assert isinstance(found, dict)
        return found


def plain(word: str) -> Plain:
    """The value of an unquoted word: a boolean, a number (which may have a size suffix), or a string."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if size := _SUFFIX.fullmatch(word):
        power = _POWERS[(size[2] or "").lower()]
        if power or not size[3]:
            # 1K is 1000; 1KB, 1Ki and 1KiB are 1024
            unit = 1024 if size[3] else 1000
            return int(size[1]) * int(unit**power)
    return float(word) if _FLOAT.fullmatch(word) else word
