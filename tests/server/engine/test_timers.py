"""Deadlines in virtual time."""

from __future__ import annotations

from slipstream.server.engine.timers import Timers
from slipstream.server.loop.clock import Clock

SECOND = 1_000_000_000


def test_deadlines_are_met_in_order_and_equal_ones_as_they_were_made() -> None:
    timers, seen = Timers(), list[str]()
    for when, name in ((30, "c"), (10, "a"), (10, "b"), (99, "later")):
        timers.at(when, lambda _, name=name: seen.append(name))  # type: ignore[misc]
    assert timers.next_deadline() == 10
    timers.due(30)
    assert seen == ["a", "b", "c"]
    assert timers.next_deadline() == 99


def test_cancelled_timers_do_not_run_and_do_not_pile_up() -> None:
    timers, seen = Timers(), list[int]()
    far = timers.at(1_000_000, seen.append)
    for n in range(5000):
        timers.at(n, seen.append).cancel()
    assert len(timers._heap) < 2500
    timers.due(10_000)
    assert seen == []
    assert timers.next_deadline() == 1_000_000
    far.cancel()
    assert timers.next_deadline() is None


def test_a_deadline_may_set_the_next_one() -> None:
    timers, seen = Timers(), list[int]()

    def again(now: int) -> None:
        seen.append(now)
        if now < 30:
            timers.at(now + 10, again)

    timers.at(10, again)
    timers.due(10)
    timers.due(20)
    timers.due(25)
    timers.due(40)
    assert seen == [10, 20, 40]


def test_the_clock_keeps_going_when_the_system_clock_is_changed() -> None:
    """Redeliveries, heartbeats and ends of requests come in their time, whatever the machine's clock is set to."""
    wall, ticks = [1_000 * SECOND], [50 * SECOND]
    clock = Clock(lambda: wall[0], lambda: ticks[0])
    assert clock() == 1_000 * SECOND
    wall[0] -= 3_600 * SECOND
    ticks[0] += SECOND
    assert clock() == 1_001 * SECOND
    wall[0] += SECOND
    ticks[0] += SECOND
    assert clock() == 1_002 * SECOND
    wall[0] += 7_200 * SECOND  # and forward, or the machine slept
    assert clock() == wall[0]


def test_the_clock_is_never_ahead_of_a_machine_that_stands_still_between_two_readings() -> None:
    """A message that was stored is older than now: a read up to now finds it."""
    passed = [0]
    pauses = [0, SECOND, 0, 0, 5, 3 * SECOND, 0, 2 * SECOND] * 3

    def read(start: int) -> int:
        """Other programs run before a reading."""
        passed[0] += pauses.pop() if pauses else 0
        return start + passed[0]

    clock = Clock(lambda: read(1_000 * SECOND), lambda: read(50 * SECOND))
    before = 0
    while pauses:
        now = clock()
        assert before <= now <= 1_000 * SECOND + passed[0]
        before = now
