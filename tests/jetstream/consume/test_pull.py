"""Pull requests: what is asked for and when, and what statuses do to that; no server, no clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipstream.errors import ConsumerDeletedError, ConsumerGoneError, PullRefusedError, UsageError
from slipstream.jetstream.consume.pull import (
    NO_WAIT_TIMEOUT,
    Fetch,
    PullFlow,
    PullState,
    SingleRequests,
    expires_within,
    lingering_body,
    no_wait_body,
)
from slipstream.wire import Msg
from tests.jetstream.frames import heartbeat, message, status


def body(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found


def test_bodies_are_those_of_the_document() -> None:
    assert no_wait_body(5) == b'{"batch":5,"no_wait":true}'
    assert lingering_body(5, 4.99) == b'{"expires":4990000000,"batch":5}'
    assert body(lingering_body(5, 1, max_bytes=100, heartbeat=0.25)) == {
        "expires": 10**9, "batch": 5, "max_bytes": 100, "idle_heartbeat": 250_000_000,
    }  # fmt: skip


def test_a_request_expires_before_the_deadline_of_its_caller() -> None:
    assert expires_within(5.0) == pytest.approx(4.9)
    assert expires_within(0.5) == pytest.approx(0.45)
    assert expires_within(0.0) > 0


def test_a_fetch_returns_what_is_available_and_waits_only_for_the_first_message() -> None:
    fetch = Fetch(5)
    assert body(fetch.request(5.0)) == {"batch": 5, "no_wait": True}
    assert fetch.limit == 6  # the five, and the status before them
    assert not fetch.feed([message(1), message(2)], 4.9)
    assert not fetch.is_done
    assert not fetch.feed([status(404, "No Messages")], 4.9)
    assert fetch.is_done
    assert fetch.messages == [message(1), message(2)]


def test_a_fetch_lingers_when_nothing_is_available() -> None:
    fetch = Fetch(5)
    assert fetch.feed([status(404, "No Messages")], 5.0)
    assert fetch.state is PullState.LINGERING
    assert fetch.limit == 6
    assert body(fetch.request(5.0)) == {"batch": 5, "expires": 4_900_000_000}
    assert not fetch.feed([message(n) for n in range(1, 6)], 3.0)
    assert fetch.is_done


def test_a_fetch_lingers_when_no_wait_is_not_answered() -> None:
    fetch = Fetch(5)
    assert fetch.frame_timeout(5.0) == 1.0
    assert fetch.frame_timeout(0.3) == 0.15
    assert fetch.timed_out()
    assert body(fetch.request(4.0))["expires"] == 3_900_000_000
    assert fetch.frame_timeout(4.0) == 4.0
    assert fetch.open == 1
    late = Fetch(5)
    late.request(0.2)
    assert late.timed_out()
    late.request(0.1)
    assert not late.feed([status(404, "No Messages")], 0.05)  # the first request's; the second is still under way
    assert (late.is_done, late.open) == (False, 1)
    assert not late.feed([message(1), status(408, "Request Timeout")], 0.01)
    assert (late.is_done, late.open, late.messages) == (True, 0, [message(1)])
    assert not fetch.timed_out()
    some = Fetch(5)
    some.feed([message(1)], 5.0)
    assert some.frame_timeout(4.0) == NO_WAIT_TIMEOUT  # the rest follows at once, or is held back by max_ack_pending
    assert some.frame_timeout(0.2) == 0.2
    assert not some.timed_out()


def test_a_lingering_fetch_ends_with_408_and_is_repeated_before_the_deadline() -> None:
    fetch = Fetch(2, max_expires=1.0)
    assert fetch.feed([status(408, "Requests Pending")], 5.0)
    assert body(fetch.request(5.0))["expires"] == 10**9
    assert fetch.feed([status(408, "Request Timeout")], 4.0)  # the consumer allows one second only
    fetch.request(4.0)
    fetch.request(4.0)
    assert fetch.limit == 4
    fetch.connection_lost()
    assert fetch.feed([status(409, "Leadership Change")], 3.0)
    assert not fetch.feed([heartbeat(0)], 3.0)
    assert not fetch.is_done
    assert not fetch.feed([status(408, "Request Timeout")], 0.05)
    assert fetch.is_done
    assert fetch.messages == []


def test_an_error_is_raised_by_an_empty_fetch_and_ends_one_that_has_messages() -> None:
    for code, text, error in (
        (409, "Consumer Deleted", ConsumerDeletedError),
        (409, "Exceeded MaxWaiting", PullRefusedError),
        (409, "Message Size Exceeds MaxBytes", PullRefusedError),
        (400, "Bad Request", PullRefusedError),
        (503, "", ConsumerGoneError),
    ):
        with pytest.raises(error):
            Fetch(2).feed([status(code, text)], 5.0)
        fetch = Fetch(2)
        assert not fetch.feed([status(code, text), message(1)], 5.0)
        assert fetch.is_done
        assert fetch.messages == [message(1)]


@pytest.mark.parametrize(("batch", "max_bytes"), [(0, 0), (-1, 0), (1, -1), (True, 0)])
def test_a_batch_that_no_server_can_fill_is_rejected(batch: int, max_bytes: int) -> None:
    with pytest.raises(UsageError, match="must be"):
        Fetch(batch, max_bytes=max_bytes)
    with pytest.raises(UsageError, match="must be"):
        PullFlow(max_messages=batch, max_bytes=max_bytes)


def test_single_pulls_are_counted_not_named() -> None:
    singles = SingleRequests()
    assert not singles.is_due(0.0)
    singles.waiters = 2
    assert singles.is_due(0.0)
    singles.asked(5.0)
    assert singles.is_due(0.0)
    singles.asked(5.0)
    assert not singles.is_due(0.0)
    assert singles.feed(message(1)) == message(1)
    assert singles.is_due(0.0)
    singles.asked(9.0)
    assert singles.feed(status(404, "No Messages")) is None
    assert singles.feed(heartbeat(0)) is None
    assert singles.is_due(0.0)
    assert singles.feed(status(409, "Leadership Change")) is None
    with pytest.raises(ConsumerDeletedError):
        singles.feed(status(409, "Consumer Deleted"))


def test_a_single_pull_without_an_answer_is_forgotten() -> None:
    singles = SingleRequests()
    singles.waiters = 1
    singles.asked(5.0)
    assert not singles.is_due(5.5)
    assert singles.is_due(6.5)
    singles.asked(99.0)
    singles.forget()
    assert singles.is_due(6.5)


def test_a_flow_refills_at_the_threshold_and_never_exceeds_max_messages() -> None:
    flow = PullFlow(max_messages=10, threshold=4, expires=30)
    assert body(flow.request()) == {"batch": 10, "expires": 30 * 10**9, "idle_heartbeat": 5 * 10**9}
    assert flow.request() == b""
    assert flow.feed([message(n) for n in range(1, 6)]) == ([message(n) for n in range(1, 6)], None)
    assert flow.request() == b""  # five are still awaited
    flow.feed([message(6)])
    assert body(flow.request())["batch"] == 6
    assert flow.request() == b""


def test_a_request_that_ends_gives_back_what_it_had_left() -> None:
    flow = PullFlow(max_messages=10, threshold=5)
    flow.request()
    flow.feed([message(1), message(2)])
    messages, error = flow.feed([status(408, "Request Timeout", Nats_Pending_Messages="8", Nats_Pending_Bytes="0")])
    assert (messages, error) == ([], None)
    assert body(flow.request())["batch"] == 10
    old = status(408, "Request Timeout", Nats_Pending_Messages="10")
    flow.reset()
    assert body(flow.request())["batch"] == 10
    flow.feed([old])  # of a request from before the reset
    assert flow.request() == b""
    flow.feed([status(409, "Leadership Change", subject="_INBOX.x.1")])
    assert flow.token == "2"
    assert body(flow.request())["batch"] == 10


def test_a_flow_by_bytes_counts_bytes() -> None:
    flow = PullFlow(max_bytes=1000, threshold=500)
    first = body(flow.request())
    assert first["max_bytes"] == 1000
    assert first["batch"] >= 1000
    large = message(1, data=b"x" * 600)
    assert flow.feed([large]) == ([large], None)
    size = sum(len(part) for part in (large.subject, large.reply, large.header, large.payload))
    assert body(flow.request())["max_bytes"] == size
    ended = status(409, "Message Size Exceeds MaxBytes", Nats_Pending_Messages="3", Nats_Pending_Bytes="1000")
    messages, error = flow.feed([ended])
    assert messages == []
    assert isinstance(error, PullRefusedError)  # nothing we ask for is large enough


def test_a_flow_requests_no_more_than_the_consumer_allows() -> None:
    flow = PullFlow(max_bytes=1000, threshold=500, max_batch=2, max_expires=0.5)
    first = body(flow.request())
    assert (first["batch"], first["max_bytes"], first["expires"]) == (2, 1000, 500_000_000)
    flow.feed([message(1)])
    assert flow.request() == b""
    flow.feed([message(2)])  # with it the request is over, though there are bytes left
    again = body(flow.request())
    assert (again["batch"], again["max_bytes"]) == (2, 1000)
    flow = PullFlow(max_messages=500, threshold=300, max_batch=10)
    assert body(flow.request())["batch"] == 10
    flow.feed([message(n) for n in range(1, 5)])
    assert flow.request() == b""
    flow.feed([message(5)])
    assert body(flow.request())["batch"] == 5


def test_a_flow_ends_with_an_error_behind_its_messages() -> None:
    flow = PullFlow()
    flow.request()
    mixed: list[Msg] = [message(1), heartbeat(0), message(2), status(409, "Consumer Deleted")]
    messages, error = flow.feed(mixed)
    assert messages == [message(1), message(2)]
    assert isinstance(error, ConsumerDeletedError)


@pytest.mark.parametrize(
    "wrong", [{"threshold": 500}, {"threshold": -1}, {"expires": 0.5}, {"heartbeat": 15.0}, {"heartbeat": -1.0}]
)
def test_a_flow_with_contradictory_limits_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be"):
        PullFlow(**wrong)


def test_a_fetch_asks_for_no_more_than_max_ack_pending() -> None:
    fetch = Fetch(5, most=2)
    assert body(fetch.request(5.0)) == {"batch": 2, "no_wait": True}
    fetch.feed([message(1), message(2)], 5.0)
    assert fetch.is_done
