"""Subject mappings: a literal subject is rewritten by a source filter and a destination with functions.

`SubjectMapping("in.*.>", "out.{{partition(4,1)}}.{{wildcard(1)}}.>")` is compiled once and applied to many subjects.
Functions, texts of errors and results are those of nats-server 2.15; three things are ours. What cuts a token counts
characters, not bytes (half a character is no subject). A split never leaves an empty token (no subject either).
`random(n)` takes no dice: it spreads by a hash over the subject and a running number, so that the same calls give the
same results.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property

from slipstream.wire.subjects import matcher

Piece = Callable[[list[str]], str]  # the tokens of a subject become a part of the result

_INVALID = "invalid mapping destination"
BAD_SUBJECT = "invalid subject"
_NOT_ENOUGH = f"{_INVALID}: not enough arguments passed to the function"
_TOO_MANY = f"{_INVALID}: too many arguments passed to the function"
_BAD_ARGUMENT = f"{_INVALID}: function argument is invalid or in the wrong format"
_OUT_OF_RANGE = f"{_INVALID}: wildcard index out of range"
_UNKNOWN = f"{_INVALID}: unknown function"
_BAD_TOKEN = f"{_INVALID}: invalid transform"

_INT32 = 1 << 31
# A call is looked for in two steps, beginning and end. One expression with both would look for the end again from each
# beginning: quadratic, for a text that a client sends.
_CALL = re.compile(
    r"\{\{\s*(partition|wildcard|splitfromleft|splitfromright|slicefromleft|slicefromright|right|left|split|random)"
    r"\s*\(",
    re.IGNORECASE | re.ASCII,
)
_CALL_END = re.compile(r"\)\s*\}\}", re.ASCII)
# nats-server ignores the case of the first letter of each word in a function's name, and of no other.
_SPELLING = re.compile(
    r"[pP]artition|[wW]ildcard|[sS]plit[fF]rom[lL]eft|[sS]plit[fF]rom[rR]ight|[sS]lice[fF]rom[lL]eft"
    r"|[sS]lice[fF]rom[rR]ight|[rR]ight|[lL]eft|[sS]plit|[rR]andom"
)
_COMMA = re.compile(r",\s*", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")


class SubjectMapping:
    """Compiled; raises ValueError, with nats-server's text, if source and destination do not make a mapping."""

    def __init__(self, source: str, destination: str) -> None:
        """An empty source is `>`. With an empty destination what matches is left as it is."""
        self.source: str = source or ">"
        self.destination = destination
        self._same = not destination or (self.source == ">" and destination == ">")
        self._count = 0
        self._pieces: list[Piece] = []
        self._rest = -1  # where the tokens begin that a final `>` carries over
        if self._same:
            if _info(self.source) is None:
                raise ValueError(BAD_SUBJECT)
            return
        theirs, ours = _info(self.source), _info(destination)
        if theirs is None or ours is None or "*" in ours or (theirs[-1] == ">") != (ours[-1] == ">"):
            raise ValueError(BAD_SUBJECT)
        if ours[-1] == ">":
            self._rest = len(theirs) - 1
        stars = [i for i, token in enumerate(theirs) if token == "*"]
        literal = not stars and theirs[-1] != ">"
        self._pieces = [self._compile(token, stars, literal=literal) for token in ours if token != ">"]

    @cached_property
    def _fits(self) -> Callable[[str], bool]:
        # Compiled when it is used: of thousands of mappings that are only checked, most of the time would go into it.
        return matcher(self.source)

    def apply(self, subject: str) -> str | None:
        """The subject it becomes; None if the source does not cover it."""
        tokens = subject.split(".")
        if not self._fits(subject) or "" in tokens:
            return None
        if self._same:
            return subject
        parts = [piece(tokens) for piece in self._pieces]
        if self._rest >= 0:
            parts += tokens[self._rest :]
        return ".".join(parts)

    def _compile(self, token: str, stars: list[int], *, literal: bool) -> Piece:
        function, arguments = parse_token(token)
        if not function:
            return lambda _: token
        numbers = [argument for argument in arguments if isinstance(argument, int)]
        if function == "random":
            return self._random(numbers[0])
        if literal and function != "partition":
            raise ValueError(f"{_OUT_OF_RANGE} in {token}")
        wanted = numbers[1:] if function == "partition" else numbers[:1]
        if literal:
            wanted = []  # nothing to point at: the whole subject is hashed
        for index in wanted:
            if index > len(stars):
                raise ValueError(f"{_OUT_OF_RANGE} in {token}: [{index}]")
        places = [stars[index - 1] if index > 0 else 0 for index in wanted]  # as there: 0 and less are the first token
        if function == "partition":
            return lambda tokens: _partition(tokens, places, numbers[0])
        place, cut = places[0], _CUTS[function]
        argument = arguments[-1]
        return lambda tokens: cut(tokens[place], argument)

    def _random(self, ceiling: int) -> Piece:
        def pick(tokens: list[str]) -> str:
            self._count += 1
            return str(_fnv32a(f"{self._count}.{'.'.join(tokens)}".encode()) % (abs(ceiling) or 1))

        return pick


