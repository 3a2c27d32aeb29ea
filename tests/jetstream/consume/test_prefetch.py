"""How many messages may wait for the program, and until when each is still ours."""

from __future__ import annotations

import json
import math
from collections import deque
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.api import ConsumerConfig
from slipstream.jetstream.consume.prefetch import MOST, AckRules, Pace
from slipstream.jetstream.consume.pull import OVERLAPPING, PullFlow
from slipstream.wire import Msg


def test_the_window_begins_with_one_and_grows_fourfold_while_it_is_used_up_in_time() -> None:
    pace = Pace(30.0)
    windows = []
    for _ in range(7):
        windows.append(pace.window)
        pace.handled(pace.window, pace.window * 0.001)
    assert windows == [1, 4, 16, 64, 256, 1024, 3000]


def test_a_program_that_wants_few_messages_gets_them_at_once() -> None:
    assert PullFlow(max_messages=10).first_window == 10
    assert PullFlow().first_window == 1
    assert Pace(30.0, first=10).window == 10


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


ACK = "$JS.ACK.S.C.{}.7.9.1700000000000000000.0"


def delivered(times: int) -> Msg:
    return Msg("jobs", b"1", ACK.format(times), b"", b"")


def one_of_many(payload: bytes = b"") -> Msg:
    """A message behind which the server has more."""
    return Msg("jobs", b"1", f"{ACK.format(1)}9", b"", payload)


def rules_of(**config: object) -> AckRules:
    return AckRules(ConsumerConfig(**config))  # type: ignore[arg-type]  # names of its fields


@pytest.mark.parametrize("ack_wait", [0.5, 1.0, 30.0, 3600.0])
def test_a_message_is_renewed_in_time_and_over_before_the_server_redelivers_it(ack_wait: float) -> None:
    rules = rules_of(ack_wait=timedelta(seconds=ack_wait))
    assert 2 * rules.look_every <= rules.renew_after < rules.ack_wait == ack_wait
    assert rules.is_fresh(ack_wait * 0.19)
    assert not rules.is_fresh(ack_wait * 0.21)
    assert rules.alive([delivered(1)], ack_wait * 0.89) == [delivered(1)]
    assert rules.alive([delivered(1)], ack_wait * 0.91) == []


def test_a_distant_server_does_not_make_messages_old() -> None:
    rules = rules_of(ack_wait=timedelta(seconds=1))
    assert rules.is_fresh(0.44, 0.25)
    assert not rules.is_fresh(0.46, 0.25)
    assert not rules.is_fresh(0.81, 10.0)  # the handler needs some time
    assert rules.left(0.3) == pytest.approx(0.6)


def test_the_last_delivery_is_never_over() -> None:
    rules = rules_of(ack_wait=timedelta(seconds=1), max_deliver=3)
    msgs = [delivered(times) for times in (1, 2, 3, 4)]
    assert rules.alive(msgs, 100.0) == msgs[2:]
    for unbounded in (0, -1):
        assert rules_of(ack_wait=timedelta(seconds=1), max_deliver=unbounded).alive(msgs, 100.0) == []


@pytest.mark.parametrize("policy", ["all", "none"])
def test_nothing_is_over_where_a_later_ack_counts_for_it_or_none_is_wanted(policy: str) -> None:
    rules = rules_of(ack_policy=policy, ack_wait=timedelta(seconds=1))
    assert rules.alive([delivered(1)], 100.0) == [delivered(1)]
    assert rules.has_deadline == (policy == "all")


def test_nothing_is_over_where_the_configuration_is_not_known() -> None:
    assert AckRules().ack_wait == 30.0
    assert AckRules().alive([delivered(1)], 100.0) == [delivered(1)]


def test_each_delivery_has_the_wait_of_its_back_off() -> None:
    rules = rules_of(backoff=tuple(timedelta(seconds=wait) for wait in (2, 10, 60)), max_deliver=9)
    assert rules.ack_wait == 2.0  # which decides when to renew
    msgs = [delivered(times) for times in (1, 2, 3, 4)]
    assert rules.alive(msgs, 1.0) == msgs
    assert rules.alive(msgs, 2.0) == msgs[1:]
    assert rules.alive(msgs, 10.0) == msgs[2:]
    assert rules.alive(msgs, 60.0) == []


