"""Incremental parser of the protocol: any split of the bytes gives the same events.

Invariants: total (never raises for any input), linear in the bytes received, and nothing is buffered beyond one control
line plus one payload, both bounded before anything is kept. A `Violation` is always the last event: what follows it is
ignored. One class serves both ends; `Side` says which end sent the bytes, and so which operations are valid.

This is a hot loop (STYLE.md): the flat code is about 1 µs per message, see `benchmarks/wire.py`. A message whose line
is written as every client and server writes it takes the fast path; anything else (lower case, tabs, bare line feeds,
errors) takes the slow one, with the same result.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from slipstream.wire.events import (
    Connect,
    Err,
    Event,
    Info,
    Msg,
    Ok,
    Ping,
    Pong,
    Pub,
    Sub,
    Unsub,
    Violation,
)
from slipstream.wire.handshake import ConnectOptions, ServerInfo

MAX_CONTROL_LINE = 4096
MAX_SERVER_LINE = 1024 * 1024  # INFO of a large cluster lists every address
MAX_NUMBER: Final = 9_223_372_036_854_775_807  # of an int64
# A server adds headers to what was published: a Direct Get of a message of `max_payload` bytes is larger than that.
SERVER_HEADROOM: Final = 64 * 1024

# The limit is for the arguments, as in nats-server: `CONNECT`, white space and CR come on top.
_OPERATION_BYTES: Final = 16

_TAB: Final = 0x09
_LF: Final = 0x0A
_CR: Final = 0x0D
_H: Final = 0x48

# Sizes below 4 KiB as they end a line and as they stand within it, remembered: one look-up instead of three checks.
_TOTALS: Final[dict[bytes, int]] = {}
_HEADS: Final[dict[bytes, int]] = {}
_LEARN_BELOW: Final = 4096

# Lines of messages without reply and headers that a parser remembers: a busy subject's are all alike.
_KNOWN_LINES: Final = 1024
_LONGEST_KNOWN: Final = 128

_new: Final = tuple.__new__
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_Handshake = TypeVar("_Handshake", ServerInfo, ConnectOptions)


Scan = Callable[[bytes], int]  # takes frames from the front of a chunk; returns where they end


class Side(enum.Enum):
    """The end that sent the bytes."""

    SERVER = "server"
    CLIENT = "client"


class Parser:
    """Parses the bytes of one peer; a `Violation` is always the last event.

    `max_payload` may be changed at any time (INFO names it). From a server somewhat more is taken, for the headers that
    it adds. `max_control_line` bounds the arguments of a line. `scan`, if set, may take whole frames from the front of
    what was received, of which no events are made; it returns where they end.
    """

    def __init__(self, sender: Side, *, max_payload: int = 1024 * 1024, max_control_line: int = 0) -> None:
        self.max_payload = max_payload
        self.max_control_line: int = max_control_line or (
            MAX_CONTROL_LINE if sender is Side.CLIENT else MAX_SERVER_LINE
        )
        self._from_server = sender is Side.SERVER
        self._held = bytearray()  # one incomplete frame; not a list of pieces, which cost 40 bytes each
        self._need = 0  # the size the frame will have; 0 while its line is incomplete
        self._broken = False
        self._lines: dict[bytes, tuple[str, bytes, int]] = {}  # to subject, sid and size
        self._hits = 0  # of these, since they were forgotten
        self._is_plain = False  # the last message was such a one, and the next may be
        self._is_learning = self._from_server  # until lines turn out to differ
        self.scan: Scan | None = None

    @property
    def buffered(self) -> int:
        """How many bytes of an incomplete frame are held."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Event]:
        """Return every event that `data` completes, in order."""
        if self._broken or not data:
            return []
        held = self._held
        if held:
            size = len(held) + len(data)
            # A frame that arrives in pieces is not looked at again before it can be complete.
            if size < self._need if self._need else _LF not in data and size < self._line_cap():
                held += data
                return []
            data = b"".join((held, data))
            held.clear()
        events: list[Event] = []
        try:
            first = self.scan(data) if self.scan is not None else 0
            rest, self._need = self._frames(data, first, events)
        except _BrokenError as broken:
            events.append(Violation(broken.reason, broken.err))
        except (ValueError, msgspec.MsgspecError, RecursionError) as exc:
            events.append(Violation(str(exc)))
        else:
            held += data[rest:]
            return events
        self._broken = True
        return events

    def _line_cap(self) -> int:
        """A line feed must be among this many bytes."""
        return self.max_control_line + _OPERATION_BYTES

    def _frames(self, data: bytes, pos: int, events: list[Event]) -> tuple[int, int]:
        """Append the events from `pos` on; return where the incomplete rest begins, and its whole size if known."""
        totals, heads = _TOTALS, _HEADS
        size = len(data)
        server = self._from_server
        limit = self.max_payload + SERVER_HEADROOM if server else self.max_payload
        cap = self._line_cap()
        plain, headed = (b"MSG", b"HMSG") if server else (b"PUB", b"HPUB")
        fixed = 2 if server else 1  # subject and sid; subject
        lines, is_plain, make = self._lines, self._is_plain, Msg
        while pos < size:
            eol = data.find(b"\n", pos)
            if eol < 0 or eol - pos >= cap:
                if size - pos >= cap:
                    raise _line_too_long(self.max_control_line)
                return pos, 0
            line = data[pos:eol]
            if is_plain and (known := lines.get(line)) is not None and known[2] <= limit:
                begin = eol + 1
                end = begin + known[2]
                if end + 2 <= size and data[end] == _CR and data[end + 1] == _LF:
                    self._hits += 1
                    events.append(make(known[0], known[1], "", b"", data[begin:end]))
                    pos = end + 2
                    continue
            args = line.split(b" ")
            total = totals.get(args[-1])
            if args[0] == plain:
                head: int | None = 0
                names = len(args) - 2
            elif args[0] == headed:
                names = len(args) - 3
                head = heads.get(args[-2]) if names > 0 else None
            else:
                head = None
                names = 0
            if (
                total is None
                or head is None
                or not fixed <= names <= fixed + 1
                or not (args[1] and args[2])
                or _TAB in line
            ):
                tokens = _split(line)
                operation = tokens[0].upper() if tokens else b""
                if operation != plain and operation != headed:
                    events.append(self._control(operation, tokens, line))
                    pos = eol + 1
                    continue
                args, names, head, total = _message_arguments(operation, tokens, fixed)
            if total > limit:
                raise _BrokenError(
                    f"payload of {total} bytes exceeds the limit of {limit}", "Maximum Payload Violation"
                )
            if head > total:
                raise ValueError(f"header size {head} exceeds the total size {total}")
            begin = eol + 1
            end = begin + total
            if end + 2 > size:
                return pos, end + 2 - pos
            if data[end] != _CR or data[end + 1] != _LF:
                raise ValueError(f"payload of {total} bytes does not end with CR LF")
            body = begin + head
            header = data[begin:body] if head else b""
            if server:
                try:
                    subject = args[1].decode()
                    reply = args[3].decode() if names == 3 else ""
                    events.append(make(subject, args[2], reply, header, data[body:end]))
                    is_plain = names == 2 and not head and self._is_learning
                    if is_plain and eol - pos <= _LONGEST_KNOWN:
                        self._learn(line, subject, args[2], total)
                    self._is_plain = is_plain
                except UnicodeDecodeError:  # nats-server lets any bytes through: no publisher may cut its readers off
                    reply = _lossy(args[3]) if names == 3 else ""
                    events.append(Msg(_lossy(args[1]), args[2], reply, header, data[body:end]))
            else:
                reply = args[2].decode() if names == 2 else ""
                events.append(_new(Pub, (args[1].decode(), reply, header, data[body:end])))
            pos = end + 2
        return pos, 0

    def _learn(self, line: bytes, subject: str, sid: bytes, size: int) -> None:
        """Remember a line. Where most are new, it is not worth looking for them."""
        if len(self._lines) >= _KNOWN_LINES:
            self._is_learning = self._hits >= _KNOWN_LINES
            self._lines.clear()
            self._hits = 0
        self._lines[line] = subject, sid, size

    def _control(self, operation: bytes, tokens: list[bytes], line: bytes) -> Event:
        """The event of a line without payload."""
        if operation == b"PING":
            return Ping()
        if operation == b"PONG":
            return Pong()
        body = line[len(operation) :].strip(b" \t\r")
        if self._from_server:
            if operation == b"INFO":
                return Info(_decode_handshake(body, ServerInfo))
            if operation == b"+OK":
                return Ok()
            if operation == b"-ERR":
                return Err(_unquoted(_lossy(body)))
        elif operation == b"SUB":
            if len(tokens) == 3:
                return Sub(tokens[1].decode(), "", tokens[2])
            if len(tokens) == 4:
                return Sub(tokens[1].decode(), tokens[2].decode(), tokens[3])
            raise _wrong_arguments(tokens)
        elif operation == b"UNSUB":
            if len(tokens) == 2:
                return Unsub(tokens[1], 0)
            if len(tokens) == 3:
                return Unsub(tokens[1], _number(tokens[2]))
            raise _wrong_arguments(tokens)
        elif operation == b"CONNECT":
            return Connect(_decode_handshake(body, ConnectOptions))
        raise _BrokenError(f"unknown operation in {line[:64]!r}", "Unknown Protocol Operation")


