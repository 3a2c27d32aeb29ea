"""Encoder of protocol lines: the inverse of the parser, one function per operation.

Arguments are trusted: subjects and headers were checked where they entered (`subjects.check_subject`, `Headers`). These
are hot paths; `header` is an encoded block (`Headers.encode`), empty for none.
"""

from __future__ import annotations

import msgspec

from slipstream.wire.handshake import ConnectOptions, ServerInfo

PING = b"PING\r\n"
PONG = b"PONG\r\n"
OK = b"+OK\r\n"

_INFO_ALWAYS = ("server_id", "server_name", "version", "proto", "go", "host", "port", "headers", "max_payload")
_encode_json = msgspec.json.Encoder().encode


def pub(subject: str, payload: bytes, reply: str = "", header: bytes = b"") -> bytes:
    """PUB or HPUB."""
    if header:
        gap = f"{subject} {reply} " if reply else f"{subject} "
        size = len(header)
        return b"HPUB %b%d %d\r\n%b%b\r\n" % (gap.encode(), size, size + len(payload), header, payload)
    if reply:
        return b"PUB %b %d\r\n%b\r\n" % (f"{subject} {reply}".encode(), len(payload), payload)
    return b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)


def msg(subject: bytes, sid: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """MSG. Subject and reply are bytes: a server encodes them once for many subscribers."""
    if reply:
        return b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(payload), payload)
    return b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(payload), payload)


def hmsg(subject: bytes, sid: bytes, header: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """HMSG."""
    size = len(header)
    if reply:
        return b"HMSG %b %b %b %d %d\r\n%b%b\r\n" % (subject, sid, reply, size, size + len(payload), header, payload)
    return b"HMSG %b %b %d %d\r\n%b%b\r\n" % (subject, sid, size, size + len(payload), header, payload)


def sub(subject: str, sid: bytes, queue: str = "") -> bytes:
    """SUB."""
    if queue:
        return b"SUB %b %b %b\r\n" % (subject.encode(), queue.encode(), sid)
    return b"SUB %b %b\r\n" % (subject.encode(), sid)


def unsub(sid: bytes, max_msgs: int = 0) -> bytes:
    """UNSUB, at once or after `max_msgs` messages in all."""
    return b"UNSUB %b %d\r\n" % (sid, max_msgs) if max_msgs else b"UNSUB %b\r\n" % sid


def connect(options: ConnectOptions) -> bytes:
    """CONNECT."""
    return b"CONNECT %b\r\n" % _encode_json(options)


def info(server: ServerInfo) -> bytes:
    """INFO. Other clients take an absent `max_payload` for 0: what nats-server always sends is never left out."""
    body = {name: getattr(server, name) for name in _INFO_ALWAYS} | msgspec.to_builtins(server)
    return b"INFO %b\r\n" % _encode_json(body)


def err(text: str) -> bytes:
    """-ERR with the text in quotes, as clients expect it; the text may quote a peer and stays one line."""
    return b"-ERR '%b'\r\n" % " ".join(text.splitlines()).encode(errors="replace")


def ping() -> bytes:
    """PING."""
    return PING


def pong() -> bytes:
    """PONG."""
    return PONG
