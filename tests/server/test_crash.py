"""`kill -9` under load: whatever was acknowledged is there after the restart, with its right content."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
import time
from base64 import b64decode
from pathlib import Path

import pytest

from slipstream.wire import pub
from tests.server.metered import RawClient
from tests.servers import OurProcess

NONE = b"NATS/1.0 404"
CONFIG = b'{"name":"C","subjects":["c.*"],"allow_direct":true,"storage":"file"}'
ACK = re.compile(rb"MSG in\.(\d+)\.(\d+) 1 \d+\r\n\{\"stream\":\"C\",\"seq\":(\d+)\}\r\n")
MESSAGE = re.compile(rb"Nats-Subject: (\S+)\r\nNats-Sequence: (\d+)\r\n.*?\r\n\r\n(payload-\d+-\d+)\r\n", re.DOTALL)


class Publisher(threading.Thread):
    """Publishes with hundreds in flight, remembers what was acknowledged, until the connection breaks."""

    def __init__(self, port: int, number: int, round_: int) -> None:
        super().__init__()
        self.acked: dict[int, tuple[bytes, bytes]] = {}
        self._port, self._number, self._round = port, number, round_

    def run(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=10) as sock:
            sock.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB in.%d.* 1\r\n' % self._number)
            sent = got = 0
            buffer = b""
            while True:
                if sent - got < 500:
                    sock.sendall(b"".join(self._frame(n) for n in range(sent, sent + 250)))
                    sent += 250
                data = sock.recv(1 << 16)
                if not data:
                    return
                buffer += data
                end = 0
                for found in ACK.finditer(buffer):
                    n = int(found[2])
                    self.acked[int(found[3])] = self._message(n)
                    got += 1
                    end = found.end()
                buffer = buffer[end:]

    def _message(self, n: int) -> tuple[bytes, bytes]:
        return b"c.%d" % (n % 7), b"payload-%d-%d" % (self._round * 10 + self._number, n)

    def _frame(self, n: int) -> bytes:
        subject, payload = self._message(n)
        return b"PUB %b in.%d.%d %d\r\n%b\r\n" % (subject, self._number, n, len(payload), payload)


def exchange(port: int, data: bytes, *marks: bytes) -> bytes:
    """Send, and read until one of the marks."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB in 1\r\n' + data)
        seen = b""
        while not any(mark in seen for mark in marks):
            received = sock.recv(1 << 20)
            assert received, seen[-500:]
            seen += received
        return seen


def stored(port: int) -> dict[int, tuple[bytes, bytes]]:
    """Every message of the stream, by Direct Get."""
    found: dict[int, tuple[bytes, bytes]] = {}
    last = 0
    while True:
        body = b'{"seq":%d,"batch":5000}' % (last + 1)
        seen = exchange(
            port, b"PUB $JS.API.DIRECT.GET.C in %d\r\n%b\r\n" % (len(body), body), b"NATS/1.0 204 EOB", NONE
        )
        if NONE in seen:
            return found
        for subject, seq, payload in MESSAGE.findall(seen):
            found[int(seq)] = (subject, payload)
            last = max(last, int(seq))


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_every_acknowledged_message_is_found_after_kill_9(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(20)
    server = OurProcess(tmp_path)
    acked: dict[int, tuple[bytes, bytes]] = {}
    for round_ in range(rounds):
        port = int(server.start().rpartition(":")[2])
        create = b"PUB $JS.API.STREAM.CREATE.C in %d\r\n%b\r\n" % (len(CONFIG), CONFIG)
        assert b'"error"' not in exchange(port, create, b'"type"')
        publishers = [Publisher(port, number, round_) for number in range(2)]
        for publisher in publishers:
            publisher.start()
        deadline = time.monotonic() + 60
        while not all(publisher.acked for publisher in publishers):  # otherwise the round would prove nothing
            assert time.monotonic() < deadline, "nothing is acknowledged"
            time.sleep(0.01)
        time.sleep(chance.uniform(0.2, 0.7))
        server.kill()
        for publisher in publishers:
            publisher.join(20)
            assert not publisher.is_alive()
            acked.update(publisher.acked)
    port = int(server.start().rpartition(":")[2])
    found = stored(port)
    server.kill()
    missing = {seq: message for seq, message in acked.items() if found.get(seq) != message}
    assert not missing, f"{len(missing)} of {len(acked)} acknowledged messages are missing or wrong"
    assert sorted(found) == list(range(1, len(found) + 1)), "sequences have gaps, and no message was deleted"


MANY = 20_000


@pytest.mark.parametrize("what", ["rollup", "limit"])
def test_removal_of_very_many_messages_is_completed_after_kill_9(tmp_path: Path, what: str) -> None:
    server = OurProcess(tmp_path)
    client = RawClient(int(server.start().rpartition(":")[2]))
    config = {"name": "R", "subjects": ["r.>"], "allow_rollup_hdrs": True, "storage": "file"}
    client.api("STREAM.CREATE.R", config)
    client.send(pub("r.other", b"stays"))
    for _ in range(0, MANY, 2000):
        client.send(pub("r.s", b"x") * 2000)
    asked = RawClient(int(server.url.rpartition(":")[2]))
    size = client.api("STREAM.INFO.R")["state"]["bytes"]
    if what == "rollup":
        asked.send(pub("r.s", b"new", f"{asked.inbox}r", b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"))
    else:
        lower = json.dumps({**config, "max_bytes": size // MANY * 10}).encode()
        asked.send(pub("$JS.API.STREAM.UPDATE.R", lower, f"{asked.inbox}r"))
    while client.api("STREAM.INFO.R")["state"]["messages"] > MANY - 1000:
        pass
    left = client.api("STREAM.INFO.R")["state"]["messages"]
    server.kill()
    assert left > 100, "the removal was over before the kill"
    client.close()
    asked.close()
    client = RawClient(int(server.start().rpartition(":")[2]))
    most = 2 if what == "rollup" else 10
    while (state := client.api("STREAM.INFO.R")["state"])["messages"] > most:
        pass
    assert state["last_seq"] == MANY + 1 + (what == "rollup")
    if what == "rollup":
        assert state["messages"] == 2
        for subject, content in (("r.other", "stays"), ("r.s", "new")):
            message = client.api("STREAM.MSG.GET.R", {"last_by_subj": subject})["message"]
            assert b64decode(message["data"]).decode() == content
    client.close()
    server.kill()
