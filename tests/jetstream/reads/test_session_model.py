"""Session state against a model with the whole history of a stream: what a session knows is never wrong.

The model is a stream with its removals (a limit per subject, rollups, `max_msgs`), made again now and then, written to
inside and outside of the session. The session is told what a client would be told, late and out of order where it can
happen. Then `known` must be the truth as of `seen`, and `seen` must cover what the session saw of the generation that
is there.
"""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from slipstream.api import StreamConfig, SubjectTransform
from slipstream.jetstream.reads import session as module
from slipstream.jetstream.reads.session import SessionState

SUBJECTS = ["s.a", "s.b", "s.c", "s.d"]
subjects = st.sampled_from(SUBJECTS)
NAME = "S"


class Generation:
    """One life of a stream: the newest message of each subject as of every sequence."""

    def __init__(self, created: int, config: StreamConfig) -> None:
        self.created = created
        self.config = config
        self.kept: list[tuple[int, str]] = []
        self.newest: list[dict[str, int]] = [{}]  # as of 0, 1, ...

    @property
    def last(self) -> int:
        return len(self.newest) - 1

    def write(self, subject: str, rollup: str = "") -> int:
        seq = len(self.newest)
        if rollup:
            self.kept = [one for one in self.kept if rollup == "sub" and one[1] != subject]
        self.kept.append((seq, subject))
        if self.config.max_msgs_per_subject > 0 and len(self._of(subject)) > self.config.max_msgs_per_subject:
            self.kept.remove(self._of(subject)[0])
        if self.config.max_msgs > 0:
            self.kept = self.kept[-self.config.max_msgs :]
        self.newest.append({each: at for at, each in self.kept})
        return seq

    def _of(self, subject: str) -> list[tuple[int, str]]:
        return [one for one in self.kept if one[1] == subject]


