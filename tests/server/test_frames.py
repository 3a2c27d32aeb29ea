"""Hostile frames over sockets: mutations of valid protocol streams, NATS and WebSocket, beside a well-behaved client.

The checker: the server stays alive and logs no traceback, the client beside it is served after every round, and the
memory of the server's process stays bounded. A round is one connection of one seed, so that a failing one is found.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.wire.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, encode_frame
from tests.server.metered import MeteredServer, RawClient, metered_server

SHORT, LONG = 20_000, 10_000_000  # frames
FRAMES = 400  # of a connection
GROWTH = 96 << 20  # bytes that the server may keep more than at the beginning
HELLO = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
SUBJECTS = (
    "a.b",
    "h.1",
    "h.2.x",
    "h.*",
    "h.>",
    ">",
    "*.*.*",
    "_INBOX.q.1",
    "$JS.API.INFO",
    "$JS.ACK.H.d.1.1.1.1.1",
    "$SYS.x",
)
API = (
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.INFO.H",
    "STREAM.CREATE.H",
    "STREAM.UPDATE.H",
    "STREAM.PURGE.H",
    "STREAM.MSG.GET.H",
    "STREAM.MSG.DELETE.H",
    "STREAM.DELETE.H",
    "CONSUMER.CREATE.H.d",
    "CONSUMER.INFO.H.d",
    "CONSUMER.MSG.NEXT.H.d",
    "CONSUMER.DELETE.H.d",
    "DIRECT.GET.H",
    "DIRECT.GET.H.h.1",
    "CONSUMER.LIST.H",
    "STREAM.SNAPSHOT.H",
    "STREAM.RESTORE.H2",
    "CONSUMER.NAMES.H",
)
STREAM = b'{"name":"H","subjects":["h.>"],"storage":"memory","max_msgs":500,"allow_direct":true}'
BODIES = (
    STREAM,
    b'{"stream_name":"H","config":{"durable_name":"d","name":"d","ack_policy":"explicit"}}',
    b'{"multi_last":["h.*","h.>"],"batch":3}',
    b'{"filter":"h.1","keep":2}',
    b'{"deliver_subject":"h.snap"}',
    b'{"batch":99999999999999999999}',
    *(b"", b"{}", b"[]", b"null", b'{"seq":1}', b'{"last_by_subj":"h.1"}', b'{"batch":5,"no_wait":true}'),
    *(b"\xff\xfe", b'{"a":' * 200),
)
LINES = (
    b"Nats-Msg-Id: 1\r\n",
    b"Nats-Rollup: sub\r\n",
    b"Nats-TTL: never\r\n",
    b"Nats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\n",
    b"Nats-Schedule: @every 1s\r\n",
    b"Nats-Expected-Last-Sequence: -1\r\n",
    b"",
)
HEADERS = (b"NATS/1.0 503\r\n\r\n", b"junk", *(b"NATS/1.0\r\n%b\r\n" % line for line in LINES))
NUMBERS = (b"0", b"-1", b"1048577", b"4294967296", b"99999999999999999999999", b"1e3", b"0x10", b"", b"007")


def valid_frame(rng: random.Random) -> bytes:
    """A frame that a client may send."""
    kind = rng.random()
    subject = rng.choice(SUBJECTS).encode()
    if kind < 0.15:
        return b"SUB %b %d\r\n" % (subject, rng.randint(1, 60))
    if kind < 0.2:
        return b"SUB %b q%d %d\r\n" % (subject, rng.randint(1, 3), rng.randint(1, 60))
    if kind < 0.3:
        return b"UNSUB %d %d\r\n" % (rng.randint(1, 60), rng.randint(0, 3))
    if kind < 0.36:
        return rng.choice((b"PING\r\n", b"PONG\r\n", b"+OK\r\n", HELLO))
    if kind < 0.6:
        body = rng.choice(BODIES) if rng.random() < 0.5 else rng.randbytes(rng.choice((0, 1, 10, 300)))
        reply = rng.choice((b"", b" _INBOX.q.1", b" h.1"))
        return b"PUB %b%b %d\r\n%b\r\n" % (subject, reply, len(body), body)
    if kind < 0.75:
        head, body = rng.choice(HEADERS), rng.choice(BODIES)
        return b"HPUB %b _INBOX.q.1 %d %d\r\n%b%b\r\n" % (subject, len(head), len(head) + len(body), head, body)
    body = rng.choice(BODIES)
    return b"PUB $JS.API.%b _INBOX.q.%d %d\r\n%b\r\n" % (rng.choice(API).encode(), rng.randint(1, 9), len(body), body)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """One frame, changed as chance will have it."""
    kind, at = rng.randrange(8), rng.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + rng.randint(1, 4) :]
    if kind == 2:
        return data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at:]
    if kind == 3:
        return data[:at]
    if kind == 4:
        line, end, rest = data.partition(b"\r\n")
        words = line.split(b" ")
        words[rng.randrange(len(words))] = rng.choice(NUMBERS)
        return b" ".join(words) + end + rest
    if kind == 5:
        return data.replace(b"\r\n", rng.choice((b"\n", b"\r", b"", b"\r\n\r\n")), 1)
    if kind == 6:
        return data[:at] + data[at:] * rng.randint(2, 20)
    return data.swapcase()


def nats_round(rng: random.Random) -> bytes:
    """What one connection sends: valid frames, and from somewhere on mutated ones among them."""
    frames = [HELLO, b"PUB $JS.API.STREAM.CREATE.H %d\r\n%b\r\n" % (len(STREAM), STREAM)]
    rate = rng.choice((0.0, 0.002, 0.02, 0.3))
    for _ in range(FRAMES):
        frame = valid_frame(rng)
        frames.append(mutated(rng, frame) if rng.random() < rate else frame)
    return b"".join(frames)


def websocket_round(rng: random.Random) -> bytes:
    """The same inside of WebSocket frames, which are mutated as well."""
    upgrade = (
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    if rng.random() < 0.05:
        return mutated(rng, upgrade)
    parts, rate = [upgrade, encode_frame(BINARY, HELLO, rng.randbytes(4))], rng.choice((0.0, 0.002, 0.02, 0.3))
    for _ in range(FRAMES):
        payload = valid_frame(rng)
        if rng.random() < 0.05:
            payload = mutated(rng, payload)
        opcode = rng.choices((BINARY, TEXT, CONTINUATION, PING, PONG, CLOSE), (90, 2, 2, 4, 4, 1))[0]
        if opcode in (PING, PONG, CLOSE):
            payload = payload[:125]
        frame = encode_frame(opcode, payload, rng.randbytes(4))
        parts.append(mutated(rng, frame) if rng.random() < rate else frame)
    return b"".join(parts)


def attack(port: int, data: bytes, rng: random.Random) -> None:
    """Send, read what comes for as long as it does, and leave."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, contextlib.suppress(OSError):
        at = 0
        while at < len(data):
            size = rng.choice((1, 7, 100, 4096, 65536))
            sock.sendall(data[at : at + size])
            at += size
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


