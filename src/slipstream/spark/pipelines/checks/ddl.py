"""Reader of Spark's schema strings (DDL), such as `id BIGINT, tags ARRAY<STRING>`, without Spark.

Spark reports an unknown type as a syntax error at some other word. This finds the word, and the columns with their
types, which the other checks use. It accepts what Spark 4.3 accepts; tests/spark compares the two.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slipstream.errors import UsageError
from slipstream.spark.pipelines.checks.suggestions import suggestion

# A type's word -> how many numbers in parentheses it takes, at least and at most.
_TYPES = {
    **dict.fromkeys(("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"), (0, 0)),
    **dict.fromkeys(("FLOAT", "REAL", "DOUBLE", "DATE", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "BINARY", "VOID"), (0, 0)),
    **dict.fromkeys(("VARIANT", "TIMESTAMP", "STRING"), (0, 0)),
    **dict.fromkeys(("DECIMAL", "DEC", "NUMERIC"), (0, 2)),
    **dict.fromkeys(("CHAR", "CHARACTER", "VARCHAR", "GEOMETRY", "GEOGRAPHY"), (1, 1)),
    "TIME": (0, 1),
}
_NESTED = ("ARRAY", "MAP", "STRUCT", "INTERVAL")
# Words of other databases, which are too far from Spark's for a comparison of letters.
_FOREIGN = {
    "TEXT": "STRING", "STR": "STRING", "UUID": "STRING", "JSON": "STRING or VARIANT", "BOOL": "BOOLEAN",
    "NUMBER": "DECIMAL or DOUBLE", "DATETIME": "TIMESTAMP", "BLOB": "BINARY", "BYTES": "BINARY", "INT64": "BIGINT",
    "INT32": "INT", "FLOAT64": "DOUBLE", "FLOAT32": "FLOAT", "LIST": "ARRAY", "OBJECT": "STRUCT", "DICT": "MAP",
}  # fmt: skip
_SAME = {
    "BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP", "DEC": "DECIMAL", "NUMERIC": "DECIMAL", "CHARACTER": "CHAR",
}  # fmt: skip
_TOKEN = re.compile(r"\s+|(`(?:[^`]|``)*`|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|\w+|.)", re.DOTALL)
_INTERVAL_WORDS = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND")


class DdlError(UsageError):
    """A schema that Spark would not accept. `offset` is where in the text the mistake is."""

    def __init__(self, text: str, offset: int) -> None:
        super().__init__(text)
        self.offset = offset


class _Token(NamedTuple):
    text: str
    offset: int

    @property
    def word(self) -> str:
        return self.text.upper()

    @property
    def is_name(self) -> bool:
        return self.text[:1] == "`" or self.text.isidentifier() or self.text[:1].isalnum()


def ddl_columns(text: str) -> dict[str, str]:
    """The columns of a schema with their types, which are in upper case; raises DdlError."""
    return _Parser(text).columns()


class _Parser:
    """A recursive descent over the tokens of one schema."""

    def __init__(self, text: str) -> None:
        self._tokens = [_Token(one[1], one.start()) for one in _TOKEN.finditer(text) if one[1]]
        self._end = _Token("", len(text))
        self._at = 0

    def columns(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while True:
            name, kind, token = self._field()
            if name.lower() in map(str.lower, found):
                raise DdlError(f"column {name!r} is in the schema twice", token.offset)
            found[name] = kind
            if not self._next.text:
                return found
            self._expect(",", f"a comma or the end after the type of column {name!r}")

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else self._end

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _accept(self, *words: str) -> bool:
        """Take these tokens if they are next."""
        tokens = [one.word for one in self._tokens[self._at : self._at + len(words)]]
        if tokens != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, text: str, what: str) -> None:
        token = self._take()
        if token.text != text:
            raise DdlError(f"schema must have {what}, got {token.text or 'the end'!r}", token.offset)

    def _field(self) -> tuple[str, str, _Token]:
        token = self._take()
        if not token.is_name:
            raise DdlError(f"schema must have a column's name and type, got {token.text or 'the end'!r}", token.offset)
        name = token.text.strip("`").replace("``", "`")
        if token.text[0] != "`" and not name.isascii():
            raise DdlError(f"column {name!r} must be in backticks: `{name}`", token.offset)
        self._accept(":")
        if self._next.text in ("", ",", ">"):
            raise DdlError(f"column {name!r} needs a type, such as {name} STRING", token.offset)
        kind = self._type(name)
        self._accept("NOT", "NULL")
        if self._accept("COMMENT") and self._take().text[:1] not in ("'", '"'):
            raise DdlError(f"the comment of column {name!r} must be a string in quotes", token.offset)
        return name, kind, token

    def _type(self, column: str) -> str:
        token = self._take()
        word = token.word
        if word in _NESTED:
            return self._nested(column, token)
        if word not in _TYPES:
            if word in _FOREIGN:
                hint = f"Spark has {_FOREIGN[word]}"
            else:
                hint = suggestion(word, [*_TYPES, *_NESTED], "the types are")
            raise DdlError(f"column {column!r} has the unknown type {token.text!r}; {hint}", token.offset)
        kind = _SAME.get(word, word) + self._numbers(column, token, *_TYPES[word])
        if word == "STRING" and self._accept("COLLATE"):
            return f"{kind} COLLATE {self._take().word}"
        if word in ("TIMESTAMP", "TIME") and self._accept("WITHOUT", "TIME", "ZONE"):
            return "TIMESTAMP_NTZ" if word == "TIMESTAMP" else kind
        if word == "TIMESTAMP":
            self._accept("WITH", "LOCAL", "TIME", "ZONE")
        return kind

    def _numbers(self, column: str, token: _Token, least: int, most: int) -> str:
        """The numbers in parentheses after a type: `(10, 2)`."""
        found: list[str] = []
        if most and self._accept("("):
            while True:
                found.append(self._take().text)
                if not found[-1].isdigit() and token.word not in ("GEOMETRY", "GEOGRAPHY"):
                    raise DdlError(f"{token.word} of column {column!r} takes numbers, got {found[-1]!r}", token.offset)
                if not self._accept(","):
                    break
            self._expect(")", f"a closing parenthesis after {token.word} of column {column!r}")
        if not least <= len(found) <= most:
            raise DdlError(f"{token.word} of column {column!r} needs a length, such as {token.word}(20)", token.offset)
        return f"({','.join(found)})" if found else ""

    def _nested(self, column: str, token: _Token) -> str:
        word = token.word
        if word == "INTERVAL":
            return self._interval()
        form = {"ARRAY": "ARRAY<STRING>", "MAP": "MAP<STRING, STRING>", "STRUCT": "STRUCT<a: STRING>"}[word]
        self._expect("<", f"the types inside {word} of column {column!r}, such as {form}")
        inner: list[str] = []
        if word == "STRUCT":
            while self._next.text not in (">", ""):
                name, kind, _ = self._field()
                inner.append(f"{name}: {kind}")
                if not self._accept(","):
                    break
        else:
            inner.append(self._type(column))
            if word == "MAP":
                self._expect(",", f"the types of keys and values in MAP of column {column!r}, such as {form}")
                inner.append(self._type(column))
        self._expect(">", f"a closing '>' after {word} of column {column!r}")
        return f"{word}<{', '.join(inner)}>"

    def _interval(self) -> str:
        words = ["INTERVAL"]
        if self._next.word in _INTERVAL_WORDS:
            words.append(self._take().word)
            if self._accept("TO"):
                words += ["TO", self._take().word]
        return " ".join(words)
