"""Alarms for silent subscriptions, in virtual time: exactly when they are due, and never for another reason."""

from __future__ import annotations

import math

import pytest

from slipstream.client.mailbox import Mailbox
from slipstream.client.options import ClientOptions
from slipstream.client.session import Session, State
from slipstream.client.silence import SilenceAlarm

TIMEOUT = 3.0


class Subscriber:
    """A subscription, and a driver that looks exactly when it should: `at` returns the times of alarms up to then."""

    def __init__(self) -> None:
        self.session = Session(ClientOptions(), nonce="n")
        self.box = Mailbox(b"2", "a", queue="", max_msgs=10, max_bytes=1000)
        self.connect(100.0)
        self.alarm = SilenceAlarm(self.box, self.session, TIMEOUT, lambda: None, now=100.0)

    def connect(self, now: float) -> None:
        self.session.state = State.CONNECTED
        self.session.outgoing.is_open = True
        self.session.connected_at = now

    def run(self, until: float) -> list[float]:
        alarms: list[float] = []
        while self.alarm.next <= until:
            now = self.alarm.next
            if self.alarm.look(now):
                alarms.append(now)
        return alarms


@pytest.mark.spec("SW-22", on="C")
def test_an_alarm_is_due_exactly_after_the_timeout_and_once_per_silence() -> None:
    here = Subscriber()
    assert here.run(102.999) == []
    assert here.run(1000.0) == [103.0]
    here.box.heard = 1000.5
    assert here.run(1003.499) == []
    here.box.heard = 1001.0  # while the first one is waited for
    assert here.run(2000.0) == [1004.0]


@pytest.mark.spec("SW-22", on="C")
def test_the_time_without_a_connection_does_not_count() -> None:
    here = Subscriber()
    here.session.outgoing.is_open = False
    assert here.run(200.0) == []
    here.connect(200.5)
    assert here.run(1000.0) == [203.5]
    here.connect(1000.5)  # lost and made again: another silence
    assert here.run(2000.0) == [1003.5]


@pytest.mark.spec("SW-22", on="C")
@pytest.mark.parametrize("end", ["is_ended", "is_draining"])
def test_no_alarm_after_the_end(end: str) -> None:
    here = Subscriber()
    setattr(here.box, end, True)
    assert here.run(1000.0) == []
    assert here.alarm.next == math.inf


@pytest.mark.spec("SW-22", on="C")
def test_what_arrived_and_was_not_read_yet_is_no_silence() -> None:
    here = Subscriber()
    assert not here.alarm.look(103.0)
    assert here.alarm.next == 103.0  # at once, but the driver reads before
    here.box.heard = 103.0
    assert here.run(1000.0) == [106.0]


@pytest.mark.spec("SW-22", on="C")
def test_a_process_that_stood_still_cannot_say_that_the_server_was_silent() -> None:
    here = Subscriber()
    assert not here.alarm.look(150.0)
    assert here.run(1000.0) == [153.0]
