"""Walks over a snapshot, in slices: each answers as of the moment of its snapshot, whatever is committed in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest

from slipstream.server.engine.ports import LogSnapshot, Store, StreamLog, Walk, matches_any, sorted_walk
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb import snapshot as lmdb_snapshot
from slipstream.server.store.lmdb import view as lmdb_view
from slipstream.server.store.lmdb.env import MAX_PINS
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory import log as memory_log
from slipstream.server.store.memory import snapshot as memory_snapshot
from slipstream.server.store.memory.store import MemoryStore

TINY = Tuning(segment=16, slice=8, dirty=6, journal=20, cache=4, probe=2, page=3)
LONG = "x" * 450
SUBJECTS = [f"{a}.{b}.{c}" for a in "ab" for b in "123" for c in "xyz"] + [f"a.1.{LONG}", f"b.{LONG}.x", "ü.1.x"]
PATTERNS = (">", "a.>", "*.1.*", "*.*.z", "b.2.*", "a.1.x", "zz.*", "*.*.*", f"a.1.{LONG}", f"*.{LONG}.*")
SETS = (("a.*.x", "*.1.>"), ("a.1.x", "a.1.y"), ("*.*.x", "a.1.x", "b.>"), ("zz.>", "*.2.z"))


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for module, name in (
        (lmdb_view, "LOOKED"), (lmdb_snapshot, "PAUSE"), (memory_snapshot, "PAUSE"), (memory_log, "LOOKED"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 2)
    monkeypatch.setattr(memory_snapshot, "MERGED", 3)
    made: Store = LmdbStore(tmp_path / "s", map_size=1 << 26, tuning=TINY) if request.param == "lmdb" else MemoryStore()
    yield made
    made.close()


class Traffic:
    """Random changes of one log, in groups."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.rng = store, random.Random(seed)
        self.log: StreamLog = store.create("S", b"")
        self.time = 0
        self.commit()

    def commit(self) -> None:
        commit_open_group(self.store)

    def group(self) -> None:
        rng, log = self.rng, self.log
        for _ in range(rng.randrange(1, 8)):
            self.time += 1
            kind = rng.random()
            if kind < 0.6:
                log.append(self.time, rng.choice(SUBJECTS), b"", b"%d" % self.time)
            elif kind < 0.8:
                log.remove(rng.randint(log.state.first_seq, log.state.last_seq + 1))
            elif kind < 0.9:
                log.purge(pattern=rng.choice(SUBJECTS), keep=rng.randrange(2))
            elif kind < 0.93:
                log.purge(below=rng.randint(log.state.first_seq, log.state.last_seq + 1))
            elif kind < 0.94:
                log.purge()
            elif kind < 0.96:
                log.skip(log.state.last_seq + rng.randrange(40))
        if rng.random() < 0.1:
            self.store.abandon()
        else:
            self.commit()


def finish(walk: Walk[Any]) -> Any:
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return end.value


def is_over(walk: Walk[Any], wanted: Any) -> bool:
    """One slice; what it returns at its end must be what is wanted."""
    try:
        next(walk)
    except StopIteration as end:
        result = end.value
    else:
        return False
    assert result == wanted
    return True


