"""The thread of commits beside a busy loop: who has the interpreter's lock, and for how long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slipstream.server import Server
from slipstream.server.loop import committer
from slipstream.server.loop.committer import Committer, Worker
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import pub
from tests.server.support import Rig

LONG = 30.0


class Waits(threading.Event):
    """Notes the timeouts with which it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.timeouts.append(timeout)
        return super().wait(min(timeout, 0.05) if timeout < LONG else timeout)


@contextmanager
def busy_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Worker, list[float]]]:
    """A thread that is given way at once, and for as long as it runs Python code; how long the loop waited at most."""
    monkeypatch.setattr(committer, "YIELD_AFTER", 0.0)
    monkeypatch.setattr(committer, "GIVE_WAY", LONG)
    worker, waits = Worker(asyncio.get_running_loop(), MemoryStore()), Waits()
    worker._moved_on = waits
    try:
        yield worker, waits.timeouts
    finally:
        worker.stop()


def ignore(_: BaseException | None) -> None:
    """A step is done."""


async def test_loop_waits_for_the_python_code_of_a_commit_and_not_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    done, disk = list[str](), threading.Event()

    with busy_loop(monkeypatch) as (worker, waits):

        def step() -> None:
            for _ in range(200_000):
                pass
            done.append("python")
            worker.waits_for_disk()
            assert disk.wait(LONG)

        worker.submit(step, ignore)
        worker.give_way()
        assert done == ["python"]
        worker.give_way()  # looks for a moment only
        assert waits[0] == LONG
        assert waits[1] < LONG
        disk.set()


async def test_loop_does_not_wait_without_a_commit_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with busy_loop(monkeypatch) as (worker, waits):
        ended = asyncio.Event()
        worker.give_way()
        worker.submit(lambda: None, lambda _: ended.set())
        await ended.wait()
        while worker._finished != worker._submitted:  # the last thing that the thread does
            await asyncio.sleep(0)
        worker.give_way()
        assert waits == []


async def test_loop_looks_for_a_tenth_of_its_time_at_a_step_that_does_not_say_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = threading.Event()

    def step() -> None:
        assert disk.wait(LONG)

    with busy_loop(monkeypatch) as (worker, waits), monkeypatch.context() as patch:
        patch.setattr(committer, "GIVE_WAY", 0.01)
        worker.submit(step, ignore)
        worker.give_way()
        assert waits == [0.01]
        now = 0.0
        patch.setattr(committer, "monotonic", lambda: now)
        for worked in (0.02, 0.05, 1.0):
            now = worker._worked_from + worked
            worker.give_way()
        assert waits[1:] == pytest.approx([0.002, 0.005, 0.01])
        disk.set()


async def test_timer_of_a_busy_server_adds_no_turn_to_each_round_of_the_loop() -> None:
    steps: list[int] = []
    async with Server(port=0) as server:
        driver = server._driver
        assert driver is not None
        is_busy = True

        def step(now: int) -> bool:
            steps.append(now)
            return is_busy

        driver.engine.step = step  # type: ignore[method-assign]
        try:
            driver.wake()
            for _ in range(5):
                driver._timer_fired()  # while a turn is scheduled
            steps.clear()
            for _ in range(20):
                await asyncio.sleep(0)
        finally:
            is_busy = False
            del driver.engine.step
        assert 0 < len(steps) <= 20


@pytest.mark.parametrize("is_refused", [True, False])
async def test_commit_in_memory_lets_the_jobs_go_on_that_waited_for_it(is_refused: bool) -> None:
    rig, turns = Rig(), list[str]()
    client = rig.client()
    client.create("S")
    (journal,) = rig.engine.journals
    own = Committer(
        rig.engine,
        journal,
        worker=None,
        clock=lambda: rig.now,
        wake=lambda: turns.append("turn"),
        group_sealed=lambda: None,
    )
    for _ in range(2):
        client.send(pub("s.a", b"x"), settle=False)
        if is_refused:
            assert not journal.admits(0)
        turns.clear()
        own.turn()
        assert journal.settled
        assert turns == (["turn"] if is_refused else [])
        assert journal.admits(0)
