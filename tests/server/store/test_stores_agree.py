"""One state machine drives both stores with the same operations: every answer of both views must be the same.

Sizes are tiny, so that segments are sealed, rows flushed and purges swept in slices within a few steps.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipstream.server.engine.ports import Group, LogState, StreamLog, matcher
from slipstream.server.store.lmdb.compact import Compaction
from slipstream.server.store.lmdb.compact import Phase as CompactionPhase
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore

TINY = Tuning(segment=8, slice=6, dirty=4, journal=12, cache=3, probe=4, page=3)
NAMES = ("ONE", "TWO")
# `a.*` and `b.>`: subjects that look like filters are subjects all the same
SUBJECTS = (
    "a",
    "a.b",
    "a.c",
    "b.c",
    "b.c.d",
    "ü.x",
    f"a.{'x' * 500}.1",
    f"a.{'x' * 500}.2",
    f"b.{'ÿ' * 300}",
    "a.*",
    "b.>",
)
PATTERNS = ("", ">", "a.*", "a.>", "*.c", "b.c", "*", "zz.>", "a", SUBJECTS[6])
COUNTED = (">", "a.*", "b.c")

subjects = st.sampled_from(SUBJECTS)
TIMES_TO_LIVE = tuple(b"NATS/1.0\r\nNats-TTL: %b\r\n\r\n" % ttl for ttl in (b"1s", b"3", b"never", b"rubbish"))
patterns = st.sampled_from(PATTERNS)
offsets = st.integers(0, 40)
Phase = Literal["open", "sealed", "begun", "written", "committed"]


class StoresAgree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = tempfile.mkdtemp(prefix="slipstream-store-")
        self.memory = MemoryStore(probe=5)
        self.lmdb = LmdbStore(self.path, map_size=1 << 26, tuning=TINY)
        self.groups: tuple[Group, Group] | None = None
        self.phase: Phase = "open"
        self.time = 100
        self.counts: dict[StreamLog, dict[str, int]] = {}
        self.compaction: Compaction | None = None
        self.is_due = True  # to be compared

    def teardown(self) -> None:
        self.lmdb.close()
        shutil.rmtree(self.path)

    def both(self, name: str) -> tuple[StreamLog, StreamLog] | None:
        if all(name != known for known, _ in self.memory.streams()):
            return None
        return self.memory.log(name), self.lmdb.log(name)

    # Streams.

    @initialize()
    def first_stream(self) -> None:
        for store in (self.memory, self.lmdb):
            store.create("ONE", b"first")

    @rule(name=st.sampled_from(NAMES), config=st.binary(max_size=3))
    def create_or_configure(self, name: str, config: bytes) -> None:
        exists = self.both(name) is not None
        for store in (self.memory, self.lmdb):
            (store.configure if exists else store.create)(name, config)

    @rule(name=st.sampled_from(NAMES), again=st.booleans())
    def delete(self, name: str, again: bool) -> None:
        if self.both(name) is None:
            return
        for store in (self.memory, self.lmdb):
            store.delete(name)
            if again:
                store.create(name, b"again")

    # Messages.

    @rule(
        name=st.sampled_from(NAMES),
        chosen=st.lists(subjects, min_size=1, max_size=12),
        header=st.sampled_from((b"", b"NATS/1.0\r\n\r\n", *TIMES_TO_LIVE)),
        payload=st.binary(max_size=20),
        later=st.integers(0, 2),
    )
    def append(self, name: str, chosen: list[str], header: bytes, payload: bytes, later: int) -> None:
        logs = self.both(name)
        if logs is None:
            return
        for subject in chosen:
            self.time += later
            seqs = [log.append(self.time, subject, header, payload) for log in logs]
            assert seqs[0] == seqs[1]

    @rule(name=st.sampled_from(NAMES), ahead=st.integers(-2, 30))
    def skip(self, name: str, ahead: int) -> None:
        logs = self.both(name)
        for log in logs or ():
            log.skip(max(0, log.state.last_seq + ahead))

    @rule(name=st.sampled_from(NAMES), back=offsets, count=st.integers(1, 5), from_first=st.booleans())
    def remove(self, name: str, back: int, count: int, from_first: bool) -> None:
        logs = self.both(name)
        if logs is None:
            return
        state = logs[0].state
        start = state.first_seq + back // 8 if from_first else state.last_seq - back
        for seq in range(start, start + count):
            removed = [log.remove(seq) for log in logs]
            assert removed[0] == removed[1]

    @rule(
        name=st.sampled_from(NAMES),
        pattern=patterns,
        back=st.none() | st.integers(-3, 40),
        keep=st.sampled_from((0, 0, 0, 1, 3, 9)),
    )
    def purge(self, name: str, pattern: str, back: int | None, keep: int) -> None:
        logs = self.both(name)
        if logs is None:
            return
        below = 0 if back is None else max(1, logs[0].state.last_seq - back)
        counts = [log.purge(pattern=pattern, below=below, keep=keep) for log in logs]
        assert counts[0] == counts[1]

    @rule(name=st.sampled_from(NAMES), back=st.integers(-3, 40))
    def purge_below(self, name: str, back: int) -> None:
        self.purge(name=name, pattern="", back=back, keep=0)

    @rule(name=st.sampled_from(NAMES), subject=st.sampled_from((">", *SUBJECTS)), back=st.integers(-1, 40))
    def purge_oldest(self, name: str, subject: str, back: int) -> None:
        logs = self.both(name)
        if logs is None:
            return
        below = max(1, logs[0].state.last_seq - back)
        counts = [log.purge_some(subject, 0, below=below, limit=1000) for log in logs]
        assert counts[0] == counts[1]
        assert counts[0][1] == below

    @rule(name=st.sampled_from(NAMES), seconds=st.integers(0, 4))
    def expire(self, name: str, seconds: int) -> None:
        logs = self.both(name)
        if logs is None:
            return
        self.time += seconds * 1_000_000_000
        due = [log.next_expiry() for log in logs]
        assert due[1] <= due[0]  # a hint may be of a message that is gone
        expired = []
        for log in logs:
            found: list[int] = []
            while some := log.take_expired(self.time, 1000):  # fewer at a time, of blocks that were not looked at
                found += some
                assert all(log.remove(seq) for seq in some)
            expired.append(sorted(found))
        assert expired[0] == expired[1]

    # Records beside the messages, and changes of commits.

    @rule(
        name=st.sampled_from(NAMES), key=st.sampled_from(("c", "c\0b1", "ü")), value=st.none() | st.binary(max_size=9)
    )
    def keep(self, name: str, key: str, value: bytes | None) -> None:
        for log in self.both(name) or ():
            log.keep(key, value)

    @rule(name=st.sampled_from(NAMES))
    def watch(self, name: str) -> None:
        """Begin to count by the news, as consumers do."""
        for log in self.both(name) or ():
            log.watch(True)
            self.counts[log] = {pattern: log.count(pattern, 0) for pattern in COUNTED}

    def follow(self) -> None:
        """Count on by the news; a store that was opened again, or a stream made anew, begins anew."""
        known = {log for name in NAMES for log in self.both(name) or ()}
        self.counts = {log: counts for log, counts in self.counts.items() if log in known}
        for log, counts in self.counts.items():
            news = log.news()
            if news is None:
                continue
            for pattern in COUNTED:
                fits = matcher(pattern)
                counts[pattern] += sum(fits(subject) for _, subject in news.added)
                counts[pattern] -= sum(fits(subject) for _, subject in news.removed)
                if news.recount:
                    counts[pattern] = log.count(pattern, 0)

    # Groups.

    @precondition(lambda self: self.phase == "open")
    @rule()
    def seal(self) -> None:
        assert self.memory.pending == 0 or self.lmdb.pending > 0
        self.groups = (self.memory.seal(), self.lmdb.seal())
        self.phase = "sealed"

    @precondition(lambda self: self.phase == "sealed")
    @rule(slices=st.integers(0, 3))
    def begin(self, slices: int) -> None:
        for store, group in self.under_way():
            store.begin(group)
            for _ in range(slices):
                store.write_some(group)
        self.phase = "begun"

    @precondition(lambda self: self.phase == "begun")
    @rule()
    def write(self) -> None:
        for store, group in self.under_way():
            while not store.write_some(group):
                pass
        self.phase = "written"

    @precondition(lambda self: self.phase == "written")
    @rule()
    def commit(self) -> None:
        for store, group in self.under_way():
            store.commit(group)
        self.phase = "committed"

    @precondition(lambda self: self.phase == "committed")
    @rule()
    def finish(self) -> None:
        for store, group in self.under_way():
            store.finish(group)
        self.groups, self.phase = None, "open"
        self.follow()

    @rule()
    def carry_through(self) -> None:
        if self.phase == "open":
            self.seal()
        if self.phase == "sealed":
            self.begin(slices=0)
        if self.phase == "begun":
            self.write()
        if self.phase == "written":
            self.commit()
        self.finish()

    @rule()
    def abandon(self) -> None:
        for store in (self.memory, self.lmdb):
            store.abandon()
        self.groups, self.phase = None, "open"
        self.follow()

    @rule(slices=st.integers(1, 6))
    def compact(self, slices: int) -> None:
        """Go on with a copy of the file; it replaces the file as soon as no group is under way."""
        if self.compaction is None:
            self.compaction = self.lmdb.compact()
        for _ in range(slices):
            if self.compaction.phase is not CompactionPhase.READY and self.compaction.begin():
                self.compaction.work()
                self.compaction.finish()
        if self.compaction.phase is CompactionPhase.READY and self.phase == "open":
            self.compaction.replace()
            self.compaction.switch()
            self.compaction.close()
            self.compaction = None

    @rule(drain=st.booleans())
    def reopen(self, drain: bool) -> None:
        self.carry_through()
        while drain and self.lmdb.backlog:
            self.carry_through()
        self.memory.abandon()  # what the open group has is lost
        self.lmdb.close()
        self.compaction = None
        self.lmdb = LmdbStore(self.path, map_size=1 << 26, tuning=TINY)
        self.follow()

    def under_way(self) -> tuple[tuple[MemoryStore, Group], tuple[LmdbStore, Group]]:
        assert self.groups is not None
        return (self.memory, self.groups[0]), (self.lmdb, self.groups[1])

    # Comparisons.

    @invariant()
    def streams_agree(self) -> None:
        if not self.is_due:
            return
        assert sorted(self.memory.streams()) == sorted(self.lmdb.streams())
        for name, _ in self.memory.streams():
            model, log = self.memory.log(name), self.lmdb.log(name)
            assert self.memory.log(name) is model
            assert self.lmdb.log(name) is log
            same_state(model.state, log.state, swept=not self.lmdb.sweeping)
            same_state(model.committed, log.committed, swept=not self.lmdb.sweeping and self.phase == "open")
            assert model.kept() == log.kept()
            writers_agree(model, log)
            readers_agree(model, log, self.time)

    @invariant()
    def counts_are_right(self) -> None:
        for log, counts in self.counts.items():
            if log in {log for name in NAMES for log in self.both(name) or ()}:
                assert counts == {pattern: log.count(pattern, 0) for pattern in COUNTED}


def same_state(model: LogState, state: LogState, *, swept: bool) -> None:
    assert state.subjects == model.subjects or (not swept and state.subjects > model.subjects)
    assert state._replace(subjects=0) == model._replace(subjects=0)


def writers_agree(model: StreamLog, log: StreamLog) -> None:
    for subject in SUBJECTS:
        assert log.last_seq_of(subject) == model.last_seq_of(subject)
        assert log.first_seq_of(subject) == model.first_seq_of(subject)
        assert log.count_of(subject) == model.count_of(subject)
    for pattern in PATTERNS[1:]:
        assert log.last_seq_of(pattern) == model.last_seq_of(pattern)
    for keep in (0, 1, 2, 7, 100):
        assert log.newest(keep) == model.newest(keep)
    first, last, end = model.state.first_seq, model.committed.last_seq, model.state.last_seq
    for seq in {first - 1, first, first + 1, last, last + 1, end - 1, end, end + 1}:
        assert log.peek(seq) == model.peek(seq)


def readers_agree(model: StreamLog, log: StreamLog, now: int) -> None:
    state = model.committed
    starts = [0, state.first_seq, state.first_seq + 5, state.last_seq - 9, state.last_seq, state.last_seq + 1]
    for seq in range(max(0, state.first_seq - 2), state.last_seq + 3):
        assert log.get(seq) == model.get(seq)
    for pattern in PATTERNS:
        assert log.last(pattern) == model.last(pattern)
        assert list(log.subjects(pattern)) == list(model.subjects(pattern))
        for seq in starts:
            assert log.scan(pattern, seq, limit=100) == model.scan(pattern, seq, limit=100)
            assert log.count(pattern, seq) == model.count(pattern, seq)
        assert log.scan(pattern, 0, limit=3) == model.scan(pattern, 0, limit=3)
        assert log.scan(pattern, 0, limit=50, max_bytes=40) == model.scan(pattern, 0, limit=50, max_bytes=40)
        for up_to in (0, state.last_seq - 7 if state.last_seq > 7 else 1):
            assert log.multi_last([pattern, "b.c"], up_to=up_to) == model.multi_last([pattern, "b.c"], up_to=up_to)
        assert log.multi_last([pattern, "a"], limit=2) == model.multi_last([pattern, "a"], limit=2)
    for time in (0, state.first_time, state.first_time + 1, (state.first_time + now) // 2, state.last_time, now + 1):
        assert log.time_to_seq(time) == model.time_to_seq(time)


class StoresAgreeInTheEnd(StoresAgree):
    """A comparison looks at everything, and so counts all messages that were appended. Here some commands come in
    between, and single lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.is_due = False

    @rule(name=st.sampled_from(NAMES), subject=st.sampled_from(SUBJECTS), pattern=st.sampled_from(("a.*", "b.>", ">")))
    def look(self, name: str, subject: str, pattern: str) -> None:
        logs = self.both(name)
        if logs is not None:
            assert logs[0].last_seq_of(pattern) == logs[1].last_seq_of(pattern)
            assert logs[0].first_seq_of(subject) == logs[1].first_seq_of(subject)
            assert logs[0].count_of(subject) == logs[1].count_of(subject)

    @rule()
    def compare(self) -> None:
        self.is_due = True
        self.streams_agree()
        self.is_due = False

    def teardown(self) -> None:
        try:
            self.is_due = True
            self.streams_agree()
        finally:
            super().teardown()


TestStoresAgree = StoresAgree.TestCase
TestStoresAgree.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestStoresAgreeInTheEnd = StoresAgreeInTheEnd.TestCase
TestStoresAgreeInTheEnd.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
