"""Copies of a stream that lag, catch up, skip, restart and differ.

Whatever answers a read with `min_last_seq` gives the stream's answer as of some sequence at or after it. The checker
knows the whole history of the stream."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.server.engine.replication import ingest as ingest_module
from slipstream.server.engine.replication.ingest import HELD, Ingest
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import Msg, pub
from tests.server.support import SECOND, Rig, headers, status

KEYS = ("s.a", "s.b", "s.c")
Contents = dict[int, tuple[str, bytes]]  # messages by sequence


class Op(NamedTuple):
    name: str
    key: int = 0
    times: int = 1


class Read(NamedTuple):
    stream: str
    body: dict[str, Any]
    wanted: int
    answers: list[Msg]


class World:
    """A stream S of 3 replicas, its mirror M of 2, M's mirror B, and the history of S."""

    def __init__(self, limits: dict[str, Any], mirror_limits: dict[str, Any]) -> None:
        self.store = MemoryStore()
        self.rig = Rig(store=self.store)
        self.client = self.rig.client()
        self.limits, self.mirror_limits = limits, mirror_limits
        self.random = random.Random(7)
        self.sent = self.answered = 0
        self.pending: dict[str, Read] = {}
        self.by_copies = 0
        self.is_own_name_exact = limits == mirror_limits
        self.client.create("S", num_replicas=3, **limits)
        for name, upstream, replicas in (("M", "S", 2), ("B", "M", 1)):
            body = {"name": name, "storage": "memory", "mirror": {"name": upstream}, "allow_direct": True}
            self.client.api(f"STREAM.CREATE.{name}", body | mirror_limits | {"num_replicas": replicas})
        self.history: list[Contents] = [{}]

    def ingest(self, name: str) -> Ingest:
        (found,) = self.rig.engine.streams[name].ingests
        assert isinstance(found, Ingest)
        return found

    @property
    def last(self) -> int:
        return len(self.history) - 1

    # What happens.

    def do(self, op: Op) -> None:
        getattr(self, f"do_{op.name}")(op)

    def do_publish(self, op: Op, **more: str) -> None:
        for n in range(op.times):
            key = KEYS[(op.key + n) % len(KEYS)]
            self.publish(key, **more)

    def publish(self, key: str, **more: str) -> None:
        """Publish, and let only the stream itself act: its copies take their steps in `do_step`."""
        paused = [name for name in ("M", "B") if not self.ingest(name).paused]
        for name in paused:
            self.ingest(name).pause(HELD)
        self.client.publish(key, b"%d" % (self.last + 1), **more)
        log = self.rig.engine.streams["S"].log
        contents = {record.seq: (record.subject, record.payload) for record in log.scan("", 0, limit=10_000)}
        self.history += [contents] * (log.committed.last_seq - self.last)
        for name in paused:
            self.ingest(name).paused = ""
            self.ingest(name).release()

    def do_rollup(self, op: Op) -> None:
        if self.limits["allow_rollup_hdrs"]:
            self.publish(KEYS[op.key % len(KEYS)], Nats_Rollup="sub")

    def do_rollup_all(self, op: Op) -> None:
        if self.limits["allow_rollup_hdrs"]:
            self.is_own_name_exact = False  # it may keep what the stream has removed while it was away
            self.publish(KEYS[op.key % len(KEYS)], Nats_Rollup="all")

    def do_step(self, op: Op) -> None:
        for _ in range(op.times):
            self.rig.engine.step(self.rig.now)
            self.rig.commit()
        self.rig.flush()

    def do_settle(self, _: Op) -> None:
        self.rig.settle()

    def do_hold_mirror(self, op: Op) -> None:
        self.ingest("MB"[op.key % 2]).pause(HELD)

    def do_release_mirror(self, op: Op) -> None:
        self.ingest("MB"[op.key % 2]).resume()

    def do_hold(self, op: Op) -> None:
        group = self.rig.engine.streams["SM"[op.key % 2]].replicas
        peers = [peer for peer in group.peers if peer is not group.leader]
        if peers:
            group.hold(peers[op.times % len(peers)], self.rig.now)

    def do_release(self, op: Op) -> None:
        group = self.rig.engine.streams["SM"[op.key % 2]].replicas
        for peer in group.peers:
            group.release(peer)

    def do_depose(self, op: Op) -> None:
        group = self.rig.engine.streams["S"].replicas
        if sum(not group.is_held(peer) for peer in group.peers) > 1:
            group.depose(self.rig.now, unaware=bool(op.times % 2))

    def do_crash(self, _: Op) -> None:
        """What is not committed is lost; every replica is current afterwards."""
        self.store.abandon()
        self.rig = Rig(store=self.store, now=self.rig.now + SECOND)
        self.client = self.rig.client()
        self.pending.clear()

    def do_scale(self, op: Op) -> None:
        self._edit("M", num_replicas=1 + op.times % 3)

    def do_tighten(self, op: Op) -> None:
        self.is_own_name_exact = False
        self._edit("M", max_msgs_per_subject=op.times)

    def do_restore_limits(self, _: Op) -> None:
        self._edit("M", **{"max_msgs_per_subject": -1, "max_msgs": -1} | self.mirror_limits)

    def do_limit_mirror(self, op: Op) -> None:
        self.is_own_name_exact = False
        self._edit("M", max_msgs=op.times)

    def do_purge_mirror(self, _: Op) -> None:
        self.is_own_name_exact = False
        self.client.api("STREAM.PURGE.M", {"keep": 1})

    def do_recreate(self, _: Op) -> None:
        for name in ("M", "B"):
            self.ingest(name).pause(HELD)
        self.client.api("STREAM.DELETE.S")
        self.client.create("S", num_replicas=3, **self.limits)
        self.history = [{}]
        self.pending.clear()
        self.is_own_name_exact = False  # which generation its sequences are of is not in the request
        for name in ("M", "B"):
            self.ingest(name).paused = ""
            self.ingest(name).release()

    def _edit(self, name: str, **changes: Any) -> None:
        config = self.client.api(f"STREAM.INFO.{name}")["config"]
        self.client.api(f"STREAM.UPDATE.{name}", config | changes)

    # What is read.

    def check(self) -> None:
        """Reads of every kind, from every name, for old and new sequences."""
        names = ["S", "M", "B"] if self.is_own_name_exact else ["S"]
        wanted = {self.last, self.random.randint(0, self.last), max(self.last - 1, 0)} - {0}
        for stream in names:
            for seq in wanted:
                key = self.random.choice(KEYS)
                start = self.random.randint(1, self.last)
                for body in (
                    {"last_by_subj": key},
                    {"seq": start},
                    {"seq": start, "next_by_subj": key},
                    {"seq": start, "batch": 100},
                    {"multi_last": ["s.>"]},
                ):
                    self._read(stream, body, seq)

    def _read(self, stream: str, body: dict[str, Any], wanted: int) -> None:
        """Send a read; it may be answered at once, after some steps, or be rejected."""
        self.sent += 1
        reply = f"{self.client.inbox}r{self.sent}"
        self.pending[reply] = Read(stream, body, wanted, [])
        payload = msgspec.json.encode(body | {"min_last_seq": wanted})
        self.client.send(pub(f"$JS.API.DIRECT.GET.{stream}", payload, reply), settle=False)

    def drain(self) -> None:
        """Check the answers that have come."""
        self.rig.flush()
        for message in self.client.messages():
            read = self.pending.get(message.subject)
            if read is None:
                continue
            read.answers.append(message)
            if status(message)[0] or not ("batch" in read.body or "multi_last" in read.body):
                del self.pending[message.subject]
                self._check_read(*read)

    def _check_read(self, stream: str, body: dict[str, Any], wanted: int, answers: list[Msg]) -> None:
        if status(answers[0])[0] in (412, 503):
            return
        self.answered += 1
        self.by_copies += headers(answers[0]).get("Nats-Stream", "S") != "S"
        states = self.history[wanted:]
        if "batch" in body:
            self._check_range(body["seq"], answers, states)
        elif "multi_last" in body:
            found = {headers(m)["Nats-Subject"]: seq_of(m) for m in answers if not status(m)[0]}
            for key in KEYS:
                newest = [max((seq for seq, (k, _) in state.items() if k == key), default=0) for state in states]
                assert found.get(key, 0) in newest, (stream, body, wanted, found, newest)
        else:
            expected = [find(state, body) for state in states]
            got = 0 if status(answers[0])[0] == 404 else seq_of(answers[0])
            assert got in expected, (stream, body, wanted, got, expected)
            if got:
                assert answers[0].payload == b"%d" % got

    def _check_range(self, start: int, answers: list[Msg], states: list[Contents]) -> None:
        shown = [seq_of(m) for m in answers if not status(m)[0]]
        assert shown == sorted(set(shown))
        always = set.intersection(*(set(state) for state in states))
        assert {seq for seq in always if seq >= start} <= set(shown)
        assert set(shown) <= set().union(*(set(state) for state in states))


