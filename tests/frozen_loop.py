"""An event loop whose clock stands still until a test moves it, while its sockets work as ever.

With it a test of timers against a real server says exactly when something happens, on a machine of any speed. Nothing
in such a test may wait for time to pass by itself: it waits for frames, and moves the clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine

LIMIT = 60.0  # seconds of the real clock for a test


class FrozenLoop(asyncio.SelectorEventLoop):
    _now = 1000.0

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock; timers that are due run in the next turns of the loop."""
        self._now += seconds


def run_frozen(main: Callable[[FrozenLoop], Coroutine[None, None, None]]) -> None:
    """Run a test on such a loop."""
    with asyncio.Runner(loop_factory=FrozenLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, FrozenLoop)
        task = loop.create_task(main(loop))
        alarm = threading.Timer(LIMIT, lambda: loop.call_soon_threadsafe(task.cancel, "the test takes too long"))
        alarm.start()
        try:
            loop.run_until_complete(task)
        finally:
            alarm.cancel()
