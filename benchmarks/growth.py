"""Growth: what a large stream, a large purge, many connections and many consumers cost.

`python -m benchmarks.growth` (`make bench-growth`) builds a stream of 10 million messages over a million subjects in
the LMDB store, group by group as the server does, and prints the rate and the CPU of each tenth; then the time and the
memory to open it, the time of commits before and after a purge of half of it, and the size of the file before and after
a compaction. A server in a process of its own then has 10,000 idle connections, and a stream with 1,000 consumers.
`--messages`, `--subjects`, `--connections` and `--consumers` make it smaller. On a busy machine CPU
tells more than rates.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.server import CONNECT, Wire
from slipstream.server.engine.ports import StreamLog
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb.store import LmdbStore

PAYLOAD = b"x" * 128
GROUP = 2_000
PUBLISHED = 100_000  # messages to a stream with consumers


def written() -> int:
    """Bytes that this process has written to the disk."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def memory(pid: int | str = "self") -> tuple[float, float]:
    """MB of memory of a process: its own, and of pages of files."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines())
    return int(status["RssAnon"].split()[0]) / 1024, int(status["RssFile"].split()[0]) / 1024


def build(path: Path, messages: int, subjects: int) -> None:
    """Fill a stream, and print how that went."""
    store = LmdbStore(path)
    log = store.create("BIG", b"{}")
    pick = random.Random(1).randrange
    print("build:       k/s   CPU us   bytes written a message   MB memory")
    for tenth in range(10):
        picks = [pick(subjects) for _ in range(messages // 10)]  # not what is measured
        wall, cpu, size = time.perf_counter(), time.process_time(), written()
        for n, picked in enumerate(picks):
            log.append(n, f"events.{picked}", b"", PAYLOAD)
            if n % GROUP == GROUP - 1:
                commit_open_group(store)
        commit_open_group(store)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        count = messages // 10
        size = (written() - size) // count
        print(
            f"  {tenth + 1:2}/10  {count / wall / 1e3:7.1f}  {cpu / count * 1e6:7.2f}  {size:24}  {memory()[0]:10.0f}"
        )
    while store.backlog:
        commit_open_group(store)
    store.close()


def _open(path: Path, sender: Connection) -> None:
    before = memory()
    start = time.perf_counter()
    store = LmdbStore(path)
    took, cpu, after = time.perf_counter() - start, time.process_time(), memory()
    state = store.log("BIG").committed
    sender.send((took, cpu, after[0] - before[0], after[1], state.messages, state.subjects))
    store.close()


def reopen(path: Path) -> None:
    """Print what it takes to open the store, in a new process."""
    receiver, sender = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_open, args=(path, sender))
    child.start()
    took, cpu, own, pages, messages, subjects = receiver.recv()
    child.join()
    print(
        f"open: {took:.2f} s ({cpu:.2f} s of CPU, imports included), {own:.0f} MB and {pages:.0f} MB of pages; "
        f"{messages:,} messages, {subjects:,} subjects"
    )


def commits(store: LmdbStore, log: StreamLog, subjects: int, name: str) -> None:
    """Print the time of commits of 100 messages."""
    pick, times, cpu = random.Random(3).randrange, [], time.process_time()
    for _ in range(200):
        for n in range(100):
            log.append(n, f"events.{pick(subjects)}", b"", PAYLOAD)
        start = time.perf_counter()
        commit_open_group(store)
        times.append(time.perf_counter() - start)
    times.sort()
    cpu = time.process_time() - cpu
    print(
        f"commits of 100 messages {name}: p50 {times[100] * 1e3:.1f} ms, p99 {times[197] * 1e3:.1f} ms, "
        f"{cpu / 200 * 1e3:.2f} ms of CPU",
        flush=True,
    )


def purge(path: Path, subjects: int) -> None:
    """Purge half, and print what commits take; then compact."""
    store = LmdbStore(path)
    log = store.log("BIG")
    commits(store, log, subjects, "before the purge")
    start = time.perf_counter()
    state = log.committed
    log.purge(below=(state.first_seq + state.last_seq) // 2)
    commit_open_group(store)
    print(f"purge of half: {(time.perf_counter() - start) * 1e3:.0f} ms until it is gone")
    commits(store, log, subjects, "while it is removed")
    start, cpu, groups = time.perf_counter(), time.process_time(), 0
    while store.backlog:
        commit_open_group(store)
        groups += 1
    print(
        f"  removed in {time.perf_counter() - start:.1f} s ({time.process_time() - cpu:.1f} s of CPU), {groups} groups"
    )
    commits(store, log, subjects, "after the purge")
    compaction = store.compact()
    start, cpu, longest, longest_finish, is_ready = time.perf_counter(), time.process_time(), 0.0, 0.0, False
    while not is_ready:
        compaction.begin()
        begun = time.perf_counter()
        compaction.work()
        longest, begun = max(longest, time.perf_counter() - begun), time.perf_counter()
        is_ready = compaction.finish()
        longest_finish = max(longest_finish, time.perf_counter() - begun)
    begun = time.perf_counter()
    compaction.replace()
    replaced, begun = time.perf_counter() - begun, time.perf_counter()
    compaction.switch()
    switched = time.perf_counter() - begun
    compaction.close()
    print(
        f"compaction: {compaction.before / 1e6:.0f} MB -> {compaction.after / 1e6:.0f} MB "
        f"in {time.perf_counter() - start:.1f} s ({time.process_time() - cpu:.1f} s of CPU); "
        f"longest slice {longest * 1e3:.0f} ms in a thread, on the loop "
        f"{max(longest_finish, switched) * 1e3:.1f} ms; commits wait {replaced * 1e3:.0f} ms"
    )
    commits(store, log, subjects, "after the compaction")
    store.close()


@contextmanager
def serving(path: Path) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port and its pid."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "slipstream", "server", "-a", "127.0.0.1", "-p", str(port), "-sd", str(path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port, server.pid
    finally:
        server.terminate()
        server.wait(60)


def idle(path: Path, count: int) -> None:
    """Print the memory of idle connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server has it from here
    if 0 <= hard < count + 100:
        print(f"{count} connections need that many open files: the limit is {hard}")
        count = hard - 100
    with serving(path) as (port, pid):
        Wire(port).close()
        before, open_ = memory(pid)[0], []
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", port), timeout=60)
            sock.sendall(CONNECT + b"SUB some.subject 1\r\nPING\r\n")
            while b"PONG\r\n" not in sock.recv(4096):
                pass
            open_.append(sock)
        after = memory(pid)[0]
        print(
            f"{count} idle connections: {after:.0f} MB of memory, {(after - before) * 1024 / count:.1f} kB for each",
            flush=True,
        )
        for sock in open_:
            sock.close()


