"""How often a read tries, how long it rests, and when it looks for another server. Time is a number."""

from __future__ import annotations

from slipstream.errors import ConnectionLostError, RequestTimeoutError, StaleReadError
from slipstream.jetstream.reads.retry import FIRST_PAUSE, LONGEST_PAUSE, LONGEST_TRY, SILENCES, STALE_MOST, RetryPolicy

SILENCE, STALE = RequestTimeoutError("silence"), StaleReadError("stale")


def test_pauses_double_are_shortened_by_up_to_half_and_end_at_the_deadline() -> None:
    clock = [0.0]
    patience = RetryPolicy(1.0, lambda: clock[0])
    assert patience.why(SILENCE) is SILENCE
    longest, pauses = FIRST_PAUSE, 0
    while (pause := patience.next_pause(STALE)) is not None:
        assert longest / 2 <= pause <= longest
        longest = min(longest * 2, LONGEST_PAUSE)
        pauses += 1
        clock[0] += pause
    assert pauses > 5
    assert patience.tries == pauses + 1
    assert clock[0] < 1.0
    assert patience.why(SILENCE) is STALE
    clock[0] = 5.0
    assert 0 < patience.left() < 0.01
    assert patience.is_over


def test_two_readers_that_fail_together_do_not_rest_equally_long() -> None:
    pauses = {RetryPolicy(1.0, lambda at=n / 1000: at).next_pause(STALE) for n in range(100)}  # type: ignore[misc]
    assert len(pauses) > 90


def test_a_try_takes_a_part_of_the_timeout() -> None:
    assert RetryPolicy(1.0, lambda: 0.0).for_one_try() == 0.2
    assert RetryPolicy(60.0, lambda: 0.0).for_one_try() == LONGEST_TRY


def test_silence_again_and_again_is_a_reason_to_go_and_an_answer_is_none() -> None:
    patience = RetryPolicy(1.0, lambda: 0.0)
    for _ in range(3):
        assert [patience.silent() for _ in range(SILENCES)] == [False] * (SILENCES - 1) + [True]
    assert patience.for_one_try() > 0.2  # slow answers are not lost for ever
    for _ in range(10):
        assert not patience.silent()
        patience.heard()
    assert patience.for_one_try() == 0.2


def test_staleness_says_more_than_a_lost_connection() -> None:
    patience = RetryPolicy(1.0, lambda: 0.0)
    patience.next_pause(STALE)
    patience.next_pause(ConnectionLostError("gone"))
    assert patience.why(SILENCE) is STALE


def test_something_achieved_renews_the_time() -> None:
    clock = [0.0]
    patience = RetryPolicy(1.0, lambda: clock[0])
    patience.next_pause(STALE)
    clock[0] = 0.75
    patience.renew()
    assert patience.left() == 1.0
    assert patience.why(SILENCE) is SILENCE


def test_stale_answers_alone_for_long_are_a_reason_to_go_too() -> None:
    clock = [0.0]
    patience = RetryPolicy(20.0, lambda: clock[0])
    assert not patience.stuck()
    patience.next_pause(STALE)
    clock[0] = STALE_MOST - 0.1
    patience.heard()  # somebody answers, and knows nothing new
    patience.next_pause(STALE)
    assert not patience.stuck()
    clock[0] = STALE_MOST
    assert patience.stuck()
    assert not patience.stuck()  # it counts anew from the next stale answer on
    patience.next_pause(STALE)
    patience.renew()
    clock[0] += STALE_MOST
    assert not patience.stuck()
