"""Signals of the operating system for the blocking driver: a call in the main thread for each.

A handler calls the one that it replaced if that is one of ours, too, so that all workers of a program hear of a
signal. It works once: the first signal puts the program's own handlers back, so that a second one ends the program.
Written by hand, like its twin `client/_async/signals.py`, which has the same handlers call on its event loop.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from signal import SIGINT, SIGTERM, Signals
from types import FrameType
from typing import Any

from slipstream.errors import UsageError

__all__ = ["TERMINATION", "SignalHandler", "Signals", "on_signals"]

TERMINATION: Sequence[Signals] = (SIGTERM, SIGINT)


class SignalHandler:
    """One function for several signals, and the handlers that it replaced."""

    def __init__(self, signals: Sequence[Signals], call: Callable[[str], None]) -> None:
        self._signals = [Signals(number) for number in signals]
        self._call = call
        self._replaced: dict[Signals, Any] = {}  # what `signal.signal` gives and takes

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        replaced = self._replaced.get(Signals(number))
        self.remove()
        self._call(Signals(number).name)
        if isinstance(replaced, SignalHandler):
            replaced(number, frame)

    def install(self) -> None:
        """Replace the handlers; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "signals must be handled in the main thread, as Python allows no other; this is thread "
                f"{threading.current_thread().name!r}: call stop(give_back=True) there when one arrives"
            )
        for number in self._signals:
            self._replaced[number] = signal.signal(number, self)

    def remove(self) -> None:
        """Put the handlers from before back, where this one is still in place."""
        for number, before in self._replaced.items():
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._replaced.clear()


@contextmanager
def on_signals(signals: Sequence[Signals], call: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of a signal that arrives: once, a second signal has its usual effect."""
    handler = SignalHandler(signals, call)
    handler.install()
    try:
        yield
    finally:
        handler.remove()
