"""Error policies: what becomes of a failed message, by its deliveries and the last one that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.jetstream.consume.error_policy import (
    DELAYS,
    Attempts,
    DeadLetter,
    Leave,
    Nak,
    NakAfter,
    Policy,
    Term,
    check_on_error,
    dead_letter_of,
    decide,
    policy_of,
)

LETTER = DeadLetter("dead.jobs")


def test_names_and_policies_are_taken_as_they_are() -> None:
    assert policy_of("leave") == policy_of(None) == Leave()
    assert policy_of("nak") == Nak(DELAYS)
    assert policy_of("term") == Term()
    assert policy_of(LETTER) is LETTER
    assert check_on_error(LETTER) is LETTER
    assert check_on_error(print) is print


@pytest.mark.parametrize("value", ["ack", 3, DeadLetter, ("nak",)], ids=["name", "number", "class", "tuple"])
def test_anything_else_is_rejected(value: object) -> None:
    with pytest.raises(UsageError, match="on_error must be 'leave', 'nak', 'term', a policy"):
        check_on_error(value)


@pytest.mark.parametrize("attempts", [0, -1, True, 1.5], ids=str)
def test_attempts_must_be_a_positive_whole_number(attempts: int) -> None:
    with pytest.raises(UsageError, match="attempts must be a whole number of at least 1"):
        Attempts(attempts)


def test_a_retry_must_end_in_something_final() -> None:
    with pytest.raises(UsageError, match="then must be 'leave', 'term' or a DeadLetter, got 'nak'"):
        Attempts(3, then="nak")


@pytest.mark.parametrize("delays", [(), (-1.0,), "1s", (1, "5")], ids=["none", "negative", "text", "text inside"])
def test_delays_must_be_durations(delays: object) -> None:
    with pytest.raises(UsageError, match="delays must be"):
        Nak(delays)  # type: ignore[arg-type]  # what a program may get wrong


@pytest.mark.parametrize("reason", [7, None, b"x", "two\r\nlines"], ids=["number", "none", "bytes", "two lines"])
def test_a_reason_must_be_a_line_of_text(reason: object) -> None:
    with pytest.raises(UsageError, match="reason must be a single line of text, got"):
        Term(reason)  # type: ignore[arg-type]  # what a program may get wrong


def test_a_dead_letter_has_a_subject_that_can_be_published_to() -> None:
    with pytest.raises(UsageError, match="subject"):
        DeadLetter("dead.>")


def test_the_delay_grows_with_the_deliveries_and_then_stays() -> None:
    seconds = [decide(Nak(), delivered=n, is_last=False) for n in range(1, 7)]
    assert seconds == [NakAfter(delay) for delay in (1, 5, 30, 120, 120, 120)]
    single = Nak(timedelta(minutes=1))
    assert decide(single, delivered=9, is_last=False) == NakAfter(60.0)


def test_a_retry_ends_after_its_attempts() -> None:
    policy = Attempts(3, then=LETTER, delays=(2, 4))
    found = [decide(policy, delivered=n, is_last=False) for n in range(1, 5)]
    assert found == [NakAfter(2.0), NakAfter(4.0), LETTER, LETTER]


def test_the_last_delivery_of_max_deliver_is_not_wasted_on_a_nak() -> None:
    assert decide(Attempts(10, then=LETTER), delivered=3, is_last=True) == LETTER


POLICIES: st.SearchStrategy[Policy] = st.one_of(
    st.sampled_from([Leave(), Term("bad"), LETTER, Nak(), Nak((0, 3))]),
    st.builds(Attempts, st.integers(1, 20), then=st.sampled_from([LETTER, Term(), Leave(), "term", "leave"])),
)


@given(policy=POLICIES, max_deliver=st.integers(-1, 30))
def test_a_message_that_always_fails_meets_its_end_exactly_once(policy: Policy, max_deliver: int) -> None:
    """A model of the server: it redelivers after a `nak` or nothing, until `max_deliver`; never after the end."""
    letter, ends, delivered = dead_letter_of(policy), [], 0
    while delivered < (max_deliver if max_deliver > 0 else 50):
        delivered += 1
        decision = decide(policy, delivered=delivered, is_last=0 < max_deliver <= delivered)
        if isinstance(decision, Term | DeadLetter):
            ends.append(decision)
            break
        if isinstance(decision, NakAfter):
            assert decision.delay >= 0
    assert ends == ([letter] if letter is not None else ends[:1])
    if isinstance(policy, Attempts):
        limit = min(policy.attempts, max_deliver) if max_deliver > 0 else policy.attempts
        assert delivered == limit or policy_of(policy.then) == Leave()


@pytest.mark.parametrize("policy", [Nak, lambda delays: Attempts(2, delays=delays)], ids=["Nak", "Attempts"])
def test_delays_that_servers_cannot_count_are_rejected(policy: Callable[[float], object]) -> None:
    with pytest.raises(UsageError, match=r"delays must be at most 9223372036 seconds \(292 years\), got 10000000000"):
        policy(1e10)
