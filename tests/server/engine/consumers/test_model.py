"""Consumers against a model: whatever happens, `num_pending` is exact and no consumer misses a message."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.server.engine.consumers.consumer import Consumer
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import Msg, pub
from tests.server.engine.consumers.kit import SECOND, Bench, ack_of, status
from tests.server.support import Rig

TOKENS = "abcd"
TINY = Tuning(segment=8, slice=6, dirty=4, journal=12, cache=3, probe=4, page=3)
CONSUMERS: dict[str, dict[str, object]] = {
    "all": {},
    "one": {"filter_subject": "s.a"},
    "two": {"filter_subjects": ["s.b", "s.c"]},
    "shared": {"filter_subjects": ["s.*", "s.a.>"], "ack_policy": "all"},
    "last": {"deliver_policy": "last_per_subject", "filter_subject": "s.>"},
    "none": {"ack_policy": "none", "filter_subject": "s.d"},
    "few": {"max_deliver": 2, "ack_wait": SECOND, "max_ack_pending": 3},
}


class Model:
    """A bench and what its consumers were given."""

    def __init__(self, path: Path | None, seed: int, retention: str) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.store = MemoryStore() if path is None else LmdbStore(path, map_size=1 << 26, tuning=TINY)
        self.bench = Bench(Rig(store=self.store), storage="file", retention=retention, max_msgs_per_subject=30)
        for name, config in CONSUMERS.items():
            assert "error" not in self.bench.create(name, **config)
        self.open: dict[str, list[Msg]] = {name: [] for name in CONSUMERS}
        self.settled: dict[str, set[int]] = {name: set() for name in CONSUMERS}
        self.seen: dict[str, set[int]] = {name: set() for name in CONSUMERS}
        self.worker = self.bench.rig.client()

    def consumer(self, name: str) -> Consumer:
        return self.bench.rig.engine.streams["S"].consumers.items[name]

    # What happens.

    def publish(self) -> None:
        subjects = [f"s.{self.chance.choice(TOKENS)}" for _ in range(self.chance.randint(1, 12))]
        self.bench.client.send(b"".join(pub(subject, b"x") for subject in subjects))

    def pull(self) -> None:
        self.ask(self.chance.choice(list(CONSUMERS)), self.chance.randint(1, 9))

    def ask(self, name: str, batch: int, *, end: bytes = b'"no_wait":true') -> None:
        body = b'{"batch":%d,%b}' % (batch, end)
        self.worker.send(pub(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", body, f"{self.worker.inbox}{name}"))

    def collect(self) -> None:
        """Whatever came: a request may linger for a place among the pending."""
        for message in self.worker.messages():
            if status(message)[0]:
                continue
            ack = ack_of(message)
            name = ack.consumer
            assert ack.seq not in self.settled[name], f"{name}: {ack.seq} was acked"
            assert ack.times <= 2 or name != "few"
            self.seen[name].add(ack.seq)
            self.open[name].append(message)

    def ack(self) -> None:
        name = self.chance.choice([name for name in CONSUMERS if name != "none"])
        if not self.open[name]:
            return
        message = self.open[name].pop(self.chance.randrange(len(self.open[name])))
        body = self.chance.choice((b"+ACK", b"+ACK", b"+ACK", b"-NAK", b"+TERM", b"+WPI"))
        before = self.bench.info(name)["num_ack_pending"]
        self.bench.ack(message, body, sync=True)
        seq = ack_of(message).seq
        if body in (b"+ACK", b"+TERM"):
            upto = CONSUMERS[name].get("ack_policy") == "all"
            self.settled[name] |= {s for s in self.seen[name] if s <= seq} if upto else {seq}
            assert self.bench.info(name)["num_ack_pending"] <= before

    def remove(self) -> None:
        last = self.bench.rig.engine.streams["S"].log.state.last_seq
        self.bench.client.api("STREAM.MSG.DELETE.S", {"seq": self.chance.randint(1, max(1, last))})

    def purge(self) -> None:
        if self.chance.random() < 0.3:
            body = self.chance.choice(({"filter": "s.a"}, {"keep": 5}, {"filter": "s.>", "keep": 2}, {}))
            self.bench.client.api("STREAM.PURGE.S", body)

    def wait(self) -> None:
        self.bench.rig.wait(self.chance.choice((0.05, 0.5, 2)))

    def restart(self) -> None:
        if self.chance.random() < 0.3:
            self.bench.rig.wait(0.05)
            now = self.bench.rig.now
            if self.path is not None:
                self.store.close()
                self.store = LmdbStore(self.path, map_size=1 << 26, tuning=TINY)
            self.bench = Bench(Rig(store=self.store, now=now), create=False)
            self.worker = self.bench.rig.client()

    # What must be true.

    def check(self) -> None:
        log = self.bench.rig.engine.streams["S"].log
        alive = {record.seq: record.subject for record in log.scan("", 0, limit=10_000)}
        for name in CONSUMERS:
            consumer, info = self.consumer(name), self.bench.info(name)
            state, skips = consumer.state, consumer.state.skips
            wanted = [seq for seq, subject in alive.items() if consumer.cursor.filters.covers(subject)]
            if skips is None or skips.done:
                left = [seq for seq in wanted if seq >= state.next_seq]
            else:
                listed = set(skips._seqs[skips._at :])
                left = [seq for seq in wanted if seq >= skips.resume or seq in listed]
            assert info["num_pending"] == len(left), name
            assert set(state.pending) <= set(alive), name
            assert state.floor_seq < min(state.pending, default=state.floor_seq + 1), name
            assert list(state.pending) == sorted(state.pending), name
            assert set(state.queue) <= set(state.pending), name

    def drain(self) -> None:
        """In the end every consumer has had every message that is still in the stream."""
        for name in CONSUMERS:
            for _ in range(12):
                self.ask(name, 500, end=b'"expires":30000000000')  # waits for acks, unlike one with `no_wait`
                self.collect()
                while self.open[name]:
                    self.bench.ack(self.open[name].pop())
                    self.collect()
                self.bench.rig.wait(31)
        self.collect()
        log = self.bench.rig.engine.streams["S"].log
        for record in log.scan("", 0, limit=10_000):
            for name in set(CONSUMERS) - {"last"}:
                assert not self.consumer(name).cursor.filters.covers(record.subject) or record.seq in self.seen[name], (
                    name
                )


@pytest.mark.parametrize("retention", ["limits", "interest"])
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("seed", range(3))
def test_num_pending_is_exact_whatever_happens(tmp_path: Path, kind: str, seed: int, retention: str) -> None:
    model = Model(tmp_path / "store" if kind == "lmdb" else None, seed, retention)
    steps: list[Callable[[], None]] = [
        model.publish, model.publish, model.pull, model.pull, model.pull, model.ack, model.ack, model.ack, model.remove,
        model.purge, model.wait, model.restart,
    ]  # fmt: skip
    for _ in range(150):
        model.chance.choice(steps)()
        model.collect()
        model.check()
    model.drain()
    model.store.close()
