"""Clients of a benchmark: one in this process, several in a process each, since threads would share one core.

All of them are connected and prepared before the clock runs; the time is that from the first start to the last end.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slipstream.cli.bench.work import WORK, Plan
from slipstream.errors import Error, RequestTimeoutError

if TYPE_CHECKING:
    from slipstream.cli.output import Meter

START = 60.0  # seconds for all clients to be ready
STALL_TIMEOUT = 600.0  # seconds without progress of any client


def run_clients(plans: Sequence[Plan], meter: Meter | None, before: Callable[[], None] | None) -> float:
    """Do the work of all plans at once; returns the seconds it took. `before` is called when all are ready."""
    if len(plans) == 1:
        return _run_here(plans[0], meter, before)
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    start = context.Event()
    processes = [
        context.Process(target=_client, args=(at, plan, start, results), daemon=True) for at, plan in enumerate(plans)
    ]
    for process in processes:
        process.start()
    try:
        return _collect(len(plans), results, start, meter, before)
    finally:
        for process in processes:
            process.terminate()
            process.join(timeout=10.0)


def _run_here(plan: Plan, meter: Meter | None, before: Callable[[], None] | None) -> float:
    from slipstream import connect_blocking

    def progress(done: int) -> None:
        if meter is not None:
            meter(done)

    with connect_blocking(**plan.connect) as client:
        run = WORK[plan.work](client, plan, progress)
        if before is not None:
            before()
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin


def _collect(number: int, results: Any, start: Any, meter: Meter | None, before: Callable[[], None] | None) -> float:
    """Wait until all are ready, start them, and wait until all are done; raises the first failure."""
    for _ in range(number):
        _next(results, START)
    start.set()
    if before is not None:
        before()
    done = [0] * number
    begins: list[float] = []
    ends: list[float] = []
    while len(ends) < number:
        at, kind, value = _next(results, STALL_TIMEOUT)
        if kind == "progress":
            done[at] = value
            if meter is not None:
                meter(sum(done))
        else:
            begins.append(value[0])
            ends.append(value[1])
    return max(ends) - min(begins)


def _next(results: Any, timeout: float) -> tuple[int, str, Any]:
    try:
        at, kind, value = results.get(timeout=timeout)
    except queue.Empty:
        raise RequestTimeoutError(f"the clients of the benchmark made no progress for {timeout:.0f} s") from None
    if kind == "failed":
        raise value
    return at, kind, value


def _client(at: int, plan: Plan, start: Any, results: Any) -> None:
    """The process of one client."""
    from slipstream import connect_blocking

    try:
        with connect_blocking(**plan.connect) as client:
            run = WORK[plan.work](client, plan, lambda done: results.put((at, "progress", done)))
            results.put((at, "ready", 0))
            if not start.wait(timeout=START):
                return
            begin = time.monotonic()  # one clock for all processes of a machine
            run()
            results.put((at, "done", (begin, time.monotonic())))
    except (Error, OSError) as error:
        results.put((at, "failed", error if isinstance(error, Error) else Error(str(error))))