def questions(snapshot: LogSnapshot, log: StreamLog) -> list[tuple[Walk[Any], Any]]:
    """Walks, each with the answer that the log gives now, in one piece."""
    found: list[tuple[Walk[Any], Any]] = []
    state = log.committed
    every = log.scan("", 0, limit=10_000)
    for pattern in PATTERNS:
        last = log.last(pattern)
        found.append((snapshot.last(pattern), last.seq if last else 0))
        found.append((snapshot.subjects(pattern), list(log.subjects(pattern))))
        for seq in (0, state.first_seq + 3, (state.first_seq + state.last_seq) // 2, state.last_seq + 1):
            found.append((snapshot.count((pattern,), seq), log.count(pattern, seq)))
            found.append((snapshot.next(pattern, seq), next(iter(log.scan(pattern, seq, limit=1)), None)))
    for patterns in SETS:
        fits = matches_any(patterns)
        for up_to in (0, state.last_seq - 5 if state.last_seq > 5 else 0):
            found.append((snapshot.multi_last(patterns, up_to=up_to), log.multi_last(patterns, up_to=up_to)))
        middle = (state.first_seq + state.last_seq) // 2
        for seq in (0, middle):
            counted = sum(1 for record in every if record.seq >= seq and fits(record.subject))
            found.append((snapshot.count(patterns, seq), counted))
        found.append((snapshot.multi_last(patterns, limit=2), log.multi_last(patterns, limit=2)))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_walks_answer_as_of_their_snapshot_whatever_is_committed_between_slices(store: Store, seed: int) -> None:
    traffic = Traffic(store, seed)
    for _ in range(20):
        traffic.group()
    for _ in range(3):
        snapshot = traffic.log.snapshot()
        asked = questions(snapshot, traffic.log)
        running: list[tuple[Walk[Any], Any]] = []
        for walk, wanted in asked:  # the first slice of each before the next commit
            if is_over(walk, wanted):
                continue
            running.append((walk, wanted))
        assert running
        while running:
            traffic.group()
            traffic.rng.shuffle(running)
            left = []
            for at, (walk, wanted) in enumerate(running):
                if at % 2:
                    assert finish(walk) == wanted
                elif not is_over(walk, wanted):
                    left.append((walk, wanted))
            running = left
        snapshot.close()
        snapshot.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_bounded_scan_that_goes_on_finds_what_stays_and_nothing_twice(store: Store, seed: int) -> None:
    traffic = Traffic(store, seed)
    for _ in range(25):
        traffic.group()
    log = traffic.log
    for pattern in PATTERNS:
        before = {record.seq for record in log.scan(pattern, 0, limit=10_000)}
        last, at, found = log.committed.last_seq, 0, []
        while at <= last:
            records, following = log.scan_some(pattern, at, limit=2)
            assert following > at
            assert all(at <= record.seq < following for record in records)
            found += [record.seq for record in records]
            at = following
            traffic.group()
        after = {record.seq for record in log.scan(pattern, 0, limit=10_000)}
        assert found == sorted(set(found))
        assert before & after <= set(found)
        assert {seq for seq in found if seq <= last} <= before


def test_a_deleted_stream_stays_readable_through_its_snapshot(store: Store) -> None:
    traffic = Traffic(store, 1)
    for n in range(40):
        traffic.log.append(n, SUBJECTS[n % len(SUBJECTS)], b"", b"")
    traffic.commit()
    snapshot = traffic.log.snapshot()
    walk, wanted = snapshot.subjects(">"), list(traffic.log.subjects(">"))
    next(walk)
    store.delete("S")
    traffic.commit()
    for _ in range(20):  # what is left of it is cleared from the disk
        traffic.commit()
    assert finish(walk) == wanted
    snapshot.close()


def test_snapshots_of_one_moment_share_a_transaction_and_only_so_many_moments_are_kept(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 26, tuning=TINY)
    traffic = Traffic(store, 1)
    log = traffic.log
    made: list[LogSnapshot] = []

    def add() -> None:
        traffic.time += 1
        log.append(traffic.time, "a.1.x", b"", b"")
        traffic.commit()

    while not log.is_crowded:
        made += (log.snapshot(), log.snapshot())
        finish(made[-1].subjects(">"))
        add()
    assert len(made) == 2 * MAX_PINS
    add()  # commits go on
    assert finish(made[-1].count((">",), 0)) == log.committed.messages - 2
    for snapshot in made:
        snapshot.close()
    assert not log.is_crowded
    add()
    store.close()


def test_no_slice_of_a_walk_looks_at_many_subjects(tmp_path: Path) -> None:
    """With the sizes of a real server: the units between two pauses are few, for each kind of walk."""
    logs: Sequence[Store] = (MemoryStore(), LmdbStore(tmp_path / "s", map_size=1 << 28))
    for store in logs:
        log = store.create("S", b"")
        for n in range(20_000):
            log.append(n, f"g.{n % 10}.{n}", b"", b"")
        commit_open_group(store)
        snapshot = log.snapshot()
        walks: tuple[Callable[[LogSnapshot], Walk[Any]], ...] = (
            lambda s: s.last("*.*.none"),
            lambda s: s.next("*.*.none", 0),
            lambda s: s.subjects(">"),
            lambda s: s.count(("*.*.none",), 2),
            lambda s: s.count(("g.1.*", "*.*.7"), 0),
            lambda s: s.multi_last(("*.*.none", "*.1.none")),
            lambda s: s.multi_last((">",), limit=1 << 62),
        )
        for walk in walks:
            units = list(walk(snapshot))
            assert max(units) <= 512
            assert units
        # Filters of which a subject meets many branches count for more, and so do those that begin in many places.
        branches = [f"g.{'.'.join(tokens)}.{n}" for n, tokens in enumerate(product("1*", repeat=5))]
        simple, hard = sum(snapshot.multi_last(["g.*.x"])), sum(snapshot.multi_last(branches))
        assert hard > 2.5 * simple
        assert sum(snapshot.count(branches, 2)) > 2.5 * sum(snapshot.count(["g.*.x"], 2))
        scattered = list(snapshot.multi_last([f"g.{n}.*.x" for n in range(2000)]))
        assert sum(scattered) >= 2000 or store is logs[0]
        snapshot.close()
        store.close()


class Counted:
    """A number that counts comparisons."""

    comparisons = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __lt__(self, other: Counted) -> bool:
        Counted.comparisons += 1
        return self.value < other.value


@pytest.mark.parametrize("count", [0, 1, 2048, 2049, 30_000])
@pytest.mark.parametrize("kinds", [40, 1 << 40])
def test_no_slice_of_a_sort_compares_many_items(count: int, kinds: int) -> None:
    rng = random.Random(count)
    items = [Counted(rng.randrange(kinds)) for _ in range(count)]
    walk = sorted_walk(cast("list[int]", items))
    most = before = Counted.comparisons = 0
    found: list[Counted] = []
    while True:
        try:
            next(walk)
        except StopIteration as end:
            found = cast("list[Counted]", end.value)
            break
        finally:
            most, before = max(most, Counted.comparisons - before), Counted.comparisons
    assert [each.value for each in found] == sorted(each.value for each in items)
    assert most < 25_000  # a run of 2,048
    assert Counted.comparisons <= 20 * count