def seq_of(message: Msg) -> int:
    return int(headers(message)["Nats-Sequence"])


def find(state: Contents, body: dict[str, Any]) -> int:
    """The sequence of the answer in a state; 0: none."""
    if "last_by_subj" in body:
        return max((seq for seq, (key, _) in state.items() if key == body["last_by_subj"]), default=0)
    key = body.get("next_by_subj")
    if key is None:
        return body["seq"] if body["seq"] in state else 0
    return min((seq for seq, (k, _) in state.items() if seq >= body["seq"] and k == key), default=0)


PLAIN = ("publish", "publish", "publish", "rollup", "step", "step", "hold_mirror", "release_mirror", "release_mirror")
FAULTS = (*PLAIN, "settle", "hold", "release", "depose", "crash", "scale")
DIFFERENT = (*FAULTS, "rollup_all", "tighten", "restore_limits", "limit_mirror", "purge_mirror", "recreate")
MIRRORS: tuple[dict[str, Any], ...] = (
    {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    {"max_msgs_per_subject": 2, "allow_rollup_hdrs": True},
    {"max_msgs_per_subject": 1},
    {"allow_rollup_hdrs": True},
    {"max_msgs": 3, "max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    {},
)


def ops(names: tuple[str, ...]) -> st.SearchStrategy[list[Op]]:
    one = st.builds(Op, st.sampled_from(names), key=st.integers(0, 2), times=st.integers(1, 7))
    return st.lists(one, min_size=4, max_size=30)


STEPS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def run(limits: dict[str, Any], mirror_limits: dict[str, Any], steps: list[Op]) -> World:
    world = World(limits, mirror_limits)
    world.publish(KEYS[0])
    world.rig.settle()
    for op in steps:
        world.do(op)
        world.drain()
        if world.last:
            world.check()
            world.drain()
    world.rig.settle()
    world.drain()
    return world


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "CHUNK", 1)


@pytest.mark.spec("RW-02", "RW-08", "RW-19", on="E")
@STEPS
@given(limits=st.sampled_from(MIRRORS[:4]), steps=ops(FAULTS))
def test_every_copy_with_the_streams_limits_answers_as_of_the_wanted_sequence_or_later(
    limits: dict[str, Any], steps: list[Op]
) -> None:
    limits = {"allow_rollup_hdrs": False} | limits
    run(limits, limits, steps)


@pytest.mark.spec("RW-02", "RW-08", "RW-19", on="E")
@STEPS
@given(limits=st.sampled_from(MIRRORS), mirror_limits=st.sampled_from(MIRRORS), steps=ops(DIFFERENT))
def test_copies_that_differ_or_are_of_another_stream_never_answer_wrongly_for_it(
    limits: dict[str, Any], mirror_limits: dict[str, Any], steps: list[Op]
) -> None:
    run({"allow_rollup_hdrs": False} | limits, mirror_limits, steps)