def test_without_an_ack_wait_a_message_is_never_over() -> None:
    rules = rules_of(ack_policy="none")
    assert rules.is_fresh(1e9)
    assert rules.alive([delivered(1)], 1e9) == [delivered(1)]


def test_what_is_late_on_arrival_halves_the_window_which_then_grows_slowly() -> None:
    pace = Pace(30.0)
    for _ in range(5):
        pace.handled(pace.window, 0.0)
    assert pace.window == 1024
    pace.late()
    assert pace.window == 512
    pace.handled(1, 0.0)
    assert pace.window == 538


def test_another_ack_wait_makes_another_window() -> None:
    pace = Pace(30.0)
    for _ in range(10):
        pace.handled(pace.window, pace.window * 0.01)
    assert pace.window == 300
    pace.adapt(1.0)
    assert pace.window == 10


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


@given(
    max_messages=st.integers(1, 600),
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(1, 2_000)), max_size=60),
)
def test_few_requests_wait_at_the_server_at_once(max_messages: int, steps: list[tuple[int, int, int]]) -> None:
    """Messages arrive bit by bit; the server fills its requests in turns."""
    flow = PullFlow(max_messages=max_messages)
    at_server: deque[int] = deque()
    most = 0
    for arriving, waiting, window in [(0, 0, 1), *steps]:
        for _ in range(min(arriving, sum(at_server))):
            left = at_server.popleft() - 1
            flow.feed([one_of_many()])
            if left:
                at_server.append(left)
        for waits in (waiting, 0):  # while messages are handed over, and when the program comes back
            if body := flow.request(window=window, waiting=waits):
                at_server.append(json.loads(body)["batch"])
        most = max(most, len(at_server))
        assert sum(at_server) == flow.pending > 0  # no stall
        assert flow.pending <= max_messages
    assert most <= OVERLAPPING


def test_a_window_that_doubles_with_each_message_does_not_add_a_request_for_each() -> None:
    flow, at_server, most = PullFlow(), deque[int](), 0
    for step in range(300):
        if body := flow.request(window=2**step):
            at_server.append(json.loads(body)["batch"])
        most = max(most, len(at_server))
        left = at_server.popleft() - 1
        flow.feed([one_of_many()])
        if left:
            at_server.append(left)
    assert most <= OVERLAPPING


@pytest.mark.parametrize("max_waiting", [2, 63])
def test_where_few_requests_may_wait_only_one_does(max_waiting: int) -> None:
    flow = PullFlow(max_messages=500, max_waiting=max_waiting)
    assert flow.request()
    flow.feed([one_of_many()] * 499)
    assert flow.request() == b""
    flow.feed([one_of_many()])
    assert flow.request()


def test_requests_overlap_only_where_the_server_has_more() -> None:
    flow = PullFlow(max_messages=300)
    assert flow.request()
    flow.feed([delivered(1)] * 299)  # the last one says that nothing is left
    assert flow.request() == b""
    flow = PullFlow(max_messages=300)
    assert flow.request()
    flow.feed([one_of_many()] * 200)
    assert b'"batch":200,' in flow.request()
    flow.feed([one_of_many()] * 199)
    assert flow.request() == b""  # of the first one a message may be missing, where the server takes turns
    flow.feed([one_of_many()])
    assert b'"batch":200,' in flow.request()


def test_large_messages_make_a_small_window() -> None:
    flow = PullFlow()
    assert flow.request(window=4)
    flow.feed([one_of_many(bytes(400_000))] * 4)
    assert b'"batch":20,' in flow.request(window=500)
    flow.feed([one_of_many(bytes(100))] * 20)
    assert b'"batch":41,' in flow.request(window=500)  # smaller ones are believed bit by bit
    flow = PullFlow()
    flow.request(window=1)
    flow.feed([one_of_many(bytes(60_000_000))])
    assert b'"batch":1,' in flow.request(window=500)


def test_requests_are_void_when_their_answer_is_overdue() -> None:
    assert PullFlow(expires=2, heartbeat=0).silence == 3.0
    assert PullFlow(heartbeat=1.0).silence == 2.0
