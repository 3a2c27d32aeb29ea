"""The entry cache: what it may answer, what it evicts, and its statistics; against a model of a bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipstream.api import StreamConfig, StreamInfo, StreamState
from slipstream.errors import UsageError
from slipstream.kv.cache import CLOCK_MARGIN, EntryCache, Miss, Verdict
from slipstream.kv.entry import Entry, Operation

SECOND = 10**9
START = 1_000 * SECOND  # of the server's clock
RECHECK = 2.0
STREAM = "KV_b"


def put(key: str, revision: int, value: bytes = b"v", *, expires: int = 0, stream: str = STREAM) -> Entry[bytes]:
    return Entry("b", key, value, revision, START, 0, Operation.PUT, "", stream, expires)


def info(
    last: int,
    subjects: int,
    *,
    history: int = 1,
    max_age: int = 0,
    created: int = 1,
    replicas: int = 1,
    first: int = 1,
    ts: int = START,
) -> StreamInfo:
    config = StreamConfig(
        name=STREAM,
        max_msgs_per_subject=history,
        max_age=timedelta(seconds=max_age),
        num_replicas=replicas,
        deny_delete=True,
    )
    state = StreamState(messages=subjects, first_seq=first, last_seq=last, num_subjects=subjects)
    return StreamInfo(config=config, created=created, state=state, ts=ts)


def cache(max_entries: int = 10, max_bytes: int = 1_000_000, *, is_whole: bool = True) -> EntryCache[bytes]:
    return EntryCache(max_entries, max_bytes, recheck_after=RECHECK, is_whole=is_whole)


def loaded(*entries: Entry[bytes], max_entries: int = 10, is_whole: bool = True, history: int = 1) -> EntryCache[bytes]:
    """A cache of a bucket that was just read, at second 0."""
    held = cache(max_entries, is_whole=is_whole)
    held.begin(info(len(entries), len(entries), history=history), 0.0)
    held.apply(entries, is_initial=True)
    return held


@pytest.mark.parametrize(("entries", "size"), [(0, 1), (1, 0), (-1, 5)])
def test_a_cache_has_bounds(entries: int, size: int) -> None:
    with pytest.raises(UsageError, match="at least 1, got"):
        cache(entries, size)


def test_a_complete_cache_knows_that_a_key_is_absent() -> None:
    held = loaded(put("a", 1), put("a", 2, b"new"), put("b", 3))
    assert held.look("a", 0.5) == put("a", 2, b"new")
    assert held.look("nope", 0.5) is None
    assert (held.revision, held.stats.updates, held.stats.entries) == (3, 3, 2)


def test_nothing_is_answered_without_a_check_in_time() -> None:
    assert cache().look("a", 0.0) is Miss.UNCHECKED
    held = loaded(put("a", 1))
    assert held.look("a", RECHECK - 0.01) == put("a", 1)
    assert held.look("a", RECHECK) is Miss.UNCHECKED
    assert held.look("nope", RECHECK) is Miss.UNCHECKED
    assert held.check(info(1, 1), 1.5, 1) is Verdict.PROVEN
    assert held.look("a", RECHECK) == put("a", 1)


def test_the_least_recently_used_entry_is_evicted_and_then_unknown() -> None:
    held = loaded(put("a", 1), put("b", 2), max_entries=2)
    held.look("a", 0.0)
    held.apply([put("c", 3)])
    assert held.look("b", 0.0) is Miss.NOT_HELD
    assert held.look("nope", 0.0) is Miss.NOT_HELD  # one key is unknown, so any other may be too
    assert held.look("a", 0.0) == put("a", 1)
    assert (held.stats.evicted, held.stats.entries) == (1, 2)


def test_entries_are_evicted_to_keep_the_bound_of_bytes() -> None:
    held = cache(max_bytes=2000)
    held.begin(info(0, 0), 0.0)
    held.apply([put("a", 1, b"x" * 500), put("b", 2, b"x" * 500), put("c", 3, b"x" * 500)])
    assert held.stats.bytes <= 2000
    assert held.look("a", 0.0) is Miss.NOT_HELD
    assert held.look("c", 0.0) == put("c", 3, b"x" * 500)


def test_a_read_is_learned_only_if_no_change_and_no_doubt_came_between() -> None:
    held = loaded(put("a", 1), put("b", 2), max_entries=1)
    held.learn(put("a", 1), as_of=1, epoch=held.epoch)  # the feed went on to 2 since
    assert held.look("a", 0.0) is Miss.NOT_HELD
    epoch = held.epoch
    assert held.check(info(3, 2), 0.1, 2) is Verdict.UNPROVEN
    held.learn(put("a", 1), as_of=2, epoch=epoch)
    assert held.look("a", 0.1) is Miss.NOT_HELD
    held.learn(put("a", 1), as_of=2, epoch=held.epoch)
    assert held.look("a", 0.1) == put("a", 1)


def test_an_answer_of_a_mirror_or_follower_is_good_until_the_next_check() -> None:
    for replicas, stream in ((1, "KV_mirror"), (3, STREAM)):
        held = cache(is_whole=False)
        held.begin(info(1, 1, replicas=replicas), 0.0)
        held.apply([put("a", 1, stream=stream)], is_initial=True)
        assert held.look("a", 0.0) is Miss.UNPROVEN
        held.learn(put("a", 1, stream=stream), as_of=1, epoch=held.epoch)
        assert held.look("a", 0.0) == put("a", 1, stream=stream)
        assert held.check(info(1, 1, replicas=replicas), 1.0, 1) is Verdict.PROVEN
        assert held.look("a", 1.0) is Miss.UNPROVEN


def test_as_many_subjects_as_keys_prove_that_all_are_there() -> None:
    held = loaded(put("a", 1), put("b", 2))
    held.apply([put("c", 3)])
    assert held.check(info(3, 3), 1.0, 3) is Verdict.PROVEN
    assert held.look("a", 1.0) == put("a", 1)
    assert held.check(info(3, 2), 1.5, 3) is Verdict.REMOVED  # one was purged
    assert [held.look(key, 1.5) for key in "abc"] == [Miss.UNPROVEN] * 3
    assert held.check(info(5, 3), 1.6, 3) is Verdict.UNPROVEN  # the feed is behind: nothing can be counted
    assert held.look("nope", 1.6) is Miss.BEHIND
    held.apply([put("b", 4), put("d", 5)])
    assert held.look("b", 1.6) is Miss.UNPROVEN  # written before the check, perhaps removed before it
    assert held.look("d", 1.6) is Miss.UNPROVEN
    held.apply([put("a", 6)])
    assert held.look("a", 1.6) == put("a", 6)  # written after it
    assert held.check(info(6, 4), 1.7, 6) is Verdict.PROVEN
    assert held.look("d", 1.7) == put("d", 5)
    assert (held.stats.checks, held.stats.doubts) == (4, 2)


def test_a_stream_with_other_subjects_beside_the_keys_is_not_counted() -> None:
    held = loaded(put("a", 1))
    assert held.check(info(2, 2), 0.1, 2) is Verdict.UNPROVEN
    assert not held.can_count
    held.learn(put("a", 1), as_of=1, epoch=held.epoch)
    assert held.check(info(2, 2), 0.2, 1) is Verdict.PROVEN  # nothing has changed
    assert held.look("a", 0.2) == put("a", 1)


def test_single_messages_deleted_from_a_history_cannot_be_counted() -> None:
    held = loaded(put("a", 1), history=3)
    state = info(2, 1, history=3)
    held.apply([put("a", 2)])
    assert held.check(state, 0.1, 2) is Verdict.PROVEN
    state = StreamInfo(
        config=state.config.replace(deny_delete=False), created=1, state=StreamState(messages=1, last_seq=3), ts=START
    )
    assert held.check(state, 0.2, 3) is Verdict.UNPROVEN


def test_entries_before_the_first_of_the_stream_are_gone() -> None:
    held = loaded(put("a", 1), put("b", 2), put("c", 3))
    assert held.check(info(3, 1, first=3), 0.1, 3) is Verdict.PROVEN
    assert (held.look("a", 0.1), held.look("c", 0.1)) == (None, put("c", 3))


def test_another_bucket_is_noticed() -> None:
    for other in (info(1, 1, created=2), info(9, 1, created=2), info(0, 0)):
        held = loaded(put("a", 1))
        assert held.check(other, 0.1, 1) is Verdict.REPLACED
        assert held.check(other, 0.2, 1) is Verdict.REPLACED  # also to a reader that checks before the cache is loaded
        held.begin(other, 0.3)
        assert held.check(other, 0.4, 0) is not Verdict.REPLACED


@pytest.mark.parametrize("history", [1, 3])
def test_an_entry_is_not_answered_once_its_ttl_may_have_ended(history: int) -> None:
    ttl = put("a", 1, expires=START + SECOND)
    held = loaded(ttl, put("b", 2), history=history)
    early = 1.0 - CLOCK_MARGIN / SECOND
    assert held.look("a", early - 0.001) == ttl
    assert held.look("a", early) is Miss.EXPIRED
    later = START + round(early * SECOND)
    assert held.check(info(2, 2, history=history, ts=later), early, 2) is Verdict.PROVEN  # it is not removed yet
    assert held.look("a", early) is Miss.EXPIRED  # so that the bucket decides
    assert held.look("b", early) == put("b", 2)
    held.apply([put("a", 3)])
    assert held.look("a", early) == put("a", 3)


def test_the_ttl_of_the_bucket_counts_also_if_it_is_added_later() -> None:
    kept = put("b", 2, expires=-1)  # `never`: beyond the TTL of the bucket
    held = loaded(put("a", 1), kept)
    held.check(info(2, 2, max_age=1), 0.1, 2)
    assert held.look("a", 0.5) == put("a", 1)
    assert held.look("a", 1.0) is Miss.EXPIRED
    assert held.look("b", 1.0) == kept


def test_without_the_servers_clock_no_entry_with_a_ttl_is_answered() -> None:
    held = cache()
    state = StreamInfo(config=StreamConfig(name=STREAM), state=StreamState(last_seq=2, num_subjects=2))
    held.begin(state, 0.0)
    held.apply([put("a", 1, expires=START + 99 * SECOND), put("b", 2)], is_initial=True)
    assert held.look("a", 0.0) is Miss.EXPIRED
    assert held.look("b", 0.0) == put("b", 2)


def test_removed_and_doubted_entries_are_not_answered() -> None:
    held = loaded(put("a", 1), put("b", 2), put("c", 3))
    held.drop("a", below=2)
    held.drop("b", below=2)  # its entry is not below
    held.doubt("c")
    assert (held.look("a", 0.0), held.look("b", 0.0), held.look("c", 0.0)) == (None, put("b", 2), Miss.UNPROVEN)
    held.begin(info(0, 0), 0.0)
    assert (held.revision, held.stats.entries, held.stats.bytes) == (0, 0, 0)


def test_the_hit_rate_is_the_share_of_hits() -> None:
    stats = cache().stats
    assert stats.hit_rate == 0.0
    stats.hits = 3
    stats.missed(Miss.BEHIND)
    assert (stats.hit_rate, stats.behind, stats.misses) == (0.75, 1, 1)


# Against a model of a bucket: what is answered existed, or was absent, at some moment since the last `RECHECK` seconds.
# So it was in the copy that answered a read, which may be one that keeps what was removed.


@dataclass
class Stored:
    """A message, and when it was written and removed."""

    entry: Entry[bytes]
    born: float
    died: float = float("inf")
    ends: float = float("inf")


@dataclass
class Model:
    """A bucket with silent removals, a feed that may lag, and a cache that is checked from time to time."""

    history: int
    is_whole: bool
    max_entries: int
    now: float = 0.0
    last: int = 0
    created: int = 1
    stored: list[Stored] = field(default_factory=list)
    sent: int = 0  # by the consumer
    transit: list[Entry[bytes]] = field(default_factory=list)
    asked: tuple[float, int] | None = None
    answer: StreamInfo | None = None
    copy: tuple[int, dict[str, Entry[bytes]]] | None = None  # one that was held: its last revision, and newest entries
    copied: dict[bytes | None, float] = field(default_factory=dict)  # values that it has shown, and when

    def __post_init__(self) -> None:
        self.cache: EntryCache[bytes] = EntryCache(
            self.max_entries, 10**6, recheck_after=RECHECK, is_whole=self.is_whole
        )
        for key in "cab":  # so that a removal of one key is not one of the oldest entries
            self.put(key)
        self.load()

    def alive(self, key: str = "") -> list[Stored]:
        return [each for each in self.stored if each.died > self.now and (not key or each.entry.key == key)]

    def state(self) -> StreamInfo:
        alive = self.alive()
        config = StreamConfig(name=STREAM, max_msgs_per_subject=self.history, deny_delete=self.history != 3)
        state = StreamState(
            messages=len(alive),
            first_seq=alive[0].entry.revision if alive else self.last + 1,
            last_seq=self.last,
            num_subjects=len({each.entry.key for each in alive}),
        )
        return StreamInfo(config=config, created=self.created, state=state, ts=START + round(self.now * SECOND))

    def load(self) -> None:
        self.cache.begin(self.state(), self.now)
        newest = {each.entry.key: each.entry for each in self.alive()}
        initial = sorted((entry for entry in newest.values() if self.covers(entry.key)), key=lambda each: each.revision)
        self.cache.apply(initial, is_initial=True)
        self.sent, self.transit, self.asked, self.answer = self.last, [], None, None

    def covers(self, key: str) -> bool:
        return self.is_whole or key != "c"

    def put(self, key: str, ttl: int = 0) -> None:
        self.last += 1
        created = START + round(self.now * SECOND)
        expires = created + ttl * SECOND if ttl else 0
        value = f"{self.created}/{self.last}".encode()
        entry = Entry("b", key, value, self.last, created, 0, Operation.PUT, "", STREAM, expires)
        self.stored.append(Stored(entry, self.now, ends=self.now + ttl if ttl else float("inf")))
        for each in self.alive(key)[: -self.history]:
            each.died = self.now

    def step(self, op: str, key: str, number: int) -> None:
        if op == "put":
            self.put(key)
        elif op == "put_ttl":
            self.put(key, ttl=number)
        elif op == "wait":
            self.now += number / 2
            for each in self.alive():
                if each.ends <= self.now:
                    each.died = each.ends
        elif op == "purge":
            for each in self.alive(key):
                each.died = self.now
        elif op == "delete" and self.history in (1, 3) and self.alive(key):
            self.alive(key)[-1].died = self.now
        elif op == "trim" and self.alive():
            self.alive()[0].died = self.now
        elif op == "recreate":
            for each in self.alive():
                each.died = self.now
            self.created, self.last, self.sent, self.transit = self.created + 1, 0, 0, []
            for _ in range(number):
                self.put(key)
            self.copy = None
        elif op == "hold":
            self.copy = self.last, {each.entry.key: each.entry._replace(stream="KV_copy") for each in self.alive()}
        elif op == "release":
            self.copy = None
        elif op == "send":
            entries = [each.entry for each in self.alive() if each.entry.revision > self.sent]
            self.transit += [entry for entry in entries[:number] if self.covers(entry.key)]
            self.sent = entries[:number][-1].revision if entries else self.sent
        elif op == "receive":
            self.cache.apply([entry for entry in self.transit if entry.revision > self.cache.revision])
            self.transit = []
        elif op == "ask":
            self.asked, self.answer = (self.now, self.cache.revision), None
        elif op == "answer" and self.asked:
            self.answer = self.state()
        elif op == "check" and self.asked and self.answer:
            asked, answer = self.asked, self.answer
            self.asked = self.answer = None
            if self.cache.check(answer, *asked) is Verdict.REPLACED:
                self.load()
        self.read(key)

    def read(self, key: str) -> None:
        if not self.covers(key):
            return
        found = self.cache.look(key, self.now)
        since = self.now - RECHECK
        if isinstance(found, Miss):
            newest = self.newest(key)
            if newest is not None:
                self.cache.learn(newest, self.cache.revision, self.cache.epoch)
        elif found is None:
            if self.is_whole:
                assert self.was_absent(key, since), f"{key} was never absent"
        else:
            kept = [each for each in self.stored if each.entry.value == found.value]
            assert kept, "it never existed"
            shown = max(kept[0].died, self.copied.get(found.value, 0.0))
            assert shown >= since, f"{found} is gone since {kept[0].died}, now {self.now}"
            assert kept[0].ends > self.now, "its TTL has ended"

    def newest(self, key: str) -> Entry[bytes] | None:
        """What a read of the bucket finds: by a copy, if there is one that is not behind the cache."""
        if self.copy is not None and self.copy[0] >= self.cache.revision:
            entry = self.copy[1].get(key)
            if entry is not None:
                self.copied[entry.value] = self.now
            return entry
        return self.alive(key)[-1].entry if self.alive(key) and self.cache_is_of_this_bucket() else None

    def cache_is_of_this_bucket(self) -> bool:
        """The client reads with the newest revision it knows: a younger bucket that is behind it does not answer."""
        return self.last >= self.cache.revision

    def was_absent(self, key: str, since: float) -> bool:
        """Whether there was a moment between then and now at which the key had no entry."""
        spans = sorted((each.born, each.died) for each in self.stored if each.entry.key == key)
        at = since
        for born, died in spans:
            if born > at or (born == at and at > since):
                return True
            at = max(at, died)
        return at <= self.now or not spans


OPS = [
    "put",
    "put_ttl",
    "wait",
    "purge",
    "delete",
    "trim",
    "recreate",
    "hold",
    "release",
    "send",
    "receive",
    "ask",
    "answer",
    "check",
]
USUAL = ("send", "receive", "ask", "answer", "check")  # everything arrives, and is checked
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(OPS), st.sampled_from("abc"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["put", "purge", "tick", "tick", "tick"]), st.just("a"), st.just(2)),
    ),
    min_size=10,
    max_size=40,
)


TICK = ("tick", "a", 2)
UNCOVERED = [("put_ttl", "b", 2), TICK, ("purge", "a", 2), *[TICK] * 5, ("wait", "a", 1), TICK]  # b for a, in number


GHOST = [
    ("hold", "c", 1),
    ("purge", "c", 1),
    *[("tick", "c", number) for number in (2, 4, 2, 2, 2)],
]  # c is in the copy


@settings(max_examples=300)
@given(st.sampled_from([1, 2, 3]), st.booleans(), st.sampled_from([2, 10]), STEPS)
@example(history=2, is_whole=True, max_entries=10, steps=UNCOVERED)
@example(history=1, is_whole=True, max_entries=10, steps=GHOST)
def test_what_is_answered_was_true_a_moment_ago(
    history: int, is_whole: bool, max_entries: int, steps: list[tuple[str, str, int]]
) -> None:
    model = Model(history, is_whole, max_entries)
    for op, key, number in steps:
        for each in ("wait", *USUAL) if op == "tick" else (op,):
            model.step(each, key, number)
