"""Signals of the operating system for the asyncio driver: a call on the event loop for each.

`signal.signal` and not `loop.add_signal_handler`, which has room for a single handler and forgets the one from before.
Written by hand, like its twin `client/_sync/signals.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from slipstream.client._sync import signals as in_main_thread
from slipstream.client._sync.signals import TERMINATION, Signals

__all__ = ["TERMINATION", "Signals", "on_signals"]


@contextmanager
def on_signals(signals: Sequence[Signals], call: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of a signal that arrives: once, a second signal has its usual effect."""
    loop = asyncio.get_running_loop()

    def call_soon(name: str) -> None:
        loop.call_soon_threadsafe(call, name)

    with in_main_thread.on_signals(signals, call_soon):
        yield