class Sessions(RuleBasedStateMachine):
    """A session, its stream, and what the session was shown of each generation."""

    @initialize(max_msgs=st.sampled_from([0, 0, 3]), per_subject=st.sampled_from([0, 1]), is_known=st.booleans())
    def begin(self, max_msgs: int, per_subject: int, is_known: bool) -> None:
        limits = {"max_msgs": max_msgs or -1, "max_msgs_per_subject": per_subject or -1}
        self.config = StreamConfig(name=NAME, subjects=("s.>",)).replace(**limits)
        self.stream = Generation(1_000, self.config)
        self.shown = 0  # of this generation
        self.acks: list[tuple[int, str, bool]] = []
        self.state = SessionState()
        if is_known:
            self.info(is_firm=True, lag=0, late=False, subject="s.a")

    def show(self, as_of: int) -> None:
        self.shown = max(self.shown, as_of)

    @rule(subject=subjects, rollup=st.sampled_from(["", "", "", "sub", "all"]))
    def write(self, subject: str, rollup: str) -> None:
        seq = self.stream.write(subject, rollup)
        self.state.note(NAME, seq, subject, is_own_write=True, breaks_run=bool(rollup))
        self.show(seq)

    @rule(subject=subjects)
    def send(self, subject: str) -> None:
        """A write whose ack is late."""
        self.acks.append((self.stream.write(subject), subject, False))

    @precondition(lambda self: self.acks)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        seq, subject, _ = self.acks.pop(data.draw(st.integers(0, len(self.acks) - 1)))
        self.state.note(NAME, seq, subject, is_own_write=True)
        self.show(seq)

    @rule(subject=subjects, rollup=st.sampled_from(["", "", "all"]))
    def write_by_another(self, subject: str, rollup: str) -> None:
        self.stream.write(subject, rollup)

    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        """The ack names a message of another subject."""
        if self.stream.last:
            seq = data.draw(st.integers(1, self.stream.last))
            self.state.note(NAME, seq)
            self.show(seq)

    @rule(data=st.data())
    def read_message(self, data: st.DataObject) -> None:
        """Any message that ever was: a copy that lags may show it."""
        if self.stream.last:
            seq = data.draw(st.integers(1, self.stream.last))
            subject = next(name for name, at in self.stream.newest[seq].items() if at == seq)
            self.state.note(NAME, seq, subject)
            self.show(seq)

    @rule(subject=subjects, data=st.data())
    def read_state(self, subject: str, data: st.DataObject) -> None:
        as_of = data.draw(st.integers(min(self.state.seen(NAME), self.stream.last), self.stream.last))
        self.state.note_state(NAME, as_of, subject, self.stream.newest[as_of].get(subject, 0))
        self.show(as_of)

    @rule(is_firm=st.booleans(), lag=st.integers(0, 3), late=st.booleans(), subject=subjects)
    def info(self, is_firm: bool, lag: int, late: bool, subject: str) -> None:
        """Stream info: by the leader, or by one that was deposed; the session may write before it arrives."""
        mark, last = self.state.mark(NAME), self.stream.last
        if late:
            self.write(subject, "")
        last = last if is_firm else max(last - lag, 0)
        assert self.state.made(
            NAME, self.stream.created, last, mark=mark, is_firm=is_firm, config=self.config if is_firm else None
        )

    @rule()
    def old_info(self) -> None:
        """Of a leader that was cut off before the stream was made again."""
        if self.state.created(NAME):
            before = self.state.seen(NAME)
            older = self.state.created(NAME) - 1
            assert not self.state.made(NAME, older, 1, mark=self.state.mark(NAME), is_firm=True)
            assert self.state.seen(NAME) == before

    @rule(is_told=st.booleans())
    def make_again(self, is_told: bool) -> None:
        self.stream = Generation(self.stream.created + 1_000, self.config)
        self.shown = 0
        self.acks.clear()
        if is_told:
            self.info(is_firm=True, lag=0, late=False, subject="s.a")

    @precondition(lambda self: self.state.created(NAME) == self.stream.created and self.state.seen(NAME))
    @rule(is_signed=st.booleans())
    def continue_by_token(self, is_signed: bool) -> None:
        secret = b"secret" if is_signed else b""
        self.state._secret = secret
        again = SessionState(self.state.token(), secret=secret)
        assert again.seen(NAME) == self.state.seen(NAME)
        assert again.token() == self.state.token()
        if again.seen(NAME) <= self.stream.last:
            again.made(NAME, self.stream.created, self.stream.last, mark=again.mark(NAME), is_firm=True)
            assert not again.is_claim(NAME)
            self.state = again

    @invariant()
    def seen_covers_what_was_shown(self) -> None:
        assert self.state.seen(NAME) >= self.shown

    @invariant()
    def what_is_known_is_true(self) -> None:
        if self.state.created(NAME) != self.stream.created:
            return  # the generation of an answer is checked before it is compared with what is known
        seen = self.state.seen(NAME)
        if seen > self.stream.last:
            return  # nothing can be read before the session was told of the new generation
        for subject in SUBJECTS:
            known = self.state.known(NAME, subject)
            truth = {self.stream.newest[at].get(subject, 0) for at in range(seen, self.stream.last + 1)}
            assert known is None or known in truth, (subject, known, truth)


