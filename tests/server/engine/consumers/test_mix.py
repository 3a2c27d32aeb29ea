"""Fifty consumers of all kinds on one stream, a publisher, and `kill -9`: at the end every promise is counted."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.servers import OurProcess

TOKENS = 5
MAX_DELIVER = 3
MESSAGE = re.compile(rb"MSG m\.(\d) (\d+) (\$JS\.ACK\.\S+) \d+\r\nn-(\d+)\r\n")
ACKED = re.compile(rb"MSG acked\.(\d+)\.(\d+) \d+ 0\r\n\r\n")
STORED = re.compile(rb'MSG stored\.(\d+) 1 \d+\r\n\{"stream":"M","seq":\d+\}\r\n')
EXPIRED = re.compile(rb"HMSG x\.(\d+) \d+ \d+ \d+\r\nNATS/1\.0 4\d\d")
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


@dataclass
class Promise:
    """One consumer, and what was seen of it."""

    number: int
    config: dict[str, Any]
    tokens: frozenset[int]  # subjects that it wants
    reliable: float = 0.9  # of how many messages an ack is sent
    seen: set[int] = field(default_factory=set)
    sure: set[int] = field(default_factory=set)  # acks that were answered
    broken: list[str] = field(default_factory=list)
    credit: int = 0

    @property
    def name(self) -> str:
        return f"c{self.number}"

    @property
    def pulls(self) -> bool:
        return "deliver_subject" not in self.config

    @property
    def acks(self) -> bool:
        return bool(self.config["ack_policy"] != "none")

    def take(self, number: int, times: int, before: set[int]) -> None:
        self.seen.add(number)
        if number in before:
            self.broken.append(f"{number} came again although its ack was answered")
        if self.config.get("max_deliver", times) < times:
            self.broken.append(f"{number} was delivered {times} times")
        if number % TOKENS not in self.tokens:
            self.broken.append(f"{number} is none of its business")


def crowd() -> list[Promise]:
    promises = []
    for i in range(50):
        kind, chosen = i % 10, frozenset((i % TOKENS, (i // 10) % TOKENS) if i % 3 else range(TOKENS))
        config: dict[str, Any] = {"ack_policy": "explicit", "ack_wait": 400_000_000, "max_ack_pending": 500}
        if len(chosen) < TOKENS:
            config["filter_subjects"] = [f"m.{token}" for token in sorted(chosen)]
        reliable = 0.9
        if kind in (3, 4, 5):
            config["deliver_subject"] = f"x.{i}"
        if kind == 5:
            config["deliver_group"] = "g"
        if kind == 6:
            config |= {"ack_policy": "none", "deliver_subject": f"x.{i}", "idle_heartbeat": 10**9, "flow_control": True}
            del config["ack_wait"], config["max_ack_pending"]
        if kind == 7:
            config["ack_policy"] = "all"
            reliable = 0.2
        if kind == 8:
            config |= {"max_deliver": MAX_DELIVER, "backoff": [200_000_000, 300_000_000]}
            reliable = 0.5
        if kind == 9:
            config["inactive_threshold"] = 600 * 10**9
        else:
            config["durable_name"] = f"c{i}"
        promises.append(Promise(i, config, chosen, reliable))
    return promises


class Publisher(threading.Thread):
    """Publishes numbers, each on the subject of its remainder; remembers which were acknowledged."""

    def __init__(self, port: int, start: int) -> None:
        super().__init__()
        self.sent = start
        self.stored: set[int] = set()
        self._port = port

    def run(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=20) as sock:
            sock.sendall(HELLO + b"SUB stored.* 1\r\n")
            start, buffer = self.sent, b""
            while True:
                if self.sent - start - len(self.stored) < 40:
                    numbers = range(self.sent, self.sent + 20)
                    self.sent += 20
                    bodies = [(n, b"n-%d" % n) for n in numbers]
                    sock.sendall(
                        b"".join(
                            b"PUB m.%d stored.%d %d\r\n%b\r\n" % (n % TOKENS, n, len(body), body) for n, body in bodies
                        )
                    )
                    time.sleep(0.02)
                data = sock.recv(1 << 16)
                if not data:
                    return
                buffer += data
                end = 0
                for found in STORED.finditer(buffer):
                    self.stored.add(int(found[1]))
                    end = found.end()
                buffer = buffer[end:]


class Clients(threading.Thread):
    """Serves all consumers over one connection, until it breaks or `until` says so."""

    def __init__(self, port: int, promises: list[Promise], *, seed: int, diligent: bool = False) -> None:
        """`diligent`: every message is acked."""
        super().__init__()
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._promises = promises
        self._chance, self._diligent = random.Random(seed), diligent
        self._before = {promise.number: set(promise.sure) for promise in promises}
        self.left = len(promises)

    def run(self) -> None:
        with contextlib.suppress(OSError), self._sock as sock:
            lines = [HELLO, b"SUB acked.*.* 9999\r\n"]
            for promise in self._promises:
                group = " g" if promise.config.get("deliver_group") else ""
                lines.append(f"SUB x.{promise.number}{group} {promise.number}\r\n".encode())
                promise.credit = 0
            sock.sendall(b"".join(lines))
            buffer = b""
            while True:
                sock.sendall(b"".join(self._pull(promise) for promise in self._promises if promise.pulls))
                data = sock.recv(1 << 18)
                if not data:
                    return
                buffer = self._read(buffer + data)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _pull(self, promise: Promise) -> bytes:
        if promise.credit > 20:
            return b""
        promise.credit += 50
        body = b'{"batch":50,"expires":2000000000}'
        subject = f"$JS.API.CONSUMER.MSG.NEXT.M.{promise.name} x.{promise.number}"
        return f"PUB {subject} {len(body)}\r\n".encode() + body + b"\r\n"

    def _read(self, buffer: bytes) -> bytes:
        end, parts = 0, []
        for found in MESSAGE.finditer(buffer):
            end = max(end, found.end())
            promise = self._promises[int(found[2])]
            number, times = int(found[4]), int(found[3].split(b".")[4])
            promise.take(number, times, self._before[promise.number])
            promise.credit -= 1
            if promise.acks and (self._diligent or self._chance.random() < promise.reliable):
                parts.append(b"PUB %b acked.%d.%d 4\r\n+ACK\r\n" % (found[3], promise.number, number))
        for found in ACKED.finditer(buffer):
            end = max(end, found.end())
            promise = self._promises[int(found[1])]
            if promise.config["ack_policy"] == "explicit":
                promise.sure.add(int(found[2]))
        for found in EXPIRED.finditer(buffer):
            self._promises[int(found[1])].credit = 0
        for found in re.finditer(rb"FlowControl", buffer):
            parts.append(self._flow(buffer, found.start()))
        if parts:
            self._sock.sendall(b"".join(parts))
        return buffer[end:] if end else buffer[-4096:]

    def _flow(self, buffer: bytes, at: int) -> bytes:
        line = buffer[buffer.rindex(b"HMSG", 0, at) : at].split(b" ")
        return b"PUB %b 0\r\n\r\n" % line[3] if line[3].startswith(b"$JS.FC") else b""


def ask(port: int, subject: str, body: Any = b"") -> dict[str, Any]:
    payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(HELLO + f"SUB r 1\r\nPUB {subject} r {len(payload)}\r\n".encode() + payload + b"\r\n")
        seen = b""
        while (found := re.search(rb"MSG r 1 \d+\r\n(.*?)\r\n", seen)) is None:
            data = sock.recv(1 << 16)
            assert data, seen
            seen += data
    answer: dict[str, Any] = msgspec.json.decode(found[1])
    assert "error" not in answer, answer
    return answer


def prepare(port: int, promises: list[Promise]) -> None:
    ask(port, "$JS.API.STREAM.CREATE.M", {"name": "M", "subjects": ["m.*"], "storage": "file"})
    for promise in promises:
        body = {"stream_name": "M", "config": promise.config | {"name": promise.name}}
        ask(port, f"$JS.API.CONSUMER.CREATE.M.{promise.name}", body)


def drain(port: int, promises: list[Promise]) -> None:
    """Until no consumer has anything left."""
    clients = Clients(port, promises, seed=0, diligent=True)
    clients.start()
    deadline = time.monotonic() + 90
    try:
        while time.monotonic() < deadline:
            time.sleep(0.5)
            infos = ask(port, "$JS.API.CONSUMER.LIST.M")["consumers"]
            if not any(info["num_pending"] or info["num_ack_pending"] for info in infos):
                return
    finally:
        clients.stop()
        clients.join(20)
    raise AssertionError("messages are left after 90 s")


@pytest.mark.parametrize("rounds", [pytest.param(2, id="short"), pytest.param(25, id="long", marks=[pytest.mark.soak])])
@pytest.mark.timeout(600)
def test_fifty_consumers_of_all_kinds_keep_their_promises_over_kills(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(rounds)
    server, promises = OurProcess(tmp_path), crowd()
    stored: set[int] = set()
    sent = 0
    for round_ in range(rounds):
        port = int(server.start().rpartition(":")[2])
        prepare(port, promises)
        clients = Clients(port, promises, seed=round_)
        publisher = Publisher(port, sent)
        clients.start()
        publisher.start()
        deadline = time.monotonic() + 60
        before = sum(len(promise.sure) for promise in promises)
        while len(publisher.stored) < 60 or sum(len(promise.sure) for promise in promises) < before + 60:
            assert time.monotonic() < deadline, "too little is published or acknowledged: the round would prove nothing"
            time.sleep(0.01)
        time.sleep(chance.uniform(1.0, 2.0))
        server.kill()
        for thread in (clients, publisher):
            thread.join(30)
        sent = publisher.sent
        stored |= publisher.stored
    port = int(server.start().rpartition(":")[2])
    drain(port, promises)
    server.kill()
    assert len(stored) > 100, "too little was published: the test shows nothing"
    for promise in promises:
        assert not promise.broken, f"{promise.name} {promise.config}: {promise.broken[:5]}"
        if promise.acks:  # without acks, what was on its way when the server was killed is lost
            missing = {n for n in stored if n % TOKENS in promise.tokens} - promise.seen
            assert not missing, f"{promise.name} {promise.config}: {len(missing)} never came: {sorted(missing)[:5]}"
    assert sum(len(promise.sure) for promise in promises) > 100
