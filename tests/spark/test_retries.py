"""Retry policy of sources and sinks, in virtual time."""

from __future__ import annotations

import logging

import pytest

from slipstream.errors import (
    AuthorizationError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    Error,
    ErrorCode,
    NoStreamError,
    RequestTimeoutError,
    StaleReadError,
    TlsError,
    UsageError,
)
from slipstream.spark.option_reader import DEFAULT_RETRY_FOR, OptionReader
from slipstream.spark.options import JETSTREAM
from slipstream.spark.retries import RetryPolicy, is_outage


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def policy(seconds: float) -> tuple[RetryPolicy, Clock]:
    clock = Clock()
    return RetryPolicy(seconds, clock=clock, pause=clock.sleep), clock


def test_outage_is_waited_for_as_long_as_the_option_says_and_no_longer() -> None:
    retries, clock = policy(10.0)

    def fail_for_ever() -> None:
        while True:
            retries.failed(ConnectionLostError("refused"))

    with pytest.raises(ConnectionLostError):
        fail_for_ever()
    assert clock.now == pytest.approx(10.0)
    assert clock.pauses[:3] == [0.1, 0.2, 0.4]
    assert max(clock.pauses) == 2.0


def test_answer_begins_another_outage() -> None:
    retries, clock = policy(10.0)
    for _ in range(3):
        clock.pauses.clear()
        while sum(clock.pauses) < 9.0:
            retries.failed(ConnectionLostError("refused"))
        retries.succeeded()
    assert clock.pauses[0] == 0.1
    assert clock.now > 20


def test_without_retry_for_the_first_failure_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    retries, clock = policy(0.0)
    with pytest.raises(ConnectionLostError):
        retries.failed(ConnectionLostError("refused"))
    assert (clock.pauses, caplog.text) == ([], "")


def test_outage_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    retries, _ = policy(60.0)
    with caplog.at_level(logging.WARNING, logger="slipstream.spark"):
        for _ in range(5):
            retries.failed(ConnectionLostError("nats://h:4222: refused"))
        retries.succeeded()
        retries.succeeded()
    assert [record.getMessage() for record in caplog.records] == [
        "nats://h:4222: refused; retrying for up to 60 s (option retryFor)",
        "reconnected after 3.1 s",
    ]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLostError("x"),
        RequestTimeoutError("x"),
        NoStreamError("x"),
        StaleReadError("x"),
        ErrorCode.CLUSTER_NOT_AVAIL.error(),
    ],
)
def test_errors_that_pass_with_time_are_outages(error: Error) -> None:
    assert is_outage(error)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("x"),
        TlsError("x"),
        AuthorizationError("x"),
        DirectGetNotAllowedError("x"),
        ErrorCode.STREAM_NOT_FOUND.error(),
    ],
)
def test_errors_that_another_attempt_would_meet_are_raised_at_once(error: Error) -> None:
    assert not is_outage(error)
    retries, clock = policy(60.0)
    with pytest.raises(type(error)):
        retries.failed(error)
    assert clock.pauses == []


def test_option_is_a_number_of_seconds_and_makes_planning_wait_too() -> None:
    def connection(**options: str) -> tuple[float, float]:
        found = OptionReader(JETSTREAM, options, ("retryFor",)).connection()
        return found.retry_for, found.plan_retry_for

    assert connection() == (DEFAULT_RETRY_FOR, 0.0)
    assert connection(retryFor="5") == (5.0, 5.0)
    assert connection(retryFor="0") == (0.0, 0.0)
    for bad in ("-1", "soon", "inf", "nan"):
        with pytest.raises(UsageError, match=r"option 'retryFor' must be a number of seconds, 0 or more, got"):
            connection(retryFor=bad)
