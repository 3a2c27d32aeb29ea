"""A program that contends for a lock and writes when its `check()` passed: see `tests/lock_history.py`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from slipstream import connect
from slipstream.errors import LeaseLostError
from slipstream.kv._async.lease import Lock
from tests._async.concurrency import run, sleep
from tests.lock_history import Recorder

LONGEST = 60.0  # a contender whose test was killed ends by itself


async def hold_until_lost(lock: Lock, recorder: Recorder, seconds: float) -> None:
    until = time.monotonic() + (seconds or LONGEST)
    while (before := time.monotonic()) < until:
        try:
            recorder.record(lock.check(), before)
        except LeaseLostError:
            recorder.record(0, before)
            return
        await sleep(0.002)


async def main() -> None:
    url, bucket, name, history, hold = sys.argv[1:]
    ends = time.monotonic() + LONGEST
    with Path(history).open("a") as file:
        recorder = Recorder(file, name)
        async with connect(url) as nc:
            lock = (await nc.jetstream().key_value(bucket)).lock("job", ttl=1, name=name)
            while time.monotonic() < ends:
                await lock.acquire()
                await hold_until_lost(lock, recorder, float(hold))
                await lock.release()


if __name__ == "__main__":
    run(main)
