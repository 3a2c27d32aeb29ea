"""A peer's bytes become events, whichever way the bytes were cut.

Invariants: total (never raises for any input), linear in the bytes received, and nothing is buffered beyond one control
line plus one payload, both bounded before anything is kept. A `Violation` is always the last event: what follows it is
ignored. One class serves both ends; `Side` says whose bytes these are, and so which operations are allowed.

This is a hot loop (STYLE.md): the flat code is about 1 µs per message, see `benchmarks/wire.py`.
"""

from __future__ import annotations

import enum

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
MAX_UNSUB = (1 << 63) - 1

_new = tuple.__new__
_decode_info = msgspec.json.Decoder(ServerInfo).decode
_decode_connect = msgspec.json.Decoder(ConnectOptions).decode


class Side(enum.Enum):
    """Who sent the bytes."""

    SERVER = "server"
    CLIENT = "client"


class Parser:
    """Bytes from one peer become events; a `Violation` is always the last one."""

    def __init__(self, sender: Side, *, max_payload: int = 1024 * 1024, max_control_line: int = 0) -> None:
        self.max_payload = max_payload
        self.max_control_line = max_control_line or (MAX_CONTROL_LINE if sender is Side.CLIENT else MAX_SERVER_LINE)
        self._from_server = sender is Side.SERVER
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0  # bytes that must be there before another look is worth it: a payload in pieces is not rescanned
        self._broken = False

    @property
    def buffered(self) -> int:
        """How many bytes of an incomplete frame are held."""
        return self._have

    def feed(self, data: bytes) -> list[Event]:
        """Return every event that `data` completes, in order."""
        if self._have:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._parts)
        events: list[Event] = []
        if self._broken:
            return events
        try:
            rest, need = self._messages(data, events)
        except _Broken as broken:
            events.append(Violation(broken.reason, broken.err))
        except (ValueError, UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as exc:
            events.append(Violation(str(exc)))
        else:
            self._parts = [rest] if rest else []
            self._have = len(rest)
            self._need = need
            return events
        self._broken = True
        self._parts = []
        self._have = 0
        return events

    def _messages(self, data: bytes, events: list[Event]) -> tuple[bytes, int]:
        """Append the events of `data`; return the incomplete rest and the length it must reach."""
        append = events.append
        find = data.find
        size = len(data)
        limit = self.max_payload
        max_line = self.max_control_line
        if self._from_server:
            plain, headed, kind = b"MSG", b"HMSG", Msg
        else:
            plain, headed, kind = b"PUB", b"HPUB", Pub  # type: ignore[assignment]
        fixed = (
            3 if self._from_server else 2
        )  # arguments of a plain message without reply, the operation aside from sid
        pos = 0
        while pos < size:
            eol = find(b"\n", pos)
            if eol < 0:
                if size - pos > max_line:
                    raise _line_too_long(size - pos, max_line)
                return data[pos:], size - pos + 1
            if eol - pos > max_line:
                raise _line_too_long(eol - pos, max_line)
            args = data[pos:eol].split()
            op = args[0] if args else b""
            if op != plain and op != headed:  # operations are case-insensitive, though hardly anybody sends them so
                op = op.upper()
            if op == plain:
                count = len(args) - 1
                head = 0
                if count == fixed:
                    reply = ""
                elif count == fixed + 1:
                    reply = args[-2].decode()
                else:
                    raise _wrong_arguments(args)
            elif op == headed:
                count = len(args) - 2
                if count == fixed:
                    reply = ""
                elif count == fixed + 1:
                    reply = args[-3].decode()
                else:
                    raise _wrong_arguments(args)
                token = args[-2]
                if not token.isdigit() or len(token) > 10:
                    raise ValueError(f"bad header size {token[:24]!r}, expected 0..{limit}")
                head = int(token)
            else:
                append(self._control(op, args, data[pos:eol]))
                pos = eol + 1
                continue
            token = args[-1]
            if not token.isdigit() or len(token) > 10:  # int() alone accepts b"-5" and b"1_0"
                raise ValueError(f"bad payload size {token[:24]!r}, expected 0..{limit}")
            total = int(token)
            if total > limit:
                raise _Broken(f"payload of {total} bytes, at most {limit} allowed", "Maximum Payload Violation")
            if head > total:
                raise ValueError(f"header size {head} exceeds the total size {total}")
            begin = eol + 1
            end = begin + total
            if end + 2 > size:
                return data[pos:], end + 2 - pos
            if data[end : end + 2] != b"\r\n":
                raise ValueError(f"payload of {total} bytes does not end with CR LF")
            body = begin + head
            if kind is Msg:
                append(_new(Msg, (args[1].decode(), args[2], reply, data[begin:body] if head else b"", data[body:end])))
            else:
                append(_new(Pub, (args[1].decode(), reply, data[begin:body] if head else b"", data[body:end])))
            pos = end + 2
        return b"", 0

    def _control(self, op: bytes, args: list[bytes], line: bytes) -> Event:
        """The event of a line without payload."""
        if op == b"PING":
            return Ping()
        if op == b"PONG":
            return Pong()
        if self._from_server:
            if op == b"INFO":
                return Info(_decode_info(_body(line)))
            if op == b"+OK":
                return Ok()
            if op == b"-ERR":
                return Err(_body(line).decode(errors="replace").strip("'"))
        elif op == b"SUB":
            if len(args) == 3:
                return Sub(args[1].decode(), "", args[2])
            if len(args) == 4:
                return Sub(args[1].decode(), args[2].decode(), args[3])
            raise _wrong_arguments(args)
        elif op == b"UNSUB":
            if len(args) == 2:
                return Unsub(args[1], 0)
            if len(args) == 3:
                return Unsub(args[1], _number(args[2]))
            raise _wrong_arguments(args)
        elif op == b"CONNECT":
            return Connect(_decode_connect(_body(line)))
        raise _Broken(f"unknown operation in {line[:64]!r}", "Unknown Protocol Operation")


class _Broken(Exception):
    """Leaves the hot loop with both texts of a `Violation`."""

    def __init__(self, reason: str, err: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.err = err


def _body(line: bytes) -> bytes:
    """What follows the operation; `-ERR` alone has nothing."""
    parts = line.split(None, 1)
    return parts[1].rstrip() if len(parts) == 2 else b""


def _number(token: bytes) -> int:
    if not token.isdigit() or len(token) > 19 or int(token) > MAX_UNSUB:
        raise ValueError(f"bad number {token[:24]!r}, expected 0..{MAX_UNSUB}")
    return int(token)


def _line_too_long(seen: int, limit: int) -> _Broken:
    return _Broken(f"control line of {seen} bytes or more, at most {limit} allowed", "maximum control line exceeded")


def _wrong_arguments(args: list[bytes]) -> ValueError:
    return ValueError(f"{args[0].decode()} with {len(args) - 1} arguments: {b' '.join(args)[:64]!r}")
