"""Sessions on a real cluster with a follower that is behind, and on a scripted server with a deposed leader."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from slipstream import connect, connect_blocking
from slipstream.errors import MessageNotFoundError, StaleReadError
from slipstream.jetstream.reads.direct_get import StoredMessage
from tests.client.support import FakeServer, Peer
from tests.cluster import Cluster
from tests.jetstream.reads.test_session_paths import by_leader
from tests.jetstream.test_cluster import replicated

SESSIONS = 20
OLD, NEW = 2, 4


@pytest.mark.spec("RW-13")
async def test_a_session_does_not_go_back_on_a_cluster_with_a_stale_follower(cluster: Cluster, fresh: str) -> None:
    """Ranges in progress and left, and the leader; each shows the newest message, and a read follows."""
    async with connect(cluster.urls) as nc:
        await replicated(nc.jetstream(), fresh, cluster)
    async with connect(cluster.url(cluster.leader(fresh))) as nc:
        js = nc.jetstream(timeout=10)
        for _ in range(OLD):
            await js.publish(f"{fresh}.a", b"old")
        cluster.wait_until_level(fresh, OLD)
        with cluster.stale(fresh):
            for _ in range(NEW - OLD):
                await js.publish(f"{fresh}.a", b"new")
            shown = 0
            for number in range(2 * SESSIONS):
                stream, is_left = js.session().stream(fresh), False
                async for message in stream.read():
                    if message.seq == NEW:
                        shown, is_left = shown + 1, number % 2 == 0
                        if is_left:
                            break
                        assert (await stream.get_last(f"{fresh}.a")).seq == NEW
                if is_left:
                    assert (await stream.get_last(f"{fresh}.a")).seq == NEW
            assert shown
            for _ in range(SESSIONS):
                session = js.session()
                seen = await by_leader(session, fresh)
                assert (await session.stream(fresh).get_last(f"{fresh}.a")).seq >= seen == session.seen(fresh)


@pytest.mark.spec("RW-13")
async def test_what_a_session_found_absent_stays_absent_on_a_cluster(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        await replicated(nc.jetstream(), fresh, cluster, allow_rollup_hdrs=True)
    async with connect(cluster.url(cluster.leader(fresh))) as nc:
        js = nc.jetstream(timeout=10)
        for _ in range(NEW):
            await js.publish(f"{fresh}.a", b"old")
        cluster.wait_until_level(fresh, NEW)
        with cluster.stale(fresh):
            await js.publish(f"{fresh}.z", b"rolled up", rollup="all")
            for seen in (0, NEW):
                session = js.session()
                session.note(fresh, seen)
                last = partial(session.stream(fresh).get_last, f"{fresh}.a")
                assert never_comes_back([await seq_of(last) for _ in range(SESSIONS)])
                session = js.session()
                session.note(fresh, seen)
                by_seq = partial(session.stream(fresh).get, NEW)
                assert never_comes_back([await seq_of(by_seq) for _ in range(SESSIONS)])


async def seq_of(read: Callable[[], Awaitable[StoredMessage]]) -> int:
    try:
        return (await read()).seq
    except MessageNotFoundError:
        return 0


def never_comes_back(shown: list[int]) -> bool:
    gone = shown.index(0) if 0 in shown else len(shown)
    return not any(shown[gone:])


# A deposed leader of a stream that was made again, which the session wrote to

BEFORE, AFTER, THEN = "2026-11-15T08:00:00Z", "2026-11-15T09:00:00Z", "2026-11-15T09:00:01Z"
REPLICAS = [{"name": "n2", "active": 9_000_000_000}, {"name": "n3", "active": 9_000_000_000}]


class Deposed:
    """Ten messages of the new stream; the session's write went to its successor, which has 50."""

    def __init__(self) -> None:
        self.created = BEFORE
        self.last = 100

    def __call__(self, peer: Peer) -> None:
        peer.answer_requests(lambda subject, inbox, body: self.answer(subject.decode(), inbox, body))

    def answer(self, subject: str, inbox: bytes, body: bytes) -> bytes:
        if subject == "s.a":
            return _msg(inbox, b'{"stream":"S","seq":50}')
        if subject.startswith("$JS.API.STREAM.INFO"):
            state = {"messages": self.last, "first_seq": 1, "last_seq": self.last, "first_ts": THEN, "last_ts": THEN}
            cluster = {"leader": "n1", "leader_since": self.created, "replicas": REPLICAS}
            config = {"name": "S", "subjects": ["s.>"], "allow_direct": True, "num_replicas": 3}
            info = {"config": config, "created": self.created, "state": state, "cluster": cluster, "ts": THEN}
            return _msg(inbox, json.dumps(info).encode())
        if subject.startswith("$JS.API.STREAM.MSG.GET"):
            message = {"subject": "s.a", "seq": self.last, "time": THEN, "data": "T0xE"}
            return _msg(inbox, json.dumps({"message": message}).encode())
        if b"_probe" in body:
            return _hmsg(inbox, b"NATS/1.0 404 Message Not Found\r\n\r\n")
        head = "NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s.a\r\n"
        head += f"Nats-Sequence: {self.last}\r\nNats-Time-Stamp: {THEN}\r\n"
        if not body or b"multi_last" not in body:
            return _hmsg(inbox, f"{head}\r\n".encode(), b"OLD")
        batch = "Nats-Num-Pending: 0\r\nNats-Last-Sequence: 0\r\n"
        end = f"NATS/1.0 204 EOB\r\n{batch}Nats-UpTo-Sequence: {self.last}\r\n\r\n"
        return _hmsg(inbox, f"{head}{batch}\r\n".encode(), b"OLD") + _hmsg(inbox, end.encode())


def _msg(inbox: bytes, data: bytes) -> bytes:
    return b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(data), data)


def _hmsg(inbox: bytes, header: bytes, data: bytes = b"") -> bytes:
    return b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (inbox, len(header), len(header) + len(data), header, data)


# F13: a deposed leader's word about a stream that was made again
@pytest.mark.spec("RW-13")
@pytest.mark.steady
def test_a_session_does_not_unlearn_its_write_to_a_stream_that_was_made_again() -> None:
    deposed = Deposed()
    with FakeServer(deposed) as server, connect_blocking(server.url) as nc:
        session = nc.jetstream(timeout=1.5).session()
        session.note("S", 100)
        assert session.stream("S").get_last("s.a").seq == 100  # of the stream before it
        deposed.created, deposed.last = AFTER, 10
        assert session.publish("s.a", b"mine").seq == 50
        with pytest.raises(StaleReadError):
            session.stream("S").get_last("s.a")
        assert session.seen("S") >= 50
