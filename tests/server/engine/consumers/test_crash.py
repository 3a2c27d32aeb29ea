"""`kill -9` while consumers work: acknowledged messages are not redelivered, and none is lost."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import socket
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tests.servers import OurProcess

MESSAGE = re.compile(rb"MSG (\S+) 1 (\$JS\.ACK\.\S+) \d+\r\nn-(\d+)\r\n")
STORED = re.compile(rb'MSG in\d+\.([A-Z])(\d+) 1 \d+\r\n\{"stream":"\w","seq":\d+\}\r\n')
WORK = re.compile(rb"MSG \S+ 1 (\$JS\.ACK\.\S+) \d+\r\nn-(\d+)\r\n|MSG in\d+\.a(\d+) 1 0\r\n\r\n")
STREAMS = {
    "L": {"retention": "limits"},
    "W": {"retention": "workqueue"},
    "I": {"retention": "interest"},
}


_numbers = itertools.count(1)


class Line:
    """A raw connection with one inbox."""

    def __init__(self, port: int) -> None:
        self.inbox = f"in{next(_numbers)}"
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n')
        self.send(f"SUB {self.inbox}.* 1\r\n".encode())
        self.buffer = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> bytes:
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionError
        self.buffer += data
        return data

    def ask(self, subject: str, body: object = b"") -> dict[str, object]:
        payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.send(f"PUB {subject} {self.inbox}.api {len(payload)}\r\n".encode() + payload + b"\r\n")
        while (found := re.search(rb"MSG in\d+\.api 1 \d+\r\n(.*?)\r\n", self.buffer)) is None:
            self.receive()
        self.buffer = self.buffer.replace(found[0], b"", 1)
        answer: dict[str, object] = msgspec.json.decode(found[1])
        return answer


class Publisher(threading.Thread):
    """Publishes numbers to all streams; remembers which were acknowledged."""

    def __init__(self, port: int, start: int) -> None:
        super().__init__()
        self.sent = start
        self.stored: dict[str, set[int]] = {name: set() for name in STREAMS}
        self._port = port

    def run(self) -> None:
        with contextlib.suppress(OSError), Line(self._port) as line:
            done = 0
            start = self.sent
            while True:
                if self.sent - start - done // len(STREAMS) < 100:
                    parts = []
                    for _ in range(20):
                        body = b"n-%d" % self.sent
                        parts += [
                            f"PUB {name}.x {line.inbox}.{name}{self.sent} {len(body)}\r\n".encode() + body + b"\r\n"
                            for name in STREAMS
                        ]
                        self.sent += 1
                    line.send(b"".join(parts))
                line.receive()
                end = 0
                for found in re.finditer(
                    rb'MSG in\d+\.([A-Z])(\d+) 1 \d+\r\n\{"stream":"\w","seq":\d+\}\r\n', line.buffer
                ):
                    self.stored[found[1].decode()].add(int(found[2]))
                    done += 1
                    end = found.end()
                line.buffer = line.buffer[end:]


class Worker(threading.Thread):
    """Pulls from one consumer: acks most messages, and waits for the answer to every second ack."""

    def __init__(self, port: int, stream: str, seed: int) -> None:
        super().__init__()
        self.stream = stream
        self.seen: list[int] = []
        self.sure: set[int] = set()  # acks that were answered
        self._port, self._chance = port, random.Random(seed)

    def run(self) -> None:
        with contextlib.suppress(OSError), Line(self._port) as line:
            pull = b'{"batch":50,"expires":2000000000}'
            request = (
                f"PUB $JS.API.CONSUMER.MSG.NEXT.{self.stream}.c {line.inbox}.p {len(pull)}\r\n".encode()
                + pull
                + b"\r\n"
            )
            line.send(request)
            taken = 0
            while True:
                line.receive()
                end = 0
                parts = []
                for found in WORK.finditer(line.buffer):
                    end = found.end()
                    if found[3]:
                        self.sure.add(int(found[3]))
                        continue
                    number = int(found[2])
                    self.seen.append(number)
                    taken += 1
                    choice = self._chance.random()
                    if choice < 0.5:
                        parts.append(b"PUB %b %b.a%d 4\r\n+ACK\r\n" % (found[1], line.inbox.encode(), number))
                    elif choice < 0.9:
                        parts.append(b"PUB %b 4\r\n+ACK\r\n" % found[1])
                    elif choice < 0.95:
                        parts.append(b"PUB %b 4\r\n-NAK\r\n" % found[1])
                line.buffer = line.buffer[end:]
                if taken >= 40 or b"NATS/1.0 408" in line.buffer:
                    parts.append(request)
                    taken = 0
                    if b"NATS/1.0 408" in line.buffer:
                        line.buffer = b""
                if parts:
                    line.send(b"".join(parts))


def prepare(port: int) -> None:
    with Line(port) as line:
        for name, config in STREAMS.items():
            answer = line.ask(
                f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "file"} | config
            )
            assert "error" not in answer, answer
            consumer = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 500_000_000, "max_ack_pending": 2000}
            answer = line.ask(f"$JS.API.CONSUMER.DURABLE.CREATE.{name}.c", {"stream_name": name, "config": consumer})
            assert "error" not in answer, answer


def drain(port: int, stream: str) -> list[int]:
    """Everything that is left, each acked and the ack answered."""
    with Line(port) as line:
        return _drain(line, stream)


def _drain(line: Line, stream: str) -> list[int]:
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        body = b'{"batch":500,"expires":1000000000}'
        line.send(f"PUB $JS.API.CONSUMER.MSG.NEXT.{stream}.c {line.inbox}.p {len(body)}\r\n".encode() + body + b"\r\n")
        line.buffer = b""
        acked = 0
        while b"NATS/1.0 408" not in line.buffer and acked < 500:
            line.receive()
            end = 0
            for found in MESSAGE.finditer(line.buffer):
                seen.append(int(found[3]))
                line.send(b"PUB %b 4\r\n+ACK\r\n" % found[2])
                acked += 1
                end = found.end()
            line.buffer = line.buffer[end:]
        info = line.ask(f"$JS.API.CONSUMER.INFO.{stream}.c")
        if not info["num_pending"] and not info["num_ack_pending"]:
            return seen
    raise AssertionError(f"{stream}: not drained")


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_acked_messages_are_not_redelivered_and_none_is_lost_after_kill_9(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(5)
    server = OurProcess(tmp_path)
    stored: dict[str, set[int]] = {name: set() for name in STREAMS}
    seen: dict[str, set[int]] = {name: set() for name in STREAMS}
    sure: dict[str, set[int]] = {name: set() for name in STREAMS}
    sent = 0
    for round_ in range(rounds):
        port = int(server.start().rpartition(":")[2])
        prepare(port)
        publisher = Publisher(port, sent)
        workers = [Worker(port, name, round_ * 7 + i) for i, name in enumerate((*STREAMS, *STREAMS))]
        for thread in (publisher, *workers):
            thread.start()
        deadline = time.monotonic() + 60
        while {worker.stream for worker in workers if worker.sure} != STREAMS.keys():  # else a round proves nothing
            assert time.monotonic() < deadline, "no ack is answered"
            time.sleep(0.01)
        time.sleep(chance.uniform(0.4, 1.0))
        server.kill()
        for thread in (publisher, *workers):
            thread.join(20)
        sent = publisher.sent
        for name in STREAMS:
            stored[name] |= publisher.stored[name]
        for worker in workers:
            again = sure[worker.stream].intersection(worker.seen)
            assert not again, f"{worker.stream}: {len(again)} came again although their acks were answered"
        for worker in workers:
            seen[worker.stream].update(worker.seen)
            sure[worker.stream] |= worker.sure
    port = int(server.start().rpartition(":")[2])
    for name in STREAMS:
        rest = drain(port, name)
        again = sure[name].intersection(rest)
        assert not again, f"{name}: {len(again)} came again although their acks were answered"
        lost = stored[name] - seen[name] - set(rest)
        assert not lost, f"{name}: {len(lost)} of {len(stored[name])} were never delivered"
    for name in ("W", "I"):
        with Line(port) as line:
            state = line.ask(f"$JS.API.STREAM.INFO.{name}")["state"]
        assert isinstance(state, dict)
        assert state["messages"] == 0, f"{name}: all are acked, and some are still there"
    server.kill()
