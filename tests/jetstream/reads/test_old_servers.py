"""Servers that know less: without batches (before 2.11), found out by what they answer, served as well as can be."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from slipstream import connect_blocking
from slipstream.errors import StaleReadError
from tests.client.support import FakeServer, Peer

PUB = re.compile(rb"PUB (\S+) (\S+) (?:(\d+) )?(\d+)\r\n")
STORED = {1: "s.a", 2: "s.b", 3: "s.a"}
TIME = "2026-11-15T08:03:38.5Z"


def reply(inbox: bytes, header: bytes, payload: bytes = b"") -> bytes:
    return b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (inbox, len(header), len(header) + len(payload), header, payload)


def stored(inbox: bytes, seq: int) -> bytes:
    header = (
        f"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: {STORED[seq]}\r\nNats-Sequence: {seq}\r\n"
        f"Nats-Time-Stamp: {TIME}\r\n\r\n"
    )
    return reply(inbox, header.encode(), b"%d" % seq)


def answer(subject: bytes, inbox: bytes, body: bytes) -> bytes:
    """As a server of 2.10 would: no batches, no multi-subject gets, unknown fields ignored."""
    if subject.startswith(b"$JS.API.STREAM.INFO"):
        state = {"messages": 3, "first_seq": 1, "last_seq": 3, "first_ts": TIME, "last_ts": TIME}
        replicas = [{"name": name, "current": True, "active": 1_000} for name in ("n2", "n3")]
        info = json.dumps(
            {
                "config": {"name": "S", "allow_direct": True, "num_replicas": 3, "max_msgs_per_subject": 2},
                "created": TIME,
                "state": state,
                "cluster": {"leader": "n1", "replicas": replicas},  # since when it leads, it does not say
            }
        ).encode()
        return b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(info), info)
    if subject.startswith(b"$JS.API.STREAM.MSG.GET"):
        body = json.dumps({"error": {"code": 503, "err_code": 10008, "description": "not available"}}).encode()
        return b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(body), body)
    request: dict[str, Any] = (
        json.loads(body) if body else {"last_by_subj": subject.decode().removeprefix("$JS.API.DIRECT.GET.S.")}
    )
    if "last_by_subj" in request:
        seqs = [seq for seq, name in STORED.items() if name == request["last_by_subj"]][-1:]
    elif "seq" in request:
        pattern = request.get("next_by_subj", ">")
        seqs = [seq for seq, name in STORED.items() if seq >= request["seq"] and pattern in (">", name)][:1]
    else:
        return reply(inbox, b"NATS/1.0 408 Empty Request\r\n\r\n")
    return stored(inbox, seqs[0]) if seqs else reply(inbox, b"NATS/1.0 404 Message Not Found\r\n\r\n")


def old_server(peer: Peer) -> None:
    peer.greet()
    said = b""
    while True:
        try:
            said += peer.expect(b"\r\n")
        except AssertionError:  # the client hung up
            return
        found = PUB.search(said)
        if said.endswith(b"PING\r\n"):
            peer.send(b"PONG\r\n")
            said = b""
        elif found is not None:
            body = said[found.end() :]
            while len(body) < int(found[4]) + 2:
                body += peer.expect(b"\r\n")
            peer.send(answer(found[1], found[2], body[int(found[3] or 0) : int(found[4])]))
            said = b""


@pytest.mark.spec("DG-21", on="C")
def test_a_server_without_batches_is_read_message_by_message() -> None:
    with FakeServer(old_server) as server, connect_blocking(server.url) as nc:
        stream = nc.jetstream().stream("S")
        assert [m.data for m in stream.read(end=3)] == [b"1", b"2", b"3"]
        assert [m.seq for m in stream.read(end=3, subject="s.a")] == [1, 3]


@pytest.mark.steady
def test_a_server_without_multi_subject_gets_gives_what_proves_itself() -> None:
    with FakeServer(old_server) as server, connect_blocking(server.url) as nc:
        stream = nc.jetstream().stream("S")
        assert stream.get_last("s.a", min_last_seq=3).data == b"3"
        assert stream.get(3, min_last_seq=3).data == b"3"
        with pytest.raises(StaleReadError, match=r"2\.11 or newer"):
            stream.get_last("s.b", min_last_seq=3, timeout=0.5)
