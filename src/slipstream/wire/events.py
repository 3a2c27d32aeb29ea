"""Events of the parser: one small object per protocol line, with its payload where it has one.

Per-message values are not decoded: `header` is the raw block (`NATS/1.0…\\r\\n\\r\\n`, empty when there is none), which
`Headers.parse` decodes for those who want it. `sid` is the token that the subscriber chose.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from slipstream.wire.handshake import ConnectOptions, ServerInfo


class Msg(msgspec.Struct, frozen=True, gc=False):
    """MSG or HMSG: a message for one subscription. `reply` is empty when no answer is expected.

    A Struct, for thousands of them wait for their readers: it holds no references but to text and bytes, so the cyclic
    garbage collector needs not look at it. Of tuples with names it never stops looking, a quarter of a reader's time.
    """

    subject: str
    sid: bytes
    reply: str
    header: bytes
    payload: bytes


class Pub(NamedTuple):
    """PUB or HPUB: a client publishes."""

    subject: str
    reply: str
    header: bytes
    payload: bytes


class Sub(NamedTuple):
    """SUB: a client subscribes, in the queue group `queue` if that is not empty."""

    subject: str
    queue: str
    sid: bytes


class Unsub(NamedTuple):
    """UNSUB: at once, or after `max_msgs` messages in all if that is not zero."""

    sid: bytes
    max_msgs: int


class Info(NamedTuple):
    """INFO: the server describes itself."""

    info: ServerInfo


class Connect(NamedTuple):
    """CONNECT: the client describes itself."""

    options: ConnectOptions


class Ping(NamedTuple):
    """PING: answer with PONG."""


class Pong(NamedTuple):
    """PONG: everything sent before the PING was processed."""


class Ok(NamedTuple):
    """+OK: a verbose server took the last line."""


class Err(NamedTuple):
    """-ERR: the text of the server's error, without its quotes."""

    text: str


class Violation(NamedTuple):
    """The peer broke the protocol: `reason` says how, `err` is the text for its `-ERR`. No event follows it."""

    reason: str
    err: str = "Parser Error"


Event = Msg | Pub | Sub | Unsub | Info | Connect | Ping | Pong | Ok | Err | Violation