@pytest.mark.parametrize("most", [2, 1024])
def test_what_a_session_knows_is_never_wrong(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for all subjects, and for so few that they are evicted all the time."""
    monkeypatch.setattr(module, "MOST_SUBJECTS", most)
    run_state_machine_as_test(Sessions, settings=settings(max_examples=100, stateful_step_count=30, deadline=None))


PLAIN = StreamConfig(name=NAME, subjects=("s.>",))


def known_after(*writes: str, config: StreamConfig = PLAIN, **options: bool) -> SessionState:
    """A session that wrote to these subjects, one after the other; `options` are those of the last write."""
    state = SessionState()
    state.made(NAME, 1_000, 0, is_firm=True, config=config)
    for seq, subject in enumerate(writes, 1):
        last = options if seq == len(writes) else {}
        state.note(NAME, seq, subject, is_own_write=True, **last)
    return state


def test_own_writes_without_a_gap_keep_what_is_known_of_others() -> None:
    state = known_after("s.a", "s.b", "s.a", "s.c")
    assert [state.known(NAME, subject) for subject in SUBJECTS] == [3, 2, 4, None]
    state.note_state(NAME, 4, "s.d")
    assert state.known(NAME, "s.d") == 0
    state.note(NAME, 6, "s.b")  # 5 may be of any subject
    assert [state.known(NAME, subject) for subject in SUBJECTS] == [None, 6, None, None]


@pytest.mark.parametrize(
    "limits", [{"max_msgs": 3}, {"max_bytes": 100}, {"subject_transform": SubjectTransform(src="s.>", dest="t.>")}]
)
def test_a_write_that_may_remove_or_rename_others_proves_nothing_about_them(limits: dict[str, Any]) -> None:
    state = known_after("s.a", "s.b", config=PLAIN.replace(**limits))
    assert (state.known(NAME, "s.a"), state.known(NAME, "s.b")) == (None, 2)


def test_a_limit_that_is_set_later_ends_the_run() -> None:
    state = known_after("s.a", "s.b")
    state.made(NAME, 1_000, 2, config=PLAIN.replace(max_msgs=2))
    state.note(NAME, 3, "s.c", is_own_write=True)
    assert (state.known(NAME, "s.a"), state.known(NAME, "s.c")) == (None, 3)


def test_a_rollup_proves_nothing_about_others() -> None:
    state = known_after("s.a", "s.b", breaks_run=True)
    assert (state.known(NAME, "s.a"), state.known(NAME, "s.b")) == (None, 2)


def test_a_subject_that_the_stream_does_not_listen_on_was_renamed_on_its_way() -> None:
    state = known_after("s.a", "$JS.hub.API.s.a")
    assert state.known(NAME, "s.a") is None


def test_an_evicted_subject_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SUBJECTS", 2)
    state = known_after("s.a", "s.a", "s.b", "s.c")  # no room for s.a
    state.note(NAME, 1, "s.a")  # of a copy that lags
    assert state.known(NAME, "s.a") is None


def test_a_subject_that_a_token_leaves_out_is_not_taken_for_another() -> None:
    others = [f"s.{number}" for number in range(module.MOST_IN_TOKEN)]
    state = SessionState(known_after("s.a", "s.a", *others).token())
    state.note(NAME, 1, "s.a")
    assert state.known(NAME, "s.a") is None
    assert state.known(NAME, "s.0") == 3


def test_what_is_noted_while_the_leader_is_asked_is_kept() -> None:
    """The session's own write to the new stream, acknowledged after the leader had answered."""
    state = known_after(*["s.a"] * 100)
    mark = state.mark(NAME)
    state.note(NAME, 11, "s.a", is_own_write=True)
    state.made(NAME, 2_000, 10, mark=mark, is_firm=True)
    assert (state.seen(NAME), state.created(NAME), state.known(NAME, "s.a")) == (11, 2_000, None)


def test_a_deposed_leader_does_not_lower_what_was_written_to_the_new_stream() -> None:
    state = known_after(*["s.a"] * 100)
    state.note(NAME, 50, "s.a", is_own_write=True)
    state.made(NAME, 2_000, 10, mark=state.mark(NAME))
    assert state.seen(NAME) == 100
    assert state.known(NAME, "s.a") is None
    state.made(NAME, 2_000, 60, mark=state.mark(NAME), is_firm=True)
    assert (state.seen(NAME), state.created(NAME)) == (60, 2_000)


def test_many_falling_sequences_are_kept_in_bounds_and_never_too_low() -> None:
    state = known_after("s.a")
    for seq in range(1_000, 500, -1):
        state.note(NAME, seq)
    mark = state.mark(NAME)
    state.note(NAME, 400)
    state.made(NAME, 2_000, 3, mark=mark, is_firm=True)
    assert 400 <= state.seen(NAME) <= 1_000
    assert len(state._streams[NAME].maxima) <= 32


WRITERS, WRITES = 4, 1_500


@pytest.mark.spec("RW-13")
def test_threads_of_one_session_lose_nothing_and_know_nothing_wrong() -> None:
    """Each thread has its own subject, and is the only one to know its newest message."""
    state, numbers = SessionState(), itertools.count(1)

    def write(worker: int) -> None:
        subject, own = f"s.{worker}", 0
        for _ in range(WRITES):
            own = next(numbers)
            state.note(NAME, own, subject, is_own_write=True)
            assert state.seen(NAME) >= own
            assert state.known(NAME, subject) in (None, own)
            if own % 100 == 0:
                assert SessionState(state.token()).seen(NAME) >= own
                state.made(NAME, 1_000, 0, mark=state.mark(NAME))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
    finally:
        sys.setswitchinterval(interval)
    assert state.seen(NAME) == WRITERS * WRITES
    state.note(NAME, WRITERS * WRITES + 1, "s.x")  # whoever has the turn takes in what is left
    assert not state._pending
    assert state.created(NAME) == 1_000
