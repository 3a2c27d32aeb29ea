"""One seed, one run; its replay, and a simpler run that fails in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.jetstream.reads.simulation.choices import Choices, shrink
from tests.server.simulation.disk import CrashError
from tests.server.simulation.loop import SECOND
from tests.server.simulation.workload import NAMES, Workload
from tests.server.simulation.world import CLIENTS, HISTORY, ViolationError, World, quiet, workspace

STEPS = 260


class Outcome(NamedTuple):
    """How a run ended."""

    violation: ViolationError | None
    history: tuple[str, ...]
    tape: list[int]
    crashes: int
    failures: int
    executed: int

    def report(self) -> str:
        return "\n".join((*self.history, f"VIOLATION {self.violation}"))


def run(
    seed: int | None = None,
    tape: Sequence[int] = (),
    *,
    steps: int = STEPS,
    consumers: bool = True,
    history: int = HISTORY,
) -> Outcome:
    """Run a seed, or a tape of choices."""
    choices = Choices(seed, tape)
    violation: ViolationError | None = None
    with workspace() as directory, quiet() as errors:
        world = World(choices, directory, history=history)
        world.has_consumers = consumers
        world.has_copies = True
        try:
            _run(world, steps)
            if errors.found:
                record = errors.found[0]
                raise ViolationError("no defect", f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")
        except ViolationError as exc:
            violation = exc
        finally:
            world.stop()
    return Outcome(violation, tuple(world.history), choices.made, world.crashes, world.failures, world.executed)


def _run(world: World, steps: int) -> None:
    workload = Workload(world)
    faults = world.choices.below(4)  # 0: none; more: more often
    world.start()
    for number in range(steps):
        world.steps = number
        try:
            _step(world, workload, faults)
        except CrashError as exc:
            world.say(f"crash at {exc}")
            world.crash()
    world.steps = steps
    world.say("no more faults")
    world.disk.heal()
    world.run_loop(100)  # the server learns of the last one
    if world.kept is not None:  # a store that cannot know what the disk has must be opened again
        world.crash()
    world.settle()
    world.rest(10)
    workload.consumers.drain()
    workload.copies.check()
    world.rest(25)
    world.check_expiry()
    workload.schedules.check()
    world.crash()
    world.settle()


def _step(world: World, workload: Workload, faults: int) -> None:
    pick = world.choices
    roll = pick.below(100)
    if roll < 2:
        _race(world, workload)
    elif roll < 3:
        workload.replicas.draw(pick.one_of(NAMES))
    elif roll < 45:
        client = world.clients[pick.below(CLIENTS)]
        if client.wire is not None and client.wire.is_lost:
            world._forget(client)
        if client.wire is None:
            world.connect(client)
        elif not client.outgoing or pick.chance(30):
            workload.draw(client)
        elif pick.chance(30):
            world.deliver(client, 1 + pick.below(150))
        else:
            world.deliver(client, 1 << 20)
    elif roll < 65:
        world.run_loop(1 + pick.below(4))
    elif roll < 82:
        if world.worker.submitted:
            world.worker.run_one()
        else:
            world.run_loop(3)
    elif roll < 88:
        client = world.clients[pick.below(CLIENTS)]
        if not client.is_slow or pick.chance(10):
            world.read(client)
    elif roll < 95 or not faults:
        world.advance((1, 30, 300, 2_000, 20_000)[pick.below(5)] * SECOND // 1000)
    else:
        _fault(world, pick.below(100), faults)


def _race(world: World, workload: Workload) -> None:
    """A read that takes several turns, and changes of what it reads that become visible in between."""
    pick = world.choices
    reader = pick.below(CLIENTS)
    client, other = world.clients[reader], world.clients[(reader + 1) % CLIENTS]
    name = pick.one_of(NAMES)
    if client.wire is None or other.wire is None or workload.stream(name) is None:
        return
    for _ in range(1 + pick.below(4)):
        world.request(other, workload.publish(name))
    world.deliver(other, 1 << 20)
    if workload.stream(name) is not None:
        world.request(client, workload.multi_last(name))
    turn = pick.below(6)
    for number in range(12):
        if number == turn:
            world.deliver(client, 1 << 20)
        if world.worker.submitted and pick.chance(60):
            world.worker.run_one()
        else:
            world.run_loop(1)


def _fault(world: World, roll: int, faults: int) -> None:
    pick = world.choices
    disk = world.disk
    if roll < 25:
        world.cut(world.clients[pick.below(CLIENTS)])
    elif roll < 40:
        disk.error_in, disk.late_error = pick.below(30), pick.chance(10)
        world.say(f"the disk fails in {disk.error_in} operations{', too late' * disk.late_error}")
    elif roll < 50:
        disk.is_full = not disk.is_full
        world.say(f"the disk is {'full' if disk.is_full else 'free'}")
    elif roll < 75:
        if faults > 1:
            disk.crash_in = pick.below(40)
            world.say(f"the machine stops in {disk.crash_in} operations of the disk")
    elif roll < 85:
        world.crash()
    elif roll < 95:
        world.time.offset += (3600, -3600, 7, -7)[pick.below(4)] * SECOND
        world.say("the clock is set")
        world.driver.wake()  # timers run before the next request: what a request finds then is known
        world.run_loop(20)
    else:
        client = world.clients[pick.below(CLIENTS)]
        client.is_slow = not client.is_slow


def simplest(outcome: Outcome, *, rounds: int = 2, consumers: bool = True, history: int = HISTORY) -> Outcome:
    """A simpler run that breaks the same promise."""
    assert outcome.violation is not None
    promise = outcome.violation.promise

    def is_bad(tape: Sequence[int]) -> bool:
        found = run(tape=tape or (0,), consumers=consumers)
        return found.violation is not None and found.violation.promise == promise

    return run(tape=shrink(outcome.tape, is_bad, rounds=rounds), consumers=consumers, history=history)
