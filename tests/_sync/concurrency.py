"""Concurrency for tests of both drivers: background threads, waiting for a condition, a pause. The blocking side.

Written by hand, like its twin `tests/_async/concurrency.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")

TIMEOUT = 30.0
sleep = time.sleep


class Task(Generic[T]):
    """A function that runs beside the test, in a thread."""

    def __init__(self, main: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        Thread(target=self._run, args=(main,), daemon=True).start()

    def _run(self, main: Callable[[], T]) -> None:
        try:
            self._future.set_result(main())
        except BaseException as error:
            self._future.set_exception(error)

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._future.done()

    def result(self, *, timeout: float = TIMEOUT) -> T:
        """Wait for its end; returns or raises as it did."""
        return self._future.result(timeout)


def run(main: Callable[[], T]) -> T:
    """Run a function as a whole program."""
    return main()


def spawn(main: Callable[[], T]) -> Task[T]:
    """Run a function beside the test."""
    return Task(main)


def until(check: Callable[[], bool], *, timeout: float = TIMEOUT) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)