def checked(client: RawClient, count: int) -> None:
    """The client beside it is served."""
    client.flush()
    assert b'"seq"' in client.ask("n", b"%d" % count).payload
    assert client.ask("$JS.API.DIRECT.GET.N", {"last_by_subj": "n"}).payload == b"%d" % count


def run(server: MeteredServer, frames: int, *, seed: int = 0) -> str:
    """Rounds until so many frames were sent; what it was like."""
    client = RawClient(server.port)
    client.api("STREAM.CREATE.N", {"name": "N", "subjects": ["n"], "max_msgs": 10, "allow_direct": True})
    kinds: tuple[tuple[int, Callable[[random.Random], bytes]], ...] = (
        (server.port, nats_round), (server.port, nats_round), (server.websocket_port, websocket_round),
    )  # fmt: skip
    begun, before, most, sent = time.monotonic(), server.memory, 0, 0
    while sent < frames:
        rng = random.Random(seed)
        port, make = kinds[seed % len(kinds)]
        attack(port, make(rng), rng)
        sent += FRAMES
        seed += 1
        assert server.is_running, f"the server ended in round {seed - 1}"
        checked(client, seed)
        if not seed % 16:
            most = max(most, server.memory)
            assert most < before + GROWTH, f"{most >> 20} MiB after round {seed - 1}"
            assert "Traceback" not in server.errors(), f"round {seed - 1}: {server.errors()[:4000]}"
    client.close()
    assert "Traceback" not in server.errors(), server.errors()[:4000]
    return f"{sent} frames, {time.monotonic() - begun:.0f} s, memory {before >> 20} to {most >> 20} MiB"


@pytest.mark.parametrize("seed", [0, 1000])
def test_hostile_frames_leave_the_server_and_its_other_clients_unharmed(tmp_path: Path, seed: int) -> None:
    with metered_server(tmp_path, collects=True) as server:
        run(server, SHORT // 2, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
def test_ten_million_hostile_frames(tmp_path: Path) -> None:
    with metered_server(tmp_path, collects=True) as server:
        print(run(server, LONG))
