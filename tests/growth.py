"""How the cost of a work grows with its size, in CPU time of this thread."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

ATTEMPTS = 40
Size = TypeVar("Size")


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of a work, without collections: those cost by what the whole test run has in memory."""
    gc.disable()
    try:
        start = time.thread_time()
        work()
        return time.thread_time() - start
    finally:
        gc.enable()


def grows_less(cost: Callable[[Size], float], few: Size, many: Size, *, times: float) -> bool:
    """Whether many cost less than `times` as much as few.

    Other work on the machine only adds to a measurement, for as long as it lasts: the least of several is the cost, and
    few and many are measured in turn until it is found. What really grows more does so in each attempt.
    """
    least_few = least_many = float("inf")
    for _ in range(ATTEMPTS):
        least_few, least_many = min(least_few, cost(few)), min(least_many, cost(many))
        if least_many < times * least_few:
            return True
    return False
