"""Random protocol text, built from tokens rather than bytes: nearly right, which is where parsers go wrong."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from slipstream.wire import Event, Headers, Parser, Side, encode
from slipstream.wire.events import Msg, Pub, Sub, Unsub

MAX_PAYLOAD = 300
MAX_LINE = 80

_names = st.text(st.characters(codec="utf-8", exclude_characters=" \t\n\r\v\f.\0"), min_size=1, max_size=6)
subjects = st.lists(_names, min_size=1, max_size=4).map(".".join)
sids = st.integers(1, 10**6).map(lambda n: b"%d" % n)
payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from((b"PING\r\n", b"MSG a 1 5\r\nhello\r\n", b"\r\n", b"\n", b"PUB a 1\r\nx\r\n", b"x" * 200)),
)
blocks = st.lists(
    st.tuples(st.sampled_from(("A", "b", "Nats-Msg-Id")), st.text("xy: 0", max_size=5)), min_size=1, max_size=3
).map(lambda pairs: Headers(pairs).encode())


def msgs() -> st.SearchStrategy[Msg]:
    return st.builds(Msg, subjects, sids, st.just("") | subjects, st.just(b"") | blocks, payloads)


def pubs() -> st.SearchStrategy[Pub]:
    return st.builds(Pub, subjects, st.just("") | subjects, st.just(b"") | blocks, payloads)


def subs() -> st.SearchStrategy[Sub]:
    return st.builds(Sub, subjects, st.just("") | _names, sids)


def unsubs() -> st.SearchStrategy[Unsub]:
    return st.builds(Unsub, sids, st.integers(0, 2**63 - 1))


def encoded(event: Msg | Pub | Sub | Unsub) -> bytes:
    """The bytes of an event."""
    match event:
        case Msg(subject, sid, reply, b"", payload):
            return encode.msg(subject.encode(), sid, payload, reply.encode())
        case Msg(subject, sid, reply, header, payload):
            return encode.hmsg(subject.encode(), sid, header, payload, reply.encode())
        case Pub(subject, reply, header, payload):
            return encode.pub(subject, payload, reply, header)
        case Sub(subject, queue, sid):
            return encode.sub(subject, sid, queue)
        case Unsub(sid, max_msgs):
            return encode.unsub(sid, max_msgs)


_OPERATIONS = (
    b"PUB", b"HPUB", b"MSG", b"HMSG", b"SUB", b"UNSUB", b"PING", b"PONG", b"INFO", b"CONNECT", b"+OK", b"-ERR", b"",
    b"Pub", b"hpub", b"msg", b"hMsG", b"sub", b"unsub", b"ping", b"pong", b"info", b"connect", b"+ok", b"-err", b"XYZ",
    b"PU", b"PINGS", b"\x00PING", b"\xffPUB", b"\xc5\xbfUB",
)  # fmt: skip
_SPACES = (b" ", b" ", b" ", b" ", b"  ", b"\t", b" \t ", b"", b"\r", b"\x0b", b"\x0c", b"\xa0", b"\xc2\xa0")
_WORDS = (
    b"foo", b"foo.bar", b"_INBOX.a.1", b"q", b"1", b"7", b"a\x0cb", b"a\rb", b"a\x0b7", b"\x00", b"\xff\xfe", b"\xc3",
    "日本".encode(), b"*", b">", b"a..b", b".", b"x" * 70, b"'text'", b"'", b"NATS/1.0",
)  # fmt: skip
_NUMBERS = (
    b"0", b"1", b"2", b"5", b"12", b"05", b"000000005", b"-1", b"-0", b"+5", b"1_0", b"5.0", b"1e2", b"0x5", b"",
    b"300", b"301", b"99999999", b"999999999", b"9999999999", b"9" * 19, b"9" * 20, b"9" * 60, "\u0665".encode(),
    "\uff15".encode(), b"\xb2", b"5\r", b"5\x00", b"NaN",
)  # fmt: skip
_JSON = (
    b"{}", b"[]", b"null", b'{"max_payload":5}', b'{"max_payload":"5"}', b'{"port":-1,"x":[[[]]]}', b'{"verbose":1}',
    b'{"name":null,"headers":null}', b'{"connect_urls":null}', b'{"connect_urls":["a",5]}', b'{"a":1', b"{" * 40,
    b"[" * 30 + b"]" * 30, b'{"name":"\xff"}', b'{"proto":1e400}', b'{"port":' + b"9" * 50 + b"}", b'{"echo":false} ',
)  # fmt: skip
_ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"", b"\r\r\n", b" \r\n", b"\n\r\n", b"\x00\r\n")
_BODIES = (b"", b"x", b"hi", b"hello", b"NATS/1.0\r\n\r\n", b"PING\r\n", b"PUB a 5\r\n", b"\x00" * 5, b"y" * 300)

_tokens = st.sampled_from(_WORDS + _NUMBERS)
_line = st.tuples(
    st.sampled_from(_OPERATIONS),
    st.lists(st.tuples(st.sampled_from(_SPACES), _tokens | st.sampled_from(_JSON)), max_size=5),
    st.sampled_from(_ENDS),
).map(lambda line: line[0] + b"".join(space + token for space, token in line[1]) + line[2])
_payload = st.tuples(st.sampled_from(_BODIES), st.sampled_from(_ENDS)).map(b"".join)
_good = st.one_of(msgs(), pubs(), subs(), unsubs()).map(encoded) | st.sampled_from(
    (b"PING\r\n", b"pong\r\n", b"+OK\r\n")
)
streams = st.lists(st.one_of(_good, _good, _line, _payload), max_size=8).map(b"".join)
sides = st.sampled_from(Side)


def parser(side: Side) -> Parser:
    """A parser with small limits, so that small inputs reach them."""
    return Parser(side, max_payload=MAX_PAYLOAD, max_control_line=MAX_LINE)


def feed_all(parser: Parser, pieces: list[bytes]) -> list[Event]:
    """The events of all pieces."""
    return [event for piece in pieces for event in parser.feed(piece)]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """`data` cut at the given positions."""
    bounds = [0, *sorted(min(position, len(data)) for position in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]
