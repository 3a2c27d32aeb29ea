"""How often a read tries, how long it rests, and when it looks for another server. Time is a number."""

from __future__ import annotations

from slipstream.errors import ConnectionLostError, RequestTimeoutError, StaleReadError
from slipstream.jetstream.reads.retry import FIRST_PAUSE, LONGEST_PAUSE, LONGEST_TRY, SILENCES, STALE_MOST, RetryPolicy

SILENCE, STALE = RequestTimeoutError("silence"), StaleReadError("stale")


def test_pauses_double_are_shortened_by_up_to_half_and_end_at_the_deadline() -> None:
    clock = [0.0]
    policy = RetryPolicy(1.0, lambda: clock[0])
    assert policy.why(SILENCE) is SILENCE
    longest, pauses = FIRST_PAUSE, 0
    while (pause := policy.next_pause(STALE)) is not None:
        assert longest / 2 <= pause <= longest
        longest = min(longest * 2, LONGEST_PAUSE)
        pauses += 1
        clock[0] += pause
    assert pauses > 5
    assert policy.tries == pauses + 1
    assert clock[0] < 1.0
    assert policy.why(SILENCE) is STALE
    clock[0] = 5.0
    assert 0 < policy.left() < 0.01
    assert policy.is_over


def test_two_readers_that_fail_together_do_not_pause_equally_long() -> None:
    pauses = {RetryPolicy(1.0, lambda at=n / 1000: at).next_pause(STALE) for n in range(100)}  # type: ignore[misc]
    assert len(pauses) > 90


def test_an_attempt_takes_a_part_of_the_timeout() -> None:
    assert RetryPolicy(1.0, lambda: 0.0).for_one_try() == 0.2
    assert RetryPolicy(60.0, lambda: 0.0).for_one_try() == LONGEST_TRY


def test_repeated_silence_switches_servers_and_an_answer_resets_the_count() -> None:
    policy = RetryPolicy(1.0, lambda: 0.0)
    for _ in range(3):
        assert [policy.silent() for _ in range(SILENCES)] == [False] * (SILENCES - 1) + [True]
    assert policy.for_one_try() > 0.2  # slow answers are not lost for ever
    for _ in range(10):
        assert not policy.silent()
        policy.heard()
    assert policy.for_one_try() == 0.2


def test_many_attempts_fit_into_a_timeout_though_other_servers_are_tried_as_late_as_before() -> None:
    """Of three responders one may be cut off: seven attempts in a row reach it once in 2,187 times."""
    clock = [0.0]
    policy = RetryPolicy(5.0, lambda: clock[0])
    attempts, switched_at = 0, 0.0
    while not policy.is_over:
        clock[0] += policy.for_one_try()
        attempts += 1
        if policy.silent() and not switched_at:
            switched_at = clock[0]
    assert (attempts, switched_at) == (7, 2.0)


def test_staleness_says_more_than_a_lost_connection() -> None:
    policy = RetryPolicy(1.0, lambda: 0.0)
    policy.next_pause(STALE)
    policy.next_pause(ConnectionLostError("gone"))
    assert policy.why(SILENCE) is STALE


def test_progress_renews_the_timeout() -> None:
    clock = [0.0]
    policy = RetryPolicy(1.0, lambda: clock[0])
    policy.next_pause(STALE)
    clock[0] = 0.75
    policy.renew()
    assert policy.left() == 1.0
    assert policy.why(SILENCE) is SILENCE


def test_stale_answers_alone_for_long_switch_servers_too() -> None:
    clock = [0.0]
    policy = RetryPolicy(20.0, lambda: clock[0])
    assert not policy.stuck()
    policy.next_pause(STALE)
    clock[0] = STALE_MOST - 0.1
    policy.heard()  # a replica answers, with nothing new
    policy.next_pause(STALE)
    assert not policy.stuck()
    clock[0] = STALE_MOST
    assert policy.stuck()
    assert policy.stuck()  # as long as it could not move: another read may have moved the connection just now
    policy.moved()
    assert not policy.stuck()  # it counts from the next stale answer on
    policy.next_pause(STALE)
    policy.renew()
    clock[0] += STALE_MOST
    assert not policy.stuck()
