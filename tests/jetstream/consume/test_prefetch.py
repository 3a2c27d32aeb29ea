"""How many messages may wait for the program, and until when each is still ours."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.jetstream.consume.prefetch import MOST, AckDeadline, Pace
from slipstream.jetstream.consume.pull import PullFlow


def test_the_window_begins_with_one_and_doubles_while_it_is_used_up_in_time() -> None:
    pace = Pace(30.0)
    windows = []
    for _ in range(12):
        windows.append(pace.window)
        pace.handled(pace.window, pace.window * 0.001)
    assert windows[:6] == [1, 2, 4, 8, 16, 32]
    assert windows[-1] == 2048


def test_a_slow_message_shrinks_it_at_once() -> None:
    pace = Pace(30.0)
    for _ in range(10):
        pace.handled(pace.window, pace.window * 0.001)
    pace.handled(1, 3.0)
    assert pace.window == 1
    pace.handled(1, 0.001)  # one quick one says little
    assert pace.window == 1


def test_without_acks_it_has_no_bound() -> None:
    pace = Pace(math.inf)
    assert pace.window == MOST
    pace.handled(1, 100.0)
    assert pace.window == MOST


@given(st.floats(0.5, 300), st.lists(st.tuples(st.integers(1, 500), st.floats(0, 30)), max_size=50))
def test_what_waits_can_be_handled_long_before_its_ack_wait_is_over(
    ack_wait: float, reads: list[tuple[int, float]]
) -> None:
    pace = Pace(ack_wait)
    for count, seconds in reads:
        pace.handled(count, seconds)
        assert pace.window == 1 or pace.window * pace.seconds <= ack_wait / 10 + 1e-6


@pytest.mark.parametrize("ack_wait", [0.5, 1.0, 30.0, 3600.0])
def test_a_message_is_renewed_in_time_and_over_before_the_server_redelivers_it(ack_wait: float) -> None:
    deadline = AckDeadline(ack_wait)
    assert 0 < deadline.fresh_until(0.0) < deadline.over_after < ack_wait
    assert not deadline.is_over(5.0, 5.0 + ack_wait * 0.89)
    assert deadline.is_over(5.0, 5.0 + ack_wait * 0.91)


def test_without_an_ack_wait_a_message_is_never_over() -> None:
    deadline = AckDeadline(math.inf)
    assert deadline.fresh_until(0.0) == math.inf
    assert not deadline.is_over(0.0, 1e9)


def test_requests_leave_room_for_what_waits() -> None:
    flow = PullFlow(max_messages=500)
    assert b'"batch":1,' in flow.request(window=1)
    assert flow.request(window=1) == b""
    flow = PullFlow(max_messages=500)
    assert flow.request(window=8, waiting=8) == b""
    assert b'"batch":3,' in flow.request(window=8, waiting=5)
    assert flow.pending == 3
    flow = PullFlow(max_bytes=1_000)
    assert b'"batch":4,"max_bytes":1000' in flow.request(window=4)
    assert flow.pending == 4
