"""The stores alone: what appending, committing (synced), reading and purging cost on this machine's disk.

`python -m benchmarks.store` measures 128-byte messages over 1,000 subjects in groups of 2,000. `--big` builds a
stream of 10 million messages over 1 million subjects in LMDB and measures that: opening it, memory, reads, purges.
Everything runs in one thread, so a rate of commits has the disk's time in it; "longest step" is what a loop would
stand still for at most.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from benchmarks.report import Row, row, table
from slipstream.server.engine.ports import StreamLog
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore

PAYLOAD = b"x" * 128
GROUP = 2_000
MESSAGES = 400_000
SUBJECTS = [f"orders.eu.{n}" for n in range(1000)]
Store = LmdbStore | MemoryStore
T = TypeVar("T")


class Driver:
    """Carries groups through, and keeps the longest step that would have been on the loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.longest = 0.0

    def carry(self) -> None:
        store = self.store
        group = self.step(store.seal)
        store.begin(group)
        while not self.step(lambda: store.write_some(group)):
            pass
        store.commit(group)
        self.step(lambda: store.finish(group))

    def step(self, call: Callable[[], T]) -> T:
        start = perf_counter()
        result = call()
        self.longest = max(self.longest, perf_counter() - start)
        return result

    def fill(self, log: StreamLog, count: int, subject: Callable[[int], str]) -> float:
        """Append and commit; returns messages per second."""
        start = perf_counter()
        for n in range(count):
            log.append(n, subject(n), b"", PAYLOAD)
            if n % GROUP == GROUP - 1:
                self.carry()
        self.carry()
        return count / (perf_counter() - start)


def rate(call: Callable[[int], object], count: int) -> float:
    """Calls per second."""
    start = perf_counter()
    for n in range(count):
        call(n)
    return count / (perf_counter() - start)


def scan_rate(log: StreamLog, pattern: str, limit: int = 500) -> float:
    """Messages per second, read in chunks from the beginning to the end."""
    start, count, seq = perf_counter(), 0, 1
    while chunk := log.scan(pattern, seq, limit=limit):
        count += len(chunk)
        seq = chunk[-1].seq + 1
    return count / (perf_counter() - start)


def resident(kind: str = "RssAnon") -> float:
    """MB that the process holds; `RssFile` is nearly all page cache of the mapped file."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines())
    return int(status[kind].split()[0]) / 1024


def measure(name: str, store: Store) -> list[Row]:
    """The usual work on one store."""
    driver = Driver(store)
    log = store.create("BENCH", b"{}")
    rows = [row(f"{name}: append and commit", driver.fill(log, MESSAGES, lambda n: SUBJECTS[n % 1000]))]
    print(f"{name}: longest step {driver.longest * 1e3:.1f} ms")
    seqs = [random.randrange(MESSAGES) + 1 for _ in range(100_000)]
    rows.append(row(f"{name}: get", rate(lambda n: log.get(seqs[n]), 100_000)))
    rows.append(row(f"{name}: last of a subject", rate(lambda n: log.last(SUBJECTS[seqs[n] % 1000]), 100_000)))
    rows.append(row(f"{name}: scan, chunks of 500", scan_rate(log, ">")))
    rows.append(row(f"{name}: scan of one subject", scan_rate(log, SUBJECTS[7])))
    rows.append(row(f"{name}: scan of a filter that one in a thousand match", scan_rate(log, "orders.*.9")))

    def replace(n: int) -> None:
        subject = SUBJECTS[n % 1000]
        log.append(n, subject, b"", PAYLOAD)
        log.remove(log.first_seq_of(subject))
        if n % GROUP == GROUP - 1:
            driver.carry()

    rows.append(row(f"{name}: append, remove the subject's oldest, commit", rate(replace, 50_000)))

    def expire(n: int) -> None:
        log.append(n, SUBJECTS[n % 1000], b"", PAYLOAD)
        log.purge(below=log.state.first_seq + 1)
        if n % GROUP == GROUP - 1:
            driver.carry()

    rows.append(row(f"{name}: append, drop the oldest, commit", rate(expire, 50_000)))
    return rows


def run() -> list[Row]:
    """Measure both stores."""
    rows = measure("memory", MemoryStore())
    path = tempfile.mkdtemp(prefix="store-", dir=".")
    try:
        store = LmdbStore(path)
        rows += measure("LMDB", store)
        store.close()
    finally:
        shutil.rmtree(path)
    return rows


def big(path: Path, messages: int = 10_000_000, subjects: int = 1_000_000) -> None:
    """Print the rates of a large stream."""
    if not path.exists():
        store = LmdbStore(path)
        driver = Driver(store)
        log = store.create("BIG", b"{}")
        pick = random.Random(1).randrange
        speed = driver.fill(log, messages, lambda _: f"events.{pick(subjects)}")
        size = (path / "data.mdb").stat().st_size
        print(f"built at {speed:,.0f} messages/s, {size / messages:,.0f} bytes of file each")
        print(f"  longest step {driver.longest * 1e3:.1f} ms, {resident():.0f} MB of memory")
        store.close()
        del store, log, driver
    before, start = resident(), perf_counter()
    store = LmdbStore(path)
    print(f"opened in {(perf_counter() - start) * 1e3:.0f} ms, {resident() - before:.0f} MB more memory")
    log, driver = store.log("BIG"), Driver(store)
    state = log.committed
    print(f"  {state.messages:,} messages, {state.subjects:,} subjects")
    pick = random.Random(2).randrange
    seqs = [state.first_seq + pick(state.last_seq - state.first_seq) for _ in range(100_000)]
    names = [f"events.{pick(subjects)}" for _ in range(100_000)]
    for _ in range(2):  # the first round has a cold cache in the process
        print(f"  get {1e6 / rate(lambda n: log.get(seqs[n]), 100_000):.1f} us, "
              f"last {1e6 / rate(lambda n: log.last(names[n]), 100_000):.1f} us, "
              f"count of {1e6 / rate(lambda n: log.count_of(names[n]), 100_000):.1f} us")  # fmt: skip
    print(f"  scan {scan_rate(log, '>'):,.0f} messages/s")
    print(f"  scan of one subject {driver_ms(lambda: log.scan(names[0], 1, limit=100)):.1f} ms, "
          f"newest of a rare filter {driver_ms(lambda: log.last('*.' + names[0].split('.')[1])):.1f} ms")  # fmt: skip
    print(f"  {resident():.0f} MB of memory, {resident('RssFile'):.0f} MB of page cache")
    below = state.first_seq + 1_000_000
    print(f"purge of the first million: {driver_ms(lambda: log.purge(below=below)):.0f} ms to be gone")
    start, groups = perf_counter(), 0
    while store.backlog:
        driver.carry()
        groups += 1
    print(f"  cleared by {groups} groups in {perf_counter() - start:.1f} s")
    print(f"  longest step {driver.longest * 1e3:.1f} ms, {resident():.0f} MB of memory")
    print(f"purge of all: {driver_ms(log.purge):.1f} ms")
    store.abandon()
    store.close()


def driver_ms(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return (perf_counter() - start) * 1e3


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big", action="store_true", help="10 million messages over 1 million subjects")
    parser.add_argument("--path", type=Path, help="where the big store is kept, and found again")
    options = parser.parse_args()
    if not options.big:
        print(table(run()))
        return
    scratch = Path(tempfile.mkdtemp(prefix="store-", dir="."))
    try:
        big(options.path or scratch / "big")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
