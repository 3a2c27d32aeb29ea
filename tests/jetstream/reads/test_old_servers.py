"""Servers that know less, found out by what they answer, served as well as can be: without batches (before 2.11), and
such that break off an answer about many subjects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipstream import connect_blocking
from slipstream.errors import StaleReadError
from tests.client.support import FakeServer, Peer

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
    peer.answer_requests(answer)


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


class BreakingOff:
    """As nats-server 2.15.1: a message that is removed while an answer is sent ends it with a 404 instead of an EOB."""

    def __init__(self, *, after: int) -> None:
        self._after = after  # messages
        self.has_broken = False
        self._stored = {1: "s.c", 2: "s.d", 5: "s.a", 6: "s.b", 7: "s.c", 8: "s.d"}

    def __call__(self, peer: Peer) -> None:
        peer.answer_requests(lambda subject, inbox, body: self._answer(subject, inbox, json.loads(body)))

    def _answer(self, subject: bytes, inbox: bytes, body: dict[str, Any]) -> bytes:
        if subject == b"$JS.API.STREAM.INFO.S":
            names = sorted(set(self._stored.values()))
            state = {"messages": 6, "first_seq": 1, "last_seq": 8, "first_ts": TIME, "last_ts": TIME}
            config = {"name": "S", "allow_direct": True}
            listed = {"state": {**state, "subjects": dict.fromkeys(names, 1)}, "total": len(names), "offset": 0}
            info = json.dumps({"config": config, "created": TIME, **listed}).encode()
            return b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(info), info)
        asked = set(body["multi_last"])
        newest = {name: seq for seq, name in self._stored.items() if "s.*" in asked or name in asked}
        seqs = [seq for seq in sorted(newest.values()) if seq >= body.get("seq", 0)]
        sent: list[bytes] = []
        for index, seq in enumerate(seqs):
            if index == self._after and not self.has_broken:
                self.has_broken = True
                del self._stored[8], self._stored[7]
                return b"".join(sent) + reply(inbox, b"NATS/1.0 404 Message Not Found\r\n\r\n")
            header = (
                f"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: {self._stored[seq]}\r\nNats-Sequence: {seq}\r\n"
                f"Nats-Time-Stamp: {TIME}\r\nNats-Num-Pending: {len(seqs) - index - 1}\r\nNats-Last-Sequence: 0\r\n\r\n"
            )
            sent.append(reply(inbox, header.encode(), b"x"))
        if not newest:
            return reply(inbox, b"NATS/1.0 404 No Results\r\n\r\n")
        end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 6\r\nNats-UpTo-Sequence: 8\r\n\r\n"
        return b"".join(sent) + reply(inbox, end)


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("asked", [("s.*",), ("s.a", "s.b", "s.c", "s.d", "s.e")])
@pytest.mark.spec("DG-25", on="C")
def test_answer_that_is_broken_off_is_completed(asked: tuple[str, ...], after: int) -> None:
    script = BreakingOff(after=after)
    with FakeServer(script) as server, connect_blocking(server.url) as nc:
        found = nc.jetstream().stream("S").get_last_many(asked)
        assert script.has_broken
        assert {name: message.seq for name, message in found.items()} == {
            "s.c": 7 if after == 3 else 1,  # sent before it was removed
            "s.d": 2,
            "s.a": 5,
            "s.b": 6,
        }
