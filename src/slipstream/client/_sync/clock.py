"""The clock of ages, for drivers; what is pure gets the time as an argument."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

# Seconds since some time. They also pass while the machine is suspended, where the system has such a clock. The clocks
# of event loops do not run then, and uvloop's stands still while a task blocks it.
uptime: Callable[[], float] = time.monotonic
if sys.platform == "linux":
    uptime = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