class _BrokenError(Exception):
    """Leaves the hot loop with both texts of a `Violation`."""

    def __init__(self, reason: str, err: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.err = err


def _split(line: bytes) -> list[bytes]:
    """The operation and its arguments; nothing for a line that does not begin with its operation.

    Only space and tab separate them. nats-server delivers subjects that hold CR, VT or FF: splitting at those would let
    a publisher choose the sid and the reply that a subscriber reads.
    """
    if line[:1] in b" \t":  # an empty line as well
        return []
    return [token for token in line.removesuffix(b"\r").replace(b"\t", b" ").split(b" ") if token]


def _message_arguments(operation: bytes, tokens: list[bytes], fixed: int) -> tuple[list[bytes], int, int, int]:
    """The tokens, how many of them are names (`fixed` and perhaps a reply), header size and total size."""
    sizes = 2 if operation[0] == _H else 1
    names = len(tokens) - 1 - sizes
    if not fixed <= names <= fixed + 1:
        raise _wrong_arguments(tokens)
    head, total = _number(tokens[-2]) if sizes == 2 else 0, _number(tokens[-1])
    if head < _LEARN_BELOW and sizes == 2:
        _HEADS[b"%d" % head] = head
    if total < _LEARN_BELOW:
        _TOTALS[b"%d\r" % total] = total
    return tokens, names, head, total


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text


def _lossy(token: bytes) -> str:
    return token.decode(errors="replace")


def _decode_handshake(body: bytes, kind: type[_Handshake]) -> _Handshake:
    """A null is an absent field, as Go's JSON has it: several clients send nulls for what they do not use."""
    return msgspec.convert({name: value for name, value in _decode_object(body).items() if value is not None}, kind)


def _number(token: bytes) -> int:
    if not token.isdigit() or len(token) > 19 or int(token) > MAX_NUMBER:  # int() alone accepts b"-5" and b"1_0"
        raise ValueError(f"bad number {token[:24]!r}, expected 0..{MAX_NUMBER}")
    return int(token)


def _line_too_long(limit: int) -> _BrokenError:
    return _BrokenError(f"control line exceeds the limit of {limit} bytes", "maximum control line exceeded")


def _wrong_arguments(tokens: list[bytes]) -> ValueError:
    return ValueError(f"{len(tokens) - 1} arguments in {b' '.join(tokens)[:64]!r}")