def consumers(path: Path, count: int) -> None:
    """Print the rate of publishes to a stream with one consumer, and with many."""
    with serving(path) as (port, pid):
        found: list[tuple[float, float]] = []
        for name, number in (("ONE", 1), ("MANY", count)):
            wire = Wire(port, name)
            wire.api(f"STREAM.CREATE.{name}", b'{"name":"%b","subjects":["%b.*"]}' % (name.encode(), name.encode()))
            for n in range(number):
                body = b'{"stream_name":"%b","config":{"durable_name":"c%d","ack_policy":"explicit"}}' % (
                    name.encode(),
                    n,
                )
                wire.api(f"CONSUMER.CREATE.{name}.c{n}", body)
            publish(wire, name, 2_000)
            wall, cpu = time.perf_counter(), cpu_of(pid)
            publish(wire, name, PUBLISHED)
            found.append((PUBLISHED / (time.perf_counter() - wall), (cpu_of(pid) - cpu) / PUBLISHED * 1e6))
            stored = wire.api(f"STREAM.INFO.{name}")
            if b'"messages":%d,' % (PUBLISHED + 2_000) not in stored:
                raise RuntimeError(f"not all messages were stored: {stored!r}")
            wire.close()
    (one, one_cpu), (many, many_cpu) = found
    print(
        f"publishes to a stream with 1 / {count} consumers: {one / 1e3:.1f} / {many / 1e3:.1f} thousand a second "
        f"({many / one:.2f}x), CPU of the server {one_cpu:.1f} / {many_cpu:.1f} us ({one_cpu / many_cpu:.2f}x)"
    )


def publish(wire: Wire, name: str, count: int) -> None:
    frame = b"".join(b"PUB %b.%d %br 128\r\n%b\r\n" % (name.encode(), n % 100, wire.inbox, PAYLOAD) for n in range(500))
    sent = acked = 0
    tail = b""
    while acked < count:
        while sent < count and sent - acked < 4_000:
            wire.sock.sendall(frame)
            sent += 500
        data = tail + wire.sock.recv(1 << 20)
        acked += data.count(b'"seq":')
        tail = data[-5:]


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--subjects", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--consumers", type=int, default=1_000)
    options = parser.parse_args()
    gc.set_threshold(100_000, 50, 50)  # as `slipstream server` does
    scratch = Path(tempfile.mkdtemp(prefix="growth-", dir="."))
    try:
        if options.messages:
            build(scratch / "big", options.messages, options.subjects)
            reopen(scratch / "big")
            purge(scratch / "big", options.subjects)
            reopen(scratch / "big")
        if options.connections:
            idle(scratch / "idle", options.connections)
        if options.consumers:
            consumers(scratch / "consumers", options.consumers)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