def check_mapping(source: str, destination: str) -> SubjectMapping:
    """The mapping, or a ValueError: as strict as nats-server is with the transform of a stream."""
    tokens = destination.split(".") if destination else []
    rest = tokens.index(">") if ">" in tokens else len(tokens)
    for at, token in enumerate(tokens):
        if not token or at > rest:
            raise ValueError(f"{_BAD_TOKEN} in {token}" if token else _BAD_TOKEN)
        if not _is_call(token) and re.search(r"[\t\n\f\r ]", token):
            raise ValueError(_BAD_TOKEN)
        if _is_call(token) and _named(token) is None:
            raise ValueError(f"{_UNKNOWN} in {token}")
    return SubjectMapping(source, destination)


def parse_token(token: str) -> tuple[str, list[int | str]]:
    """Function and arguments of a token of a destination; no function: it stands for itself."""
    if len(token) > 1 and token[0] == "$":
        index = _integer(token[1:])
        return ("wildcard", [index]) if index is not None else ("", [])  # `$KV` and the like are names
    if not _is_call(token):
        return "", []
    call = _named(token)
    if call is None:
        raise ValueError(f"{_UNKNOWN} in {token}")
    function, arguments = call
    if function == "split":
        _expect(token, arguments, 2)
        if " " in arguments[1]:
            raise ValueError(f"{_BAD_ARGUMENT} in {token}")
        return function, [_argument(token, arguments[0]), arguments[1]]
    if function == "wildcard":
        if arguments == [""]:
            raise ValueError(f"{_NOT_ENOUGH} in {token}")
        _expect(token, arguments, 1)
    elif function == "random":
        if len(arguments) != 1:
            raise ValueError(f"{_NOT_ENOUGH} in {token}")
    elif function != "partition":
        _expect(token, arguments, 2)
    numbers = [_argument(token, argument) for argument in arguments]
    sized = 0 if function in ("partition", "random") else 1 if len(numbers) > 1 else -1
    if sized >= 0 and not (numbers[sized] < _INT32 and (sized == 0 or numbers[sized] >= -_INT32)):
        raise ValueError(f"{_BAD_ARGUMENT} in {token}")
    return function, list(numbers)


def _is_call(token: str) -> bool:
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


def _named(token: str) -> tuple[str, list[str]] | None:
    ends = [found.start() for found in _CALL_END.finditer(token)]
    for call in _CALL.finditer(token):
        line = token.find("\n", call.end())  # arguments are on one line
        at = bisect_left(ends, line if line >= 0 else len(token)) - 1  # the last end on it
        if at >= 0 and ends[at] >= call.end():
            if not _SPELLING.fullmatch(call[1]):
                return None
            return call[1].lower(), _COMMA.split(token[call.end() : ends[at]])
    return None


def _expect(token: str, arguments: list[str], count: int) -> None:
    if len(arguments) != count:
        raise ValueError(f"{_NOT_ENOUGH if len(arguments) < count else _TOO_MANY} in {token}")


def _argument(token: str, text: str) -> int:
    number = _integer(text.strip(" "))
    if number is None:
        raise ValueError(f"{_BAD_ARGUMENT} in {token}")
    return number


def _integer(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _info(subject: str) -> list[str] | None:
    """The tokens of a subject; None if it is none."""
    tokens = subject.split(".")
    return None if "" in tokens or ">" in tokens[:-1] else tokens


# The functions.


def _partition(tokens: list[str], places: list[int], buckets: int) -> str:
    key = "".join(tokens[place] for place in places) if places else ".".join(tokens)
    return str(_fnv32a(key.encode()) % (buckets & 0xFFFFFFFF)) if buckets else "0"


def _fnv32a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _split_from_left(token: str, at: int) -> str:
    return f"{token[:at]}.{token[at:]}" if 0 < at < len(token) else token


def _split_from_right(token: str, at: int) -> str:
    return f"{token[:-at]}.{token[-at:]}" if 0 < at < len(token) else token


def _slice_from_left(token: str, size: int) -> str:
    if not 0 < size < len(token):
        return token
    return ".".join(token[at : at + size] for at in range(0, len(token), size))


def _slice_from_right(token: str, size: int) -> str:
    if not 0 < size < len(token):
        return token
    first = len(token) % size
    parts = [token[at : at + size] for at in range(first, len(token), size)]
    return ".".join([token[:first], *parts] if first else parts)


def _left(token: str, size: int) -> str:
    return token[:size] if 0 < size < len(token) else token


def _right(token: str, size: int) -> str:
    return token[-size:] if 0 < size < len(token) else token


def _split(token: str, delimiter: str) -> str:
    if not delimiter:
        return ".".join(token)
    return ".".join(part for part in token.split(delimiter) if part) or token


_CUTS: dict[str, Callable[..., str]] = {
    "wildcard": lambda token, _: token,
    "splitfromleft": _split_from_left,
    "splitfromright": _split_from_right,
    "slicefromleft": _slice_from_left,
    "slicefromright": _slice_from_right,
    "left": _left,
    "right": _right,
    "split": _split,
}
